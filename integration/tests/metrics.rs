//! What is measured of real containers, beside the kernel's own counters.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use integration::containerd::Containerd;
use integration::runtime::{ContainerId, ContainerSpec, PodSpec, Runtime, Workload, poll_until};
use integration::scenarios::World;
use oxalyst_proto::metrics::v1::metrics_client::MetricsClient;
use oxalyst_proto::metrics::v1::{ListSourcesRequest, Quality, Sample};
use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

const CPU: &str = "cpu.usage.container";
const MEMORY: &str = "mem.usage.container";
const RUNNABLE: &str = "cpu.nr.runnable.container";
const LIMIT: Duration = Duration::from_secs(60);

static ONE: Mutex<()> = Mutex::const_new(());

async fn world() -> Option<(TempDir, World<Containerd>)> {
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    match Containerd::try_start(folder.path()).await {
        Ok(runtime) => {
            let settings =
                [("metrics-fetcher", "period_ms=1000"), ("metrics-fetcher", "withdraw_after_periods=5")];
            let world = World::start_with(folder.path(), runtime, &settings).await;
            Some((folder, world))
        }
        Err(reason) => {
            println!("skipped: no containerd here: {reason}");
            None
        }
    }
}

async fn take_down(folder: TempDir, mut world: World<Containerd>) {
    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
    folder.close().unwrap();
}

async fn run(world: &mut World<Containerd>, name: &str, workload: Workload) -> ContainerId {
    let sandbox = world.runtime.run_pod(&PodSpec::new(name, "shared_cores", 100)).await.unwrap();
    let spec = ContainerSpec::new("main", 100).running(workload);
    let container = world.runtime.create_container(&sandbox, &spec).await.unwrap();
    world.runtime.start_container(&container).await.unwrap();
    container
}

/// One sample of a container for which `fits` holds.
async fn sample(
    world: &World<Containerd>,
    container: &ContainerId,
    metric: &str,
    max_age_ms: Option<u64>,
    fits: impl Fn(&Sample) -> bool,
) -> Sample {
    poll_until(LIMIT, async || {
        let samples = world.mesh.samples(&container.0, max_age_ms).await.map_err(|e| e.to_string())?;
        let found = samples.iter().find(|s| s.metric == metric && s.container_id == container.0);
        match found {
            Some(sample) if fits(sample) => Ok(sample.clone()),
            other => Err(format!("{metric}: {other:?}")),
        }
    })
    .await
    .unwrap_or_else(|last| panic!("{last}\n{}", world.mesh.log("metrics-fetcher")))
}

/// The kernel's counter of a container's CPU time, read every few milliseconds: (ns since the epoch, ns of CPU).
struct Counter {
    readings: std::rc::Rc<std::cell::RefCell<Vec<(i64, i64)>>>,
    reader: JoinHandle<()>,
}

impl Counter {
    fn watch(file: PathBuf) -> Self {
        let readings = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let out = std::rc::Rc::clone(&readings);
        let reader = tokio::task::spawn_local(async move {
            loop {
                let before = now();
                let cpu = cpu_ns(&std::fs::read_to_string(&file).unwrap());
                out.borrow_mut().push(((before + now()) / 2, cpu));
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        });
        Self { readings, reader }
    }

    /// CPU time at `time`, between the two readings around it.
    fn at(&self, time: i64) -> f64 {
        let readings = self.readings.borrow();
        let after = readings.partition_point(|&(t, _)| t < time);
        let ((t0, c0), (t1, c1)) = (readings[after - 1], readings[after]);
        c0 as f64 + (c1 - c0) as f64 * (time - t0) as f64 / (t1 - t0) as f64
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// `cpuacct.usage` (ns), or the line `usage_usec` of `cpu.stat`.
fn cpu_ns(text: &str) -> i64 {
    match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
        Some(usec) => usec.trim().parse::<i64>().unwrap() * 1000,
        None => text.trim().parse().unwrap(),
    }
}

#[tokio::test]
async fn a_busy_and_an_idle_container_measure_as_the_kernel_counts() {
    let _one = ONE.lock().await;
    let Some((folder, mut world)) = world().await else { return };
    let busy = run(&mut world, "busy", Workload::Busy).await;
    let idle = run(&mut world, "idle", Workload::Sleep).await;

    let file = world.runtime.cgroup_file(&busy, ("cpuacct", "cpuacct.usage"), "cpu.stat").await.unwrap();
    let local = tokio::task::LocalSet::new();
    let (measured, counted) = local
        .run_until(async {
            let counter = Counter::watch(file);
            let start = now();
            let whole = |s: &Sample| {
                let from = s.time_unix_ns - i64::try_from(s.interval_ms).unwrap() * 1_000_000;
                s.quality() == Quality::Fresh && s.value.is_some() && from > start + 20_000_000
            };
            let sample = sample(&world, &busy, CPU, None, whole).await;
            let interval = i64::try_from(sample.interval_ms).unwrap() * 1_000_000;
            tokio::time::sleep(Duration::from_millis(10)).await;
            let used = counter.at(sample.time_unix_ns) - counter.at(sample.time_unix_ns - interval);
            (sample.value.unwrap(), used / interval as f64)
        })
        .await;
    println!("busy: {measured:.4} cores measured, {counted:.4} counted");
    assert!((measured - counted).abs() <= 0.02 * counted, "{measured} measured, {counted} counted");
    let fresh = |s: &Sample| s.quality() == Quality::Fresh && s.value.is_some();
    let quiet = sample(&world, &idle, CPU, None, fresh).await.value.unwrap();
    // On a machine that is busy otherwise the busy one gets little, and still more than one that sleeps.
    assert!(quiet < 0.05 && quiet < measured / 4.0, "busy {measured}, idle {quiet}");

    // The kernel tells the states of tasks of cgroup v1 alone, and where it was built to.
    let mut client = MetricsClient::new(world.mesh.channel("metrics-fetcher"));
    let sources = client.list_sources(ListSourcesRequest {}).await.unwrap().into_inner().sources;
    if sources.iter().any(|source| source.name == "cgroupstats") {
        let runs = |n| move |s: &Sample| s.source == "cgroupstats" && s.value == Some(n);
        sample(&world, &busy, RUNNABLE, None, runs(1.0)).await;
        sample(&world, &idle, RUNNABLE, None, runs(0.0)).await;
    } else {
        println!("no states of tasks: cgroup v2, or a kernel without CONFIG_TASKSTATS");
    }

    let files = ("memory", "memory.usage_in_bytes");
    let file = world.runtime.cgroup_file(&idle, files, "memory.current").await.unwrap();
    let charged: f64 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
    let memory = sample(&world, &idle, MEMORY, None, fresh).await;
    assert_eq!(memory.unit, "bytes");
    let measured = memory.value.unwrap();
    assert!((measured - charged).abs() <= 0.02 * charged, "{measured} measured, {charged} charged");
    take_down(folder, world).await;
}

#[tokio::test]
async fn a_container_that_is_gone_becomes_stale_then_missing() {
    let _one = ONE.lock().await;
    let Some((folder, mut world)) = world().await else { return };
    let container = run(&mut world, "short", Workload::Sleep).await;
    let stays = run(&mut world, "stays", Workload::Sleep).await;
    let fresh = |s: &Sample| s.quality() == Quality::Fresh && s.value.is_some();
    let last = sample(&world, &container, MEMORY, None, fresh).await;
    let pid = world.mesh.pid("metrics-fetcher");

    world.runtime.stop_container(&container).await.unwrap();

    let stale = sample(&world, &container, MEMORY, None, |s| s.quality() == Quality::Stale).await;
    assert!(stale.value.is_some() && stale.time_unix_ns >= last.time_unix_ns, "the last known: {stale:?}");
    assert_ne!(stale.reason, "");
    let missing = sample(&world, &container, MEMORY, None, |s| s.quality() == Quality::Missing).await;
    assert_eq!(missing.value, None);
    sample(&world, &stays, MEMORY, None, fresh).await;
    assert_eq!(world.mesh.pid("metrics-fetcher"), pid);
    take_down(folder, world).await;
}
