//! From what Katalyst remembered to what the ledger holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use oxalyst_qos::{QosLevel, enhancements};
use oxalyst_topology::CpuSet;
use oxalyst_units::MilliCpu;

use super::cpu_state::DEDICATED;
use super::{Fault, Files, MEMORY_STATE, ORM_CHECKPOINT, Pod, Sets};
use super::{cpu_state, memory_state, orm_checkpoint};
use oxalyst_planner::plan::{DecidedBy, Flag, Placement, PodEntry, PoolName, RequestSource};

/// Katalyst copies the enhancements' keys among the annotations.
const NUMA_BINDING: &str = "numa_binding";

/// What can be taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Import {
    /// Records of pods, ascending by uid; exclusive sets are disjoint. Their sandboxes are not known: the runtime's list tells them.
    pub pods: Vec<PodEntry>,
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
        let entry = entry(pod, now_unix_ms);
        if let Placement::Exclusive { cpus, .. } = &entry.placement {
            if let Some((first, theirs)) = owners.iter().find(|(_, theirs)| !theirs.is_disjoint(cpus)) {
                let (first, second) = (first.clone(), pod.uid.clone());
                import.faults.push(Fault::Overlap { first, second, cpus: theirs & cpus });
                continue;
            }
            owners.push((pod.uid.clone(), cpus.clone()));
        }
        import.pods.push(entry);
    }

    let known: BTreeMap<&str, &PodEntry> = import.pods.iter().map(|e| (e.uid.as_str(), e)).collect();
    let named: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
    let mut doubts = unknown(&mems, &named, MEMORY_STATE);
    doubts.extend(unknown(&cached.cpus, &named, ORM_CHECKPOINT));
    for (uid, containers) in &cached.cpus {
        let Some(Placement::Exclusive { cpus, .. }) = known.get(uid.as_str()).map(|e| &e.placement) else {
            continue;
        };
        let theirs = containers.values().fold(CpuSet::new(), |all, set| &all | set);
        if theirs != *cpus {
            let (file, uid) = (ORM_CHECKPOINT, uid.clone());
            doubts.push(Fault::Disagrees { file, uid, theirs: theirs.to_string(), ours: cpus.to_string() });
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

fn entry(pod: &Pod, now_unix_ms: i64) -> PodEntry {
    let mut flags = BTreeSet::new();
    let placement = match pod.qos {
        QosLevel::Dedicated => match own_cpus(pod) {
            Some(cpus) => Placement::Exclusive { cpus, numa_bound: is_numa_bound(pod) },
            None => {
                flags.insert(Flag::AdoptedWithoutRoom);
                Placement::Pool(PoolName::Share)
            }
        },
        level => Placement::Pool(pool(level, pod, &mut flags)),
    };
    let request: u64 = pod.containers.iter().filter_map(|c| c.request).map(|milli| milli.0).sum();
    PodEntry {
        uid: pod.uid.clone(),
        sandbox_id: String::new(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        qos: pod.qos,
        request: (request > 0).then_some(MilliCpu(request)),
        request_source: if request > 0 { RequestSource::ContainerResources } else { RequestSource::None },
        placement,
        flags,
        since_unix_ms: pod.since_unix_ms.unwrap_or(now_unix_ms),
        decided_by: DecidedBy::Reconcile,
    }
}

/// What its containers have together, if that is theirs alone.
fn own_cpus(pod: &Pod) -> Option<CpuSet> {
    let own = pod.containers.iter().filter(|c| c.pool == DEDICATED).filter_map(|c| c.cpus.as_ref());
    let all = own.fold(CpuSet::new(), |all, cpus| &all | cpus);
    (!all.is_empty()).then_some(all)
}

fn is_numa_bound(pod: &Pod) -> bool {
    pod.annotations.get(NUMA_BINDING).is_some_and(|value| value == "true")
        || enhancements(&pod.annotations).0.numa_binding()
}

fn pool(level: QosLevel, pod: &Pod, flags: &mut BTreeSet<Flag>) -> PoolName {
    let own = match level {
        QosLevel::Shared | QosLevel::Dedicated => PoolName::Share,
        QosLevel::Reclaimed => return PoolName::Reclaim,
        QosLevel::System => PoolName::System,
    };
    match pod.containers.iter().map(|c| c.pool.as_str()).find(|name| !name.is_empty()) {
        Some("reserve") if level == QosLevel::System => PoolName::Reserve,
        None | Some("share") => own,
        Some(_) if level == QosLevel::System => own,
        // A pool that was made for a moment, or of one NUMA node: its pods go back to where they belong.
        Some(name)
            if name.starts_with("isolation") || name.starts_with("share-NUMA") || name == "fallback" =>
        {
            own
        }
        Some(_) => {
            flags.insert(Flag::PoolUnknown);
            own
        }
    }
}

// === impl Import ===

impl Import {
    /// How much it is.
    pub fn taken(&self) -> Taken {
        let exclusive = |entry: &&PodEntry| matches!(entry.placement, Placement::Exclusive { .. });
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
