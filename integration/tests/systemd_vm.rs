//! A machine with cgroup v2 alone, in software emulation: boots it with systemd as its first process and runs `scopes` in it, and
//! without and runs `adjustments`. Takes minutes, so it is run by name: `make tiers TESTS=systemd`.
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
    boots(env!("CARGO_BIN_EXE_scopes"), "systemd");
}

#[test]
fn containerd_1_7_does_on_cgroup_v2_what_the_table_of_adjustments_says() {
    boots(env!("CARGO_BIN_EXE_adjustments"), "init");
}

/// Runs a program in the machine.
fn boots(program: &str, init: &str) {
    let machine = match lab::script("vm-build.sh", &[]) {
        Ok(machine) => machine,
        Err(reason) => return println!("skipped: no test machine here: {reason}"),
    };
    let share = tempfile::tempdir().unwrap();
    let services = Mesh::binaries().unwrap();
    let programs = NODE_SERVICES.iter().chain(&["oxctl"]).map(|name| services.join(name));
    for program in programs.chain([program.into()]) {
        // Without what a debugger wants they are a tenth as large, and the machine reads them over a slow road.
        let stripped = share.path().join(program.file_name().unwrap());
        let strip = Command::new("strip").arg("-o").arg(&stripped).arg(&program).status().unwrap();
        assert!(strip.success(), "strip {}", program.display());
    }
    let name = std::path::Path::new(program).file_name().unwrap().to_str().unwrap();

    let output = Command::new(lab::path("vm-run.sh"))
        .arg(machine)
        .arg(share.path())
        .args([LIMIT, "env", "OXALYST_BIN_DIR=/share", &format!("/share/{name}")])
        .env("VM_INIT", init)
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}:\n{said}\n{errors}", output.status);
    assert!(said.contains("all holds"), "{said}");
}
