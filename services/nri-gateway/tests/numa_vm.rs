//! Bypass mode on the kernel of a machine with cgroup v2 alone, in software emulation. Boots it once and runs this very program in
//! it, where each test does what its name says; outside, each looks up how it went. Takes minutes, so it is run by name:
//! `make tiers`.
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
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nri_gateway::settings::Mode;
use support::bypass::{Plain, listed};

/// Software emulation on a machine that is busy compiling.
const LIMIT: Duration = Duration::from_secs(90);
/// Seconds of the machine's life.
const LIFE: &str = "460";
const INSIDE: &str = "OXALYST_IN_MACHINE";
const ROOT: &str = "/sys/fs/cgroup";

/// What the machine said; the error is why there is none.
fn machine() -> &'static Result<String, String> {
    static SAID: OnceLock<Result<String, String>> = OnceLock::new();
    SAID.get_or_init(|| {
        let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/lab");
        let output = Command::new(lab.join("vm-build.sh")).stdin(Stdio::null()).output();
        let output = output.map_err(|e| e.to_string())?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if !output.status.success() {
            return Err(said(&output.stderr).lines().last().unwrap_or("vm-build.sh said nothing").to_owned());
        }
        let folder = said(&output.stdout).lines().last().unwrap_or_default().to_owned();
        let share = tempfile::tempdir().map_err(|e| e.to_string())?;
        // Without what a debugger wants it is a tenth as large, and the machine reads it over a slow road.
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let strip = Command::new("strip").arg("-o").arg(share.path().join("cases")).arg(program).status();
        assert!(strip.is_ok_and(|status| status.success()), "strip this program");
        let inside = format!("{INSIDE}=1");
        let output = Command::new(lab.join("vm-run.sh"))
            .arg(folder)
            .arg(share.path())
            .args([LIFE, "env", &inside, "/share/cases", "--test-threads=1"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Ok(said(&output.stdout) + &said(&output.stderr))
    })
}

/// True in the machine, where the test is to do its work. Outside it asks how the one of this name went there.
fn here(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    match machine() {
        Err(reason) => println!("skipped: no machine with cgroup v2 here: {reason}"),
        Ok(said) => assert!(said.contains(&format!("test {name} ... ok\n")), "{said}"),
    }
    false
}

/// Cgroups of this test in the kernel's tree, each container with a process.
#[derive(Default)]
struct Tree {
    dirs: Vec<PathBuf>,
    processes: Vec<Child>,
}

// === impl Tree ===

impl Tree {
    /// Makes a container's cgroup and those above it, which hand all controllers down, and a process in it; gives its pid.
    fn container(&mut self, path: &str) -> u32 {
        let mut at = PathBuf::from(ROOT);
        for part in path.split('/') {
            let controllers = fs::read_to_string(at.join("cgroup.controllers")).unwrap();
            let all: Vec<String> = controllers.split_whitespace().map(|name| format!("+{name}")).collect();
            fs::write(at.join("cgroup.subtree_control"), all.join(" ")).unwrap();
            at.push(part);
            if !at.exists() {
                fs::create_dir(&at).unwrap();
                self.dirs.push(at.clone());
            }
        }
        let process = Command::new("sleep").arg("100000").spawn().unwrap();
        let pid = process.id();
        self.processes.push(process);
        fs::write(at.join("cgroup.procs"), pid.to_string()).unwrap();
        pid
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        for dir in self.dirs.iter().rev() {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// A gateway in bypass mode on this machine's own tree, of whose CPUs the orm knows four; its pods are of one container.
fn gateway(pods: &[(&str, &str, &str)], properties: &[(&'static str, &'static str)]) -> Plain {
    let mut node = Plain::new(Mode::Bypass);
    node.settings.common.host_root = PathBuf::from("/");
    node.orm.properties(properties);
    node.meta.set(pods.iter().map(|(uid, level, id)| listed(uid, level, id)).collect());
    node.start();
    node
}

fn write(path: &str, file: &str, text: &str) -> std::io::Result<()> {
    fs::write(Path::new(ROOT).join(path).join(file), text)
}

fn read(path: &str, file: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path).join(file)).unwrap_or_default().trim().to_owned()
}

fn allowed(pid: u32, what: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Waits until this is said.
async fn says(what: &str, wanted: &str, now: impl Fn() -> String) {
    let end = Instant::now() + LIMIT;
    while now() != wanted {
        assert!(Instant::now() < end, "{what} says {:?}, not {wanted:?}", now());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn file_says(path: &str, file: &str, wanted: &str) {
    says(&format!("{path}/{file}"), wanted, || read(path, file)).await;
}

/// Waits for what the gateway tells of itself.
async fn tells(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds().await {
        assert!(Instant::now() < end, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[actix::test]
async fn c01_a_pod_that_is_too_narrow_is_widened_so_that_its_container_moves() {
    if !here("c01_a_pod_that_is_too_narrow_is_widened_so_that_its_container_moves") {
        return;
    }
    let mut tree = Tree::default();
    let pid = tree.container("kubepods/podd/d1");
    write("kubepods/podd", "cpuset.cpus", "0").unwrap();
    // This kernel takes what the pod does not have, and goes on as before.
    write("kubepods/podd/d1", "cpuset.cpus", "3").unwrap();
    assert_eq!(allowed(pid, "Cpus_allowed_list"), "0");
    write("kubepods/podd/d1", "cpuset.cpus", "0").unwrap();

    let mut node = gateway(&[("d", "dedicated_cores", "d1")], &[]);
    file_says("kubepods/podd/d1", "cpuset.cpus", "3").await;
    says("the process", "3", || allowed(pid, "Cpus_allowed_list")).await;
    let pod = read("kubepods/podd", "cpuset.cpus");
    assert!(["0,3", "0-3"].contains(&pod.as_str()), "widened, and never narrowed: {pod}");
    node.stop_first().await;
}

#[actix::test]
async fn c02_a_container_whose_cpuset_is_empty_gets_both_lists() {
    if !here("c02_a_container_whose_cpuset_is_empty_gets_both_lists") {
        return;
    }
    let mut tree = Tree::default();
    let pid = tree.container("kubepods/podd/d1");
    for file in ["cpuset.cpus", "cpuset.mems"] {
        assert_eq!(read("kubepods/podd/d1", file), "", "as the kernel makes it");
    }
    assert_eq!(allowed(pid, "Mems_allowed_list"), "0-3");

    let mut node = gateway(&[("d", "dedicated_cores", "d1")], &[]);
    says("the process's CPUs", "3", || allowed(pid, "Cpus_allowed_list")).await;
    says("the process's memory nodes", "0", || allowed(pid, "Mems_allowed_list")).await;
    assert_eq!(read("kubepods/podd/d1", "cpuset.mems"), "0");
    node.stop_first().await;
}

#[actix::test]
async fn c03_a_quota_that_the_kernel_refuses_is_raised_and_marked() {
    if !here("c03_a_quota_that_the_kernel_refuses_is_raised_and_marked") {
        return;
    }
    let mut tree = Tree::default();
    tree.container("kubepods/podd/d1");
    let refused = write("kubepods/podd/d1", "cpu.max", "500 100000").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(22), "{refused}");

    let mut node = gateway(&[("d", "dedicated_cores", "d1")], &[("CpuQuota", "500")]);
    file_says("kubepods/podd/d1", "cpu.max", "1000 100000").await;
    let marked = "not-adjusted".to_owned();
    tells("the mark", async || node.applied("d1").await.is_some_and(|d1| d1.marks.contains(&marked))).await;
    node.stop_first().await;
}

#[actix::test]
async fn c05_a_burst_is_lowered_before_the_quota_and_raised_after_it() {
    if !here("c05_a_burst_is_lowered_before_the_quota_and_raised_after_it") {
        return;
    }
    let mut tree = Tree::default();
    for path in ["kubepods/podd/d1", "kubepods/pode/e1"] {
        tree.container(path);
    }
    let (falls, grows) = ("kubepods/podd/d1", "kubepods/pode/e1");
    write(falls, "cpu.max", "200000 100000").unwrap();
    write(falls, "cpu.max.burst", "200000").unwrap();
    write(grows, "cpu.max", "50000 100000").unwrap();
    // The other order, each way.
    for refused in [write(falls, "cpu.max", "100000 100000"), write(grows, "cpu.max.burst", "100000")] {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(22));
    }

    let pods = [("d", "shared_cores", "d1"), ("e", "shared_cores", "e1")];
    let mut node = gateway(&pods, &[("CpuQuota", "100000"), ("CpuBurst", "100000")]);
    for path in [falls, grows] {
        file_says(path, "cpu.max", "100000 100000").await;
        file_says(path, "cpu.max.burst", "100000").await;
    }
    node.stop_first().await;
}

#[actix::test]
async fn c07_a_controller_that_goes_is_told_with_the_exact_text_and_the_others_go_on() {
    if !here("c07_a_controller_that_goes_is_told_with_the_exact_text_and_the_others_go_on") {
        return;
    }
    let mut tree = Tree::default();
    let (without, with) = (tree.container("kubepods/poda/a1"), tree.container("kubepods/podb/b1"));
    let pods = [("a", "shared_cores", "a1"), ("b", "shared_cores", "b1"), ("d", "dedicated_cores", "d1")];
    write("kubepods/poda", "cgroup.subtree_control", "-cpuset").unwrap();
    assert!(!Path::new(ROOT).join("kubepods/poda/a1/cpuset.cpus").exists());

    let mut node = gateway(&pods, &[]);
    says("the other process", "0-3", || allowed(with, "Cpus_allowed_list")).await;
    let told = ["controller cpuset is not available under", "enable it in cgroup.subtree_control"];
    tells("the text", async || {
        let pending = node.status().await.map(|status| status.pending).unwrap_or_default();
        told.iter().all(|text| pending.iter().any(|p| p.name == "bypass" && p.detail.contains(text)))
    })
    .await;
    assert_ne!(allowed(without, "Cpus_allowed_list"), "0-3");
    write("kubepods/poda", "cgroup.subtree_control", "+cpuset").unwrap();
    says("the process", "0-3", || allowed(without, "Cpus_allowed_list")).await;
    tells("it is whole again", async || node.status().await.is_some_and(|status| status.ready)).await;
    node.stop_first().await;
}

/// Waits until the container has these marks, in whatever order.
async fn marked(node: &Plain, id: &str, marks: &[&str]) {
    tells(&format!("{id} is marked {marks:?}"), async || {
        let Some(mut has) = node.applied(id).await.map(|applied| applied.marks) else { return false };
        has.sort();
        has == marks
    })
    .await;
}

#[actix::test]
async fn a_cgroup_above_that_somebody_narrows_is_widened_within_kubepods_and_told_beyond() {
    if !here("a_cgroup_above_that_somebody_narrows_is_widened_within_kubepods_and_told_beyond") {
        return;
    }
    let mut tree = Tree::default();
    let pid = tree.container("kubelet/kubepods/podd/d1");
    let mut node = gateway(&[("d", "dedicated_cores", "d1")], &[]);
    says("the process", "3", || allowed(pid, "Cpus_allowed_list")).await;
    marked(&node, "d1", &[]).await;

    write("kubelet/kubepods/podd", "cpuset.cpus", "0").unwrap();
    tells("the pod is widened", async || {
        ["0,3", "0-3"].contains(&read("kubelet/kubepods/podd", "cpuset.cpus").as_str())
    })
    .await;
    says("the process", "3", || allowed(pid, "Cpus_allowed_list")).await;
    marked(&node, "d1", &[]).await;
    assert_eq!(read("kubelet/kubepods/podd/d1", "cpuset.cpus"), "3", "its own file was right all along");

    write("kubelet", "cpuset.cpus", "0-1").unwrap();
    marked(&node, "d1", &["drift", "not-adjusted"]).await;
    assert_eq!(allowed(pid, "Cpus_allowed_list"), read("kubelet/kubepods/podd", "cpuset.cpus.effective"));
    assert_eq!(
        (read("kubelet", "cpuset.cpus"), read("kubelet/kubepods/podd/d1", "cpuset.cpus")),
        ("0-1".into(), "3".into())
    );
    // One that is in use cannot be emptied.
    write("kubelet", "cpuset.cpus", &read("", "cpuset.cpus.effective")).unwrap();
    says("the process", "3", || allowed(pid, "Cpus_allowed_list")).await;
    marked(&node, "d1", &[]).await;
    node.stop_first().await;
}

#[actix::test]
async fn a20_a_cpu_that_goes_offline_is_told_and_is_no_drift() {
    if !here("a20_a_cpu_that_goes_offline_is_told_and_is_no_drift") {
        return;
    }
    let mut tree = Tree::default();
    let pid = tree.container("kubepods/podd/d1");
    let mut node = gateway(&[("d", "dedicated_cores", "d1")], &[]);
    says("the process", "3", || allowed(pid, "Cpus_allowed_list")).await;
    marked(&node, "d1", &[]).await;

    fs::write("/sys/devices/system/cpu/cpu3/online", "0").unwrap();
    marked(&node, "d1", &["not-adjusted"]).await;
    assert_eq!(read("kubepods/podd/d1", "cpuset.cpus"), "3", "nobody writes");
    assert_ne!(allowed(pid, "Cpus_allowed_list"), "3");
    fs::write("/sys/devices/system/cpu/cpu3/online", "1").unwrap();
    says("the process", "3", || allowed(pid, "Cpus_allowed_list")).await;
    marked(&node, "d1", &[]).await;
    node.stop_first().await;
}

#[actix::test]
async fn k8_everything_that_is_decided_is_in_the_kernels_files_when_it_was_written() {
    if !here("k8_everything_that_is_decided_is_in_the_kernels_files_when_it_was_written") {
        return;
    }
    let mut tree = Tree::default();
    let pid = tree.container("kubepods/podd/d1");
    let decided = [
        ("CpuShares", "2048"),
        ("MemoryLimitInBytes", "67108864"),
        ("MemoryMinInBytes", "1048576"),
        ("MemoryLowInBytes", "8388608"),
        ("MemoryHighInBytes", "50331648"),
        ("MemorySwapLimitInBytes", "134217728"),
        ("HugepageLimits/2MB", "4194304"),
        ("PidsLimit", "99"),
        ("OomScoreAdj", "321"),
        ("Unified/memory.oom.group", "1"),
    ];
    let mut node = gateway(&[("d", "dedicated_cores", "d1")], &decided);
    for (file, text) in [
        ("cpu.weight", "79"),
        ("memory.max", "67108864"),
        ("memory.min", "1048576"),
        ("memory.low", "8388608"),
        ("memory.high", "50331648"),
        // What is decided is the total, of memory and swap.
        ("memory.swap.max", "67108864"),
        ("hugetlb.2MB.max", "4194304"),
        ("pids.max", "99"),
        ("memory.oom.group", "1"),
    ] {
        file_says("kubepods/podd/d1", file, text).await;
    }
    let score = || fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().to_owned();
    says("oom_score_adj", "321", score).await;
    tells("no mark", async || node.applied("d1").await.is_some_and(|d1| d1.marks.is_empty())).await;
    node.stop_first().await;
}
