//! From the allocator's answers to the object that the cluster sees. Pure and deterministic: equal answers, equal object.

use std::collections::BTreeMap;

use oxalyst_kube_types::{
    Allocation, Attribute, CustomNodeResource, CustomNodeResourceSpec, CustomNodeResourceStatus,
    NodeResourceProperty, Quantity, ResourceList, Resources, TopologyPolicy, TopologyZone, ZoneType,
};
use oxalyst_proto::meta::v1::{Node, Pod, PodList};
use oxalyst_proto::orm::v1::{NumaNode, State, Topology};
use oxalyst_topology::{CpuSet, IdKind, IdSet, NumaMask, ParseSetError};

/// An answer from which no object can be built. Nothing is published then: what is published stays.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A list of CPUs or NUMA nodes that is none.
    #[error("the allocator's {what} is unusable: {source}")]
    List {
        /// Which list.
        what: String,
        /// What is wrong with it.
        source: ParseSetError,
    },
    /// A machine without NUMA nodes: the allocator has not discovered it.
    #[error("the allocator tells of no NUMA node")]
    NoNodes,
    /// Nobody names the node.
    #[error("the node has no name yet: set node_name, or let the meta-server tell it")]
    NoName,
}

/// Memory requests in bytes by pod UID, of pods whose specification is known.
pub type MemoryRequests = BTreeMap<String, u64>;

/// The object for `node`.
///
/// Zones are sockets that hold NUMA nodes. As in Katalyst a socket has no amounts of its own (they are those of its nodes), and
/// zones, attributes and allocations are sorted as text.
///
/// # Errors
/// [`BuildError`] if an answer cannot be understood; half an object would tell the scheduler of room that is not there.
pub fn build(
    node: &Node,
    topology: &Topology,
    state: &State,
    memory: &MemoryRequests,
) -> Result<CustomNodeResource, BuildError> {
    if node.name.is_empty() {
        return Err(BuildError::NoName);
    }
    if topology.nodes.is_empty() {
        return Err(BuildError::NoNodes);
    }
    let online: CpuSet = list("online CPUs", &topology.online)?;
    let reserved: CpuSet = list("reserved CPUs", &state.reserved)?;
    let placed = exclusive_sets(state)?;

    let mut sockets: BTreeMap<String, Vec<TopologyZone>> = BTreeMap::new();
    let mut zones = Vec::new();
    for numa in &topology.nodes {
        let cpus = list::<_>(&format!("CPUs of NUMA node {}", numa.id), &numa.cpus)? & &online;
        let zone = numa_zone(numa, &cpus, &reserved, &placed, memory);
        match numa.socket {
            Some(socket) => sockets.entry(socket.to_string()).or_default().push(zone),
            // A node with memory only lies in no socket.
            None => zones.push(zone),
        }
    }
    zones.extend(sockets.into_iter().map(|(name, mut children)| {
        children.sort_by(|a, b| a.name.cmp(&b.name));
        TopologyZone {
            zone_type: ZoneType::Socket,
            name,
            resources: Resources::default(),
            attributes: Vec::new(),
            allocations: Vec::new(),
            children,
            siblings: Vec::new(),
        }
    }));
    zones.sort_by(|a, b| {
        (String::from(a.zone_type.clone()), &a.name).cmp(&(String::from(b.zone_type.clone()), &b.name))
    });

    let memory_bytes = match node.memory_bytes {
        0 => topology.nodes.iter().map(|n| n.memory_bytes).sum(),
        told => told,
    };
    let property = |name: &str, amount| NodeResourceProperty {
        property_name: name.to_owned(),
        property_values: Vec::new(),
        property_quantity: Some(amount),
    };
    let spec = CustomNodeResourceSpec {
        node_resource_properties: vec![
            property("cpu", Quantity::count(online.len() as u64)),
            property("memory", Quantity::bytes(memory_bytes)),
            property("numa", Quantity::count(topology.nodes.len() as u64)),
        ],
        taints: Vec::new(),
    };
    let status = CustomNodeResourceStatus {
        resources: Resources::default(),
        topology_zone: zones,
        topology_policy: TopologyPolicy::None,
        conditions: Vec::new(),
        node_metric_status: None,
    };
    Ok(CustomNodeResource::new(&node.name, spec, Some(status)))
}

/// What each pod's containers request in memory together, where all of them tell: init containers run before the others,
/// so the larger of the two counts; restartable ones stay.
pub fn memory_requests(pods: &[Pod]) -> MemoryRequests {
    pods.iter().filter_map(|pod| Some((pod.uid.clone(), memory_request(pod)?))).collect()
}

/// Takes up a list of pods, whole or of what differs; gives whether it says anything new.
pub fn take_up_memory(memory: &mut MemoryRequests, list: &PodList) -> bool {
    let told = memory_requests(&list.pods);
    if !list.changes_only {
        return std::mem::replace(memory, told) != *memory;
    }
    let silent = list.pods.iter().map(|pod| &pod.uid).filter(|uid| !told.contains_key(*uid));
    let gone = list.removed_pod_uids.iter().chain(silent);
    let removes = gone.filter(|uid| memory.remove(*uid).is_some()).count() > 0;
    told.into_iter().fold(removes, |new, (uid, bytes)| (memory.insert(uid, bytes) != Some(bytes)) || new)
}

/// Whether `published`, as it was read back, still says all that `desired` says. Others' fields do not matter.
pub fn holds(published: &CustomNodeResource, desired: &CustomNodeResource) -> bool {
    let properties = &published.spec.node_resource_properties;
    let spec = desired.spec.node_resource_properties.iter().all(|ours| properties.contains(ours));
    let status = match (&published.status, &desired.status) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(theirs), Some(ours)) => {
            theirs.topology_zone == ours.topology_zone
                && theirs.topology_policy == ours.topology_policy
                && theirs.resources == ours.resources
        }
    };
    spec && status
}

/// A pod with an exclusive set.
struct Placed {
    uid: String,
    consumer: String,
    cpus: CpuSet,
    mems: NumaMask,
}

fn exclusive_sets(state: &State) -> Result<Vec<Placed>, BuildError> {
    let mut placed = Vec::new();
    for pod in &state.pods {
        let name = format!("{}/{}/{}", pod.namespace, pod.name, pod.pod_uid);
        let (mut cpus, mut mems) = (CpuSet::new(), NumaMask::new());
        for (own, beside) in pod.exclusive_sets() {
            cpus |= &list(&format!("CPU set of the pod {name}"), own)?;
            mems |= &list(&format!("memory nodes of the pod {name}"), beside)?;
        }
        if pod.exclusive_sets().next().is_some() {
            placed.push(Placed { uid: pod.pod_uid.clone(), cpus, mems, consumer: name });
        }
    }
    placed.sort_by(|a, b| a.consumer.cmp(&b.consumer));
    Ok(placed)
}

fn numa_zone(
    numa: &NumaNode,
    cpus: &CpuSet,
    reserved: &CpuSet,
    placed: &[Placed],
    memory: &MemoryRequests,
) -> TopologyZone {
    let amounts = |cpus: &CpuSet| -> ResourceList {
        let cpu = ("cpu".to_owned(), Quantity::count(cpus.len() as u64));
        BTreeMap::from([cpu, ("memory".to_owned(), Quantity::bytes(numa.memory_bytes))])
    };
    let attribute = |name: &str, value: String| Attribute { name: name.to_owned(), value };
    let row: Vec<String> = numa.distances.iter().map(u32::to_string).collect();
    let here = cpus & reserved;
    let mut attributes = Vec::new();
    if !row.is_empty() {
        attributes.push(attribute("numa_distance", row.join(",")));
    }
    if !here.is_empty() {
        attributes.push(attribute("reserved_cpu_list", here.to_string()));
    }
    TopologyZone {
        zone_type: ZoneType::Numa,
        name: numa.id.to_string(),
        resources: Resources {
            capacity: Some(amounts(cpus)),
            allocatable: Some(amounts(&(cpus - reserved))),
            ..Resources::default()
        },
        attributes,
        allocations: placed.iter().filter_map(|pod| allocation(pod, numa.id, cpus, memory)).collect(),
        children: Vec::new(),
        siblings: Vec::new(),
    }
}

/// What `pod` has on one NUMA node: its CPUs there, and its memory if that can lie nowhere else.
fn allocation(pod: &Placed, numa: u32, cpus: &CpuSet, memory: &MemoryRequests) -> Option<Allocation> {
    let cpus = &pod.cpus & cpus;
    let bound_here = pod.mems.len() == 1 && pod.mems.contains(numa);
    let bytes = memory.get(&pod.uid).filter(|_| bound_here);
    let mut requests = ResourceList::new();
    if !cpus.is_empty() {
        requests.insert("cpu".to_owned(), Quantity::count(cpus.len() as u64));
    }
    if let Some(bytes) = bytes {
        requests.insert("memory".to_owned(), Quantity::bytes(*bytes));
    }
    (!requests.is_empty()).then(|| Allocation { consumer: pod.consumer.clone(), requests: Some(requests) })
}

fn memory_request(pod: &Pod) -> Option<u64> {
    let sum = |kinds: &[&str]| -> Option<u64> {
        let amounts = pod.containers.iter().filter(|c| kinds.contains(&c.r#type.as_str()));
        amounts.map(|c| c.request_memory_bytes).sum()
    };
    let known = ["app", "init", "restartable-init", "ephemeral"];
    if !pod.containers.iter().all(|c| known.contains(&c.r#type.as_str())) {
        return None;
    }
    let stays = sum(&["app", "restartable-init"])?;
    let first =
        pod.containers.iter().filter(|c| c.r#type == "init").filter_map(|c| c.request_memory_bytes).max();
    let total = stays.max(first.unwrap_or_default());
    (total > 0).then_some(total)
}

fn list<K: IdKind>(what: &str, text: &str) -> Result<IdSet<K>, BuildError> {
    text.parse().map_err(|source| BuildError::List { what: what.to_owned(), source })
}

#[cfg(test)]
#[path = "kcnr_tests.rs"]
mod tests;
