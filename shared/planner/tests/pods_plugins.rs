//! What resource plugins say goes through the one merge of CPUs and memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod pods_support;

use oxalyst_planner::plan::{NativeOption, Reason, Rule};
use oxalyst_planner::pods::{
    Asked, Class, CpuPolicy, Native, Plan, PluginAllocation, Plugins, PodRequest, Refusal, Role, Rules,
    State, Told, Trace, admit_spec_traced, record,
};
use oxalyst_planner::topology_manager::{Hint, Policy, Provider, Scope};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, NumaMask};
use oxalyst_units::MilliCpu;
use pods_support::sixteen_cpus;
use std::collections::BTreeSet;

const GPU: &str = "vendor.io/gpu";

/// NUMA nodes, and whether they are preferred.
type Hinted<'a> = (&'a [u32], bool);
/// A container, and what a plugin says of it.
type Voice<'a> = (&'a str, &'a [Hinted<'a>]);

fn asked(name: &str, role: Role, milli: u64) -> Asked {
    let cpu = Some(MilliCpu(milli)).filter(|cpu| cpu.0 > 0);
    Asked { name: name.to_owned(), role, cpu, limit: cpu, memory: None, huge_pages: Default::default() }
}

fn pod(qos: QosLevel, bound: bool, containers: Vec<Asked>, voices: &[Voice<'_>]) -> PodRequest {
    let hint = |(nodes, preferred): &Hinted<'_>| Hint::on(mask(nodes), *preferred);
    let provider = |hints: &[Hinted<'_>]| -> Provider {
        [(GPU.to_owned(), Some(hints.iter().map(hint).collect()))].into()
    };
    let hints = voices.iter().map(|(name, hints)| ((*name).to_owned(), provider(hints))).collect();
    let wishes = bound.then(|| ("numa_binding".to_owned(), "true".to_owned()));
    PodRequest {
        kept_labels: [].into(),
        uid: "u".into(),
        sandbox_id: "s".into(),
        namespace: "ns".into(),
        name: "pod".into(),
        qos,
        class: Class::Guaranteed,
        wishes: wishes.into_iter().collect(),
        node_agent: false,
        told: Told::default(),
        flags: BTreeSet::new(),
        containers,
        plugins: Plugins { hints, ..Plugins::default() },
        now_unix_ms: 0,
    }
}

fn mask(nodes: &[u32]) -> NumaMask {
    nodes.iter().copied().collect()
}

fn rules(topology: Policy, scope: Scope) -> Rules {
    Rules { topology, scope, ..Rules::default() }
}

fn admit(rules: &Rules, request: &PodRequest) -> (Result<Plan, Refusal>, Trace) {
    let machine = sixteen_cpus();
    let state = State::new(&machine, CpuSet::new());
    let mut trace = Trace::on();
    let plan = admit_spec_traced(&state, &machine, rules, request, &mut trace);
    (plan, trace)
}

fn nodes_of(plan: &Plan, container: &str) -> NumaMask {
    let machine = sixteen_cpus();
    let own = plan.after.cpus.containers.iter().find(|(id, _)| *id.container == *container).unwrap();
    machine.nodes_of(&own.1.cpus)
}

#[test]
fn cpus_follow_what_a_plugin_has_under_both_policies_and_both_scopes() {
    let voices: &[Voice<'_>] = &[("app", &[(&[2], true), (&[0, 1, 2, 3], false)])];
    let request = pod(QosLevel::Dedicated, true, vec![asked("app", Role::App, 2000)], voices);
    let native = CpuPolicy::Native(Native { option: NativeOption::Packed, full_cores: false });
    for scope in [Scope::Container, Scope::Pod] {
        for policy in [Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode] {
            let dynamic = rules(policy, scope);
            let native = Rules { cpu_policy: native.clone(), ..dynamic.clone() };
            for rules in [dynamic, native] {
                let (plan, trace) = admit(&rules, &request);
                assert_eq!(nodes_of(&plan.unwrap(), "app"), mask(&[2]), "{rules:?}");
                let merged = trace.merges[0].merged.clone().unwrap();
                assert_eq!(merged.hint(GPU), Hint::on(mask(&[2]), true));
            }
        }
    }
}

#[test]
fn what_a_plugin_has_not_refuses_the_pod_by_the_plugins_rule() {
    let request = pod(QosLevel::Shared, false, vec![asked("app", Role::App, 500)], &[("app", &[])]);
    let (plan, _) = admit(&rules(Policy::Restricted, Scope::Container), &request);
    let refusal = plan.unwrap_err();
    assert_eq!((refusal.reason, refusal.rule), (Reason::Insufficient, Rule::Plugin));
    assert!(refusal.message.contains(GPU), "{}", refusal.message);
}

#[test]
fn an_init_container_takes_part_with_its_plugins_and_gets_no_place_of_its_own() {
    let containers = vec![asked("once", Role::Init, 500), asked("app", Role::App, 2000)];
    let fits: &[Hinted<'_>] = &[(&[3], true)];
    let request = pod(QosLevel::Dedicated, true, containers, &[("once", fits)]);
    let strict = rules(Policy::Restricted, Scope::Container);
    let (plan, trace) = admit(&strict, &request);
    let plan = plan.unwrap();
    assert_eq!(plan.after.cpus.containers.len(), 1, "the main container's alone");
    let of = |name: &str| trace.merges.iter().find(|merge| merge.container.as_deref() == Some(name)).unwrap();
    assert_eq!(of("once").merged.clone().unwrap().hint(GPU), Hint::on(mask(&[3]), true));
    assert_eq!(nodes_of(&plan, "app"), mask(&[0]), "it is no voice of the main container");
    let nothing =
        PodRequest { plugins: pod(QosLevel::Shared, false, vec![], &[("once", &[])]).plugins, ..request };
    assert_eq!(admit(&strict, &nothing).0.unwrap_err().rule, Rule::Plugin);
}

#[test]
fn what_plugins_gave_is_in_the_record_and_comes_back_from_it() {
    let mut request = pod(QosLevel::Shared, false, vec![asked("app", Role::App, 500)], &[]);
    let given = PluginAllocation {
        resource: GPU.to_owned(),
        plugin: GPU.to_owned(),
        nodes: mask(&[1]),
        info: vec![0x2a, 3, b'd', b'-', b'1'],
    };
    request.plugins.given.insert("app".to_owned(), vec![given]);
    let rules = rules(Policy::BestEffort, Scope::Container);
    let plan = admit(&rules, &request).0.unwrap();
    let machine = sixteen_cpus();
    let records = record::changes(&plan, &rules);
    let records = records.iter().filter_map(|change| Some((change.key.as_str(), change.value.as_deref()?)));
    let (state, faults) = record::load(records, &machine, &rules, CpuSet::new());
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(state.pods.get("u").unwrap().given, request.plugins.given);
}
