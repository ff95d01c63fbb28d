//! The published table of adjustments against real runtimes on this machine's cgroups, row by row: what it says is told has an
//! effect, and what it says is dropped has none.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use integration::adjustments::{disagreements, measure};
use integration::containerd::Containerd;
use integration::crio::Crio;
use integration::lab;
use integration::runtime::Runtime;
use tokio::sync::Mutex;

/// One at a time: each removes the cgroup folders that it made, which the next would still be using.
static ONE: Mutex<()> = Mutex::const_new(());

async fn on_containerd(line: &str) {
    let _one = ONE.lock().await;
    let binaries = match lab::script("containerd.sh", &[line]) {
        Ok(binaries) => binaries,
        Err(reason) => return println!("skipped: no containerd {line} here: {reason}"),
    };
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let mut runtime = match Containerd::start(&binaries, folder.path()).await {
        Ok(runtime) => runtime,
        Err(reason) => return println!("skipped: no containerd {line} here: {reason}"),
    };
    agrees(&mut runtime, "containerd", line == "1.7").await;
    runtime.remove().await.unwrap();
}

async fn agrees(runtime: &mut impl Runtime, column: &str, oldest: bool) {
    let name = runtime.describe();
    let found = measure(runtime, |row| println!("{name}: {row:?}")).await.unwrap();
    assert!(found.iter().any(|row| row.name == "CpusetCpus"), "something was tried");
    let all = disagreements(&found, column, oldest);
    assert!(all.is_empty(), "{}:\n{}", runtime.describe(), all.join("\n"));
}

#[tokio::test]
async fn containerd_2_does_what_the_table_says() {
    on_containerd("2.1").await;
}

#[tokio::test]
async fn containerd_1_7_does_what_the_table_says() {
    on_containerd("1.7").await;
}

#[tokio::test]
async fn crio_does_what_the_table_says() {
    let _one = ONE.lock().await;
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let mut runtime = match Crio::try_start(folder.path()).await {
        Ok(runtime) => runtime,
        Err(reason) => return println!("skipped: no CRI-O here: {reason}"),
    };
    agrees(&mut runtime, "CRI-O", true).await;
    runtime.remove().await.unwrap();
}
