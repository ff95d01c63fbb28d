//! The private runtimes by themselves: they run pods, survive a restart, and leave nothing behind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use std::collections::BTreeSet;
use std::path::Path;

use integration::containerd::Containerd;
use integration::crio::Crio;
use integration::process::with_argument_below;
use integration::runtime::{ContainerSpec, PodSpec, Runtime, State, Workload};
use tokio::sync::Mutex;

/// One at a time: each looks at what the machine has besides.
static ONE: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn a_private_containerd_runs_pods_and_leaves_nothing_behind() {
    let _one = ONE.lock().await;
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let before = outside();
    let mut lab = match Containerd::try_start(folder.path()).await {
        Ok(lab) => lab,
        Err(reason) => return println!("skipped: no containerd here: {reason}"),
    };
    let pid = lab.pid();

    runs_pods(&mut lab).await;

    assert_ne!(lab.pid(), pid);
    lab.remove().await.unwrap();
    left_nothing(folder.path(), &before);
}

#[tokio::test]
async fn a_private_crio_runs_pods_and_leaves_nothing_behind() {
    let _one = ONE.lock().await;
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let before = outside();
    let mut lab = match Crio::try_start(folder.path()).await {
        Ok(lab) => lab,
        Err(reason) => return println!("skipped: no CRI-O here: {reason}"),
    };
    let pid = lab.pid();

    runs_pods(&mut lab).await;

    assert_ne!(lab.pid(), pid);
    lab.remove().await.unwrap();
    left_nothing(folder.path(), &before);
}

async fn runs_pods(lab: &mut impl Runtime) {
    println!("runs {}", lab.describe());
    let pod = PodSpec::new("plain", "shared_cores", 500);
    let sandbox = lab.run_pod(&pod).await.unwrap();
    let container = lab.create_container(&sandbox, &ContainerSpec::new("main", 500)).await.unwrap();
    assert_eq!(lab.state(&container).await.unwrap(), State::Created);
    lab.start_container(&container).await.unwrap();
    assert_eq!(lab.cpus_allowed(&container).await.unwrap(), lab.online_cpus());
    assert_eq!(lab.first_cpus(&container).await.unwrap(), lab.online_cpus());

    lab.restart().await.unwrap();
    assert_eq!(lab.state(&container).await.unwrap(), State::Running);

    let ends = ContainerSpec::new("ends", 100).running(Workload::Exit(3));
    let ends = lab.create_container(&sandbox, &ends).await.unwrap();
    lab.start_container(&ends).await.unwrap();
    let exited = integration::runtime::poll_until(std::time::Duration::from_secs(20), async || {
        let state = lab.state(&ends).await.unwrap();
        if state == State::Running { Err(state) } else { Ok(state) }
    });
    assert_eq!(exited.await, Ok(State::Exited(3)));
}

/// Neither a process that has a path of `folder` among its arguments, nor a mount, nor a folder anywhere else.
fn left_nothing(folder: &Path, before: &BTreeSet<String>) {
    assert_eq!(with_argument_below("", folder), Vec::<u32>::new());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(folder.to_str().unwrap()), "{mounts}");
    assert_eq!(outside().difference(before).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Paths outside of the lab's folder that a runtime touches.
fn outside() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let roots = [
        "/run/containerd",
        "/run/netns",
        "/opt/containerd",
        "/etc/cni",
        "/var/lib/containerd",
        "/var/run/nri",
        "/var/lib/containers",
        "/run/crio",
        "/run/containers",
    ];
    for root in roots {
        walk(Path::new(root), &mut found);
    }
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        walk(&hierarchy.path().join("kubepods"), &mut found);
    }
    walk(Path::new("/sys/fs/cgroup/kubepods"), &mut found);
    found
}

fn walk(path: &Path, found: &mut BTreeSet<String>) {
    if !path.is_dir() {
        return;
    }
    found.insert(path.display().to_string());
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            walk(&entry.path(), found);
        }
    }
}
