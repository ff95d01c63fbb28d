//! What Katalyst's agents left on a node becomes records of ours; the samples are made by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::path::Path;

use orm::katalyst::{CPU_STATE, Fault, Files, Import, MEMORY_STATE, ORM_CHECKPOINT, import, read};
use oxalyst_planner::plan::{Flag, RequestSource};
use oxalyst_planner::pods::{self, KnownPod, Role, Rules, State, placements, record, take_over};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, Machine};
use oxalyst_units::MilliCpu;
use proptest::prelude::*;
use serde_json::{Value, json};

const NOW: i64 = 1_800_000_000_000;

fn sample() -> Files {
    let (files, faults) = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/katalyst"));
    assert_eq!(faults, []);
    files
}

/// The sample with one value of its CPU state replaced.
fn with(pointer: &str, value: Value) -> Files {
    let files = sample();
    let mut state: Value = serde_json::from_slice(files.cpu_state.as_ref().unwrap()).unwrap();
    *state.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
    Files { cpu_state: Some(state.to_string().into_bytes()), ..files }
}

fn entry<'a>(import: &'a Import, uid: &str) -> &'a KnownPod {
    import
        .pods
        .iter()
        .find(|e| e.uid == uid)
        .unwrap_or_else(|| panic!("{uid} is missing: {:?}", import.faults))
}

fn own(import: &Import, uid: &str) -> String {
    entry(import, uid).own_cpus().to_string()
}

/// Sixteen CPUs on two NUMA nodes.
fn machine() -> Machine {
    let cpu = |id| Cpu { id, core: id, socket: 0, numa: id / 8, l3: None };
    Machine::from_rows((0..16).map(cpu).collect(), &[]).unwrap()
}

fn taken_over(import: &Import) -> (State, Vec<record::Change>) {
    let rules = Rules::default();
    let empty = State::new(&machine(), "0,8".parse().unwrap());
    let plan = take_over(&empty, &machine(), &rules, &import.pods);
    let changes = record::changes(&plan, &rules);
    (plan.after, changes)
}

#[test]
fn every_kind_of_pod_is_taken_over_and_pools_are_not() {
    let import = import(&sample(), NOW);
    let pods: Vec<_> = import
        .pods
        .iter()
        .map(|e| (e.uid.as_str(), e.qos, e.own_cpus().to_string(), e.pool.as_deref()))
        .collect();
    let text = str::to_owned;
    assert_eq!(
        pods,
        [
            ("aaaa-bound", QosLevel::Dedicated, text("2-5"), None),
            ("bbbb-shared", QosLevel::Shared, text(""), Some("share")),
            ("cccc-batch", QosLevel::Shared, text(""), Some("batch")),
            ("dddd-reclaimed", QosLevel::Reclaimed, text(""), None),
            ("eeee-system", QosLevel::System, text(""), None),
            ("ffff-unsettled", QosLevel::Dedicated, text(""), None),
            ("gggg-free", QosLevel::Dedicated, text("10-11"), None),
        ]
    );
    assert_eq!(import.faults, [Fault::Unknown { file: MEMORY_STATE, uid: "hhhh-gone".into() }]);
    assert_eq!((import.taken().pods, import.taken().exclusive), (7, 2));
}

#[test]
fn who_has_cpus_that_there_are_not_waits_for_room_and_is_told() {
    let mut import = import(&sample(), NOW);
    let before = import.faults.len();
    import.hold_against(&"0-4,8-9".parse().unwrap());
    assert_eq!((import.taken().pods, import.taken().exclusive), (7, 1));
    let told: Vec<_> = import.faults.iter().skip(before).map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("aaaa-bound") && told[0].contains("does not have 5: it keeps"), "{told:?}");
    assert!(told[1].contains("gggg-free") && told[1].contains("does not have 10-11: it gets"), "{told:?}");
    let (state, _) = taken_over(&import);
    let free = &state.pods.get("gggg-free").unwrap();
    assert!(free.served == QosLevel::Shared && free.flags.contains(&Flag::AdoptedWithoutRoom));
    let promoted = oxalyst_planner::pods::promote(&state, &machine(), &Rules::default());
    let placed = &placements(&promoted.after, &machine())["gggg-free"].containers[0];
    assert!(placed.exclusive && placed.cpus.len() == 2 && placed.flags.is_empty(), "{placed:?}");
}

#[test]
fn who_is_taken_over_runs_where_it_did_container_by_container() {
    let (state, _) = taken_over(&import(&sample(), NOW));
    let placed = placements(&state, &machine());
    let bound: Vec<_> = placed["aaaa-bound"]
        .containers
        .iter()
        .map(|c| (c.name.as_str(), c.role, c.cpus.to_string(), c.mems.to_string(), c.exclusive))
        .collect();
    let at = |name| (name, Role::App, "2-5".to_owned(), "0".to_owned(), true);
    assert_eq!(bound, [at("main"), at("proxy")]);
    let of = |uid: &str| {
        let first = &placed[uid].containers[0];
        (first.pool.clone().unwrap_or_default(), first.cpus.to_string())
    };
    assert_eq!(of("cccc-batch").0, "batch");
    assert_eq!(of("dddd-reclaimed").0, "reclaim");
    assert_eq!(of("eeee-system"), ("system".to_owned(), "0-15".to_owned()));
    assert_eq!(of("ffff-unsettled").0, "share");
    assert!(!pods::free_per_node(&state, &machine()).iter().any(|node| node.cpus.contains(10)));
}

#[test]
fn a_pods_record_holds_what_was_asked_when_and_by_whom() {
    let import = import(&sample(), NOW);
    let bound = entry(&import, "aaaa-bound");
    assert_eq!((bound.namespace.as_str(), bound.name.as_str()), ("prod", "db-0"));
    assert_eq!(
        (bound.told.request, bound.told.source),
        (Some(MilliCpu(4000)), RequestSource::ContainerResources)
    );
    assert_eq!(bound.since_unix_ms, 1_709_181_296_789);
    assert_eq!(
        entry(&import, "cccc-batch").told.request,
        Some(MilliCpu(100)),
        "a tenth is no exact binary fraction"
    );
    assert_eq!(entry(&import, "ffff-unsettled").flags, [Flag::AdoptedWithoutRoom].into());
    let agent = entry(&import, "eeee-system");
    assert_eq!((agent.told.request, agent.told.source), (None, RequestSource::None));
    assert_eq!(agent.since_unix_ms, NOW, "a time that cannot be read is now");
    let (state, changes) = taken_over(&import);
    let records = changes.iter().map(|change| (change.key.as_str(), change.value.as_deref().unwrap()));
    let (read, faults) = record::load(records, &machine(), &Rules::default(), "0,8".parse().unwrap());
    assert!(faults.is_empty() && read == state, "they are records that the ledger takes");
}

#[test]
fn a_wrong_checksum_is_no_fault() {
    assert_eq!(import(&with("/checksum", json!(1)), NOW), import(&sample(), NOW));
}

#[test]
fn nil_and_empty_sets_are_no_sets() {
    for text in [json!("nil"), json!(""), Value::Null] {
        let mut files = with("/pod_entries/aaaa-bound/main/allocation_result", text.clone());
        let mut state: Value = serde_json::from_slice(files.cpu_state.as_ref().unwrap()).unwrap();
        state["pod_entries"]["aaaa-bound"]["proxy"]["allocation_result"] = text;
        files.cpu_state = Some(state.to_string().into_bytes());
        let import = import(&files, NOW);
        assert_eq!(own(&import, "aaaa-bound"), "");
    }
}

#[test]
fn a_pod_that_cannot_be_understood_costs_no_other() {
    let faults = [
        ("/pod_entries/aaaa-bound/main/allocation_result", json!("2-"), "2-"),
        ("/pod_entries/aaaa-bound/main/allocation_result", json!(7), "invalid type"),
        ("/pod_entries/aaaa-bound/main/qosLevel", json!("golden_cores"), "golden_cores"),
        ("/pod_entries/aaaa-bound/main/request_quantity", json!("four"), "invalid type"),
        ("/pod_entries/aaaa-bound", json!([]), "invalid type"),
    ];
    let whole = import(&sample(), NOW).pods.len();
    for (pointer, value, words) in faults {
        let import = import(&with(pointer, value), NOW);
        assert_eq!(import.pods.len(), whole - 1, "{pointer}");
        let told = import.faults.iter().map(ToString::to_string).find(|text| text.contains(words));
        let told = told.unwrap_or_else(|| panic!("{pointer}: {:?}", import.faults));
        assert!(told.contains(CPU_STATE) && told.contains("aaaa-bound"), "{told}");
    }
}

#[test]
fn cpus_that_two_pods_claim_go_to_the_first() {
    let import = import(&with("/pod_entries/gggg-free/main/allocation_result", json!("4-6")), NOW);
    assert!(import.pods.iter().all(|e| e.uid != "gggg-free"));
    let overlap = Fault::Overlap {
        first: "aaaa-bound".into(),
        second: "gggg-free".into(),
        cpus: "4-5".parse().unwrap(),
    };
    assert!(import.faults.contains(&overlap), "{:?}", import.faults);
}

#[test]
fn where_the_files_disagree_the_cpu_plugins_word_counts_and_it_is_told() {
    let import = import(&with("/pod_entries/gggg-free/main/allocation_result", json!("12-13")), NOW);
    assert_eq!(own(&import, "gggg-free"), "12-13");
    let told = Fault::Disagrees {
        file: ORM_CHECKPOINT,
        uid: "gggg-free".into(),
        theirs: "10-11".into(),
        ours: "12-13".into(),
    };
    assert!(import.faults.contains(&told), "{:?}", import.faults);
}

#[test]
fn each_file_may_be_absent_or_rubbish() {
    let whole = import(&sample(), NOW).pods;
    for rubbish in [None, Some(b"{\"pod_entries\"".to_vec()), Some(b"[]\"".to_vec()), Some(vec![])] {
        let told = rubbish.is_some();
        let other = import(&Files { memory_state: rubbish.clone(), ..sample() }, NOW);
        assert_eq!(other.pods, whole);
        assert_eq!(
            other.faults.iter().any(|f| matches!(f, Fault::NotUnderstood { file: MEMORY_STATE, .. })),
            told
        );
        let other = import(&Files { orm_checkpoint: rubbish.clone(), ..sample() }, NOW);
        assert_eq!(other.pods, whole);
        assert_eq!(
            other.faults.iter().any(|f| matches!(f, Fault::NotUnderstood { file: ORM_CHECKPOINT, .. })),
            told
        );
        let none = import(&Files { cpu_state: rubbish, ..sample() }, NOW);
        assert_eq!(none.pods, []);
        assert_eq!(
            none.faults.iter().any(|f| matches!(f, Fault::NotUnderstood { file: CPU_STATE, .. })),
            told
        );
    }
}

#[test]
fn a_folder_without_the_files_says_which_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join(MEMORY_STATE)).unwrap();
    let (files, faults) = read(dir.path());
    assert_eq!(files, Files::default());
    assert!(matches!(
        faults[..],
        [
            Fault::Missing { file: CPU_STATE },
            Fault::Unreadable { file: MEMORY_STATE, .. },
            Fault::Missing { file: ORM_CHECKPOINT }
        ]
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn no_damage_of_the_files_stops_the_import_or_gives_cpus_twice(
        which in 0..3usize,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        digits in any::<bool>(),
        cut in proptest::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut files = sample();
        let file = match which {
            0 => &mut files.cpu_state,
            1 => &mut files.memory_state,
            _ => &mut files.orm_checkpoint,
        };
        let bytes = file.as_mut().unwrap();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            // Digits for digits keep it JSON: the harder case.
            match digits {
                true if bytes[at].is_ascii_digit() => bytes[at] = b'0' + value % 10,
                true => {}
                false => bytes[at] = value,
            }
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        let import = import(&files, NOW);
        let mut taken = oxalyst_topology::CpuSet::new();
        for entry in &import.pods {
            let cpus = entry.own_cpus();
            prop_assert!(taken.is_disjoint(&cpus));
            taken |= &cpus;
        }
    }
}
