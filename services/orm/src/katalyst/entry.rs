//! From what Katalyst remembered to what the ledger holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use oxalyst_qos::{QosLevel, enhancements};
use oxalyst_topology::CpuSet;
use oxalyst_units::MilliCpu;

use super::cpu_state::DEDICATED;
use super::{CPU_STATE, Container, Fault, Files, MEMORY_STATE, ORM_CHECKPOINT, Pod, Sets};
use super::{cpu_state, memory_state, orm_checkpoint};
use oxalyst_planner::plan::{DecidedBy, Flag, RequestSource};
use oxalyst_planner::pods::{Asked, Class, KnownPod, Role, State, Told};
use oxalyst_planner::policy::{Wishes, node_of_pool};

const NUMA_BINDING: &str = "numa_binding";
/// Keys of enhancements that Katalyst copies among the annotations.
const APART: [&str; 9] = [
    NUMA_BINDING,
    "numa_exclusive",
    "numa_number",
    "numa_ids",
    "numa_share",
    "align_by_socket",
    "distribute_evenly_across_numa",
    "full_pcpus_pairing",
    "cpuset_pool",
];
/// The container that speaks for its pod.
const MAIN: &str = "MAIN";

/// What can be taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Import {
    /// Pods, ascending by uid; exclusive sets are disjoint. Their sandboxes are not known: the runtime's list tells them.
    pub pods: Vec<KnownPod>,
    /// What could not be taken over, or is doubtful.
    pub faults: Vec<Fault>,
}

/// How much was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Pods.
    pub pods: usize,
    /// Those of them that have CPUs of their own.
    pub exclusive: usize,
    /// What could not be taken over, or is doubtful.
    pub faults: usize,
}

/// What the files give. `now_unix_ms` stands where they do not say since when a pod has been there.
pub fn import(files: &Files, now_unix_ms: i64) -> Import {
    let (pods, mut faults) = files.cpu_state.as_deref().map(cpu_state).unwrap_or_default();
    let (mems, more) = files.memory_state.as_deref().map(memory_state).unwrap_or_default();
    faults.extend(more);
    let (cached, more) = files.orm_checkpoint.as_deref().map(orm_checkpoint).unwrap_or_default();
    faults.extend(more);

    let mut import = Import { pods: Vec::new(), faults };
    let mut owners: Vec<(String, CpuSet)> = Vec::new();
    for pod in &pods {
        let known = known(pod, now_unix_ms);
        let cpus = known.own_cpus();
        if let Some((first, theirs)) = owners.iter().find(|(_, theirs)| !theirs.is_disjoint(&cpus)) {
            let (first, second) = (first.clone(), pod.uid.clone());
            import.faults.push(Fault::Overlap { first, second, cpus: theirs & &cpus });
            continue;
        }
        owners.push((pod.uid.clone(), cpus));
        import.pods.push(known);
    }

    let known: BTreeMap<&str, &KnownPod> = import.pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
    let named: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
    let mut doubts = unknown(&mems, &named, MEMORY_STATE);
    doubts.extend(unknown(&cached.cpus, &named, ORM_CHECKPOINT));
    for (uid, containers) in &cached.cpus {
        let ours = known.get(uid.as_str()).map(|pod| pod.own_cpus()).filter(|cpus| !cpus.is_empty());
        let Some(ours) = ours else { continue };
        let theirs = containers.values().fold(CpuSet::new(), |all, set| &all | set);
        if theirs != ours {
            let (file, uid) = (ORM_CHECKPOINT, uid.clone());
            doubts.push(Fault::Disagrees { file, uid, theirs: theirs.to_string(), ours: ours.to_string() });
        }
    }
    import.faults.extend(doubts);
    import
}

fn unknown<T>(sets: &Sets<T>, named: &BTreeSet<&str>, file: &'static str) -> Vec<Fault> {
    // Without the CPU plugin's file nothing is known of any pod, which is told once, by its absence.
    let strangers = sets.keys().filter(|uid| !named.contains(uid.as_str()) && !named.is_empty());
    strangers.map(|uid| Fault::Unknown { file, uid: uid.clone() }).collect()
}

fn known(pod: &Pod, now_unix_ms: i64) -> KnownPod {
    let mut flags = BTreeSet::new();
    let dedicated = pod.qos == QosLevel::Dedicated;
    let has_own =
        |container: &Container| dedicated && container.pool == DEDICATED && container.cpus.is_some();
    if dedicated && !pod.containers.iter().any(has_own) {
        flags.insert(Flag::AdoptedWithoutRoom);
    }
    let containers: Vec<(Asked, Option<CpuSet>)> = pod
        .containers
        .iter()
        .map(|container| (asked(container), container.cpus.clone().filter(|_| has_own(container))))
        .collect();
    let main = pod.containers.iter().find(|c| c.kind == MAIN).or(pod.containers.first());
    let asked = pod.containers.iter().filter_map(|c| c.request);
    let request = asked.fold(0u64, |all, milli| all.saturating_add(milli.0));
    KnownPod {
        uid: pod.uid.clone(),
        sandbox_id: String::new(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        qos: pod.qos,
        // Its files do not tell; who has CPUs of its own under the native policy is guaranteed.
        class: if dedicated { Class::Guaranteed } else { Class::Burstable },
        wishes: wishes(pod),
        kept_labels: pod.labels.clone(),
        node_agent: false,
        pool: pool(pod),
        main: main.map(|main| main.name.clone()).unwrap_or_default(),
        containers,
        told: Told {
            request: (request > 0).then_some(MilliCpu(request)),
            source: if request > 0 { RequestSource::ContainerResources } else { RequestSource::None },
            decided_by: DecidedBy::Reconcile,
            open: false,
        },
        flags,
        since_unix_ms: pod.since_unix_ms.unwrap_or(now_unix_ms),
    }
}

fn asked(container: &Container) -> Asked {
    let role = match container.kind.as_str() {
        "INIT" => Role::Init,
        "EPHEMERAL" => Role::Ephemeral,
        _ => Role::App,
    };
    Asked {
        name: container.name.clone(),
        role,
        cpu: container.request,
        limit: None,
        memory: None,
        huge_pages: Default::default(),
    }
}

/// The enhancements, which Katalyst keeps as annotations of their own, whole or taken apart. A shared pod is bound only where it
/// was, which its pool tells.
fn wishes(pod: &Pod) -> Wishes {
    let apart = pod.annotations.iter().filter(|(key, _)| APART.contains(&key.as_str()));
    let apart = apart.map(|(key, value)| (key.clone(), value.clone()));
    let (whole, _) = enhancements(&pod.annotations);
    let whole = whole.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
    let bound_nowhere =
        pod.qos == QosLevel::Shared && pool(pod).and_then(|pool| node_of_pool(&pool)).is_none();
    apart.chain(whole).filter(|(key, _)| !(bound_nowhere && key == NUMA_BINDING)).collect()
}

/// The pool of a shared pod. One that was made for a moment is none: its pods go back to where they belong.
fn pool(pod: &Pod) -> Option<String> {
    if pod.qos != QosLevel::Shared {
        return None;
    }
    let name = pod.containers.iter().map(|c| c.pool.as_str()).find(|name| !name.is_empty())?;
    let for_a_moment = name.starts_with("isolation") || name == "fallback" || name == DEDICATED;
    (!for_a_moment).then(|| name.to_owned())
}

// === impl Import ===

impl Import {
    /// Holds the sets against the machine's CPUs, online or not. A pod that has none of its own among them waits for room; one
    /// that has some keeps these. Each is a fault.
    pub fn hold_against(&mut self, cpus: &CpuSet) {
        for pod in &mut self.pods {
            let own = pod.own_cpus();
            let absent = &own - cpus;
            if absent.is_empty() {
                continue;
            }
            let outcome = if absent == own {
                pod.containers.iter_mut().for_each(|(_, own)| *own = None);
                pod.flags.insert(Flag::AdoptedWithoutRoom);
                "it gets others as soon as there is room"
            } else {
                "it keeps the others"
            };
            self.faults.push(Fault::Absent { uid: pod.uid.clone(), cpus: own, absent, outcome });
        }
    }

    /// Leaves out the pods that are held already, which stay as they are, and those that claim CPUs which are somebody's by now. The
    /// latter are faults.
    pub fn leave_to(&mut self, held: &State) {
        let own = held.cpus.containers.of_kind(|container| container.qos == QosLevel::Dedicated);
        let owners: Vec<(String, CpuSet)> =
            own.map(|(id, container)| (id.pod.to_string(), container.cpus.clone())).collect();
        let faults = &mut self.faults;
        self.pods.retain(|pod| {
            if held.pods.contains_key(&pod.uid) {
                return false;
            }
            let cpus = pod.own_cpus();
            let Some((first, theirs)) = owners.iter().find(|(_, theirs)| !theirs.is_disjoint(&cpus)) else {
                return true;
            };
            let (first, second) = (first.clone(), pod.uid.clone());
            faults.push(Fault::Overlap { first, second, cpus: theirs & &cpus });
            false
        });
    }

    /// Why the file that says what pods have tells nothing, though it is there.
    pub fn not_understood(&self) -> Option<&Fault> {
        let of_the_whole = |fault: &&Fault| {
            matches!(
                fault,
                Fault::Unreadable { file: CPU_STATE, .. } | Fault::NotUnderstood { file: CPU_STATE, .. }
            )
        };
        self.faults.iter().find(of_the_whole)
    }

    /// That this file is not there.
    pub fn missing(&self) -> Option<&Fault> {
        self.faults.iter().find(|fault| matches!(fault, Fault::Missing { file: CPU_STATE }))
    }

    /// How much it is.
    pub fn taken(&self) -> Taken {
        let exclusive = |pod: &&KnownPod| !pod.own_cpus().is_empty();
        Taken {
            pods: self.pods.len(),
            exclusive: self.pods.iter().filter(exclusive).count(),
            faults: self.faults.len(),
        }
    }
}

// === impl Taken ===

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pods taken over, {} of them with CPUs of their own", self.pods, self.exclusive)?;
        match self.faults {
            0 => Ok(()),
            n => write!(f, "; {n} things could not be, or are doubtful: see the log"),
        }
    }
}
