use std::time::Duration;

use super::*;
use crate::catalogue;
use crate::clock::Now;
use crate::sample::{Absent, Cell};
use crate::store::Source;

const START: i64 = 1_767_225_600;

fn at(seconds: i64) -> Now {
    Now { monotonic_ns: (seconds as u64) * 1_000_000_000, unix_ns: (START + seconds) * 1_000_000_000 }
}

fn fold() -> Fold {
    Fold::new(Source::Malachite, Duration::from_secs(30))
}

fn cell(fold: &Fold, metric: &str) -> Cell {
    let (place, metric) = catalogue::find(metric).unwrap();
    fold.subjects().iter().find(|s| s.scope == metric.scope).unwrap().cells.get(place).unwrap().clone()
}

fn value(fold: &Fold, metric: &str) -> Option<f64> {
    cell(fold, metric).last.map(|r| r.value)
}

fn cgroup(fold: &mut Fold, memory: &mut Memory, unified: bool, cpu: Value, mem: Value) {
    let version = if unified { "V2" } else { "V1" };
    let document = json!({"cgroup_type": version, "sub_system_groups": {
        "Cpuacct": {"Cpu": {version: cpu}}, "Memory": {"Memory": {version: mem}}, "New": {"what": 1}}});
    let id = Id { container_id: "c".into(), cgroup: "/kubepods/podu/c".into(), ..Id::default() };
    let machine = Machine::of([(0, "0".to_owned()), (1, "1".to_owned())]);
    cgroup_of(&document, Scope::Container, &id, fold, memory, &machine, unified);
}

#[test]
fn t5_cycles_an_instruction_of_both_versions() {
    for unified in [false, true] {
        let (mut fold, mut memory) = (fold(), Memory::default());
        for n in 1..=3i64 {
            fold.begin(at(n * 5));
            let cpu = json!({"cycles": n * 1000, "instructions": n * 1000, "update_time": START + n * 5});
            cgroup(&mut fold, &mut memory, unified, cpu, json!({}));
            assert_eq!(value(&fold, "cpu.cpi.container"), (n > 1).then_some(1.0), "{unified} {n}");
        }
        fold.begin(at(20));
        let cpu = json!({"cycles": 9000, "instructions": 3000, "update_time": START + 20});
        cgroup(&mut fold, &mut memory, unified, cpu, json!({}));
        let stalled = cell(&fold, "cpu.cpi.container");
        assert_eq!(stalled.absent, Some(Absent::NotTold), "no instruction, no ratio: {stalled:?}");
    }
}

#[test]
fn t9_rates_are_over_the_sources_time_and_a_reset_gives_none() {
    let (mut fold, mut memory) = (fold(), Memory::default());
    let mut pass = |seconds, told, faults: u64| {
        fold.begin(at(seconds));
        cgroup(
            &mut fold,
            &mut memory,
            false,
            json!({}),
            json!({"total_pgfault": faults, "update_time": START + told}),
        );
        cell(&fold, "mem.pgfault.container.rate")
    };
    assert_eq!(pass(10, 10, 1000).absent, Some(Absent::FirstReading));
    let rate = pass(20, 20, 1500);
    assert_eq!(rate.last.map(|r| r.value), Some(50.0));
    assert_eq!(pass(25, 20, 1500), rate, "the source did not advance");
    let reset = pass(30, 30, 3);
    assert_eq!((reset.last, reset.absent), (None, Some(Absent::Reset)));
}

#[test]
fn m02_old_data_keep_their_age_and_are_counted() {
    let (mut fold, mut memory) = (fold(), Memory::default());
    fold.begin(at(200));
    cgroup(
        &mut fold,
        &mut memory,
        true,
        json!({}),
        json!({"memory_usage_in_bytes": 7, "update_time": START + 80}),
    );
    let reading = cell(&fold, "mem.usage.container").last.unwrap();
    assert_eq!(at(200).since(reading.at), Duration::from_secs(120));
    assert_eq!(fold.stale_total, 1);
}

#[test]
fn t1_what_is_not_dated_is_missing() {
    for mem in [json!({"memory_usage_in_bytes": 7}), json!({"memory_usage_in_bytes": 7, "update_time": 0})] {
        let (mut fold, mut memory) = (fold(), Memory::default());
        fold.begin(at(200));
        cgroup(&mut fold, &mut memory, true, json!({}), mem);
        let cell = cell(&fold, "mem.usage.container");
        assert_eq!((cell.last, cell.absent), (None, Some(Absent::NoSourceTime)));
    }
}

#[test]
fn t11_power_and_frequency() {
    let mut fold = Fold::new(Source::Realtime, Duration::from_secs(5));
    fold.begin(at(10));
    let sensors = json!({"total_power": 500.0, "cpu_power": 200.0, "mem_power": 50.0, "fan_power": 30.0, "hdd_power": 20.0,
        "update_time": START + 10});
    let freq = json!({"cpu_freq": [{"scaling_cur_freq": 2598884}, {"scaling_cur_freq": 1}], "update_time": START + 10});
    let documents = BTreeMap::from([("power", sensors), ("freq", freq)]);
    sensors_of(&documents, &mut fold);
    let watts = ["total", "cpu", "mem", "fan", "hdd"].map(|w| value(&fold, &format!("{w}.power.used.watts")));
    assert_eq!(watts, [500.0, 200.0, 50.0, 30.0, 20.0].map(Some));
    assert_eq!(value(&fold, "scaling.cur.freq.khz"), Some(2_598_884.0));
}

#[test]
fn unlimited_is_no_number_and_numa_memory_is_bytes_in_both_versions() {
    let (mut one, mut two, mut memory) = (fold(), fold(), Memory::default());
    let now = START + 10;
    one.begin(at(10));
    let numa = json!([{"numa_name": "N0", "total": 3, "file": 2, "anon": 1}, {"numa_name": "x"}]);
    let cpu =
        json!({"cfs_quota_us": -1, "cfs_period_us": 100000, "percpu_usage": [5, 7], "update_time": now});
    cgroup(&mut one, &mut memory, false, cpu, json!({"numa_stat": numa, "update_time": now}));
    two.begin(at(10));
    let numa = json!({"N0": {"anon": 4096, "file": 8192, "unevictable": 0}});
    let cpu = json!({"max": u64::MAX, "max_period": 100000, "update_time": now});
    cgroup(&mut two, &mut memory, true, cpu, json!({"mem_numa_stats": numa, "update_time": now}));
    for fold in [&one, &two] {
        assert_eq!(cell(fold, "cpu.limit.container").absent, Some(Absent::Unlimited));
        assert_eq!(value(fold, "mem.total.numa.container"), Some(12_288.0));
        assert_eq!(value(fold, "mem.anon.numa.container"), Some(4096.0));
    }
    assert_eq!(value(&one, "cpu.usage.count.numa.container"), Some(5.0));
}

#[test]
fn broken_names_and_foreign_shapes_do_not_matter() {
    let mut fold = fold();
    fold.begin(at(10));
    let compute = json!({"cpu": [{"name": "c"}, {"name": 5}, {}, {"name": "cpu3", "cpu_usage": 50.0}], "load": [],
        "update_time": START + 10});
    let system = json!({"numa": [{"id": 0, "cpu_list": {"inner": [3, "x", -1]}, "mem_total": 4}, {"id": "y"}], "system": 3,
        "update_time": START + 10});
    let documents = BTreeMap::from([("compute", compute), ("memory", system)]);
    machine_of(&documents, &mut fold, &mut Memory::default(), |_| None);
    assert_eq!(value(&fold, "cpu.usage.ratio.cpu"), Some(0.5));
    assert_eq!((value(&fold, "cpu.usage.numa"), value(&fold, "mem.total.numa")), (Some(0.5), Some(4096.0)));
    cgroup_of(
        &json!([1]),
        Scope::Container,
        &Id::default(),
        &mut fold,
        &mut Memory::default(),
        &Machine::default(),
        true,
    );
}

#[test]
fn a_path_in_a_query_is_escaped() {
    assert_eq!(escaped("/kubepods/pod1/cri:a b&c"), "/kubepods/pod1/cri:a%20b%26c");
}
