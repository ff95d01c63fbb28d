//! What a pod asked for and does not have is flagged, and explained with the numbers and the rule that counted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::{
    decision::{self, Given, Step},
    plan::Flag,
    pods::{
        Asked, Class, CpuPolicy, Native, Plugins, PodRequest, Request, Role, Rules, State, Told,
        placement_of, plan, record, remarks,
    },
};
use oxalyst_proto::orm::v1::DecisionEntry;
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, CpuSet, Machine};
use oxalyst_units::MilliCpu;
use std::collections::BTreeSet;

/// Four nodes of four CPUs in two sockets.
fn machine() -> Machine {
    let row = |id: u32| Cpu { id, core: id, socket: id / 8, numa: id / 4, l3: Some(id / 4) };
    Machine::from_rows((0..16).map(row).collect(), &[]).unwrap()
}

fn pod(qos: QosLevel, wishes: &[(&str, &str)], milli: &[u64]) -> PodRequest {
    let asked = |(index, milli): (usize, &u64)| Asked {
        name: format!("c{index}"),
        role: Role::App,
        cpu: Some(MilliCpu(*milli)),
        limit: None,
        memory: None,
        huge_pages: [].into(),
    };
    PodRequest {
        plugins: Plugins::default(),
        uid: "a".into(),
        sandbox_id: "s".into(),
        namespace: "ns".into(),
        name: "a".into(),
        qos,
        class: Class::Guaranteed,
        kept_labels: [].into(),
        wishes: wishes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        node_agent: false,
        told: Told::default(),
        flags: BTreeSet::new(),
        containers: milli.iter().enumerate().map(asked).collect(),
        now_unix_ms: 0,
    }
}

/// Its flags, and what is said of them.
fn admitted(rules: &Rules, reserved: &str, pod: PodRequest) -> (BTreeSet<Flag>, Vec<String>) {
    let reserved: CpuSet = reserved.parse().unwrap();
    let (state, _) = record::load(std::iter::empty(), &machine(), rules, reserved);
    let after = plan(&state, &machine(), rules, &Request::Admit(pod)).unwrap().after;
    let placed = placement_of(&after, &machine(), "a").unwrap().containers;
    assert!(placed.iter().all(|own| own.flags == placed[0].flags), "of all its containers alike");
    (placed[0].flags.clone(), remarks(&after, &machine(), "a"))
}

fn checked(flag: Flag, told: &[&str], got: &(BTreeSet<Flag>, Vec<String>)) {
    assert_eq!(got.0, BTreeSet::from([flag]), "{got:?}");
    assert_eq!(got.1.len(), 1, "{got:?}");
    for told in told.iter().chain(&[flag.as_str()]) {
        assert!(got.1[0].contains(told), "{told}: {got:?}");
    }
}

#[test]
fn a_set_that_is_smaller_than_what_all_containers_ask_for_says_both_numbers() {
    let rules = Rules::default();
    let got = admitted(&rules, "", pod(QosLevel::Dedicated, &[], &[2000, 1500]));
    checked(Flag::SetBelowTotal, &["has 2 CPU(s)", "container c0", "ask for 4"], &got);
    // The set is as large as all of them ask for where the sandbox told the total, or where what is asked for beside fills no CPU.
    for milli in [&[2000][..], &[1500, 500], &[2500, 500]] {
        let got = admitted(&rules, "", pod(QosLevel::Dedicated, &[], milli));
        assert_eq!(got, Default::default(), "{milli:?}");
    }
    // Shared pods have no set, and under the native policy each container has its own.
    assert_eq!(admitted(&rules, "", pod(QosLevel::Shared, &[], &[2000, 1500])), Default::default());
    let native = Rules { cpu_policy: CpuPolicy::Native(Native::default()), ..Rules::default() };
    assert_eq!(admitted(&native, "", pod(QosLevel::Dedicated, &[], &[2000, 1000])), Default::default());
}

#[test]
fn wishes_that_contradict_each_other_say_which_one_counts() {
    let rules = Rules::default();
    let bound = ("numa_binding", "true");
    for number in ["1", "3"] {
        let wishes = [bound, ("numa_ids", "0-1"), ("numa_number", number)];
        let got = admitted(&rules, "", pod(QosLevel::Dedicated, &wishes, &[2000]));
        let number = format!("numa_number is {number}");
        checked(Flag::WishesContradict, &["names 2 NUMA node(s) (0-1)", &number, "numa_ids counts"], &got);
    }
    let alone = [("numa_exclusive", "true")];
    for qos in [QosLevel::Dedicated, QosLevel::Shared] {
        let got = admitted(&rules, "", pod(qos, &alone, &[2000]));
        checked(Flag::WishesContradict, &["numa_exclusive means nothing without numa_binding"], &got);
    }
    let agreeing: [&[(&str, &str)]; 4] = [
        &[bound, ("numa_ids", "0-1"), ("numa_number", "2")],
        &[bound, ("numa_exclusive", "true")],
        &[bound, ("numa_number", "2")],
        &[("numa_binding", "false"), ("numa_exclusive", "false")],
    ];
    for wishes in agreeing {
        let got = admitted(&rules, "", pod(QosLevel::Dedicated, wishes, &[2000]));
        assert_eq!(got, Default::default(), "{wishes:?}");
    }
}

#[test]
fn a_system_pod_that_names_an_empty_pool_runs_on_all_cpus_and_says_so() {
    let rules = Rules::default();
    let on_reserve = || pod(QosLevel::System, &[("cpuset_pool", "reserve")], &[1000]);
    let got = admitted(&rules, "", on_reserve());
    checked(Flag::PoolUnknown, &["pool reserve", "has no CPU", "runs on all CPUs"], &got);
    assert_eq!(admitted(&rules, "0-1", on_reserve()), Default::default());
}

#[test]
fn an_explanation_tells_it_below_the_flags() {
    let (machine, rules) = (machine(), Rules::default());
    let state = State::new(&machine, CpuSet::new());
    let given = Given { state: &state, machine: &machine, rules: &rules, generation: 1, overruled: None };
    let decided = decision::decide(given, &Step::AdmitSpec(pod(QosLevel::Dedicated, &[], &[2000, 1500])));
    let entry = DecisionEntry { decision: Some(decided.decision), ..DecisionEntry::default() };
    let page = decision::page(&entry, &|_| String::new());
    let lines: Vec<&str> = page.lines().collect();
    let at = lines.iter().position(|line| line.contains("flags")).unwrap();
    assert!(lines[at].contains("set-below-total"), "{page}");
    assert!(lines[at + 1].contains("its set has 2 CPU(s)") && lines[at + 1].contains("ask for 4"), "{page}");
}
