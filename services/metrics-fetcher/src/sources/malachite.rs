//! malachite's HTTP contract: documents of the machine, one of each cgroup. What is unknown or missing in them does not
//! matter; what it does not date is missing.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::dates::{Dates, Telling};
use super::fold::{Block, Fold};
use super::http::{Client, FetchError};
use super::resctrl::{self, Silicon};
use crate::bandwidth::{Counters, Monitor, Processor, Traffic, of_container, of_node};
use crate::catalogue::Scope;
use crate::clock::Now;
use crate::machine::{Caches, Machine};
use crate::store::{Id, Instance, Snapshot};

/// Passes after which a cgroup of which malachite tells no more is forgotten.
const FORGET: u64 = 10;
const SYSTEM: [&str; 4] = ["compute", "memory", "io", "network"];
/// Documents, and where in each the values stand.
const REALTIME: [(&str, &str); 3] = [("power", "sensors"), ("freq", "sysfreq"), ("resctrl", "resctrl")];
const NOTHING: Value = Value::Null;
/// malachite counts pages of this size on v1.
const PAGE: u64 = 4096;

/// What is kept between passes beside the values.
#[derive(Debug, Default)]
pub(super) struct Memory {
    l3: Watch,
    containers: BTreeMap<String, Watch>,
    processor: Processor,
    caches: Caches,
    groups: Groups,
}

/// Counters of resctrl's groups, as the realtime part tells them.
#[derive(Debug, Default)]
struct Groups {
    before: resctrl::Reading,
    silicon: Silicon,
    dates: Dates,
    since: Now,
}

/// Traffic of the caches of one subject. It starts anew when a clock was set.
#[derive(Debug, Default)]
struct Watch {
    monitor: Monitor,
    dates: Dates,
    since: Now,
}

// === impl Watch ===

impl Watch {
    /// Rates of each cache since the reading before, where there are some.
    fn advance(
        &mut self,
        fold: &mut Fold,
        caches: BTreeMap<u64, Counters>,
        unix_ns: i64,
        most: f64,
    ) -> Option<&BTreeMap<u64, Traffic>> {
        let since = fold.date(&mut self.dates, "mbm", unix_ns).since;
        if since != self.since {
            (self.monitor, self.since) = (Monitor::default(), since);
        }
        self.monitor.advance(caches, unix_ns / 1_000_000_000, most)
    }
}

/// One pass. A document that cannot be had leaves what it told before, ageing; the first error is told.
pub(super) async fn pass(
    client: &Client,
    fold: &mut Fold,
    memory: &mut Memory,
    snapshot: &Snapshot,
    (machine, host_root): (&Machine, &std::path::Path),
) -> Result<(), FetchError> {
    // A probe: if this hangs or fails the pass is over, before every container waits for its own deadline.
    let compute = data(client, "/api/v1/system/compute").await?;
    let mut first_fault = None;
    let mut documents = BTreeMap::from([("compute", compute)]);
    for name in SYSTEM.into_iter().skip(1) {
        match data(client, &format!("/api/v1/system/{name}")).await {
            Ok(document) => drop(documents.insert(name, document)),
            Err(fault) => drop(first_fault.get_or_insert(fault)),
        }
    }
    let mut caches = std::mem::take(&mut memory.caches);
    let monitored = documents.get("compute").and_then(|compute| compute.get("l3_mon")).unwrap_or(&NOTHING);
    caches.know(host_root, list(monitored, "l3mon").filter_map(|cache| cache.get("id")?.as_u64()));
    machine_of(&documents, fold, memory, |cache| caches.node_of(cache).ok());
    memory.caches = caches;
    let unified = snapshot.unified == Some(true);
    let cgroups = snapshot.subjects().filter(|s| {
        matches!(s.scope, Scope::Container | Scope::Cgroup) && s.removed.is_none() && !s.id.cgroup.is_empty()
    });
    for subject in cgroups {
        let path = format!("/api/v1/cgroup/groups?cgroup_user_path={}", escaped(&subject.id.cgroup));
        match data(client, &path).await {
            Ok(document) => cgroup_of(&document, subject.scope, &subject.id, fold, memory, machine, unified),
            Err(fault) => {
                let hangs = matches!(fault, FetchError::Late { .. } | FetchError::Unreachable { .. });
                first_fault.get_or_insert(fault);
                if hangs {
                    break;
                }
            }
        }
    }
    memory.containers.retain(|id, _| snapshot.containers.iter().any(|s| s.id.container_id == *id));
    fold.forget(FORGET);
    first_fault.map_or(Ok(()), Err)
}

/// One pass over the sensors. Not every machine has all of them: without one its metrics are missing, and nothing has failed.
pub(super) async fn realtime_pass(
    client: &Client,
    fold: &mut Fold,
    memory: &mut Memory,
    snapshot: &Snapshot,
    host_root: &std::path::Path,
) -> Result<(), FetchError> {
    let mut documents = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, within) in REALTIME {
        match data(client, &format!("/api/v1/realtime/{name}")).await {
            Ok(document) => drop(documents.insert(name, document.get(within).cloned().unwrap_or(NOTHING))),
            Err(fault) => faults.push(fault),
        }
    }
    if let Some(groups) = documents.get("resctrl") {
        groups_of(groups, fold, memory, snapshot, host_root);
    }
    sensors_of(&documents, fold);
    match faults.pop() {
        Some(fault) if documents.is_empty() => Err(fault),
        _ => Ok(()),
    }
}

/// Traffic by resctrl's groups, as if read from the kernel.
pub(super) fn groups_of(
    told: &Value,
    fold: &mut Fold,
    memory: &mut Memory,
    snapshot: &Snapshot,
    host_root: &std::path::Path,
) {
    let Groups { before, silicon, dates, since } = &mut memory.groups;
    let Some(unix_ns) = time(told) else { return };
    let dated = fold.date(dates, "resctrl", unix_ns);
    if dated.since != *since {
        (*before, *since) = (resctrl::Reading::default(), dated.since);
    }
    if dated.telling != Telling::News {
        return;
    }
    let counted = |caches: &Value| -> resctrl::Counted {
        let caches = caches.as_array().into_iter().flatten();
        let of = |cache: &Value, key| cache.get(key).and_then(Value::as_u64);
        let told =
            |cache| Some((of(cache, "id")?, [of(cache, "mbm_total_bytes"), of(cache, "mbm_local_bytes")]));
        caches.filter_map(told).collect()
    };
    let groups = told.get("group_mbm").and_then(Value::as_object).into_iter().flatten();
    let groups = groups.take(resctrl::MOST).map(|(name, caches)| (name.clone(), counted(caches))).collect();
    let now = resctrl::Reading { at: dated.counted_at, groups };
    silicon.know(host_root, &now.groups);
    resctrl::take(before, &now, snapshot, silicon, fold);
    *before = now;
}

/// Power and frequency of the machine.
pub(super) fn sensors_of(documents: &BTreeMap<&'static str, Value>, fold: &mut Fold) {
    let blocks: Vec<_> = documents.iter().map(|(name, value)| block(name, value, time(value))).collect();
    fold.take(Scope::Node, Id::default(), false, &blocks);
}

/// `data` of an answer whose status is 0.
pub(super) async fn data(client: &Client, path: &str) -> Result<Value, FetchError> {
    let mut answer = client.get(path).await?;
    let fault = |what: String| FetchError::Malformed { url: path.to_owned(), bytes: 0, what };
    match answer.get("status").and_then(Value::as_i64) {
        Some(0) => match answer.get_mut("data").map(Value::take) {
            Some(data) => Ok(data),
            None => Err(fault("it holds no data".to_owned())),
        },
        status => Err(fault(format!("its status is {status:?}, not 0"))),
    }
}

/// Everything that a URL's query may hold of a cgroup's path.
fn escaped(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/-._~:".contains(&b);
    path.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// `update_time`, seconds; 0 and none are no date.
fn time(value: &Value) -> Option<i64> {
    value.get("update_time")?.as_i64().filter(|s| *s > 0)?.checked_mul(1_000_000_000)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn number(value: &Value, pointer: &str) -> Option<f64> {
    value.pointer(pointer).and_then(Value::as_f64)
}

fn block<'a>(name: &'static str, value: &'a Value, unix_ns: Option<i64>) -> Block<'a> {
    Block { name, value, unix_ns }
}

/// The number behind "cpu" in a name.
fn cpu_id(name: &str) -> Option<u32> {
    name.strip_prefix("cpu")?.parse().ok()
}

/// The machine and its parts.
pub(super) fn machine_of(
    documents: &BTreeMap<&'static str, Value>,
    fold: &mut Fold,
    memory: &mut Memory,
    node_of_cache: impl Fn(u64) -> Option<u32>,
) {
    let of = |name: &str| documents.get(name).unwrap_or(&NOTHING);
    let (compute, system, io) = (of("compute"), of("memory"), of("io"));
    if let Some(code) = compute.get("cpu_codename").and_then(Value::as_str) {
        memory.processor = Processor::of(code);
    }
    let cpus: BTreeMap<u32, &Value> =
        list(compute, "cpu").filter_map(|cpu| Some((cpu_id(cpu.get("name")?.as_str()?)?, cpu))).collect();
    let all: Vec<&Value> = cpus.values().copied().collect();
    let zram: Vec<&Value> = list(io, "zram_stat").collect();
    let usage = number(compute, "/global_cpu/cpu_usage").map(|percent| percent / 100.0 * count(all.len()));
    let cpi: Vec<f64> = all.iter().filter_map(|v| number(v, "/cpi_data/cpi")).collect();
    let cpi = (!cpi.is_empty()).then(|| cpi.iter().sum::<f64>() / count(cpi.len()));
    let mut derived = json!({"cpu_usage": usage, "cpi": cpi, "cpus": (!all.is_empty()).then_some(all.len())});
    if let (Some(derived), false) = (derived.as_object_mut(), zram.is_empty()) {
        for (key, field) in [
            ("zram_used", "/mem_used_total"),
            ("zram_compr", "/compr_data_size"),
            ("zram_orig", "/orig_data_size"),
        ] {
            derived.insert(key.to_owned(), json!(sum(&zram, field)));
        }
    }
    let mut blocks: Vec<Block<'_>> =
        documents.iter().map(|(name, value)| block(name, value, time(value))).collect();
    blocks.push(block("derived", &derived, time(compute)));
    fold.take(Scope::Node, Id::default(), false, &blocks);

    let part = |instance| Id { instance, ..Id::default() };
    for (cpu, value) in &cpus {
        fold.take(Scope::Cpu, part(Instance::Number(*cpu)), false, &[block("compute", value, time(compute))]);
    }
    for disk in list(io, "disk_io") {
        let Some(name) = disk.get("device_name").and_then(Value::as_str) else { continue };
        let kind = disk.get("disk_type").and_then(Value::as_str).map(|kind| match kind {
            "HDD" => 1,
            "SSD" => 2,
            "NVME" => 3,
            "VIRTIO" => 4,
            _ => 0,
        });
        let derived = json!({"disk_type": kind});
        let blocks = [block("io", disk, time(io)), block("derived", &derived, time(io))];
        fold.take(Scope::Device, part(Instance::Name(name.into())), false, &blocks);
    }
    let network = of("network");
    for card in list(network, "networkcard") {
        let Some(name) = card.get("name").and_then(Value::as_str) else { continue };
        let blocks = [block("network", card, time(card).or(time(network)))];
        fold.take(Scope::Network, part(Instance::Name(name.into())), false, &blocks);
    }
    let traffic = l3(compute, fold, memory, node_of_cache);
    let most = memory.processor.most();
    for numa in list(system, "numa") {
        let Some(id) = numa.get("id").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok()) else {
            continue;
        };
        let inner = numa.pointer("/cpu_list/inner").and_then(Value::as_array).into_iter().flatten();
        let ids = inner.filter_map(|cpu| u32::try_from(cpu.as_u64()?).ok());
        // One that is not told of at all has told nothing either.
        let mine: Vec<&Value> = ids.map(|cpu| cpus.get(&cpu).copied().unwrap_or(&NOTHING)).collect();
        let mean = |pointer, scale: f64| sum(&mine, pointer).map(|s| s * scale / count(mine.len()));
        let fragments =
            list(system, "extfrag").find(|f| f.get("id").and_then(Value::as_u64) == Some(u64::from(id)));
        let fragments = fragments.unwrap_or(&NOTHING);
        let order = |n: u64| {
            let found = list(fragments, "mem_order_scores")
                .find(|o| o.get("order").and_then(Value::as_u64) == Some(n));
            found.and_then(|o| number(o, "/score"))
        };
        let derived = json!({
            "cpu_usage": sum(&mine, "/cpu_usage").map(|s| s / 100.0),
            "cpu_usage_avg": mean("/cpu_usage", 0.01),
            "sched_wait_avg": mean("/cpu_sched_wait", 1.0),
            "order9": order(9),
            "order10": order(10),
        });
        let l3 = traffic.as_ref().and_then(|(nodes, at)| {
            let t = nodes.get(&id)?;
            // What has to be corrected by something that is not told is not known.
            let known = memory.processor != Processor::Zen3 || t.victim.is_some();
            let total = known.then_some(t.total);
            Some((json!({"total": total, "local": t.local, "victim": t.victim, "max": most}), *at))
        });
        let mut blocks = vec![
            block("memory", numa, time(system)),
            block("derived", &derived, time(compute).or(time(system))),
            block("extfrag", fragments, time(system)),
        ];
        blocks.extend(l3.as_ref().map(|(value, at)| block("l3", value, Some(*at))));
        fold.take(Scope::Numa, part(Instance::Number(id)), false, &blocks);
    }
}

/// Traffic by NUMA node, and when it was true.
fn l3(
    compute: &Value,
    fold: &mut Fold,
    memory: &mut Memory,
    node_of_cache: impl Fn(u64) -> Option<u32>,
) -> Option<(BTreeMap<u32, Traffic>, i64)> {
    let monitor = compute.get("l3_mon")?;
    let at = time(monitor)?;
    let caches = counters(list(monitor, "l3mon"))?;
    let most = f64::from(u32::try_from(memory.processor.most() / 1_000_000).unwrap_or(u32::MAX)) * 1e6;
    let rates = memory.l3.advance(fold, caches, at, most)?;
    let mut nodes: BTreeMap<u32, Vec<Traffic>> = BTreeMap::new();
    for (cache, traffic) in rates {
        if let Some(node) = node_of_cache(*cache) {
            nodes.entry(node).or_default().push(*traffic);
        }
    }
    Some((nodes.into_iter().map(|(node, caches)| (node, of_node(&caches, memory.processor))).collect(), at))
}

/// A sum of all; nothing if one of them does not tell it, for a sum of the others is too small by nobody knows what.
fn sum(list: &[&Value], pointer: &str) -> Option<f64> {
    let told = list.iter().map(|value| number(value, pointer).filter(|v| *v >= 0.0));
    told.collect::<Option<Vec<f64>>>().filter(|all| !all.is_empty()).map(|all| all.iter().sum())
}

/// By cache; nothing if one of them does not tell its traffic. Evictions not every processor counts.
fn counters<'a>(caches: impl Iterator<Item = &'a Value>) -> Option<BTreeMap<u64, Counters>> {
    let of = |cache: &'a Value| {
        let field = |key: &str| cache.get(key).and_then(Value::as_u64);
        let counters = Counters {
            total: field("mbm_total_bytes")?,
            local: field("mbm_local_bytes")?,
            victim: field("mbm_victim_bytes_psec"),
        };
        Some((field("id")?, counters))
    };
    caches.map(of).collect()
}

/// One cgroup, and what is told of it by NUMA node. `unified` is what the machine runs: an answer of the other version
/// is of another machine, and not taken.
pub(super) fn cgroup_of(
    document: &Value,
    scope: Scope,
    id: &Id,
    fold: &mut Fold,
    memory: &mut Memory,
    machine: &Machine,
    unified: bool,
) {
    let version = if unified { "V2" } else { "V1" };
    if document.get("cgroup_type").and_then(Value::as_str) != Some(version) {
        return;
    }
    let groups = document.get("sub_system_groups").unwrap_or(&NOTHING);
    let at = |path: &str| groups.pointer(path).unwrap_or(&NOTHING);
    let (cpu, mem) = (at(&format!("/Cpuacct/Cpu/{version}")), at(&format!("/Memory/Memory/{version}")));
    let (blkio, net) = (at(&format!("/Blkio/BlkIO/{version}")), at("/NetCls/Net"));
    let positive = |pointer| number(cpu, pointer).filter(|v| *v > 0.0);
    let derived = json!({"l3_misses": positive("/l3_misses").or_else(|| positive("/ocr_read_drams"))});
    let mut blocks = vec![
        block("Cpu", cpu, time(cpu)),
        block("Memory", mem, time(mem)),
        block("BlkIO", blkio, time(blkio)),
        block("Net", net, time(net)),
        block("derived", &derived, time(cpu)),
    ];
    let mbm = time(mem).and_then(|at| {
        let caches = counters(list(mem.get("mb")?, "mbm"))?;
        // By container: what one told before is nothing to another.
        let watch = memory.containers.entry(id.container_id.clone()).or_default();
        let rates = watch.advance(fold, caches, at, f64::INFINITY)?;
        let traffic = of_container(rates.values().copied(), memory.processor);
        Some((json!({"total": traffic.total, "local": traffic.local}), at))
    });
    if scope == Scope::Container {
        blocks.extend(mbm.as_ref().map(|(value, at)| block("mbm", value, Some(*at))));
    }
    fold.take(scope, id.clone(), unified, &blocks);

    let numa_scope = if scope == Scope::Cgroup { Scope::CgroupNuma } else { Scope::ContainerNuma };
    let mut nodes: BTreeMap<u32, Value> = BTreeMap::new();
    for node in list(mem, "numa_stat") {
        let Some(number) = node.get("numa_name").and_then(Value::as_str).and_then(numa_id) else { continue };
        let bytes = |key: &str| {
            let pages = node.get(format!("hierarchical_{key}")).or_else(|| node.get(key))?;
            pages.as_u64()?.checked_mul(PAGE)
        };
        nodes.insert(number, json!({"total": bytes("total"), "file": bytes("file"), "anon": bytes("anon")}));
    }
    for (name, node) in mem.get("mem_numa_stats").and_then(Value::as_object).into_iter().flatten() {
        let Some(number) = numa_id(name) else { continue };
        let bytes = |key: &str| node.get(key).and_then(Value::as_u64);
        let total = (|| bytes("anon")?.checked_add(bytes("file")?)?.checked_add(bytes("unevictable")?))();
        nodes.insert(number, json!({"total": total, "file": bytes("file"), "anon": bytes("anon")}));
    }
    // Of a node of which one CPU does not tell it, the sum is not known.
    let mut used: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    let each: Vec<&Value> = list(cpu, "percpu_usage").collect();
    for cpu in machine.cpus().filter(|_| !each.is_empty()) {
        let Some(node) = machine.node_of(cpu) else { continue };
        let ns = usize::try_from(cpu).ok().and_then(|cpu| each.get(cpu)?.as_u64());
        let sum = used.entry(node).or_insert(Some(0));
        *sum = sum.zip(ns).map(|(sum, ns)| sum.saturating_add(ns));
    }
    let all: std::collections::BTreeSet<u32> = nodes.keys().chain(used.keys()).copied().collect();
    for node in all {
        let percpu = json!({"percpu": used.get(&node)});
        let memory = nodes.get(&node).unwrap_or(&NOTHING);
        let blocks = [block("Memory", memory, time(mem)), block("Cpu", &percpu, time(cpu))];
        fold.take(numa_scope, Id { instance: Instance::Number(node), ..id.clone() }, unified, &blocks);
    }
}

fn numa_id(name: &str) -> Option<u32> {
    name.strip_prefix('N')?.parse().ok()
}

/// A number of things.
#[allow(clippy::cast_precision_loss)]
fn count(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
#[path = "malachite_tests.rs"]
mod tests;
