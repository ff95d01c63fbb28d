//! The test machine of the lab: 2 sockets, 4 NUMA nodes and cgroup v2 alone, in software emulation.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oxalyst_mesh::NODE_SERVICES;

use crate::lab;
use crate::mesh::Mesh;

/// Seconds, on a machine that is busy compiling; a quiet one needs a fifth.
const LIMIT: &str = "460";

/// What is the machine's first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// Busybox: nothing else runs.
    Plain,
    /// systemd.
    Systemd,
}

/// Boots it and runs `program` there, beside the mesh's binaries; it has to end well and to say "all holds". Says why it is skipped
/// where there can be no such machine.
pub fn boots(program: &str, init: Init) {
    boots_with(program, init, &[]);
}

/// As [`boots`], with `others` beside the program.
pub fn boots_with(program: &str, init: Init, others: &[PathBuf]) {
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
    for other in others {
        std::fs::copy(other, share.path().join(other.file_name().unwrap())).unwrap();
    }
    let name = Path::new(program).file_name().unwrap().to_str().unwrap();
    let output = Command::new(lab::path("vm-run.sh"))
        .arg(machine)
        .arg(share.path())
        .args([LIMIT, "env", "OXALYST_BIN_DIR=/share", &format!("/share/{name}")])
        .env("VM_INIT", if init == Init::Systemd { "systemd" } else { "init" })
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}:\n{said}\n{errors}", output.status);
    assert!(said.contains("all holds"), "{said}");
}
