//! A machine with systemd as its first process and cgroup v2 alone, in software emulation: boots it, and runs `scopes` in it. Takes
//! minutes, so it is run by name: `make tiers TESTS=systemd`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use std::process::{Command, Stdio};

use integration::lab;
use integration::mesh::Mesh;
use oxalyst_mesh::NODE_SERVICES;

/// Seconds, on a machine that is busy compiling; a quiet one needs a fifth.
const LIMIT: &str = "460";

#[test]
fn systemd_keeps_what_it_is_told() {
    let machine = match lab::script("vm-build.sh", &[]) {
        Ok(machine) => machine,
        Err(reason) => return println!("skipped: no machine with systemd here: {reason}"),
    };
    let share = tempfile::tempdir().unwrap();
    let services = Mesh::binaries().unwrap();
    let programs = NODE_SERVICES.iter().chain(&["oxctl"]).map(|name| services.join(name));
    for program in programs.chain([env!("CARGO_BIN_EXE_scopes").into()]) {
        // Without what a debugger wants they are a tenth as large, and the machine reads them over a slow road.
        let stripped = share.path().join(program.file_name().unwrap());
        let strip = Command::new("strip").arg("-o").arg(&stripped).arg(&program).status().unwrap();
        assert!(strip.success(), "strip {}", program.display());
    }

    let output = Command::new(lab::path("vm-run.sh"))
        .arg(machine)
        .arg(share.path())
        .args([LIMIT, "env", "OXALYST_BIN_DIR=/share", "/share/scopes"])
        .env("VM_INIT", "systemd")
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}:\n{said}\n{errors}", output.status);
    assert!(said.contains("all holds"), "{said}");
}
