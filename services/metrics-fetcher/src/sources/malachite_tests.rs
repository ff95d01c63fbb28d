use std::time::Duration;

use super::*;
use crate::catalogue;
use crate::clock::Now;
use crate::sample::{Absent, Cell, Quality};
use crate::settings::Settings;
use crate::store::{Source, Subject};

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
    let settings = Settings::default();
    for period in
        [settings.malachite.period(), settings.malachite_realtime_period().unwrap(), settings.period()]
    {
        let judged = cell(&fold, "mem.usage.container").judge(at(200), settings.ages_at(period), false, None);
        assert_eq!((judged.quality, judged.value), (Quality::Stale, Some(7.0)), "{period:?}");
        assert_eq!(judged.age, Duration::from_secs(120));
    }
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
fn a_clock_that_is_ahead_makes_nothing_young() {
    let (mut fold, mut memory) = (fold(), Memory::default());
    let mut pass = |seconds, told, bytes: u64| {
        fold.begin(at(seconds));
        let mem = json!({"memory_usage_in_bytes": bytes, "update_time": START + told});
        cgroup(&mut fold, &mut memory, true, json!({}), mem);
        let last = cell(&fold, "mem.usage.container").last.unwrap();
        (last.value, at(seconds).since(last.at).as_secs(), fold.ailments.text())
    };
    let said = Some("its clock is 3600 s ahead: what it tells counts from when it was first read".to_owned());
    assert_eq!(pass(100, 3700, 7), (7.0, 0, said));
    // Frozen: the same time again is no new reading, whatever stands beside it.
    let (value, age, said) = pass(160, 3700, 8);
    assert!(value == 7.0 && age == 60 && said.unwrap().contains("3540 s ahead"));
    // It goes on, still ahead, and is then set right.
    assert_eq!((pass(165, 3765, 9).0, pass(170, 169, 10)), (9.0, (10.0, 1, None)));
}

#[test]
fn a_clock_that_goes_back_replaces_nothing_and_wipes_nothing() {
    let (mut fold, mut memory) = (fold(), Memory::default());
    let mut pass = |seconds, told, faults: u64| {
        fold.begin(at(seconds));
        let mem =
            json!({"memory_usage_in_bytes": faults, "total_pgfault": faults, "update_time": START + told});
        cgroup(&mut fold, &mut memory, false, json!({}), mem);
        let of = |metric| {
            let cell = cell(&fold, metric);
            (cell.last.map(|l| (l.value, at(seconds).since(l.at).as_secs())), cell.absent)
        };
        (of("mem.usage.container"), of("mem.pgfault.container.rate"), fold.ailments.went_back > 0)
    };
    pass(10, 10, 1000);
    assert_eq!(pass(20, 20, 1500), ((Some((1500.0, 0)), None), (Some((50.0, 0)), None), false));
    let back = Some(Absent::WentBack);
    let held = ((Some((1500.0, 5)), back.clone()), (Some((50.0, 5)), back), true);
    assert_eq!(pass(25, 15, 3), held);
    // It overtakes what was held: its values hold again, and the rate is over the whole time.
    assert_eq!(pass(30, 30, 2500), ((Some((2500.0, 0)), None), (Some((100.0, 0)), None), false));
}

#[test]
fn no_rate_spans_the_setting_of_malachites_clock() {
    let (mut fold, mut memory) = (fold(), Memory::default());
    let mut pass = |seconds, told, counted: u64| {
        fold.begin(at(seconds));
        let caches = json!({"mbm": [{"id": 0, "mbm_total_bytes": counted, "mbm_local_bytes": counted}]});
        let mem = json!({"total_pgfault": counted, "mb": caches, "update_time": START + told});
        cgroup(&mut fold, &mut memory, false, json!({}), mem);
        ["mem.pgfault.container.rate", "mbm.total.ps.container"].map(|metric| {
            let last = cell(&fold, metric).last?;
            Some((last.value, at(seconds).since(last.at).as_secs()))
        })
    };
    assert_eq!(pass(5000, 1400, 1000), [None, None]);
    // An hour behind: right, and old.
    assert_eq!(pass(5005, 1405, 1500), [Some((100.0, 3600)); 2]);
    // Set right: over malachite's own time 500 faults took an hour.
    assert_eq!(pass(5010, 5010, 2000), [Some((100.0, 3605)); 2]);
    assert_eq!(pass(5015, 5015, 2600), [Some((120.0, 0)); 2]);
}

#[test]
fn what_cannot_be_is_no_reading_and_the_one_before_holds() {
    for wrong in [json!(1e308), json!(-7), json!(18_446_744_073_709_551_449u64)] {
        let (mut fold, mut memory) = (fold(), Memory::default());
        let mut pass = |seconds, number: &Value| {
            fold.begin(at(seconds));
            let now = START + seconds;
            let mem = json!({"memory_usage_in_bytes": number, "total_pgfault": number, "update_time": now});
            cgroup(&mut fold, &mut memory, false, json!({"cfs_quota_us": number, "update_time": now}), mem);
        };
        for (seconds, number) in [(10, json!(1000)), (20, json!(1500)), (30, wrong.clone())] {
            pass(seconds, &number);
        }
        pass(30, &wrong);
        for (metric, value) in [("mem.usage.container", 1500.0), ("mem.pgfault.container.rate", 50.0)] {
            let cell = cell(&fold, metric);
            assert_eq!(
                cell.last.map(|l| (l.value, at(30).since(l.at).as_secs())),
                Some((value, 10)),
                "{metric} {wrong}"
            );
            assert_eq!(cell.absent, Some(Absent::OutOfRange(wrong.as_f64().unwrap())), "{metric}");
        }
        let said = fold.ailments.text().unwrap();
        assert!(said.contains(" is said to be ") && fold.ailments.nonsense > 0, "{said}");
        fold.begin(at(40));
        let mem = json!({"memory_usage_in_bytes": 3500, "total_pgfault": 3500, "update_time": START + 40});
        cgroup(&mut fold, &mut memory, false, json!({}), mem);
        assert_eq!(value(&fold, "mem.pgfault.container.rate"), Some(100.0), "the base is the last sound one");
        assert_eq!(fold.ailments.text(), None);
    }
}

#[test]
fn a_sum_or_mean_over_cpus_is_missing_where_one_of_them_does_not_tell_it() {
    let mut fold = fold();
    fold.begin(at(10));
    let now = START + 10;
    let cpu = |n: u32, usage: Value| json!({"name": format!("cpu{n}"), "cpu_usage": usage});
    let compute = json!({"cpu": [cpu(0, json!(50.0)), {"name": "cpu1"}, cpu(2, json!(50.0)), cpu(3, json!(25.0))], "update_time": now});
    let numa = |id: u32, cpus: [u32; 2]| json!({"id": id, "cpu_list": {"inner": cpus}});
    let system = json!({"numa": [numa(0, [0, 1]), numa(1, [2, 3]), numa(2, [3, 9])], "update_time": now});
    let io = json!({"disk_io": [{"device_name": "a"}, {"device_name": "b", "disk_type": "SSD"}, {"device_name": "c", "disk_type": "new"}],
        "zram_stat": [{"mem_used_total": 1}, {"compr_data_size": 2}], "update_time": now});
    let documents = BTreeMap::from([("compute", compute), ("memory", system), ("io", io)]);
    machine_of(&documents, &mut fold, &mut Memory::default(), |_| None);
    let all = |metric: &str| -> Vec<Option<f64>> {
        let (place, metric) = catalogue::find(metric).unwrap();
        let subjects = fold.subjects();
        let of = subjects.iter().filter(|s| s.scope == metric.scope);
        of.map(|s| s.cells.get(place).unwrap().last.map(|r| r.value)).collect()
    };
    assert_eq!(all("cpu.usage.numa"), [None, Some(0.75), None]);
    assert_eq!(all("cpu.usage.numa.avg"), [None, Some(0.375), None]);
    assert_eq!(all("cpu.schedwait.numa.avg"), [None, None, None], "a sum of nothing is no -0");
    assert_eq!(all("io.disk.type"), [None, Some(2.0), Some(0.0)]);
    assert_eq!(all("zram.used.total.system"), [None]);
}

#[test]
fn cpu_time_of_a_node_and_traffic_of_a_cache_are_missing_where_a_part_is_not_told() {
    let (mut fold, mut memory) = (fold(), Memory::default());
    for (seconds, first) in [(10, json!(1)), (20, json!(1)), (30, json!(null))] {
        fold.begin(at(seconds));
        let cpu = json!({"percpu_usage": [first, 7], "update_time": START + seconds});
        let mbm = json!([{"id": 0, "mbm_total_bytes": first.as_u64().map(|n| n * 100 + seconds as u64), "mbm_local_bytes": seconds},
            {"id": 1, "mbm_total_bytes": seconds, "mbm_local_bytes": seconds}]);
        let mem = json!({"mb": {"mbm": mbm}, "update_time": START + seconds});
        cgroup(&mut fold, &mut memory, false, cpu, mem);
    }
    let (place, _) = catalogue::find("cpu.usage.count.numa.container").unwrap();
    let subjects = fold.subjects();
    let of = subjects.iter().filter(|s| s.scope == Scope::ContainerNuma);
    let cells: Vec<Cell> = of.map(|s| s.cells.get(place).unwrap().clone()).collect();
    assert_eq!((cells[0].absent.clone(), cells[1].absent.clone()), (Some(Absent::NotTold), None));
    let traffic = cell(&fold, "mbm.total.ps.container");
    assert_eq!((traffic.last.map(|r| r.value), traffic.absent), (Some(2.0), Some(Absent::NotTold)));
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
fn t11_traffic_of_groups_is_by_node_and_of_the_container_that_a_group_is_called_after() {
    let root = tempfile::tempdir().unwrap();
    for (file, text) in [("node/node0/cpulist", "0"), ("cpu/cpu0/cache/index3/id", "0")] {
        let path = root.path().join("sys/devices/system").join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let subject = Subject::unknown(Scope::Container, Id { container_id: "abc".into(), ..Id::default() });
    let snapshot = Snapshot { containers: vec![std::sync::Arc::new(subject)], ..Snapshot::default() };
    let (mut fold, mut memory) = (Fold::new(Source::Realtime, Duration::from_secs(5)), Memory::default());
    let mut pass = |seconds, told, bytes: u64| {
        fold.begin(at(seconds));
        let caches = json!([{"id": 0, "mbm_total_bytes": bytes, "mbm_local_bytes": bytes / 2}, {"id": "x"}]);
        let groups = json!({"shared-50": caches, "mon_groups/abc": caches, "broken": 7});
        let told = json!({"group_mbm": groups, "update_time": START + told});
        groups_of(&told, &mut fold, &mut memory, &snapshot, root.path());
        let told = |metric| {
            let (place, metric) = catalogue::find(metric).unwrap();
            let subject = fold.subjects().into_iter().find(|s| s.scope == metric.scope)?;
            subject.cells.get(place).unwrap().last.map(|r| (r.value, at(seconds).since(r.at).as_secs()))
        };
        [told("mbm.total.ps.numa"), told("mbm.local.ps.numa"), told("mbm.total.ps.container")]
    };
    assert_eq!(pass(100, 100, 1000), [None; 3]);
    assert_eq!(pass(102, 102, 1400), [Some((200.0, 0)), Some((100.0, 0)), Some((200.0, 0))]);
    assert_eq!(pass(103, 102, 1400)[0], Some((200.0, 1)), "the same again is no reading");
    assert_eq!(pass(104, 90, 9000)[0], Some((200.0, 2)), "nor an earlier one");
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
