//! What a runtime makes of each adjustment, by experiment: a plugin of its own asks for one thing at a time, in the answer to a
//! creation and in an update afterwards, and the kernel's files are read. Compared with the table that the gateway goes by.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oxalyst_nri::Status;
use oxalyst_nri::api::*;
use oxalyst_nri::events::BASE_EVENTS;
use oxalyst_nri::plugin::{Happened, Plugin, PluginSession, RuntimeClient, connect};
use oxalyst_nri::sync_chunks::Inventory;
use oxalyst_nri::trunk::Trunk;
use tokio::sync::watch;

use crate::runtime::{ContainerId, ContainerSpec, PodSpec, Runtime, RuntimeError, poll_until};

/// The table, as it is published.
const TABLE: &str = include_str!("../../docs/services/nri-gateway-adjustments.md");
/// For a call of the runtime, in software emulation too.
const CALL: Duration = Duration::from_secs(30);
/// How long an update may take to be seen; one that is dropped is waited for as long.
const SEEN: Duration = Duration::from_secs(3);
const MIB: u64 = 1 << 20;

/// One row that can be tried, with its file and two values of it.
struct Trial {
    name: &'static str,
    v1: Option<(&'static str, &'static str)>,
    v2: Option<&'static str>,
    /// At creation and as an update; None: NRI has no such update.
    values: (u64, Option<u64>),
}

/// What was seen of one row.
#[derive(Clone, Debug)]
pub struct Found {
    /// The row's name.
    pub name: &'static str,
    /// Whether a creation put it into effect; the error where it did not come about.
    pub create: Result<bool, String>,
    /// Whether an update did; None: not tried.
    pub update: Option<Result<bool, String>>,
}

/// A plugin that adjusts each new container as it is told to.
#[derive(Clone)]
struct Adjuster {
    adjust: Arc<Mutex<Option<ContainerAdjustment>>>,
    ready: watch::Sender<bool>,
}

const fn trial(
    name: &'static str,
    v1: Option<(&'static str, &'static str)>,
    v2: Option<&'static str>,
    values: (u64, Option<u64>),
) -> Trial {
    Trial { name, v1, v2, values }
}

const TRIALS: [Trial; 16] = [
    trial("CpusetCpus", Some(("cpuset", "cpuset.cpus")), Some("cpuset.cpus"), (0, Some(1))),
    trial("CpusetMems", Some(("cpuset", "cpuset.mems")), Some("cpuset.mems"), (0, Some(1))),
    trial("CpuShares", Some(("cpu", "cpu.shares")), Some("cpu.weight"), (3_000, Some(6_000))),
    trial("CpuQuota", Some(("cpu", "cpu.cfs_quota_us")), Some("cpu.max"), (50_000, Some(60_000))),
    trial("CpuPeriod", Some(("cpu", "cpu.cfs_period_us")), Some("cpu.max"), (200_000, Some(250_000))),
    trial("CpuBurst", None, Some("cpu.max.burst"), (20_000, Some(10_000))),
    trial(
        "MemoryLimitInBytes",
        Some(("memory", "memory.limit_in_bytes")),
        Some("memory.max"),
        (64 * MIB, Some(56 * MIB)),
    ),
    trial("MemoryMinInBytes", None, Some("memory.min"), (MIB, Some(2 * MIB))),
    trial(
        "MemoryLowInBytes",
        Some(("memory", "memory.soft_limit_in_bytes")),
        Some("memory.low"),
        (8 * MIB, Some(16 * MIB)),
    ),
    trial("MemoryHighInBytes", None, Some("memory.high"), (48 * MIB, Some(40 * MIB))),
    trial(
        "MemorySwapLimitInBytes",
        Some(("memory", "memory.memsw.limit_in_bytes")),
        Some("memory.swap.max"),
        (128 * MIB, Some(192 * MIB)),
    ),
    trial(
        "HugepageLimits",
        Some(("hugetlb", "hugetlb.2MB.limit_in_bytes")),
        Some("hugetlb.2MB.max"),
        (4 * MIB, Some(8 * MIB)),
    ),
    trial("PidsLimit", Some(("pids", "pids.max")), Some("pids.max"), (99, Some(88))),
    trial("Unified", None, Some("memory.oom.group"), (1, Some(0))),
    trial("OomScoreAdj", Some(("", "oom_score_adj")), Some("oom_score_adj"), (700, None)),
    trial("CpuIdle", None, Some("cpu.idle"), (1, Some(0))),
];

/// Tries every row on a runtime that nobody else is a plugin of, and tells each at once: in software emulation they take minutes.
/// Rows whose file is not there on this machine are left out.
///
/// # Errors
/// Where the runtime cannot be driven at all.
pub async fn measure(runtime: &mut impl Runtime, tell: impl Fn(&Found)) -> Result<Vec<Found>, RuntimeError> {
    let failed = |doing: &str, message: String| RuntimeError::Failed { doing: doing.to_owned(), message };
    let adjuster = Adjuster { adjust: Arc::default(), ready: watch::Sender::new(false) };
    let socket = connect(&runtime.nri_socket()).await;
    let socket = socket.map_err(|e| failed("connect a plugin", e.to_string()))?;
    let session = PluginSession::start(socket, adjuster.clone());
    session.register("trial", "10", CALL).await.map_err(|e| failed("register a plugin", e.to_string()))?;
    let mut ready = adjuster.ready.subscribe();
    let told = tokio::time::timeout(CALL, ready.wait_for(|&ready| ready)).await;
    told.map_err(|_| failed("synchronise a plugin", "nothing within the deadline".to_owned()))?
        .map_err(|e| failed("synchronise a plugin", e.to_string()))?;
    let (trunk, client): (Trunk, RuntimeClient) = session.split();

    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let sandbox = runtime.run_pod(&PodSpec::new("trial", "shared_cores", 100)).await?;
    let mut found = Vec::new();
    for (number, trial) in TRIALS.iter().enumerate() {
        if !trial.is_here(unified) {
            continue;
        }
        *adjuster.adjust.lock().unwrap() = Some(trial.adjustment(trial.values.0));
        let spec = ContainerSpec::new(&format!("c{number}"), 100);
        let (mut update, container) = (None, runtime.create_container(&sandbox, &spec).await);
        let create = match &container {
            Err(e) => Err(e.to_string()),
            Ok(container) => match runtime.start_container(container).await {
                Err(e) => Err(e.to_string()),
                Ok(()) => {
                    let holds = trial.holds(container, trial.values.0, unified).await;
                    update = trial.update(&client, container, unified).await;
                    holds
                }
            },
        };
        if let Ok(container) = container {
            runtime.remove_container(&container).await?;
        }
        let row = Found { name: trial.name, create, update };
        tell(&row);
        found.push(row);
    }
    *adjuster.adjust.lock().unwrap() = None;
    runtime.remove_pod(&sandbox).await?;
    drop(trunk);
    Ok(found)
}

/// Where what was found is not what the published table says of `runtime` ("containerd", "CRI-O"): empty where they agree. A newer
/// line than the `oldest` may put into effect what the table leaves to a direct write, and an update that fails is one that does.
pub fn disagreements(found: &[Found], runtime: &str, oldest: bool) -> Vec<String> {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let rows: Vec<Vec<&str>> =
        TABLE.lines().filter(|l| l.starts_with('|')).map(|l| l.split('|').map(str::trim).collect()).collect();
    let column = |name: String| rows[0].iter().position(|head| *head == name).unwrap();
    let (create, update) = (column(format!("create: {runtime}")), column(format!("update: {runtime}")));
    let mut all = Vec::new();
    for row in found {
        let cells = rows.iter().find(|cells| cells[1].trim_matches('`').split('/').next() == Some(row.name));
        let cells = cells.unwrap_or_else(|| panic!("no row {}", row.name));
        for (moment, at, seen) in
            [("create", create, Some(&row.create)), ("update", update, row.update.as_ref())]
        {
            let Some(seen) = seen else { continue };
            let says_told = way(cells[at], unified) == "told";
            let newer_does_more = !oldest && !says_told && *seen == Ok(true);
            let fails = moment == "update" && way(cells[at], unified) == "written" && seen.is_err();
            if *seen != Ok(says_told) && !newer_does_more && !fails {
                all.push(format!("{} {moment}: the table says {}, seen: {seen:?}", row.name, cells[at]));
            }
        }
    }
    all
}

/// A cell's word for this version of cgroups.
fn way(cell: &str, unified: bool) -> &str {
    let prefix = if unified { "v2: " } else { "v1: " };
    cell.split(", ").find_map(|part| part.strip_prefix(prefix)).unwrap_or(cell)
}

// === impl Trial ===

impl Trial {
    /// Whether this machine has the file, and could show a difference.
    fn is_here(&self, unified: bool) -> bool {
        let root = Path::new("/sys/fs/cgroup");
        if self.name == "OomScoreAdj" {
            return true;
        }
        match (unified, self.v1, self.v2) {
            // The root has no file of its own kind: what stands in a child's is known by its controller.
            (true, _, Some(file)) => {
                let controllers =
                    std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
                let controller = file.split('.').next().unwrap_or_default();
                controllers.split_whitespace().any(|name| name == controller)
            }
            // Nor has the root of pids.
            (false, Some(("pids", _)), _) => root.join("pids").exists(),
            (false, Some((hierarchy, file)), _) => root.join(hierarchy).join(file).exists(),
            _ => false,
        }
    }

    fn resources(&self, value: u64) -> LinuxResources {
        let mut all = LinuxResources::default();
        let signed = i64::try_from(value).ok();
        let some = || signed.map(|value| OptionalInt64 { value });
        let mut cpu = LinuxCpu::default();
        let mut memory = LinuxMemory::default();
        match self.name {
            "CpusetCpus" => cpu.cpus = value.to_string(),
            "CpusetMems" => cpu.mems = value.to_string(),
            "CpuShares" => cpu.shares = Some(OptionalUInt64 { value }),
            "CpuQuota" => cpu.quota = some(),
            "CpuPeriod" => {
                cpu.period = Some(OptionalUInt64 { value });
                cpu.quota = Some(OptionalInt64 { value: 50_000 });
            }
            "MemoryLimitInBytes" => memory.limit = some(),
            "MemoryLowInBytes" => memory.reservation = some(),
            "MemorySwapLimitInBytes" => {
                // The total, of memory and swap.
                memory.limit = signed.map(|_| OptionalInt64 { value: 64 << 20 });
                memory.swap = some();
            }
            "HugepageLimits" => {
                all.hugepage_limits = vec![HugepageLimit { page_size: "2MB".to_owned(), limit: value }];
            }
            "PidsLimit" => all.pids = signed.map(|limit| LinuxPids { limit }),
            _ => {
                let file = self.v2.unwrap_or_default().to_owned();
                all.unified = [(file, value.to_string())].into_iter().collect();
                if self.name == "CpuBurst" {
                    cpu.quota = Some(OptionalInt64 { value: 50_000 });
                }
            }
        }
        all.cpu = (cpu != LinuxCpu::default()).then_some(cpu);
        all.memory = (memory != LinuxMemory::default()).then_some(memory);
        all
    }

    fn adjustment(&self, value: u64) -> ContainerAdjustment {
        let mut linux = LinuxContainerAdjustment::default();
        match self.name {
            "OomScoreAdj" => {
                linux.oom_score_adj = i64::try_from(value).ok().map(|value| OptionalInt { value })
            }
            _ => linux.resources = Some(self.resources(value)),
        }
        ContainerAdjustment { linux: Some(linux), ..ContainerAdjustment::default() }
    }

    /// Whether the kernel's file says this.
    async fn holds(&self, container: &ContainerId, value: u64, unified: bool) -> Result<bool, String> {
        let seen = poll_until(SEEN, async || {
            let (pid, cgroups) = process_of(container)?;
            let file = if self.name == "OomScoreAdj" {
                PathBuf::from(format!("/proc/{pid}/oom_score_adj"))
            } else if unified {
                Path::new("/sys/fs/cgroup").join(&cgroups[""]).join(self.v2.unwrap_or_default())
            } else {
                let (hierarchy, file) = self.v1.unwrap_or_default();
                let at =
                    cgroups.get(hierarchy).ok_or_else(|| format!("no {hierarchy} of {}", container.0))?;
                Path::new("/sys/fs/cgroup").join(hierarchy).join(at).join(file)
            };
            let text = std::fs::read_to_string(&file).map_err(|e| format!("read {}: {e}", file.display()))?;
            if self.means(text.trim(), value, unified) { Ok(()) } else { Err(String::new()) }
        });
        match seen.await {
            Ok(()) => Ok(true),
            Err(reason) if reason.is_empty() => Ok(false),
            Err(reason) => Err(reason),
        }
    }

    fn means(&self, text: &str, value: u64, unified: bool) -> bool {
        match self.name {
            "CpuShares" if unified => {
                // Runtimes have converted in two ways.
                let weight: u64 = text.parse().unwrap_or_default();
                let linear = 1 + (value - 2) * 9_999 / 262_142;
                let newer = if value == 3_000 { 200..=280 } else { 380..=520 };
                weight.abs_diff(linear) <= 1 || newer.contains(&weight)
            }
            "CpuQuota" if unified => text.split(' ').next() == Some(&value.to_string()),
            "CpuPeriod" if unified => text == format!("50000 {value}"),
            "MemorySwapLimitInBytes" if unified => text == (value - 64 * MIB).to_string(),
            _ => text == value.to_string(),
        }
    }

    async fn update(
        &self,
        client: &RuntimeClient,
        container: &ContainerId,
        unified: bool,
    ) -> Option<Result<bool, String>> {
        let value = self.values.1?;
        if self.name == "CpusetMems" && !Path::new("/sys/devices/system/node/node1").exists() {
            return None;
        }
        let update = ContainerUpdate {
            container_id: container.0.clone(),
            linux: Some(LinuxContainerUpdate { resources: Some(self.resources(value)) }),
            ignore_failure: false,
        };
        Some(match client.update_containers(vec![update], CALL).await {
            Err(e) => Err(e.to_string()),
            Ok(failed) if !failed.is_empty() => Err("the runtime says that it failed".to_owned()),
            Ok(_) => self.holds(container, value, unified).await,
        })
    }
}

/// The first process of a container, and its cgroup by hierarchy ("": the unified one), without a leading slash.
fn process_of(container: &ContainerId) -> Result<(u32, BTreeMap<String, String>), String> {
    for entry in std::fs::read_dir("/proc").map_err(|e| e.to_string())?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let text = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        let own = |path: &str| {
            let last = path.rsplit('/').next().unwrap_or_default();
            last.contains(&container.0) && !last.contains("conmon")
        };
        let mut cgroups = BTreeMap::new();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            if let (Some(names), Some(path)) = (parts.next(), parts.next()) {
                for name in names.split(',') {
                    cgroups.insert(name.to_owned(), path.trim_start_matches('/').to_owned());
                }
            }
        }
        if cgroups.values().any(|path| own(path)) {
            return Ok((pid, cgroups));
        }
    }
    Err(format!("no process of container {}", container.0))
}

// === impl Adjuster ===

impl Plugin for Adjuster {
    async fn configure(&mut self, _: ConfigureRequest) -> Result<ConfigureResponse, Status> {
        Ok(ConfigureResponse { events: BASE_EVENTS })
    }

    async fn synchronize(&mut self, _: Inventory) -> Result<Vec<ContainerUpdate>, Status> {
        self.ready.send_replace(true);
        Ok(Vec::new())
    }

    async fn create_container(
        &mut self,
        _: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, Status> {
        let adjust = self.adjust.lock().unwrap().clone();
        Ok(CreateContainerResponse { adjust, ..CreateContainerResponse::default() })
    }

    async fn update_container(
        &mut self,
        _: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, Status> {
        Ok(UpdateContainerResponse::default())
    }

    async fn stop_container(&mut self, _: StopContainerRequest) -> Result<StopContainerResponse, Status> {
        Ok(StopContainerResponse::default())
    }

    async fn happened(&mut self, _: Happened) -> Result<(), Status> {
        Ok(())
    }

    async fn shutdown(&mut self) {}
}
