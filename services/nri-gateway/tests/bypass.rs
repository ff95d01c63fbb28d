//! The gateway where no runtime speaks NRI, on imitated trees and on the kernel of this machine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use nri_gateway::settings::Mode;
use oxalyst_cgroups::fixture::Layout;
use oxalyst_cgroups::{CgroupPath, Controller, read_text, write_text};
use oxalyst_nri::runtime::{RuntimeOptions, RuntimeSession};
use support::bypass::{Plain, listed};
use support::node::{Node, container, pod, running};
use support::until;
use tokio::net::UnixListener;

const UID: &str = "6a1f6e0c-1111-2222-3333-444455556666";

/// Where a pod's container lies, by driver, runtime and nesting.
fn places(uid: &str, id: &str) -> Vec<String> {
    let slice = uid.replace('-', "_");
    vec![
        format!("kubepods/burstable/pod{uid}/{id}"),
        format!("kubepods/besteffort/pod{uid}/crio-{id}"),
        format!("kubepods/pod{uid}/kata_{id}"),
        format!("kubelet/kubepods/burstable/pod{uid}/{id}"),
        format!("kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-{id}.scope"),
        format!(
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/crio-{id}.scope"
        ),
        format!(
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
             kubelet-kubepods-burstable-pod{slice}.slice/cri-containerd-{id}.scope"
        ),
    ]
}

#[actix::test]
async fn c08_c10_c13_pods_are_pinned_in_every_tree_by_every_driver_and_runtime() {
    let other = UID.replace('6', "7");
    for (layout, hybrid) in [(Layout::V1, false), (Layout::V2, false), (Layout::V1, true)] {
        for (shared, dedicated) in places(UID, "c1").into_iter().zip(places(&other, "c2")) {
            let mut node = Plain::new(Mode::Bypass);
            node.tree(layout, &[&shared, &dedicated]);
            if hybrid {
                let unified = node.host_root().join("sys/fs/cgroup/unified");
                fs::create_dir_all(&unified).unwrap();
                fs::write(unified.join("cgroup.controllers"), "\n").unwrap();
            }
            node.meta.set(vec![listed(UID, "shared_cores", "c1"), listed(&other, "dedicated_cores", "c2")]);
            node.start();
            node.runs_on(&dedicated, "3").await;
            node.runs_on(&shared, "0-2").await;
            let settled =
                async || node.applied("c2").await.filter(|c2| c2.kernel_cpus.as_deref() == Some("3"));
            let applied = until("the kernel is read back", settled).await;
            assert_eq!(applied.kernel_mems.as_deref(), Some("0"), "{layout:?} {dedicated}");
            assert_eq!(
                (applied.pod.as_str(), applied.name.as_str()),
                (format!("pod-{other}").as_str(), "main")
            );
            node.stop_first().await;
        }
    }
}

/// Waits for so many more comparisons of everything.
async fn rounds(node: &Plain, more: usize) {
    let count = || node.orm.log().iter().filter(|call| call.starts_with("reconcile")).count();
    let before = count();
    until("more comparisons of everything", async || (count() >= before + more).then_some(())).await;
}

#[actix::test]
async fn a_pod_that_the_orm_knows_is_its_own_while_nobody_else_tells_of_it() {
    let mut node = Plain::new(Mode::Bypass);
    node.tree(Layout::V2, &["kubepods/podd/d1"]);
    node.meta.set(vec![listed("d", "dedicated_cores", "d1")]);
    node.start();
    node.runs_on("kubepods/podd/d1", "3").await;
    // The meta-server begins anew and knows nothing yet, and so does the gateway.
    node.stop_first().await;
    node.meta.set(vec![]);
    node.start_gateway();
    rounds(&node, 3).await;
    assert_eq!(node.orm.cpus("d").as_deref(), Some("3"));
    let log = node.orm.log();
    assert!(log.last().unwrap().contains("cgroup-d"), "it is told as running: {log:?}");
    assert!(!log.iter().any(|call| call.starts_with("release")), "{log:?}");
}

#[actix::test]
async fn nothing_is_written_that_is_so_already() {
    let mut node = Plain::new(Mode::Bypass);
    let fixture = node.tree(Layout::V1, &["kubepods/poda/a1"]);
    node.meta.set(vec![listed("a", "dedicated_cores", "a1")]);
    node.start();
    node.runs_on("kubepods/poda/a1", "3").await;
    until("seen to hold", async || {
        node.applied("a1").await.filter(|a| a.kernel_cpus.as_deref() == Some("3"))
    })
    .await;
    let file =
        fixture.dir(Controller::Cpuset, &CgroupPath::new("kubepods/poda/a1").unwrap()).join("cpuset.cpus");
    let before = fs::metadata(&file).unwrap().modified().unwrap();
    rounds(&node, 3).await;
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), before);
    assert_eq!(node.orm.log().iter().filter(|call| call.starts_with("admit")).count(), 1);
}

#[actix::test]
async fn k7_a_container_nobody_told_of_follows_the_share_pool_and_is_marked_until_its_pod_is_told() {
    let mut node = Plain::new(Mode::Bypass);
    node.tree(Layout::V2, &["kubepods/podd/d1", "kubepods/podx/x1"]);
    node.meta.set(vec![listed("d", "dedicated_cores", "d1")]);
    node.start();
    node.runs_on("kubepods/podx/x1", "0-2").await;
    assert_eq!(node.applied("x1").await.unwrap().marks, ["answered-by-policy"]);
    let told = until("the meta-server hears of it", async || {
        node.meta.told().filter(|told| told.sandboxes.iter().any(|s| s.pod_uid == "x"))
    })
    .await;
    assert!(
        told.containers.iter().all(|c| !c.name.is_empty()),
        "a nameless one would stand beside the named"
    );
    // However long that takes: taken in as it is, it would be nobody's, and dedicated to nothing.
    rounds(&node, 3).await;
    assert_eq!(node.orm.cpus("x"), None);
    node.meta.set(vec![listed("d", "dedicated_cores", "d1"), listed("x", "dedicated_cores", "x1")]);
    node.runs_on("kubepods/podx/x1", "2").await;
    until("the mark goes", async || node.applied("x1").await.filter(|x| x.marks.is_empty())).await;
}

#[actix::test]
async fn what_ends_is_released_and_its_cpus_go_back() {
    let mut node = Plain::new(Mode::Bypass);
    let fixture = node.tree(Layout::V1, &["kubepods/poda/a1", "kubepods/podd/d1"]);
    node.meta.set(vec![listed("a", "shared_cores", "a1"), listed("d", "dedicated_cores", "d1")]);
    node.start();
    node.runs_on("kubepods/poda/a1", "0-2").await;
    // A crash loop: the container is gone, its pod is not.
    fixture.remove(&CgroupPath::new("kubepods/podd/d1").unwrap()).unwrap();
    until("the container is gone", async || node.list().await.filter(|l| l.containers.len() == 1)).await;
    assert_eq!(node.orm.cpus("d").as_deref(), Some("3"));
    fixture.remove(&CgroupPath::new("kubepods/podd").unwrap()).unwrap();
    node.runs_on("kubepods/poda/a1", "0-3").await;
    assert!(node.orm.log().contains(&"release d cgroup-d".to_owned()), "{:?}", node.orm.log());
}

#[actix::test]
async fn c01_a_pod_that_is_too_narrow_is_widened_before_its_container() {
    let mut node = Plain::new(Mode::Bypass);
    let fixture = node.tree(Layout::V1, &["kubepods/podd/d1"]);
    for path in ["kubepods/podd/d1", "kubepods/podd"] {
        fixture.set(Controller::Cpuset, &CgroupPath::new(path).unwrap(), "cpuset.cpus", "0\n").unwrap();
    }
    node.meta.set(vec![listed("d", "dedicated_cores", "d1")]);
    node.start();
    node.runs_on("kubepods/podd/d1", "3").await;
    let pod = node.reads("kubepods/podd", "cpuset.cpus");
    assert!(["0,3", "0-3"].contains(&pod.as_str()), "widened, and never narrowed: {pod}");
}

#[actix::test]
async fn c07_a_controller_that_goes_is_told_with_the_exact_text_and_the_others_go_on() {
    let mut node = Plain::new(Mode::Bypass);
    let fixture = node.tree(Layout::V2, &["kubepods/poda/a1", "kubepods/podb/b1", "kubepods/podd/d1"]);
    let gone = fixture.dir(Controller::Cpuset, &CgroupPath::new("kubepods/poda/a1").unwrap());
    fs::remove_file(gone.join("cpuset.cpus")).unwrap();
    let dedicated = listed("d", "dedicated_cores", "d1");
    node.meta.set(vec![listed("a", "shared_cores", "a1"), listed("b", "shared_cores", "b1"), dedicated]);
    node.start();
    node.runs_on("kubepods/podb/b1", "0-2").await;
    node.lacks("bypass", "controller cpuset is not available under").await;
    node.lacks("bypass", "enable it in cgroup.subtree_control").await;
    fs::write(gone.join("cpuset.cpus"), "\n").unwrap();
    node.runs_on("kubepods/poda/a1", "0-2").await;
    until("it is whole again", async || node.status().await.filter(|s| s.ready)).await;
}

#[actix::test]
async fn c11_without_a_tree_and_without_peers_it_starts_and_names_what_is_missing() {
    let mut node = Plain::new(Mode::Bypass);
    node.start_gateway();
    node.lacks("bypass", "sys/fs/cgroup").await;
    node.lacks("orm-stream", "is the orm running").await;
    node.tree(Layout::V2, &["kubepods/poda/a1"]);
    node.lacks("bypass", "the meta-server has told no pods").await;
    assert_eq!(node.list().await.unwrap().mode, "bypass");
}

#[actix::test]
async fn k8_everything_else_that_is_decided_is_written_too_and_what_cannot_be_is_told() {
    for layout in [Layout::V1, Layout::V2] {
        let mut node = Plain::new(Mode::Bypass);
        node.settings.idle_reclaimed = true;
        let fixture = node.tree(layout, &["kubepods/podr/r1"]);
        let path = CgroupPath::new("kubepods/podr/r1").unwrap();
        fixture.set(Controller::Cpu, &path, "cpu.idle", "0\n").unwrap();
        node.orm.properties(&[("CpuQuota", "500"), ("PidsLimit", "99"), ("Env/A", "b")]);
        node.meta.set(vec![listed("r", "reclaimed_cores", "r1")]);
        node.start();
        let says = |controller, file: &str| read_text(&fixture.dir(controller, &path).join(file)).unwrap();
        until("idle", async || (says(Controller::Cpu, "cpu.idle") == "1").then_some(())).await;
        until("pids", async || (says(Controller::Pids, "pids.max") == "99").then_some(())).await;
        match layout {
            Layout::V1 => assert_eq!(says(Controller::Cpu, "cpu.cfs_quota_us"), "1000", "c03"),
            Layout::V2 => assert_eq!(says(Controller::Cpu, "cpu.max"), "1000 100000", "c03"),
        }
        until("marked", async || {
            node.applied("r1").await.filter(|r| r.marks.contains(&"not-adjusted".to_owned()))
        })
        .await;
    }
}

#[actix::test]
async fn a12_somebody_who_keeps_changing_a_container_is_named_and_it_is_mended_all_the_same() {
    let mut node = Plain::new(Mode::Bypass);
    node.settings.drift_limit = 2;
    let fixture = node.tree(Layout::V1, &["kubepods/podd/d1"]);
    let path = CgroupPath::new("kubepods/podd/d1").unwrap();
    node.meta.set(vec![listed("d", "dedicated_cores", "d1")]);
    node.start();
    for _ in 0..4 {
        node.runs_on("kubepods/podd/d1", "3").await;
        until("seen", async || node.applied("d1").await.filter(|d| d.kernel_cpus.as_deref() == Some("3")))
            .await;
        fixture.set(Controller::Cpuset, &path, "cpuset.cpus", "0\n").unwrap();
    }
    until("contended", async || {
        node.applied("d1").await.filter(|d| d.marks.contains(&"contended".to_owned()))
    })
    .await;
    node.runs_on("kubepods/podd/d1", "3").await;
    until("it is over", async || node.applied("d1").await.filter(|d| d.marks.is_empty())).await;
}

/// Takes the gateway in as a runtime does.
async fn session(listener: &UnixListener, node: &Node, uid: &str, id: &str) -> RuntimeSession {
    let (socket, _) = listener.accept().await.unwrap();
    let mut session = RuntimeSession::start(socket, node.cgroups.clone(), RuntimeOptions::default());
    session.registered().await.unwrap();
    session.configure("containerd", "v2.4.0").await.unwrap();
    let running = oxalyst_nri::api::Container {
        state: oxalyst_nri::api::ContainerState::ContainerRunning.into(),
        ..container(uid, id)
    };
    session.synchronize(vec![pod(uid, "dedicated_cores")], vec![running]).await.unwrap();
    session
}

#[actix::test]
async fn k6_without_a_runtime_it_goes_past_it_visibly_and_comes_back_by_itself() {
    let mut node = Plain::new(Mode::Auto);
    let fixture = node.tree(Layout::V1, &["kubepods/podd/d1"]);
    let path = CgroupPath::new("kubepods/podd/d1").unwrap();
    node.meta.set(vec![listed("d", "dedicated_cores", "d1")]);
    node.start();
    node.runs_on("kubepods/podd/d1", "3").await;
    node.mode("bypass").await;
    node.lacks("nri-session", "bypass mode is at work").await;
    assert_eq!(node.list().await.unwrap().mode, "bypass");

    // The socket appears.
    let runtime = Node::bare();
    let listener = UnixListener::bind(&node.settings.nri_socket).unwrap();
    let first = session(&listener, &runtime, "d", "d1").await;
    node.mode("nri").await;
    until("ready", async || node.status().await.filter(|s| s.ready)).await;
    assert_eq!(node.orm.cpus("d").as_deref(), Some("3"), "the pod keeps what it has");
    // Whoever is to mend now is the session, through the runtime.
    fixture.set(Controller::Cpuset, &path, "cpuset.cpus", "0\n").unwrap();
    until("the runtime is told", async || {
        runtime.cgroups.calls().iter().any(|ids| ids.contains(&"d1".to_owned())).then_some(())
    })
    .await;

    // And it goes again.
    drop(first);
    drop(listener);
    fs::remove_file(&node.settings.nri_socket).unwrap();
    node.mode("bypass").await;
    let told = runtime.cgroups.calls().len();
    fixture.set(Controller::Cpuset, &path, "cpuset.cpus", "0\n").unwrap();
    node.runs_on("kubepods/podd/d1", "3").await;
    assert_eq!(runtime.cgroups.calls().len(), told);
}

/// A runtime that hangs takes connections all the same, for the kernel does.
#[actix::test]
async fn a_runtime_that_hangs_is_gone_past_within_one_attempt() {
    let mut node = Plain::new(Mode::Auto);
    let fixture = node.tree(Layout::V1, &["kubepods/podd/d1"]);
    let path = CgroupPath::new("kubepods/podd/d1").unwrap();
    node.meta.set(vec![listed("d", "dedicated_cores", "d1")]);
    let listener = UnixListener::bind(&node.settings.nri_socket).unwrap();
    node.start();
    let (socket, _) = listener.accept().await.unwrap();
    node.runs_on("kubepods/podd/d1", "3").await;
    node.mode("bypass").await;
    fixture.set(Controller::Cpuset, &path, "cpuset.cpus", "0\n").unwrap();
    node.runs_on("kubepods/podd/d1", "3").await;
    let again = tokio::time::timeout(std::time::Duration::ZERO, listener.accept()).await;
    assert!(again.is_err(), "the first attempt had failed by then");
    drop(socket);
}

#[actix::test]
async fn a_runtime_that_takes_the_gateway_in_and_hangs_is_gone_past_until_it_goes_on() {
    let mut node = Plain::new(Mode::Auto);
    let fixture = node.tree(Layout::V1, &["kubepods/podd/d1"]);
    let path = CgroupPath::new("kubepods/podd/d1").unwrap();
    node.meta.set(vec![listed("d", "dedicated_cores", "d1")]);
    let runtime = Node::bare();
    let listener = UnixListener::bind(&node.settings.nri_socket).unwrap();
    node.start();
    let (socket, _) = listener.accept().await.unwrap();
    let mut session = RuntimeSession::start(socket, runtime.cgroups.clone(), RuntimeOptions::default());
    session.registered().await.unwrap();
    node.runs_on("kubepods/podd/d1", "3").await;
    node.mode("bypass").await;
    fixture.set(Controller::Cpuset, &path, "cpuset.cpus", "0\n").unwrap();
    node.runs_on("kubepods/podd/d1", "3").await;

    session.configure("containerd", "v2.4.0").await.unwrap();
    session.synchronize(vec![pod("d", "dedicated_cores")], vec![running("d", "d1")]).await.unwrap();
    node.mode("nri").await;
    // Whoever is to mend now is the session alone.
    fixture.set(Controller::Cpuset, &path, "cpuset.cpus", "0\n").unwrap();
    until("the runtime is told", async || (!runtime.cgroups.calls().is_empty()).then_some(())).await;
}

#[actix::test]
async fn a_pod_that_lies_where_no_kubelet_puts_it_keeps_its_cpus_while_the_runtime_is_away() {
    let mut node = Plain::new(Mode::Auto);
    node.tree(Layout::V1, &["kubepods/poda/a1"]);
    node.meta.set(vec![listed("a", "shared_cores", "a1")]);
    let runtime = Node::bare();
    let listener = UnixListener::bind(&node.settings.nri_socket).unwrap();
    node.start();
    let first = session(&listener, &runtime, "d", "d1").await;
    node.mode("nri").await;
    until("the pod is taken in", async || node.orm.cpus("d")).await;
    drop(first);
    drop(listener);
    fs::remove_file(&node.settings.nri_socket).unwrap();
    node.mode("bypass").await;
    node.runs_on("kubepods/poda/a1", "0-2").await;
    let rounds = node.orm.log().len();
    until("some more rounds", async || (node.orm.log().len() > rounds + 3).then_some(())).await;
    assert_eq!(node.orm.cpus("d").as_deref(), Some("3"));
    assert!(!node.orm.log().iter().any(|call| call.starts_with("release d")), "{:?}", node.orm.log());
}

#[actix::test]
async fn in_mode_nri_nothing_is_written_past_the_runtime() {
    let mut node = Plain::new(Mode::Nri);
    node.tree(Layout::V1, &["kubepods/podd/d1"]);
    node.meta.set(vec![listed("d", "dedicated_cores", "d1")]);
    node.start();
    node.lacks("nri-session", "cannot connect").await;
    assert_eq!(node.list().await.unwrap().mode, "none");
    assert_eq!(node.reads("kubepods/podd/d1", "cpuset.cpus"), "0-3");
    assert!(node.status().await.unwrap().pending.iter().all(|p| p.name != "bypass"));
}

/// Cgroups of the machine's own kernel below one of our own, and a process in them; gone when this is dropped.
struct Own {
    dirs: Vec<PathBuf>,
    children: Vec<Child>,
}

impl Own {
    /// A tree below `host_root` whose roots are cgroups of our own; `None` where this machine lets nobody make them.
    fn create(host_root: &Path) -> Option<Self> {
        let mut own = Self { dirs: Vec::new(), children: Vec::new() };
        fs::create_dir_all(host_root.join("sys/fs/cgroup")).unwrap();
        std::os::unix::fs::symlink("/proc", host_root.join("proc")).unwrap();
        for controller in ["cpuset", "memory", "cpu", "pids"] {
            let real = Path::new("/sys/fs/cgroup").join(controller);
            let dir = real.join(format!("oxalyst-test-bypass-{}", std::process::id()));
            if !real.join("tasks").exists() || fs::create_dir(&dir).is_err() {
                println!("skipped: no v1 cgroup of {controller} can be made here");
                return None;
            }
            own.dirs.insert(0, dir.clone());
            std::os::unix::fs::symlink(&dir, host_root.join("sys/fs/cgroup").join(controller)).unwrap();
            if controller == "cpuset" {
                own.open(&dir);
            }
        }
        Some(own)
    }

    fn open(&self, dir: &Path) {
        let parent = dir.parent().unwrap();
        for file in ["cpuset.mems", "cpuset.cpus"] {
            write_text(&dir.join(file), &read_text(&parent.join(file)).unwrap()).unwrap();
        }
    }

    /// A container with a process; gives its process id.
    fn container(&mut self, path: &str) -> u32 {
        let roots: Vec<_> = self.dirs.iter().filter(|dir| dir.ends_with(self.root())).cloned().collect();
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        for root in roots {
            for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
                let dir = root.join(&path[..end]);
                if fs::create_dir(&dir).is_ok() {
                    self.dirs.insert(0, dir.clone());
                    if dir.join("cpuset.cpus").exists() {
                        self.open(&dir);
                    }
                }
            }
            write_text(&root.join(path).join("cgroup.procs"), &child.id().to_string()).unwrap();
        }
        let pid = child.id();
        self.children.push(child);
        pid
    }

    fn root(&self) -> String {
        format!("oxalyst-test-bypass-{}", std::process::id())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        for mut child in self.children.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
        for dir in &self.dirs {
            let _ = fs::remove_dir(dir);
        }
    }
}

fn allowed(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
    line.trim().to_owned()
}

#[actix::test]
async fn c08_processes_move_on_the_kernel_of_this_machine() {
    if fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default().trim() != "0-1" {
        println!("skipped: this test is of two CPUs");
        return;
    }
    let mut node = Plain::new(Mode::Bypass);
    let Some(mut own) = Own::create(&node.host_root()) else { return };
    let shared = own.container("kubepods/burstable/poda/a1");
    let dedicated = own.container("kubepods/podd/d1");
    assert_eq!((allowed(shared).as_str(), allowed(dedicated).as_str()), ("0-1", "0-1"));
    node.orm = support::orm::FakeOrm::of("0-1");
    node.orm.properties(&[("CpuQuota", "50000"), ("CpuBurst", "10000"), ("OomScoreAdj", "321")]);
    node.meta.set(vec![listed("a", "shared_cores", "a1"), listed("d", "dedicated_cores", "d1")]);
    node.start();
    let what = "each on a CPU of its own";
    until(what, async || (allowed(dedicated) == "1" && allowed(shared) == "0").then_some(())).await;
    let score = || fs::read_to_string(format!("/proc/{dedicated}/oom_score_adj")).unwrap();
    until("the OOM score", async || (score().trim() == "321").then_some(())).await;
    let at = node.host_root().join("sys/fs/cgroup/cpu/kubepods/podd/d1");
    until("the quota", async || (read_text(&at.join("cpu.cfs_quota_us")).unwrap() == "50000").then_some(()))
        .await;
    until("the burst", async || (read_text(&at.join("cpu.cfs_burst_us")).unwrap() == "10000").then_some(()))
        .await;
    node.stop_first().await;
    drop(own);
}
