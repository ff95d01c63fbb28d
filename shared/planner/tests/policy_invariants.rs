//! What holds of every state that the dynamic policy leads to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::{
    policy::{
        ContainerId, ContainerKind, Options, Placed, Preference, RECLAIM, RESERVE, Refusal, Request, State,
        end_ramp_up, hints, place, recompute, remove,
    },
    topology_manager::Hint,
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, CpuSet, Machine};
use oxalyst_units::MilliCpu;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// One thing that happens to a node.
#[derive(Clone, Debug)]
enum Event {
    /// A pod of this number, with these wishes, asks for this much; the choice is that of a hint.
    Add {
        pod: u8,
        qos: QosLevel,
        wishes: Vec<(&'static str, &'static str)>,
        milli: u64,
        choice: usize,
        how: How,
    },
    /// A sidecar of that pod.
    AddSidecar {
        pod: u8,
        milli: u64,
    },
    Remove(u8),
    Resize {
        pod: u8,
        milli: u64,
    },
    EndRampUp,
}

/// How a pod asks.
#[derive(Clone, Copy, Debug)]
struct How {
    /// It has been running for a while.
    running: bool,
    /// It declares a total beyond its main container's request.
    declares: bool,
}

fn wishes() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let pool = prop::option::of(prop::sample::select(vec!["batch", "flink"]));
    let number = prop::option::weighted(0.3, prop::sample::select(vec!["1", "2", "4"]));
    let flag = || prop::bool::weighted(0.2);
    (any::<bool>(), flag(), flag(), flag(), flag(), flag(), pool, number).prop_map(
        |(bound, exclusive, even, paired, by_socket, alone, pool, number)| {
            let flags = [
                (bound, "numa_binding", "true"),
                (exclusive, "numa_exclusive", "true"),
                (even, "distribute_evenly_across_numa", "true"),
                (paired, "full_pcpus_pairing", "true"),
                (by_socket, "align_by_socket", "true"),
                (alone, "numa_share", "false"),
            ];
            let mut wishes: Vec<_> =
                flags.iter().filter(|(set, ..)| *set).map(|(_, key, value)| (*key, *value)).collect();
            wishes.extend(pool.map(|pool| ("cpuset_pool", pool)));
            wishes.extend(number.map(|number| ("numa_number", number)));
            wishes
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let qos = prop::sample::select(QosLevel::ALL.to_vec());
    let milli = || prop_oneof![Just(0), 1u64..600, (1u64..9).prop_map(|cpus| cpus * 1000), 1000u64..6000];
    prop_oneof![
        5 => (0u8..9, qos, wishes(), milli(), 0usize..4, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |(pod, qos, wishes, milli, choice, running, declares)| {
                let how = How { running, declares };
                Event::Add { pod, qos, wishes, milli, choice, how }
            }
        ),
        1 => (0u8..9, milli()).prop_map(|(pod, milli)| Event::AddSidecar { pod, milli }),
        2 => (0u8..9).prop_map(Event::Remove),
        2 => (0u8..9, milli()).prop_map(|(pod, milli)| Event::Resize { pod, milli }),
        1 => Just(Event::EndRampUp),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let preference = prop_oneof![
        Just(Preference::Spreading),
        Just(Preference::Packing),
        Just(Preference::DynamicPacking { threshold: 0.5 })
    ];
    (preference, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(preference, enable_reclaim, overlap, reclaim_numa_binding)| Options {
            preference,
            enable_reclaim,
            overlap,
            reclaim_numa_binding,
            numa_headroom: (0..8).map(|node| (node, MilliCpu::cpus(3))).collect(),
            ..Options::default()
        },
    )
}

/// Machines of the vectors, with CPUs that may be reserved on each.
fn machines() -> Vec<(Machine, CpuSet)> {
    #[derive(serde::Deserialize)]
    struct Rows {
        cpus: Vec<(u32, u32, u32, u32, Option<u32>)>,
    }
    let text = include_str!("../testdata/vectors/machines.json");
    let all: BTreeMap<String, Rows> = serde_json::from_str(text).unwrap();
    let chosen =
        [("D", "0,2"), ("A", "0,4"), ("B", ""), ("tiny-8numa", "0"), ("gaps", "1"), ("odd-thread", "0-1")];
    let machine = |(name, reserved): (&str, &str)| {
        let rows = all[name].cpus.iter();
        let cpus = rows.map(|&(id, core, socket, numa, l3)| Cpu { id, core, socket, numa, l3 });
        (Machine::from_rows(cpus.collect(), &[]).unwrap(), reserved.parse().unwrap())
    };
    chosen.into_iter().map(machine).collect()
}

struct Run {
    machine: Machine,
    options: Options,
    state: State,
}

impl Run {
    fn request(&self, pod: u8, qos: QosLevel, wishes: &[(&str, &str)], milli: u64) -> Request {
        let pod = format!("p{pod}");
        let wishes = wishes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Request {
            id: ContainerId::new(pod.as_str(), "main"),
            pod_name: pod,
            kind: ContainerKind::Main,
            qos,
            wishes,
            cpu: MilliCpu(milli),
            pod_cpu: None,
            resize: false,
            debug: false,
            running: false,
        }
    }

    /// Hints, a choice among them, a place; twice, to see that nothing but the input counts.
    fn admit(&self, request: &Request, choice: usize) -> Result<Placed, Refusal> {
        let once = || {
            let hints = hints(&self.state, &self.options, &self.machine, request)?;
            let hint: Option<Hint> = hints.map(|hints| hints[choice % hints.len()].clone());
            place(&self.state, &self.options, &self.machine, request, hint.as_ref())
        };
        let placed = once();
        assert_eq!(placed, once());
        placed
    }

    fn step(&mut self, event: &Event) {
        let changes = match event {
            Event::Add { pod, qos, wishes, milli, choice, how } => {
                let mut request = self.request(*pod, *qos, wishes, *milli);
                request.running = how.running;
                request.pod_cpu = how.declares.then_some(MilliCpu(milli + 1500));
                if self.state.containers.contains_key(&request.id) {
                    return;
                }
                let Ok(placed) = self.admit(&request, *choice) else { return };
                self.check_placed(&request, &placed);
                placed.changes
            }
            Event::AddSidecar { pod, milli } => {
                let id = ContainerId::new(format!("p{pod}"), "main");
                let Some(main) = self.state.containers.get(&id).cloned() else { return };
                let wishes: Vec<_> = main.wishes.iter().collect();
                let mut request = self.request(*pod, main.qos, &wishes, *milli);
                (request.id.container, request.kind) = ("side".into(), ContainerKind::Sidecar);
                let Ok(placed) = self.admit(&request, 0) else { return };
                placed.changes
            }
            Event::Remove(pod) => remove(&self.state, &self.options, &self.machine, &format!("p{pod}")),
            Event::Resize { pod, milli } => {
                let id = ContainerId::new(format!("p{pod}"), "main");
                let Some(known) = self.state.containers.get(&id).cloned() else { return };
                let wishes: Vec<_> = known.wishes.iter().collect();
                let mut request = self.request(*pod, known.qos, &wishes, *milli);
                request.resize = true;
                let Ok(placed) = self.admit(&request, 0) else { return };
                let cpus = placed.cpus.clone().unwrap();
                if known.qos == QosLevel::Dedicated {
                    let nested = cpus.is_subset(&known.cpus) || known.cpus.is_subset(&cpus);
                    assert!(nested, "{} became {cpus}", known.cpus);
                    let nodes = |cpus| self.machine.nodes_of(cpus);
                    assert!(!known.wishes.numa_binding() || nodes(&cpus).is_subset(&nodes(&known.cpus)));
                    let kept = &known.cpus & &known.baseline;
                    let evenly = known.wishes.distribute_evenly();
                    assert!(
                        evenly || cpus.is_subset(&kept) || kept.is_subset(&cpus),
                        "{kept} is kept longest"
                    );
                }
                placed.changes
            }
            Event::EndRampUp => {
                let all: BTreeSet<_> = self.state.containers.keys().cloned().collect();
                end_ramp_up(&self.state, &self.options, &self.machine, &all)
            }
        };
        self.state.apply(&changes);
        self.check();
    }

    /// A pod that is added and removed again leaves every exclusive set, and the pools once they are settled, as they were.
    fn check_placed(&self, request: &Request, placed: &Placed) {
        let cpus = placed.cpus.as_ref().unwrap();
        if request.qos == QosLevel::Dedicated && !request.wishes.numa_exclusive() {
            assert_eq!(cpus.len() as u64, request.aggregated().ceil_cpus());
        }
        let mut after = self.state.clone();
        after.apply(&placed.changes);
        let lost_binding = after.containers.iter().any(|(id, now)| {
            self.state.containers.get(id).is_some_and(|before| before.numa_hint != now.numa_hint)
        });
        after.apply(&remove(&after, &self.options, &self.machine, &request.id.pod));
        assert_eq!(after.exclusive(), self.state.exclusive());
        // Where pools overlap, how far they do depends on how far they did.
        if self.options.overlap || lost_binding {
            return;
        }
        let mut before = self.state.clone();
        recompute(&mut before, &self.options, &self.machine);
        recompute(&mut after, &self.options, &self.machine);
        assert_eq!(after.pools, before.pools);
        assert_eq!(after.containers, before.containers);
    }

    fn check(&self) {
        let State { reserved, pools, containers, .. } = &self.state;
        let exclusive = self.state.exclusive();
        assert!(exclusive.is_disjoint(reserved));
        let mut seen = CpuSet::new();
        for (id, container) in containers {
            assert!(!container.cpus.is_empty(), "{id:?} is without CPUs");
            assert!(container.cpus.is_subset(self.machine.online()));
            match container.qos {
                QosLevel::Dedicated => {
                    if container.kind == ContainerKind::Sidecar {
                        assert_eq!(container.cpus, self.state.main_of(&id.pod).unwrap().cpus);
                        continue;
                    }
                    assert!(seen.is_disjoint(&container.cpus), "{id:?} shares its CPUs");
                    seen |= &container.cpus;
                    if let Some(node) = container.numa_hint {
                        assert!(container.cpus.is_subset(&self.machine.node(node).unwrap().cpus));
                    }
                }
                QosLevel::Shared | QosLevel::Reclaimed => {
                    assert!(container.cpus.is_disjoint(&exclusive), "{id:?} runs on exclusive CPUs");
                    assert!(container.cpus.is_disjoint(reserved));
                }
                QosLevel::System => {}
            }
        }
        for (name, cpus) in pools {
            assert!(cpus.is_disjoint(&exclusive), "pool {name} has exclusive CPUs");
            assert!(name == RESERVE || cpus.is_disjoint(reserved), "pool {name} has reserved CPUs");
        }
        let taken = &exclusive | reserved;
        assert_eq!(pools[RECLAIM].is_empty(), taken == *self.machine.online());
        let shared: Vec<_> = pools.iter().filter(|(name, _)| *name != RECLAIM && *name != RESERVE).collect();
        for (index, (name, cpus)) in shared.iter().enumerate() {
            for (other, others) in &shared[index + 1..] {
                assert!(
                    cpus == others || cpus.is_disjoint(others),
                    "pools {name} and {other} overlap in part"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn every_state_is_sound(
        machine in prop::sample::select(machines()),
        options in options(),
        events in prop::collection::vec(event(), 1..24),
    ) {
        let (machine, reserved) = machine;
        let state = State::new(&machine, reserved);
        let mut run = Run { machine, options, state };
        run.check();
        for event in &events {
            run.step(event);
        }
    }
}
