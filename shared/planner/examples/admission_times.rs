//! How long an admission, the end of ramp-up and the taking in of what runs take, by the number of pods that are known.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use oxalyst_planner::plan::{RequestSource, Stage};
use oxalyst_planner::pods::{
    self, Class, Request, Rules, RunningSandbox, SandboxRequest, State, placements_of, shown_pools,
};
use oxalyst_topology::{Cpu, CpuSet, Machine};
use oxalyst_units::MilliCpu;

/// 384 CPUs, two threads a core, 12 NUMA nodes, 2 sockets.
fn machine() -> Machine {
    let cpu = |id: u32| {
        let core = id % 192;
        Cpu { id, core, socket: core / 96, numa: core / 16, l3: Some(core / 8) }
    };
    Machine::from_rows((0..384).map(cpu).collect(), &[]).unwrap()
}

fn pod(nth: usize, level: &str, milli: u64, wishes: &str) -> SandboxRequest {
    let mut annotations = BTreeMap::from([("katalyst.kubewharf.io/qos_level".to_owned(), level.to_owned())]);
    if !wishes.is_empty() {
        annotations.insert("katalyst.kubewharf.io/memory_enhancement".to_owned(), wishes.to_owned());
    }
    SandboxRequest {
        kept_labels: [].into(),
        plugins_unasked: false,
        sandbox_id: format!("sandbox-{nth}"),
        pod_uid: format!("0f3b2c1e-5d6f-4f0e-9a55-{nth:012}"),
        namespace: "default".to_owned(),
        name: format!("pod-{nth}"),
        labels: BTreeMap::new(),
        annotations,
        priority: None,
        class: Class::Burstable,
        request: Some(MilliCpu(milli)),
        request_source: RequestSource::SandboxResources,
        stage: Stage::Sandbox,
        now_unix_ms: 1000,
    }
}

fn filled(machine: &Machine, rules: &Rules, count: usize) -> State {
    let mut state = State::new(machine, CpuSet::new());
    for nth in 0..count {
        let request = match nth % 10 {
            9 => pod(nth, "reclaimed_cores", 100, ""),
            0 if nth < 300 => pod(nth, "dedicated_cores", 2000, ""),
            _ => pod(nth, "shared_cores", 100, ""),
        };
        state = pods::admit(&state, machine, rules, &request).unwrap().plan.after;
    }
    let elapsed = Request::Elapse { now_unix_ms: 1_000_000 };
    pods::plan(&state, machine, rules, &elapsed).unwrap().after
}

fn median(mut measure: impl FnMut() -> Duration) -> Duration {
    let mut all: Vec<Duration> = (0..41).map(|_| measure()).collect();
    all.sort();
    all.swap_remove(20)
}

fn timed<T>(what: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let made = what();
    (start.elapsed(), made)
}

fn main() {
    let (machine, rules) = (machine(), Rules::default());
    for count in [10, 100, 500, 1000] {
        let state = filled(&machine, &rules, count);
        for (name, request) in [
            ("shared", pod(9999, "shared_cores", 100, "")),
            ("unmoving", SandboxRequest { request: None, ..pod(9999, "shared_cores", 0, "") }),
            ("dedicated", pod(9999, "dedicated_cores", 4000, "")),
            ("bound", pod(9999, "dedicated_cores", 4000, r#"{"numa_binding":"true"}"#)),
        ] {
            let took = median(|| timed(|| pods::admit(&state, &machine, &rules, &request).unwrap()).0);
            let plan = pods::admit(&state, &machine, &rules, &request).unwrap().plan;
            let told = median(|| {
                timed(|| {
                    (placements_of(&plan.after, &machine, &plan.affected), shown_pools(&plan.after, &machine))
                })
                .0
            });
            let uid = &request.pod_uid;
            let freed =
                median(|| timed(|| pods::release(&plan.after, &machine, &rules, uid, &request.sandbox_id)).0);
            println!(
                "{count:>5} pods: admit {name:<9} {took:>10.1?}  tell {:>4} {told:>10.1?}  release {freed:>10.1?}",
                plan.affected.len()
            );
        }
        let idle = median(|| {
            timed(|| {
                pods::plan(&state, &machine, &rules, &Request::Elapse { now_unix_ms: 2_000_000 }).unwrap()
            })
            .0
        });
        let running: Vec<_> = (0..count)
            .map(|nth| RunningSandbox {
                request: pod(nth, if nth % 10 == 9 { "reclaimed_cores" } else { "shared_cores" }, 100, ""),
                cpus: None,
            })
            .collect();
        let known = timed(|| pods::adopt(&state, &machine, &rules, &running)).0;
        let empty = State::new(&machine, CpuSet::new());
        let (new, plan) = timed(|| pods::adopt(&empty, &machine, &rules, &running));
        println!(
            "{count:>5} pods: idle tick {idle:.1?}  list of known {known:.1?}  list of new {new:.1?} ({})",
            plan.pods.len()
        );
    }
}
