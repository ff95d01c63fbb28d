//! What the ledger holds of whole pods.

use super::{Asked, CpuPolicy, Given, Plan, PluginAllocation, Pod, Rules, State, Told, mixed, settled};
use crate::{
    plan::{Flag, UnknownWord},
    policy::{
        self, ContainerId, ContainerKind, RESERVE, Remembered, Wishes,
        memory::{self, Resource},
    },
};
use oxalyst_proto::orm::v1::{
    AllocationRecord, Amount, ContainerRecord, CpuEntry, MemoryEntry, PluginEntry, PoolsRecord,
    RememberedRecord, Wish, pools_record, remembered_record,
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask, ParseSetError};
use oxalyst_units::{Bytes, MilliCpu};
use prost::Message as _;
use std::{collections::BTreeMap, sync::Arc};

const POD_PREFIX: &str = "allocation/";
const REMEMBERED_KEY: &str = "remembered";
const POOLS_KEY: &str = "pools";

/// Why a record cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The bytes are no such message.
    #[error("no such record: {0}")]
    Bytes(#[from] prost::DecodeError),
    /// A word from outside its closed set, as a later version may write.
    #[error(transparent)]
    Word(#[from] UnknownWord),
    /// A level that there is not.
    #[error("{0:?} is no QoS level")]
    Level(String),
    /// A kind that there is not.
    #[error("{0:?} is no kind of container")]
    Kind(String),
    /// A set that is not in list format.
    #[error(transparent)]
    Set(#[from] ParseSetError),
    /// A dedicated container without CPUs.
    #[error("container {0} is dedicated and has no CPUs")]
    Nowhere(String),
}

/// What becomes of one record of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The record's key.
    pub key: String,
    /// Its bytes from now on; `None`: it is gone.
    pub value: Option<Vec<u8>>,
}

/// Whether a pod's record has this key.
pub fn is_pod(key: &str) -> bool {
    key.starts_with(POD_PREFIX)
}

/// The changes of the ledger that make this plan durable, as one commit. Empty: nothing need be written.
pub fn changes(plan: &Plan, rules: &Rules) -> Vec<Change> {
    let pod = |(uid, pod): (&String, &Option<Arc<Pod>>)| {
        let key = format!("{POD_PREFIX}{uid}");
        match pod {
            Some(pod) => Change::put(&key, encode(&plan.after, pod)),
            None => Change { key, value: None },
        }
    };
    let mut changes: Vec<Change> = plan.pods.iter().map(pod).collect();
    if let Some(remembered) = &plan.remembered {
        changes.push(Change::put(REMEMBERED_KEY, encode_remembered(remembered)));
    }
    if keeps_pools(rules) && plan.moved {
        changes.push(Change::put(POOLS_KEY, encode_pools(&plan.after)));
    }
    changes
}

/// Every record of this state, the pools included even where they follow from the pods: on the machine that there was, which
/// need not be the one that there is. Ascending by key.
pub fn whole(state: &State) -> Vec<Change> {
    let pod = |pod: &Arc<Pod>| Change::put(&format!("{POD_PREFIX}{}", pod.uid), encode(state, pod));
    let mut records: Vec<Change> = state.pods.values().map(pod).collect();
    records.push(Change::put(POOLS_KEY, encode_pools(state)));
    if !state.cpus.remembered.is_empty() {
        records.push(Change::put(REMEMBERED_KEY, encode_remembered(&state.cpus.remembered)));
    }
    records
}

// === impl Change ===

impl Change {
    fn put(key: &str, value: Vec<u8>) -> Self {
        Self { key: key.to_owned(), value: Some(value) }
    }
}

/// The state that the records of a ledger make up, on this machine, and the faults of those that cannot be understood.
pub fn load<'r>(
    records: impl Iterator<Item = (&'r str, &'r [u8])>,
    machine: &Machine,
    rules: &Rules,
    reserved: CpuSet,
) -> (State, Vec<(String, RecordError)>) {
    read(records, machine, rules, reserved, keeps_pools(rules))
}

/// The state that [`whole`] has written down, exactly as it was.
pub fn restore<'r>(
    records: impl Iterator<Item = (&'r str, &'r [u8])>,
    machine: &Machine,
    rules: &Rules,
    reserved: CpuSet,
) -> (State, Vec<(String, RecordError)>) {
    read(records, machine, rules, reserved, true)
}

fn read<'r>(
    records: impl Iterator<Item = (&'r str, &'r [u8])>,
    machine: &Machine,
    rules: &Rules,
    reserved: CpuSet,
    keeps_pools: bool,
) -> (State, Vec<(String, RecordError)>) {
    let machine = rules.confine(machine);
    let mut state = State::default();
    state.cpus.reserved = reserved.clone();
    state.cpus.pools.insert(RESERVE.to_owned(), reserved);
    let mut faults = Vec::new();
    let mut kept = None;
    for (key, bytes) in records {
        let taken = match key {
            REMEMBERED_KEY => decode_remembered(bytes).map(|known| state.cpus.remembered = known),
            POOLS_KEY if keeps_pools => decode_pools(bytes).map(|known| kept = Some(known)),
            _ if is_pod(key) => decode(&mut state, bytes),
            _ => Ok(()),
        };
        if let Err(error) = taken {
            faults.push((key.to_owned(), error));
        }
    }
    mixed::mark(&mut state, rules);
    match kept {
        Some(kept) => {
            state.cpus.pools = kept.pools;
            for (id, cpus) in kept.placed {
                if let Some(own) = state.cpus.containers.get_mut(&id) {
                    Arc::make_mut(own).cpus = cpus;
                }
            }
            memory::settle(&mut state.memory, &machine);
        }
        None => settled::settle(&mut state, &machine, rules),
    }
    (state, faults)
}

/// Shared and reclaimed pods that overlap do so in proportion to the pools before.
fn keeps_pools(rules: &Rules) -> bool {
    matches!(&rules.cpu_policy, CpuPolicy::Dynamic(options) if options.overlap)
}

/// Whether both entries are recorded as the same: those of a pool's containers without its CPUs.
pub(super) fn same_cpu_entry(old: &policy::Container, new: &policy::Container) -> bool {
    // All fields, so that a new one is not forgotten.
    let policy::Container {
        pod_name,
        kind,
        qos,
        wishes,
        owner,
        ramp_up,
        cpus,
        baseline,
        request,
        pod_request,
        numa_hint,
    } = old;
    *qos == new.qos
        && (*qos != QosLevel::Dedicated || *cpus == new.cpus)
        && *kind == new.kind
        && *ramp_up == new.ramp_up
        && *request == new.request
        && *pod_request == new.pod_request
        && *numa_hint == new.numa_hint
        && *owner == new.owner
        && *baseline == new.baseline
        && *wishes == new.wishes
        && *pod_name == new.pod_name
}

/// Whether both entries are recorded as the same: what memory nodes follow from others is not in a record.
pub(super) fn same_memory_entry(old: &memory::Container, new: &memory::Container) -> bool {
    let memory::Container { kind, qos, wishes, request, taken, bound_to, mems: _ } = old;
    *kind == new.kind
        && *qos == new.qos
        && *bound_to == new.bound_to
        && *request == new.request
        && *taken == new.taken
        && *wishes == new.wishes
}

/// The entry without what follows from others.
fn stored(own: &policy::Container) -> policy::Container {
    let mut stored = own.clone();
    if own.qos != QosLevel::Dedicated {
        stored.cpus = CpuSet::new();
    }
    stored
}

/// A pod's record as bytes.
pub fn encode(state: &State, pod: &Pod) -> Vec<u8> {
    let container = |asked: &Asked| {
        let id = ContainerId::new(pod.uid.as_str(), asked.name.as_str());
        ContainerRecord {
            name: asked.name.clone(),
            role: asked.role.to_string(),
            cpu_milli: asked.cpu.map(|cpu| cpu.0),
            limit_milli: asked.limit.map(|limit| limit.0),
            memory_bytes: asked.memory.map(|bytes| bytes.0),
            cpus: state.cpus.containers.get(&id).map(|own| cpu_entry(own)),
            memory: state.memory.containers.get(&id).map(|own| memory_entry(own)),
            plugins: pod.given.get(&asked.name).into_iter().flatten().map(plugin_entry).collect(),
            huge_pages: asked.huge_pages.iter().map(|(size, bytes)| (size.0, bytes.0)).collect(),
        }
    };
    AllocationRecord {
        uid: pod.uid.clone(),
        sandbox_id: pod.sandbox_id.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        qos_level: pod.qos.to_string(),
        served_level: pod.served.to_string(),
        class: pod.class.to_string(),
        wishes: pod.wishes.iter().map(|(key, value)| Wish { key: key.into(), value: value.into() }).collect(),
        node_agent: pod.node_agent,
        main: pod.main.clone(),
        containers: pod.containers.iter().map(container).collect(),
        // Follows from the policy that there is.
        flags: pod.flags.iter().filter(|flag| **flag != Flag::OtherPolicy).map(ToString::to_string).collect(),
        since_unix_ms: pod.since_unix_ms,
        request_milli: pod.told.request.map(|milli| milli.0),
        request_source: pod.told.source.to_string(),
        decided_by: pod.told.decided_by.to_string(),
        open: pod.told.open,
        kept_labels: pod.kept_labels.clone(),
        placed_under: pod.placed_under.map(|policy| policy.to_string()).unwrap_or_default(),
    }
    .encode_to_vec()
}

/// What a plugin gave, as a message.
pub(crate) fn plugin_entry(given: &PluginAllocation) -> PluginEntry {
    PluginEntry {
        resource: given.resource.clone(),
        plugin: given.plugin.clone(),
        nodes: given.nodes.to_string(),
        info: given.info.clone(),
    }
}

/// What a plugin gave, from a message.
pub(crate) fn given(entry: PluginEntry) -> Result<PluginAllocation, ParseSetError> {
    let nodes = if entry.nodes.is_empty() { NumaMask::new() } else { entry.nodes.parse()? };
    Ok(PluginAllocation { resource: entry.resource, plugin: entry.plugin, nodes, info: entry.info })
}

fn cpu_entry(own: &policy::Container) -> CpuEntry {
    let own = stored(own);
    CpuEntry {
        kind: own.kind.as_str().to_owned(),
        qos_level: own.qos.to_string(),
        wishes: own.wishes != Wishes::default(),
        owner: own.owner,
        ramp_up: own.ramp_up,
        cpus: own.cpus.to_string(),
        baseline: own.baseline.to_string(),
        request_milli: own.request.0,
        pod_request_milli: own.pod_request.map(|milli| milli.0),
        numa_hint: own.numa_hint,
    }
}

fn memory_entry(own: &memory::Container) -> MemoryEntry {
    let amount = |resource: &Resource, node: u32, bytes: Bytes| Amount {
        page_bytes: page(*resource),
        node,
        bytes: bytes.0,
    };
    let taken = |(resource, taken): (&Resource, &BTreeMap<u32, Bytes>)| -> Vec<Amount> {
        taken.iter().map(|(node, bytes)| amount(resource, *node, *bytes)).collect()
    };
    MemoryEntry {
        kind: own.kind.as_str().to_owned(),
        qos_level: own.qos.to_string(),
        wishes: own.wishes != Wishes::default(),
        request: own.request.iter().map(|(resource, bytes)| amount(resource, 0, *bytes)).collect(),
        taken: own.taken.iter().flat_map(taken).collect(),
        bound_to: own.bound_to.as_ref().map(ToString::to_string),
    }
}

const fn page(resource: Resource) -> u64 {
    match resource {
        Resource::Memory => 0,
        Resource::HugePages(size) => size.0,
    }
}

const fn resource(page: u64) -> Resource {
    if page == 0 { Resource::Memory } else { Resource::HugePages(Bytes(page)) }
}

fn decode(state: &mut State, bytes: &[u8]) -> Result<(), RecordError> {
    let record = AllocationRecord::decode(bytes)?;
    let wishes: Wishes = record.wishes.into_iter().map(|wish| (wish.key, wish.value)).collect();
    let mut pod = Pod {
        uid: record.uid,
        sandbox_id: record.sandbox_id,
        namespace: record.namespace,
        name: record.name,
        qos: level(&record.qos_level)?,
        served: level(&record.served_level)?,
        class: record.class.parse()?,
        wishes,
        kept_labels: record.kept_labels,
        placed_under: Some(record.placed_under)
            .filter(|word| !word.is_empty())
            .map(|word| word.parse())
            .transpose()?,
        node_agent: record.node_agent,
        main: record.main,
        containers: Vec::new(),
        flags: record.flags.iter().map(|word| word.parse()).collect::<Result<_, _>>()?,
        given: Given::new(),
        since_unix_ms: record.since_unix_ms,
        told: Told {
            request: record.request_milli.map(MilliCpu),
            source: record.request_source.parse()?,
            decided_by: record.decided_by.parse()?,
            open: record.open,
        },
    };
    let (mut cpus, mut memory) = (Vec::new(), Vec::new());
    for container in record.containers {
        let id = ContainerId::new(pod.uid.as_str(), container.name.as_str());
        if let Some(entry) = container.cpus {
            cpus.push((id.clone(), Arc::new(decode_cpus(&pod, entry)?)));
        }
        if let Some(entry) = container.memory {
            memory.push((id, Arc::new(decode_memory(&pod, entry)?)));
        }
        if !container.plugins.is_empty() {
            let all = container.plugins.into_iter().map(given).collect::<Result<_, _>>()?;
            pod.given.insert(container.name.clone(), all);
        }
        pod.containers.push(Asked {
            name: container.name,
            role: container.role.parse()?,
            cpu: container.cpu_milli.map(MilliCpu),
            limit: container.limit_milli.map(MilliCpu),
            memory: container.memory_bytes.map(Bytes),
            huge_pages: container
                .huge_pages
                .iter()
                .map(|(size, bytes)| (Bytes(*size), Bytes(*bytes)))
                .collect(),
        });
    }
    state.cpus.containers.extend(cpus);
    state.memory.containers.extend(memory);
    state.pods.insert(pod.uid.clone(), Arc::new(pod));
    Ok(())
}

fn decode_cpus(pod: &Pod, entry: CpuEntry) -> Result<policy::Container, RecordError> {
    let own = policy::Container {
        pod_name: pod.full_name(),
        kind: kind(&entry.kind)?,
        qos: level(&entry.qos_level)?,
        wishes: if entry.wishes { pod.wishes.clone() } else { Wishes::default() },
        owner: entry.owner,
        ramp_up: entry.ramp_up,
        cpus: entry.cpus.parse()?,
        baseline: entry.baseline.parse()?,
        request: MilliCpu(entry.request_milli),
        pod_request: entry.pod_request_milli.map(MilliCpu),
        numa_hint: entry.numa_hint,
    };
    if own.qos == QosLevel::Dedicated && own.cpus.is_empty() {
        return Err(RecordError::Nowhere(pod.full_name()));
    }
    Ok(own)
}

fn decode_memory(pod: &Pod, entry: MemoryEntry) -> Result<memory::Container, RecordError> {
    let mut taken: BTreeMap<Resource, BTreeMap<u32, Bytes>> = BTreeMap::new();
    for amount in entry.taken {
        taken.entry(resource(amount.page_bytes)).or_default().insert(amount.node, Bytes(amount.bytes));
    }
    Ok(memory::Container {
        kind: kind(&entry.kind)?,
        qos: level(&entry.qos_level)?,
        wishes: if entry.wishes { pod.wishes.clone() } else { Wishes::default() },
        request: entry.request.iter().map(|a| (resource(a.page_bytes), Bytes(a.bytes))).collect(),
        taken,
        bound_to: entry.bound_to.map(|nodes| nodes.parse()).transpose()?,
        mems: NumaMask::new(),
    })
}

fn level(word: &str) -> Result<QosLevel, RecordError> {
    word.parse().map_err(|_| RecordError::Level(word.to_owned()))
}

fn kind(word: &str) -> Result<ContainerKind, RecordError> {
    let known = ContainerKind::ALL.into_iter().find(|kind| kind.as_str() == word);
    known.ok_or_else(|| RecordError::Kind(word.to_owned()))
}

fn encode_remembered(remembered: &[Remembered]) -> Vec<u8> {
    let pod = |known: &Remembered| remembered_record::Pod {
        pod_name: known.pod_name.clone(),
        container: known.container.clone(),
        nodes: known.nodes.to_string(),
    };
    RememberedRecord { pods: remembered.iter().map(pod).collect() }.encode_to_vec()
}

fn decode_remembered(bytes: &[u8]) -> Result<Vec<Remembered>, RecordError> {
    let known = |pod: remembered_record::Pod| {
        Ok(Remembered { pod_name: pod.pod_name, container: pod.container, nodes: pod.nodes.parse()? })
    };
    RememberedRecord::decode(bytes)?.pods.into_iter().map(known).collect()
}

/// Pools, and who runs where in them.
struct Kept {
    pools: BTreeMap<String, CpuSet>,
    placed: Vec<(ContainerId, CpuSet)>,
}

fn encode_pools(state: &State) -> Vec<u8> {
    let pool =
        |(name, cpus): (&String, &CpuSet)| pools_record::Pool { name: name.clone(), cpus: cpus.to_string() };
    let placed = |(id, own): (&ContainerId, &Arc<policy::Container>)| pools_record::Placed {
        uid: id.pod.to_string(),
        container: id.container.to_string(),
        cpus: own.cpus.to_string(),
    };
    let in_pools = state.cpus.containers.iter().filter(|(_, own)| own.qos != QosLevel::Dedicated);
    PoolsRecord { pools: state.cpus.pools.iter().map(pool).collect(), placed: in_pools.map(placed).collect() }
        .encode_to_vec()
}

fn decode_pools(bytes: &[u8]) -> Result<Kept, RecordError> {
    let record = PoolsRecord::decode(bytes)?;
    let pool = |pool: pools_record::Pool| Ok((pool.name, pool.cpus.parse()?));
    let placed = |placed: pools_record::Placed| {
        Ok((ContainerId::new(placed.uid, placed.container), placed.cpus.parse()?))
    };
    Ok(Kept {
        pools: record.pools.into_iter().map(pool).collect::<Result<_, RecordError>>()?,
        placed: record.placed.into_iter().map(placed).collect::<Result<_, RecordError>>()?,
    })
}
