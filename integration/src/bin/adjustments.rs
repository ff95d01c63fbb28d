//! The published table of adjustments against containerd 1.7 on cgroup v2, for the machine of `lab/vm-run.sh`. Ends with a panic
//! where they disagree.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

use std::path::Path;

use integration::adjustments::{disagreements, measure};
use integration::containerd::Containerd;
use integration::runtime::Runtime;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    assert!(Path::new("/sys/fs/cgroup/cgroup.controllers").exists(), "cgroup v2");
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let mut runtime = Containerd::start(Path::new("/usr/bin"), folder.path()).await.unwrap();
    println!("{}", runtime.describe());
    let found = measure(&mut runtime, |row| println!("{row:?}")).await.unwrap();
    let all = disagreements(&found, "containerd", true);
    runtime.remove().await.unwrap();
    assert!(all.is_empty(), "{}", all.join("\n"));
    println!("all holds");
}
