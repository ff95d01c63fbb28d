//! Whether and where a pod fits beside the others.

use super::{L3, NumaFree, Placement, PoolName, Reason, Refusal, State, layout::Layout, take_by_topology};
use oxalyst_topology::{CpuSet, Machine};
use oxalyst_units::MilliCpu;

/// What one pod could have, all others staying as they are.
pub(super) struct Room<'a> {
    machine: &'a Machine,
    others: Layout<'a>,
}

/// An exclusive set that fits.
pub(super) struct Fit {
    pub(super) cpus: CpuSet,
    /// A bound pod found no single NUMA node with room.
    pub(super) spans: bool,
    pub(super) numa_bound: bool,
}

// === impl Room ===

impl<'a> Room<'a> {
    /// For the pod of this uid, known or new.
    pub(super) fn of(state: &'a State, machine: &'a Machine, uid: &str) -> Self {
        Self { machine, others: Layout::without(state, machine, uid) }
    }

    /// An exclusive set for this request: the CPUs of one NUMA node for a bound pod if any has room (the one with the fewest
    /// sufficient free CPUs, then the lowest), else by topology.
    pub(super) fn exclusive(&self, asked: MilliCpu, numa_binding: bool) -> Result<Fit, Refusal> {
        let free = &self.others.free;
        let need = usize::try_from(asked.ceil_cpus()).unwrap_or(usize::MAX);
        let short = || self.insufficient(Some(asked), &self.shortage(asked, need));
        if need > free.len() || !self.leaves_enough(need) {
            return Err(short());
        }
        let node = self.single_node(need).filter(|_| numa_binding);
        let within = node.clone().unwrap_or_else(|| free.clone());
        let cpus = take_by_topology(self.machine, &within, need, L3::Aligned).map_err(|_| short())?;
        Ok(Fit { cpus, spans: numa_binding && node.is_none(), numa_bound: numa_binding })
    }

    /// This set as an exclusive one, if it is of the right size and nobody else's.
    pub(super) fn exactly(&self, asked: MilliCpu, numa_binding: bool, cpus: &CpuSet) -> Option<Fit> {
        let right_size = u64::try_from(cpus.len()).is_ok_and(|len| len == asked.ceil_cpus());
        if !right_size || !cpus.is_subset(&self.others.free) || !self.leaves_enough(cpus.len()) {
            return None;
        }
        let spans = numa_binding && self.machine.nodes_of(cpus).len() > 1;
        Some(Fit { cpus: cpus.clone(), spans, numa_bound: numa_binding })
    }

    /// Whether a pod of a shared or reclaimed level, or one that may become such, finds a CPU.
    pub(super) fn pooled(&self, asked: Option<MilliCpu>) -> Result<(), Refusal> {
        if !self.others.free.is_empty() {
            return Ok(());
        }
        let asked_for = asked.map(|asked| format!(" (request {})", request(asked))).unwrap_or_default();
        let message =
            format!("no CPU is left for the pod{asked_for}: all are exclusive, reserved or isolated");
        Err(self.insufficient(asked, &message))
    }

    /// Whether every other pod still has a CPU after this many are taken out of the free ones.
    fn leaves_enough(&self, taken: usize) -> bool {
        let left = self.others.free.len().saturating_sub(taken);
        let for_agents = self.others.open.len().saturating_sub(taken);
        (left > 0 || self.others.sharing() == 0) && (for_agents > 0 || self.others.agents == 0)
    }

    fn single_node(&self, need: usize) -> Option<CpuSet> {
        let nodes = self.machine.nodes().iter().map(|node| &node.cpus & &self.others.free);
        // The nodes ascend by id, and the first of equals is taken.
        nodes.filter(|free| free.len() >= need).min_by_key(CpuSet::len)
    }

    fn shortage(&self, asked: MilliCpu, need: usize) -> String {
        let free = &self.others.free;
        let mut message = format!(
            "{} of its own {} needed (request {}), {}",
            cpus(need),
            are(need),
            request(asked),
            free_in_words(&self.others.free_per_node(), free.len())
        );
        let keepers: Vec<String> = [
            (self.others.sharing(), "pod", "in the shared and reclaim pools"),
            (self.others.agents, "node agent", "outside of the exclusive sets"),
        ]
        .into_iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, what, place)| {
            if count == 1 {
                format!("the 1 {what} that runs {place}")
            } else {
                format!("the {count} {what}s that run {place}")
            }
        })
        .collect();
        if need <= free.len() && !keepers.is_empty() {
            message += &format!("; the last one stays with {}", keepers.join(" and "));
        }
        message
    }

    fn insufficient(&self, asked: Option<MilliCpu>, message: &str) -> Refusal {
        Refusal {
            reason: Reason::Insufficient,
            rule: super::Rule::CpuRoom,
            message: message.to_owned(),
            asked,
            free: self.others.free_per_node(),
        }
    }
}

// === impl Fit ===

impl Fit {
    pub(super) fn placement(self) -> Placement {
        Placement::Exclusive { cpus: self.cpus, numa_bound: self.numa_bound }
    }
}

/// "1 CPU is free on NUMA node 0 (1)", or with more than one node, each of them.
fn free_in_words(nodes: &[NumaFree], count: usize) -> String {
    let head = format!("{} {} free", cpus(count), are(count));
    match nodes {
        _ if count == 0 => "no CPU is free".to_owned(),
        [node] => format!("{head} on NUMA node {} ({})", node.node, node.cpus),
        _ => format!("{head}: {}", nodes.iter().map(in_words).collect::<Vec<_>>().join(", ")),
    }
}

fn in_words(free: &NumaFree) -> String {
    if free.cpus.is_empty() {
        format!("none on NUMA node {}", free.node)
    } else {
        format!("{} on NUMA node {} ({})", free.cpus.len(), free.node, free.cpus)
    }
}

fn cpus(count: usize) -> String {
    format!("{count} CPU{}", if count == 1 { "" } else { "s" })
}

fn are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// In CPUs: "1 CPU", "1.5 CPUs".
fn request(asked: MilliCpu) -> String {
    let (whole, rest) = (asked.0 / 1000, asked.0 % 1000);
    let decimals = format!("{rest:03}");
    match decimals.trim_end_matches('0') {
        "" if whole == 1 => "1 CPU".to_owned(),
        "" => format!("{whole} CPUs"),
        decimals => format!("{whole}.{decimals} CPUs"),
    }
}

/// Whether a pod of this pool needs a CPU that is neither exclusive nor reserved.
pub(super) fn needs_free(pool: PoolName) -> bool {
    matches!(pool, PoolName::Share | PoolName::Reclaim)
}
