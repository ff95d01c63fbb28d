//! What answers over HTTP are made of, changed: whatever comes, nothing panics, no value is NaN, and what is held is bounded by
//! what was said. For a bounded time: a second, or `OXALYST_FUZZ_SECONDS`.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fold::Fold;
use super::malachite::{Memory, cgroup_of, groups_of, machine_of, sensors_of};
use crate::catalogue::Scope;
use crate::clock::Now;
use crate::machine::Machine;
use crate::names::{Known, Name};
use crate::store::{Id, Snapshot, Source, Subject};

fn budget() -> Duration {
    let seconds = std::env::var("OXALYST_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(1.0))
}

/// Seconds since the Unix epoch.
const START: i64 = 1_767_225_600;

/// An answer of each kind, so many seconds after the start.
fn corpus(seconds: i64) -> [Value; 4] {
    let now = START + seconds;
    let fs = json!({"time": "2026-01-01T00:00:00Z", "availableBytes": 5, "capacityBytes": 10, "usedBytes": 5, "inodes": 3});
    let container = json!({"name": "app", "rootfs": fs, "logs": fs,
        "cpu": {"time": "2026-01-01T00:00:00Z", "usageCoreNanoSeconds": 7}, "memory": {"time": "2026-01-01T00:00:00Z", "usageBytes": 9}});
    let summary = json!({"node": {"fs": fs, "runtime": {"imageFs": fs}},
        "pods": [{"podRef": {"uid": "u1"}, "volume": [{"name": "v", "time": "2026-01-01T00:00:00Z", "usedBytes": 1}], "containers": [container]}]});
    let l3 = json!({"l3mon": [{"id": 0, "mbm_total_bytes": 100, "mbm_local_bytes": 50, "mbm_victim_bytes_psec": 1}], "update_time": now});
    let compute = json!({"cpu_codename": "AMD_K19Zen4", "load": {"one": 1.5}, "cpu": [{"name": "cpu0", "cpu_usage": 5.0, "cpi_data": {"cpi": 1.0}}],
        "global_cpu": {"cpu_usage": 5.0}, "l3_mon": l3, "update_time": now});
    let memory = json!({"system": {"mem_total": 4}, "numa": [{"id": 0, "cpu_list": {"inner": [0, 1]}, "mem_free": 1}],
        "extfrag": [{"id": 0, "mem_frag_score": 1, "mem_order_scores": [{"order": 9, "score": 2}]}], "update_time": now});
    let block = json!({"cycles": 5, "instructions": 3, "cfs_quota_us": -1, "percpu_usage": [5, 7], "update_time": now,
        "memory_usage_in_bytes": 5, "numa_stat": [{"numa_name": "N0", "total": 3}], "mb": {"mbm": [{"id": 0, "mbm_total_bytes": 1}]}});
    let cgroup = json!({"cgroup_type": "V1", "sub_system_groups":
        {"Cpuacct": {"Cpu": {"V1": block, "V2": block}}, "Memory": {"Memory": {"V1": block, "V2": block}}}});
    let sensors = json!({"total_power": 300.5, "update_time": now});
    let caches = json!([{"id": 0, "mbm_total_bytes": 100, "mbm_local_bytes": 50}]);
    let groups = json!({"group_mbm": {"": caches, "c1": caches}, "update_time": now});
    [
        summary,
        json!({"compute": compute, "memory": memory}),
        cgroup,
        json!({"power": sensors, "resctrl": groups}),
    ]
}

/// Puts something else somewhere.
fn change(value: &mut Value, rng: &mut fastrand::Rng) {
    let edges = [
        json!(null),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!("9999-99-99T99:99:99Z"),
        json!([]),
        json!({}),
        json!("cpu99999999999"),
        json!("\u{0}"),
        json!(true),
        json!(4_000_000_000u64),
    ];
    match value {
        Value::Object(map) if !map.is_empty() && rng.u8(..5) > 0 => {
            let at = rng.usize(..map.len());
            if rng.u8(..12) == 0 {
                let key = map.keys().nth(at).cloned().unwrap_or_default();
                map.remove(&key);
            } else if let Some(inner) = map.values_mut().nth(at) {
                change(inner, rng);
            }
        }
        Value::Array(list) if !list.is_empty() && rng.u8(..5) > 0 => {
            let at = rng.usize(..list.len());
            if rng.u8(..6) == 0 {
                let again = list[at].clone();
                list.push(again);
            } else {
                change(&mut list[at], rng);
            }
        }
        other => *other = edges[rng.usize(..edges.len())].clone(),
    }
}

#[test]
fn answers_over_http_gone_wrong() {
    let mut known = Known::default();
    let name = Name { pod_uid: "u1".into(), namespace: "n".into(), pod: "p".into(), container: "app".into() };
    known.by_container.insert("c1".into(), name);
    let machine = Machine::of([(0, "0".to_owned()), (1, "1".to_owned())]);
    let id = Id { container_id: "c1".into(), cgroup: "/kubepods/podu1/c1".into(), ..Id::default() };
    let container = Arc::new(Subject::unknown(Scope::Container, id.clone()));
    let snapshot = Snapshot { containers: vec![container], ..Snapshot::default() };
    let (began, mut rounds) = (Instant::now(), 0u64);
    while rounds < 500 || began.elapsed() < budget() {
        let seed = fastrand::u64(..);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut folds = [Source::Kubelet, Source::Malachite, Source::Realtime]
            .map(|s| Fold::new(s, Duration::from_secs(30)));
        let [kubelet, malachite, realtime] = &mut folds;
        let mut memory = Memory::default();
        // Twice, for rates need two readings.
        for seconds in [10, 20] {
            let [mut summary, mut system, mut cgroup, mut sensors] = corpus(seconds);
            for _ in 0..rng.usize(..8) {
                for value in [&mut summary, &mut system, &mut cgroup, &mut sensors] {
                    change(value, &mut rng);
                }
            }
            // The date here may be any as well.
            let set = if rng.bool() { 0 } else { rng.i64(..) / 4 };
            let now = Now {
                monotonic_ns: (seconds * 1_000_000_000).unsigned_abs(),
                unix_ns: (START + seconds) * 1_000_000_000 + set,
            };
            kubelet.begin(now);
            malachite.begin(now);
            realtime.begin(now);
            super::kubelet::take(&summary, kubelet, &known);
            let of = |value: &Value, name: &'static str| (name, value.get(name).cloned().unwrap_or_default());
            let documents = BTreeMap::from([of(&system, "compute"), of(&system, "memory")]);
            machine_of(&documents, malachite, &mut memory, |cache| u32::try_from(cache).ok());
            cgroup_of(&cgroup, Scope::Container, &id, malachite, &mut memory, &machine, false);
            sensors_of(&BTreeMap::from([of(&sensors, "power")]), realtime);
            let nowhere = std::path::Path::new("/nowhere");
            groups_of(&of(&sensors, "resctrl").1, realtime, &mut memory, &snapshot, nowhere);
        }
        for fold in &folds {
            let subjects = fold.subjects();
            assert!(subjects.len() < 64, "seed {seed}: {} subjects", subjects.len());
            for reading in subjects.iter().flat_map(|s| s.cells.held()).filter_map(|c| c.last) {
                assert!(reading.value.is_finite() && reading.value >= 0.0, "seed {seed}: {reading:?}");
            }
        }
        rounds += 1;
    }
    println!("answers over HTTP: {rounds} inputs");
}
