//! The pure part of an admission: merging what resources would like, and planning on a large, full machine.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::Instant;

use oxalyst_planner::pods::{self, Asked, Class, PodRequest, Request, Role, Rules, State, Told};
use oxalyst_planner::rules::{RuleSettings, rules};
use oxalyst_planner::topology_manager::{Hint, Nodes, Policy, Provider, every_mask, merge};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, Machine, NumaMask, NumaNode};
use oxalyst_units::{Bytes, MilliCpu};

use super::samples::Samples;
use super::{Fault, Row};

const ROUNDS: usize = 200;

/// Containers on the large machine, each in a pod of its own.
const CONTAINERS: usize = 500;

pub(super) fn merges() -> Result<Vec<Row>, Fault> {
    let numeric = Policy::named("numeric", &["cpu".to_owned(), "memory".to_owned()])?;
    let worst = |count: u32, policies: &[&Policy]| -> Result<(Samples, String), Fault> {
        let mut slowest: Option<(Samples, String)> = None;
        for policy in policies {
            for likes in Likes::ALL {
                let samples = merged(policy, count, likes)?;
                if slowest.as_ref().is_none_or(|(known, _)| known.quantile_ms(0.5) < samples.quantile_ms(0.5))
                {
                    slowest = Some((samples, format!("{}, {}", policy.name(), likes.in_words())));
                }
            }
        }
        slowest.ok_or_else(|| "nothing was merged".into())
    };
    let row = |id: &str, count: u32, budget: f64, (samples, case): (Samples, String)| Row {
        id: id.to_owned(),
        what: format!(
            "merge of 3 resources with all {} masks of {count} NUMA nodes each, the slowest case ({case}): median of {ROUNDS}; 99th \
             percentile {:.3} ms",
            (1u64 << count) - 1,
            samples.quantile_ms(0.99)
        ),
        value: samples.quantile_ms(0.5),
        unit: "ms",
        floor: None,
        budget,
    };
    let one_hint = [&Policy::BestEffort, &Policy::Restricted, &Policy::SingleNumaNode];
    Ok(vec![
        row("merge-8", 8, 1.0, worst(8, &one_hint)?),
        row("merge-16", 16, 10.0, worst(16, &one_hint)?),
        row("merge-numeric-8", 8, 1.0, worst(8, &[&numeric])?),
    ])
}

/// Which masks each resource prefers.
#[derive(Clone, Copy)]
enum Likes {
    Singles,
    DifferentSizes,
    Nothing,
    Everything,
    Opposites,
}

// === impl Likes ===

impl Likes {
    const ALL: [Self; 5] =
        [Self::Singles, Self::DifferentSizes, Self::Nothing, Self::Everything, Self::Opposites];

    /// Of the resource at this place, on a machine of so many nodes.
    fn prefers(self, at: usize, nodes: usize, mask: &NumaMask) -> bool {
        match self {
            Self::Singles => mask.len() == 1,
            Self::DifferentSizes => mask.len() == at + 1,
            Self::Nothing => false,
            Self::Everything => true,
            Self::Opposites => mask.len() == if at == 2 { nodes } else { 1 },
        }
    }

    const fn in_words(self) -> &'static str {
        match self {
            Self::Singles => "single nodes preferred",
            Self::DifferentSizes => "different sizes preferred",
            Self::Nothing => "nothing preferred",
            Self::Everything => "everything preferred",
            Self::Opposites => "one resource prefers all nodes, the others single ones",
        }
    }
}

fn merged(policy: &Policy, count: u32, likes: Likes) -> Result<Samples, Fault> {
    let all: NumaMask = (0..count).collect();
    let masks = every_mask(&all, all.len());
    let hints = |at| {
        let hint = |mask: &NumaMask| Hint::on(mask.clone(), likes.prefers(at, all.len(), mask));
        Some(masks.iter().map(hint).collect())
    };
    let names = ["cpu", "memory", "net"];
    let provider: Provider =
        names.iter().enumerate().map(|(at, name)| ((*name).to_owned(), hints(at))).collect();
    let (nodes, providers) = (Nodes::new(all.clone()), [provider]);
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        black_box(merge(policy, &nodes, black_box(&providers))?);
        samples.push(start.elapsed());
    }
    Ok(samples)
}

pub(super) fn plan_large() -> Result<Vec<Row>, Fault> {
    let machine = large()?;
    let settings = RuleSettings {
        reserved_cpu_count: 12,
        hint_optimizer: "packing".to_owned(),
        enable_reclaim: true,
        ..RuleSettings::default()
    };
    let rules = rules(&settings)?;
    let state = filled(&machine, &rules, &settings)?;
    let mut kinds: Vec<(Samples, &str)> = Vec::new();
    for (what, request) in arrivals() {
        let request = Request::Admit(request);
        let mut samples = Samples::default();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let plan = black_box(pods::plan(black_box(&state), &machine, &rules, &request));
            samples.push(start.elapsed());
            drop(plan.map_err(|refusal| format!("{what}: {refusal}"))?);
        }
        kinds.push((samples, what));
    }
    let median = |(samples, _): &(Samples, &str)| samples.quantile_ms(0.5);
    kinds.sort_by(|a, b| median(b).total_cmp(&median(a)));
    let each: Vec<String> = kinds.iter().map(|kind| format!("{} {:.3}", kind.1, median(kind))).collect();
    let (samples, what) = kinds.first().ok_or("nothing was planned")?;
    Ok(vec![Row {
        id: "plan-large".to_owned(),
        what: format!(
            "plan for one container, 384 CPUs, 12 NUMA nodes, {} pods that run, the slowest kind of pod ({what}): median of {ROUNDS}; \
             99th percentile {:.3} ms; medians by kind: {}",
            state.pods.len(),
            samples.quantile_ms(0.99),
            each.join(", ")
        ),
        value: samples.quantile_ms(0.5),
        unit: "ms",
        floor: None,
        budget: 2.0,
    }])
}

/// Two sockets of six NUMA nodes, 32 CPUs in 16 cores each, four L3 caches a node.
fn large() -> Result<Machine, Fault> {
    let cpu = |id: u32| {
        let core = id % 192;
        Cpu { id, core, socket: core / 96, numa: core / 16, l3: Some(core / 4) }
    };
    let node = |id| NumaNode { memory: Some(Bytes(64 << 30)), ..NumaNode::new(id) };
    Ok(Machine::new((0..384).map(cpu).collect(), (0..12).map(node).collect())?)
}

/// The machine with pods of every level that have ramped up.
fn filled(machine: &Machine, rules: &Rules, settings: &RuleSettings) -> Result<State, Fault> {
    let reserved = oxalyst_planner::rules::reserved(settings, machine)?;
    let (mut state, _) = pods::record::load(std::iter::empty(), machine, rules, reserved);
    for n in 0..CONTAINERS {
        let (qos, wishes, milli): (_, &[&str], _) = match n % 25 {
            0 => (QosLevel::Dedicated, &["numa_binding"], 4000),
            1 => (QosLevel::Dedicated, &[], 2000),
            2 | 3 => (QosLevel::Shared, &["numa_binding"], 500),
            4..8 => (QosLevel::Reclaimed, &[], 1000),
            8 => (QosLevel::System, &[], 100),
            _ => (QosLevel::Shared, &[], 100),
        };
        let request = Request::Admit(pod(&format!("pod-{n}"), qos, wishes, milli));
        state = pods::plan(&state, machine, rules, &request)
            .map_err(|refusal| format!("pod {n}: {refusal}"))?
            .after;
    }
    let later = Request::Elapse { now_unix_ms: 60_000 };
    Ok(pods::plan(&state, machine, rules, &later).map_err(|refusal| refusal.to_string())?.after)
}

fn arrivals() -> Vec<(&'static str, PodRequest)> {
    vec![
        ("shared", pod("new", QosLevel::Shared, &[], 500)),
        ("bound shared", pod("new", QosLevel::Shared, &["numa_binding"], 500)),
        ("dedicated", pod("new", QosLevel::Dedicated, &[], 2000)),
        ("bound dedicated", pod("new", QosLevel::Dedicated, &["numa_binding"], 4000)),
        (
            "dedicated that has its nodes for itself",
            pod("new", QosLevel::Dedicated, &["numa_binding", "numa_exclusive"], 40_000),
        ),
        ("reclaimed", pod("new", QosLevel::Reclaimed, &[], 1000)),
    ]
}

fn pod(uid: &str, qos: QosLevel, wishes: &[&str], milli: u64) -> PodRequest {
    PodRequest {
        kept_labels: [].into(),
        plugins: oxalyst_planner::pods::Plugins::default(),
        uid: uid.to_owned(),
        sandbox_id: format!("{uid}-sandbox"),
        namespace: "default".to_owned(),
        name: uid.to_owned(),
        qos,
        class: Class::Burstable,
        wishes: wishes.iter().map(|key| ((*key).to_owned(), "true".to_owned())).collect(),
        node_agent: false,
        told: Told::default(),
        flags: BTreeSet::new(),
        containers: vec![Asked {
            name: "main".to_owned(),
            role: Role::App,
            cpu: Some(MilliCpu(milli)),
            limit: None,
            memory: Some(Bytes(64 << 20)),
            huge_pages: Default::default(),
        }],
        now_unix_ms: 0,
    }
}
