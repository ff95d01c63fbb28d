//! What a service says when it cannot start: one clear line on standard error, and exit code 2.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration::mesh::Mesh;
use integration::process::Process;
use integration::runtime::poll_until;
use oxalyst_mesh::{NODE_SERVICES, connect};
use oxalyst_proto::mesh::v1::GetStatusRequest;
use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;

/// Runs `command` to its end: its exit code must be 2, and one line of its errors its own.
async fn refuses(service: &str, mut command: Command, folder: &Path, names: &[&str]) {
    let log = folder.join("refused.log");
    let _ = std::fs::remove_file(&log);
    command.env_remove("RUST_BACKTRACE");
    let mut process = Process::spawn(command, &log).unwrap();
    let status = process.wait(Duration::from_secs(30)).await.unwrap();
    let output = process.output();
    assert_eq!(status.code(), Some(2), "{service}: {status}; {output}");
    let prefix = format!("{service}: ");
    let own: Vec<&str> = output.lines().filter(|line| line.starts_with(&prefix)).collect();
    assert_eq!(own.len(), 1, "one line that is its own: {output}");
    assert!(!output.contains("panicked"), "{output}");
    for name in names {
        assert!(own[0].contains(name), "names {name}: {}", own[0]);
    }
}

/// `service` in `folder`; nothing of the real machine is needed to fail.
fn command(service: &str, folder: &Path) -> Command {
    let mut command = Command::new(Mesh::binaries().unwrap().join(service));
    command.arg("--set").arg(format!("common.run_dir={}", folder.join("run").display()));
    if service == "orm" {
        command.arg("--set").arg(format!("ledger_dir={}", folder.join("ledger").display()));
    }
    command
}

async fn answers(service: &str, run_dir: &Path) {
    let mut client = IntrospectionClient::new(connect(run_dir, service));
    let limit = Duration::from_secs(30);
    poll_until(limit, async || client.get_status(GetStatusRequest {}).await).await.unwrap();
}

#[tokio::test]
async fn a_settings_file_that_is_no_yaml() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("broken.yaml");
    std::fs::write(&file, "common: [never closed\n").unwrap();
    for service in NODE_SERVICES {
        let mut command = command(service, dir.path());
        command.arg("--config").arg(&file);
        refuses(service, command, dir.path(), &["broken.yaml"]).await;
    }
}

#[tokio::test]
async fn a_settings_file_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    for service in NODE_SERVICES {
        let mut command = command(service, dir.path());
        command.arg("--config").arg(dir.path().join("absent.yaml"));
        refuses(service, command, dir.path(), &["absent.yaml"]).await;
    }
}

#[tokio::test]
async fn a_key_that_nobody_knows() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("settings.yaml");
    std::fs::write(&file, "commom:\n  log: debug\n").unwrap();
    for service in NODE_SERVICES {
        let mut command = command(service, dir.path());
        command.arg("--config").arg(&file);
        refuses(service, command, dir.path(), &["commom"]).await;
    }
}

#[tokio::test]
async fn a_log_level_that_is_none() {
    let dir = tempfile::tempdir().unwrap();
    for service in NODE_SERVICES {
        let mut command = command(service, dir.path());
        command.arg("--set").arg("common.log=blah");
        refuses(service, command, dir.path(), &["common.log", "blah", "info"]).await;
    }
}

#[tokio::test]
async fn a_socket_that_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    // A gateway is handed over instead: it is the one that must not be missed while it is updated.
    for service in NODE_SERVICES.into_iter().filter(|service| *service != "nri-gateway") {
        let _first = Process::spawn(command(service, dir.path()), &dir.path().join("first.log")).unwrap();
        answers(service, &dir.path().join("run")).await;
        let socket = format!("{service}.sock");
        refuses(service, command(service, dir.path()), dir.path(), &[&socket, "already in use"]).await;
    }
}

#[tokio::test]
async fn a_sysfs_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("empty");
    std::fs::create_dir(&root).unwrap();
    let mut command = command("orm", dir.path());
    command.arg("--set").arg(format!("common.host_root={}", root.display()));
    refuses("orm", command, dir.path(), &["sys/devices/system"]).await;
}

#[tokio::test]
async fn a_ledger_that_another_process_holds() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Process::spawn(command("orm", dir.path()), &dir.path().join("first.log")).unwrap();
    answers("orm", &dir.path().join("run")).await;
    let mut command = command("orm", dir.path());
    command.arg("--set").arg(format!("common.run_dir={}", dir.path().join("other").display()));
    refuses("orm", command, dir.path(), &["ledger", "locked by process"]).await;
}
