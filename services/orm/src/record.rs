//! What the ledger holds: one record a pod, and one that says which machine the pools followed from.

use oxalyst_ledger::Change;
use oxalyst_proto::orm::v1::pod_record::Place;
use oxalyst_proto::orm::v1::{ExclusiveSet, MachineRecord, PodRecord};
use oxalyst_topology::{CpuSet, Machine, ParseSetError};
use oxalyst_units::MilliCpu;
use prost::Message as _;

use oxalyst_planner::plan::{Placement, PodChange, PodEntry, PoolName, UnknownWord};

/// Key of the machine's record.
pub const MACHINE_KEY: &str = "machine";
const POD_PREFIX: &str = "pod/";
/// Written while the disk fails, read by nobody.
const PROBE_KEY: &str = "storage-probe";
/// What stands for [`Placement::NodeAgent`] where a pool's name stands otherwise. No pool may bear it.
const NODE_AGENT: &str = "node-agent";

/// Why a record cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The bytes are no such message.
    #[error("not a pod record: {0}")]
    Bytes(#[from] prost::DecodeError),
    /// A word from outside its closed set, as a later version may write.
    #[error(transparent)]
    Word(#[from] UnknownWord),
    /// A level that there is not.
    #[error("{0:?} is no QoS level")]
    Level(String),
    /// A set that is not in list format.
    #[error(transparent)]
    Set(#[from] ParseSetError),
    /// Neither a pool nor a set, or an empty one.
    #[error("the record says nowhere to run")]
    Nowhere,
}

/// The uid, if this is the key of a pod's record.
pub fn pod_uid(key: &str) -> Option<&str> {
    key.strip_prefix(POD_PREFIX)
}

/// The change of the ledger that makes this change of the state durable.
pub fn change(change: &PodChange) -> Change {
    match change {
        PodChange::Put(entry) => Change::Put(format!("{POD_PREFIX}{}", entry.uid), encode(entry)),
        PodChange::Remove(uid) => Change::Delete(format!("{POD_PREFIX}{uid}")),
    }
}

/// A change that is none of the state's: that it can be written is all that it tells.
pub fn storage_probe(unix_ms: i64) -> Change {
    Change::Put(PROBE_KEY.to_owned(), unix_ms.to_le_bytes().to_vec())
}

/// The change that remembers this machine.
pub fn machine(machine: &Machine, reserved: &CpuSet) -> Change {
    let record = MachineRecord { online: machine.online().to_string(), reserved: reserved.to_string() };
    Change::Put(MACHINE_KEY.to_owned(), record.encode_to_vec())
}

/// A pod's record as bytes.
pub fn encode(entry: &PodEntry) -> Vec<u8> {
    let place = match &entry.placement {
        Placement::Exclusive { cpus, numa_bound } => {
            Some(Place::Exclusive(ExclusiveSet { cpus: cpus.to_string(), bound: *numa_bound }))
        }
        Placement::Pool(pool) => Some(Place::Pool(pool.to_string())),
        Placement::NodeAgent => Some(Place::Pool(NODE_AGENT.to_owned())),
        Placement::Unsettled => None,
    };
    PodRecord {
        uid: entry.uid.clone(),
        sandbox_id: entry.sandbox_id.clone(),
        namespace: entry.namespace.clone(),
        name: entry.name.clone(),
        qos_level: entry.qos.to_string(),
        request_milli_cpu: entry.request.map(|milli| milli.0),
        request_source: entry.request_source.to_string(),
        place,
        flags: entry.flags.iter().map(ToString::to_string).collect(),
        since_unix_ms: entry.since_unix_ms,
        decided_by: entry.decided_by.to_string(),
    }
    .encode_to_vec()
}

/// A pod from its record.
///
/// # Errors
/// [`RecordError`]; the pod is then taken in anew from the runtime's list.
pub fn decode(bytes: &[u8]) -> Result<PodEntry, RecordError> {
    let record = PodRecord::decode(bytes)?;
    let placement = match record.place {
        Some(Place::Exclusive(set)) => {
            let cpus: CpuSet = set.cpus.parse()?;
            if cpus.is_empty() {
                return Err(RecordError::Nowhere);
            }
            Placement::Exclusive { cpus, numa_bound: set.bound }
        }
        Some(Place::Pool(name)) if name == NODE_AGENT => Placement::NodeAgent,
        Some(Place::Pool(name)) => Placement::Pool(name.parse::<PoolName>()?),
        None => return Err(RecordError::Nowhere),
    };
    Ok(PodEntry {
        uid: record.uid,
        sandbox_id: record.sandbox_id,
        namespace: record.namespace,
        name: record.name,
        qos: record.qos_level.parse().map_err(|_| RecordError::Level(record.qos_level))?,
        request: record.request_milli_cpu.map(MilliCpu),
        request_source: record.request_source.parse()?,
        placement,
        flags: record.flags.iter().map(|word| word.parse()).collect::<Result<_, _>>()?,
        since_unix_ms: record.since_unix_ms,
        decided_by: record.decided_by.parse()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_planner::plan::{DecidedBy, Flag, RequestSource};
    use oxalyst_qos::QosLevel;

    fn entry(placement: Placement) -> PodEntry {
        PodEntry {
            uid: "u".into(),
            sandbox_id: "s".into(),
            namespace: "ns".into(),
            name: "n".into(),
            qos: QosLevel::Dedicated,
            request: Some(MilliCpu(1500)),
            request_source: RequestSource::SandboxResources,
            placement,
            flags: [Flag::NumaBindingSpans, Flag::EnhancementInvalid].into(),
            since_unix_ms: 1_700_000_000_000,
            decided_by: DecidedBy::Reconcile,
        }
    }

    #[test]
    fn every_placement_reads_back_as_written() {
        let exclusive = Placement::Exclusive { cpus: "1-3,8".parse().unwrap(), numa_bound: true };
        let pools = PoolName::ALL.iter().map(|pool| Placement::Pool(*pool));
        for placement in pools.chain([exclusive, Placement::NodeAgent]) {
            let entry = entry(placement);
            assert_eq!(decode(&encode(&entry)).unwrap(), entry);
        }
    }

    #[test]
    fn no_pool_bears_the_name_that_stands_for_node_agents() {
        assert!(NODE_AGENT.parse::<PoolName>().is_err());
    }

    #[test]
    fn an_empty_exclusive_set_and_an_unknown_word_are_refused() {
        let empty = Placement::Exclusive { cpus: CpuSet::new(), numa_bound: false };
        assert!(matches!(decode(&encode(&entry(empty))), Err(RecordError::Nowhere)));
        let mut record = PodRecord::decode(encode(&entry(Placement::NodeAgent)).as_slice()).unwrap();
        record.flags.push("from-the-future".into());
        assert!(matches!(decode(&record.encode_to_vec()), Err(RecordError::Word(_))));
    }

    #[test]
    fn a_pods_key_gives_its_uid_back() {
        let put = change(&PodChange::Put(entry(Placement::NodeAgent)));
        assert_eq!(pod_uid(put.key()), Some("u"));
        assert_eq!(change(&PodChange::Remove("u".into())).key(), put.key());
        assert_eq!(pod_uid(MACHINE_KEY), None);
    }
}
