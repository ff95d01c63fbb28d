//! How long one plan can take over odd inputs: `cargo run --release -p oxalyst-planner --example plan_times [WORD]`; a word chooses the
//! rows whose name has it. Each row is the worst time on the CPU of three runs; above 50 ms it is marked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::indexing_slicing)]

use oxalyst_planner::plan::{RequestSource, Stage};
use oxalyst_planner::{
    plan::NativeOption,
    pods::{
        self, Asked, Class, CpuPolicy, Native, Plugins, PodRequest, Request, Role, Rules, RunningSandbox,
        SandboxRequest, State, Told,
    },
    topology_manager::{Hint, Policy, Scope},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaMask, NumaNode};
use oxalyst_units::{Bytes, MilliCpu};
use std::{collections::BTreeSet, time::Duration};

/// What a pod wishes, by key.
type Wishes<'a> = &'a [(&'a str, &'a str)];

const GIB: u64 = 1 << 30;
const PAGES: [u64; 2] = [2 << 20, 1 << 30];
const LIMIT: Duration = Duration::from_millis(50);
const BOUND: (&str, &str) = ("numa_binding", "true");
const ALONE: (&str, &str) = ("numa_exclusive", "true");
const TOPOLOGIES: [&str; 5] = ["none", "best-effort", "restricted", "single-numa-node", "numeric"];

/// So many nodes of so many CPUs, two threads a core, on four sockets.
fn machine(nodes: u32, cpus: u32) -> Machine {
    let row = |id: u32| {
        let numa = id / cpus;
        Cpu { id, core: id / 2 * 2, socket: numa * 4 / nodes, numa, l3: Some(id / 8) }
    };
    let node = |id: u32| NumaNode {
        memory: Some(Bytes((64 + u64::from(id % 3)) * GIB)),
        huge_pages: PAGES.map(|size| (Bytes(size), Bytes(8 * GIB))).into(),
        distances: (0..nodes).map(|to| 10 + 2 * id.abs_diff(to)).collect(),
        ..NumaNode::new(id)
    };
    Machine::new((0..nodes * cpus).map(row).collect(), (0..nodes).map(node).collect()).unwrap()
}

fn asked(nth: usize, milli: u64, gib: u64) -> Asked {
    let cpu = Some(MilliCpu(milli)).filter(|cpu| cpu.0 > 0);
    Asked {
        name: format!("c{nth}"),
        role: [Role::App, Role::Init, Role::RestartableInit][if nth % 7 == 6 { 1 + nth % 2 } else { 0 }],
        cpu,
        limit: cpu,
        memory: Some(Bytes(gib * GIB)).filter(|bytes| bytes.0 > 0),
        huge_pages: PAGES
            .map(|size| (Bytes(size), Bytes(gib / 16 * GIB)))
            .into_iter()
            .filter(|page| page.1.0 > 0)
            .collect(),
    }
}

fn pod(uid: &str, qos: QosLevel, wishes: &[(&str, &str)], containers: Vec<Asked>) -> PodRequest {
    PodRequest {
        uid: uid.into(),
        sandbox_id: format!("s-{uid}"),
        namespace: "ns".into(),
        kept_labels: [].into(),
        name: uid.into(),
        qos,
        class: Class::Guaranteed,
        wishes: wishes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        node_agent: false,
        told: Told::default(),
        flags: BTreeSet::new(),
        containers,
        plugins: Plugins::default(),
        now_unix_ms: 0,
    }
}

/// Resources of plugins that could be given on sets of nodes of every size, none of them on the same.
fn plugins(pod: &mut PodRequest, resources: usize, hints: usize, nodes: u32) {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut drawn = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for asked in &pod.containers {
        let mut list = |_| {
            let mask = |bits: u64| (0..nodes).filter(|id| bits >> id & 1 == 1).collect::<NumaMask>();
            let hints = (0..hints).map(|_| (mask(drawn()), drawn() % 8 == 0));
            Some(
                hints.filter(|(mask, _)| !mask.is_empty()).map(|(mask, good)| Hint::on(mask, good)).collect(),
            )
        };
        let provider = (0..resources).map(|nth| (format!("example.com/r{nth}"), list(nth))).collect();
        pod.plugins.hints.insert(asked.name.clone(), provider);
    }
}

fn dynamic(topology: &str, scope: Scope) -> Rules {
    let align = ["cpu", "memory"].map(str::to_owned);
    Rules {
        topology: Policy::named(topology, &align).unwrap(),
        scope,
        prefer_closest: true,
        ..Rules::default()
    }
}

fn native(topology: &str, option: NativeOption, full_cores: bool) -> Rules {
    Rules {
        cpu_policy: CpuPolicy::Native(Native { option, full_cores }),
        ..dynamic(topology, Scope::Container)
    }
}

/// Some of each node is taken, and on each node another number of CPUs.
fn uneven(machine: &Machine, rules: &Rules) -> State {
    let mut state = State::new(machine, CpuSet::new());
    for nth in 0..machine.nodes().len() {
        let taken = pod(
            &format!("u{nth}"),
            QosLevel::Dedicated,
            &[BOUND],
            vec![asked(0, 1000 * (1 + nth as u64 % 5), 1 + nth as u64 % 4)],
        );
        if let Ok(plan) = pods::plan(&state, machine, rules, &Request::Admit(taken)) {
            state = plan.after;
        }
    }
    state
}

/// How long this thread has been on a CPU: what else the machine does is left out.
fn on_cpu() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
}

struct Rows {
    word: String,
    worst: Duration,
}

impl Rows {
    /// Whether a row whose name begins so may be wanted.
    fn wants(&self, start: &str) -> bool {
        start.contains(&self.word) || self.word.starts_with(start)
    }

    fn row<T>(&mut self, name: &str, mut what: impl FnMut() -> Result<T, String>) {
        if !name.contains(&self.word) {
            return;
        }
        let mut worst = Duration::ZERO;
        let mut outcome = String::new();
        for _ in 0..3 {
            let start = on_cpu();
            let made = what();
            let took = on_cpu().saturating_sub(start);
            outcome = made.map_or_else(
                |refusal| format!("refused: {}", refusal.chars().take(60).collect::<String>()),
                |_| "planned".into(),
            );
            worst = worst.max(took);
            if took > LIMIT * 10 {
                break;
            }
        }
        self.worst = self.worst.max(worst);
        let mark = if worst > LIMIT { "  <-- above 50 ms" } else { "" };
        println!("{name:<86} {worst:>10.1?}  {outcome}{mark}");
    }

    fn admit(&mut self, name: &str, state: &State, machine: &Machine, rules: &Rules, pod: PodRequest) {
        let request = Request::Admit(pod);
        self.row(name, || pods::plan(state, machine, rules, &request).map_err(|refusal| refusal.to_string()));
    }
}

fn admissions(rows: &mut Rows, name: &str, machine: &Machine) {
    let nodes = machine.nodes().len() as u64;
    let per_node = machine.online().len() as u64 / nodes;
    let half = (nodes / 2).to_string();
    for topology in TOPOLOGIES {
        let rules = dynamic(topology, Scope::Container);
        for how in ["empty", "uneven"] {
            if !rows.wants(&format!("{name} {topology} {how}")) {
                continue;
            }
            let state =
                &if how == "empty" { State::new(machine, CpuSet::new()) } else { uneven(machine, &rules) };
            let cpus = |nodes: u64| nodes * (per_node - 3) * 1000;
            let wishes: [(&str, Wishes<'_>, u64); 8] = [
                ("exclusive on 1", &[BOUND, ALONE], 1),
                ("exclusive on half", &[BOUND, ALONE], nodes / 2),
                ("exclusive on 3/4", &[BOUND, ALONE], nodes * 3 / 4),
                ("number half", &[BOUND, ("numa_number", &half)], nodes / 2),
                (
                    "number 3 even",
                    &[BOUND, ("numa_number", "3"), ("distribute_evenly_across_numa", "true")],
                    3,
                ),
                (
                    "number half even",
                    &[BOUND, ("numa_number", &half), ("distribute_evenly_across_numa", "true")],
                    nodes / 2,
                ),
                (
                    "number half even cores",
                    &[
                        BOUND,
                        ("numa_number", &half),
                        ("distribute_evenly_across_numa", "true"),
                        ("full_pcpus_pairing", "true"),
                    ],
                    nodes / 2,
                ),
                ("align by socket", &[BOUND, ALONE, ("align_by_socket", "true")], nodes / 4),
            ];
            for (what, wishes, on) in wishes {
                let evenly = cpus(on) / (2000 * on) * 2000 * on;
                let pod =
                    pod("x", QosLevel::Dedicated, wishes, vec![asked(0, evenly.max(1000), 48 * on.min(32))]);
                rows.admit(&format!("{name} {topology} {how}: {what}"), state, machine, &rules, pod.clone());
                let mut with = pod;
                plugins(&mut with, 6, 4096, nodes as u32);
                rows.admit(
                    &format!("{name} {topology} {how}: {what}, six plugins of 4,096 hints"),
                    state,
                    machine,
                    &rules,
                    with,
                );
            }
            let many = |qos, wishes: &[(&str, &str)], milli, gib| {
                pod("x", qos, wishes, (0..100).map(|nth| asked(nth, milli, gib)).collect())
            };
            rows.admit(
                &format!("{name} {topology} {how}: dedicated, 100 containers"),
                state,
                machine,
                &rules,
                many(QosLevel::Dedicated, &[BOUND, ALONE], 1000, 1),
            );
            rows.admit(
                &format!("{name} {topology} {how}: shared, 100 containers"),
                state,
                machine,
                &rules,
                many(QosLevel::Shared, &[], 500, 1),
            );
            rows.admit(
                &format!("{name} {topology} {how}: bound shared, 100 containers"),
                state,
                machine,
                &rules,
                many(QosLevel::Shared, &[BOUND], 20, 0),
            );
            let mut with = many(QosLevel::Dedicated, &[BOUND, ALONE], 1000, 1);
            plugins(&mut with, 2, 256, nodes as u32);
            rows.admit(
                &format!("{name} {topology} {how}: dedicated, 100 containers, two plugins of 256 hints each"),
                state,
                machine,
                &rules,
                with.clone(),
            );
            rows.admit(
                &format!("{name} {topology} {how}: the same, pod scope"),
                state,
                machine,
                &Rules { scope: Scope::Pod, ..rules.clone() },
                with,
            );
        }
        for (option, cores) in [
            (NativeOption::Packed, false),
            (NativeOption::Packed, true),
            (NativeOption::Distributed { group: 1 }, false),
            (NativeOption::Distributed { group: 2 }, true),
        ] {
            if !rows.wants(&format!("{name} {topology} native")) {
                continue;
            }
            let rules = native(topology, option, cores);
            let state = uneven(machine, &rules);
            for (what, containers, milli, gib) in [
                ("one of half", 1, nodes * per_node * 500, 24 * nodes),
                ("100 of 2", 100, 2000, 1),
                ("100 of 8", 100, 8000, 16),
                ("3 of many", 3, nodes * per_node * 200, 16 * nodes),
            ] {
                let pod = pod(
                    "x",
                    QosLevel::Shared,
                    &[],
                    (0..containers).map(|nth| asked(nth, milli, gib)).collect(),
                );
                rows.admit(
                    &format!("{name} {topology} native {option:?} cores {cores}: {what}"),
                    &state,
                    machine,
                    &rules,
                    pod,
                );
            }
        }
    }
}

fn sandbox(nth: usize, level: &str, milli: u64) -> SandboxRequest {
    SandboxRequest {
        kept_labels: [].into(),
        plugins_unasked: false,
        sandbox_id: format!("sandbox-{nth}"),
        pod_uid: format!("0f3b2c1e-5d6f-4f0e-9a55-{nth:012}"),
        namespace: "default".to_owned(),
        name: format!("pod-{nth}"),
        labels: [].into(),
        annotations: [("katalyst.kubewharf.io/qos_level".to_owned(), level.to_owned())].into(),
        priority: None,
        class: Class::Guaranteed,
        request: Some(MilliCpu(milli)),
        request_source: RequestSource::SandboxResources,
        stage: Stage::Container,
        now_unix_ms: nth as i64,
    }
}

/// Everybody loses what they have, and it comes back.
fn hot_plug(rows: &mut Rows, name: &str, machine: &Machine, rules: &Rules, count: usize, others: usize) {
    if !rows.wants(name) {
        return;
    }
    let running: Vec<RunningSandbox> = (0..count)
        .map(|nth| RunningSandbox { request: sandbox(nth, "dedicated_cores", 1000), cpus: None })
        .chain(
            (0..others)
                .map(|nth| RunningSandbox { request: sandbox(count + nth, "shared_cores", 10), cpus: None }),
        )
        .collect();
    let empty = State::new(machine, CpuSet::new());
    let name = |what: &str| format!("{name}: {what}, {count} dedicated and {others} shared");
    let mut state = empty.clone();
    rows.row(&name("taking in"), || {
        state = pods::adopt(&empty, machine, rules, &running).after;
        Ok(())
    });
    let set = |nth: usize| Some(std::iter::once(nth as u32 % 1024).collect::<CpuSet>());
    let elsewhere: Vec<_> = running
        .iter()
        .enumerate()
        .map(|(nth, running)| RunningSandbox { cpus: set(1023 - nth % 1024), ..running.clone() })
        .collect();
    rows.row(&name("taking in where they run"), || Ok(pods::adopt(&empty, machine, rules, &elsewhere)));
    let last = machine.online().last().unwrap();
    let online: CpuSet = std::iter::once(last).collect();
    let less = machine.clone().with_offline(&(machine.online() - &online));
    let up = Request::TakeUp { reserved: None };
    let mut without = state.clone();
    rows.row(&name("all CPUs but one go"), || {
        without = pods::plan(&state, &less, rules, &up).map_err(|refusal| refusal.to_string())?.after;
        Ok(())
    });
    rows.row(&name("those who wait look in vain"), || Ok(pods::promote(&without, &less, rules)));
    let mut back = without.clone();
    rows.row(&name("they come back"), || {
        back = pods::plan(&without, machine, rules, &up).map_err(|refusal| refusal.to_string())?.after;
        Ok(())
    });
    rows.row(&name("all who wait are served"), || Ok(pods::promote(&back, machine, rules)));
    rows.row(&name("time passes"), || {
        pods::plan(&state, machine, rules, &Request::Elapse { now_unix_ms: 1 << 40 })
            .map_err(|refusal| refusal.to_string())
    });
    let uid = running.first().map(|running| running.request.pod_uid.clone()).unwrap();
    rows.row(&name("one ends"), || {
        pods::plan(&state, machine, rules, &Request::Remove { uid: uid.clone() })
            .map_err(|refusal| refusal.to_string())
    });
}

fn main() {
    let mut rows = Rows { word: std::env::args().nth(1).unwrap_or_default(), worst: Duration::ZERO };
    let many = machine(64, 16);
    for (name, rules) in [
        ("hot-plug", dynamic("best-effort", Scope::Container)),
        ("hot-plug native", native("best-effort", NativeOption::Packed, false)),
    ] {
        hot_plug(&mut rows, name, &many, &rules, 500, 0);
        hot_plug(&mut rows, name, &many, &rules, 500, 500);
        hot_plug(&mut rows, name, &many, &rules, 1000, 0);
    }
    admissions(&mut rows, "64 nodes", &many);
    admissions(&mut rows, "16 nodes", &machine(16, 64));
    admissions(&mut rows, "12 nodes", &machine(12, 32));
    println!("worst: {:.1?}", rows.worst);
}
