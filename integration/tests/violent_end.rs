//! A demo that loses its terminal or is killed leaves no process and no folder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::process::{Process, send, with_argument_below};
use integration::runtime::poll_until;
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(60);

/// A demo with all its services, on the imitated runtime, with its folder. `temp` is where it makes that.
async fn demo(temp: &Path) -> (Process, PathBuf) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    command.env("TMPDIR", temp).env("OXALYST_CONTAINERD_DIR", "/nonexistent").env_remove("DEMO_SECONDS");
    let demo = Process::spawn(command, &temp.join("demo.log")).unwrap();
    let shown = async || match demo.output() {
        output if output.contains("Ctrl-C ends it") => Ok(()),
        output => Err(output),
    };
    poll_until(LIMIT, shown).await.unwrap();
    let folders = std::fs::read_dir(temp).unwrap().flatten().map(|entry| entry.path());
    let folder = folders.into_iter().find(|path| path.is_dir()).unwrap();
    assert_eq!(with_argument_below("common.run_dir=", &folder).len(), 5, "five services run");
    (demo, folder)
}

async fn nothing_is_left(folder: &Path) {
    let gone = async || match (with_argument_below("common.run_dir=", folder), folder.exists()) {
        (pids, false) if pids.is_empty() => Ok(()),
        left => Err(left),
    };
    poll_until(LIMIT, gone).await.unwrap();
}

#[tokio::test]
async fn the_end_of_the_terminal_is_a_regular_end() {
    let temp = tempfile::tempdir().unwrap();
    let (mut demo, folder) = demo(temp.path()).await;
    send(demo.pid(), Signal::HUP);
    let status = demo.wait(LIMIT).await.unwrap();
    assert!(status.success() && demo.output().contains("are gone"), "{status}: {}", demo.output());
    nothing_is_left(&folder).await;
}

#[tokio::test]
async fn what_a_killed_demo_leaves_is_cleared() {
    let temp = tempfile::tempdir().unwrap();
    let (mut demo, folder) = demo(temp.path()).await;
    demo.kill().await.unwrap();
    nothing_is_left(&folder).await;
}
