//! What Katalyst's agents left on a node becomes records of ours; the samples are made by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::path::Path;

use orm::katalyst::{CPU_STATE, Fault, Files, Import, MEMORY_STATE, ORM_CHECKPOINT, import, read};
use orm::record;
use oxalyst_planner::plan::{Flag, Placement, PodEntry, PoolName, RequestSource};
use oxalyst_qos::QosLevel;
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

fn entry<'a>(import: &'a Import, uid: &str) -> &'a PodEntry {
    import
        .pods
        .iter()
        .find(|e| e.uid == uid)
        .unwrap_or_else(|| panic!("{uid} is missing: {:?}", import.faults))
}

fn exclusive(cpus: &str, numa_bound: bool) -> Placement {
    Placement::Exclusive { cpus: cpus.parse().unwrap(), numa_bound }
}

#[test]
fn every_kind_of_pod_is_taken_over_and_pools_are_not() {
    let import = import(&sample(), NOW);
    let placements: Vec<(&str, QosLevel, &Placement)> =
        import.pods.iter().map(|e| (e.uid.as_str(), e.qos, &e.placement)).collect();
    let pool = Placement::Pool;
    assert_eq!(
        placements,
        [
            ("aaaa-bound", QosLevel::Dedicated, &exclusive("2-5", true)),
            ("bbbb-shared", QosLevel::Shared, &pool(PoolName::Share)),
            ("cccc-batch", QosLevel::Shared, &pool(PoolName::Share)),
            ("dddd-reclaimed", QosLevel::Reclaimed, &pool(PoolName::Reclaim)),
            ("eeee-system", QosLevel::System, &pool(PoolName::System)),
            ("ffff-unsettled", QosLevel::Dedicated, &pool(PoolName::Share)),
            ("gggg-free", QosLevel::Dedicated, &exclusive("10-11", false)),
        ]
    );
    assert_eq!(import.faults, [Fault::Unknown { file: MEMORY_STATE, uid: "hhhh-gone".into() }]);
    assert_eq!((import.taken().pods, import.taken().exclusive), (7, 2));
}

#[test]
fn a_pods_record_holds_what_was_asked_when_and_by_whom() {
    let import = import(&sample(), NOW);
    let bound = entry(&import, "aaaa-bound");
    assert_eq!((bound.namespace.as_str(), bound.name.as_str()), ("prod", "db-0"));
    assert_eq!(
        (bound.request, bound.request_source),
        (Some(MilliCpu(4000)), RequestSource::ContainerResources)
    );
    assert_eq!(bound.since_unix_ms, 1_709_181_296_789);
    assert_eq!(
        entry(&import, "cccc-batch").request,
        Some(MilliCpu(100)),
        "a tenth is no exact binary fraction"
    );
    assert_eq!(entry(&import, "cccc-batch").flags, [Flag::PoolUnknown].into());
    assert_eq!(entry(&import, "ffff-unsettled").flags, [Flag::AdoptedWithoutRoom].into());
    let agent = entry(&import, "eeee-system");
    assert_eq!((agent.request, agent.request_source), (None, RequestSource::None));
    assert_eq!(agent.since_unix_ms, NOW, "a time that cannot be read is now");
    for entry in &import.pods {
        assert_eq!(
            &record::decode(&record::encode(entry)).unwrap(),
            entry,
            "it is a record that the ledger takes"
        );
    }
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
        assert_eq!(entry(&import, "aaaa-bound").placement, Placement::Pool(PoolName::Share));
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
    assert_eq!(entry(&import, "gggg-free").placement, exclusive("12-13", false));
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
            if let Placement::Exclusive { cpus, .. } = &entry.placement {
                prop_assert!(!cpus.is_empty() && taken.is_disjoint(cpus));
                taken |= cpus;
            }
        }
    }
}
