//! Records of the version before this one, under `pod/<uid>`: a pod was one set of CPUs. They are taken over at the first start
//! and are gone then.
//!
//! The former version reads none of this one's records, so where it has run in between, what it wrote is newer than all that this
//! one knows of pods.

use std::collections::BTreeSet;

use oxalyst_ledger::Change;
use oxalyst_planner::plan::{Flag, RequestSource, UnknownWord};
use oxalyst_planner::pods::{Asked, Class, KnownPod, Role, Rules, State, Told, record, take_over};
use oxalyst_proto::orm::v1::PodRecord;
use oxalyst_proto::orm::v1::pod_record::Place;
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, ParseSetError};
use oxalyst_units::MilliCpu;
use prost::Message as _;

const PREFIX: &str = "pod/";
/// What stood for a node agent where a pool's name stood otherwise.
const NODE_AGENT: &str = "node-agent";
/// Stands for all containers of a pod.
const ALL: &str = "*";

/// Why a record cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum FormerError {
    /// The bytes are no such message.
    #[error("not a pod record: {0}")]
    Bytes(#[from] prost::DecodeError),
    /// A word from outside its closed set.
    #[error(transparent)]
    Word(#[from] UnknownWord),
    /// A level that there is not.
    #[error("{0:?} is no QoS level")]
    Level(String),
    /// A pool that there was not.
    #[error("{0:?} is no pool")]
    Pool(String),
    /// A set that is not in list format.
    #[error(transparent)]
    Set(#[from] ParseSetError),
    /// Neither a pool nor a set, or an empty one.
    #[error("the record says nowhere to run")]
    Nowhere,
}

/// What the former version left.
#[derive(Debug, Default)]
pub struct Former {
    /// Its pods.
    pub pods: Vec<KnownPod>,
    /// Keys of its records that cannot be understood, and why; they stay where they are.
    pub faults: Vec<(String, FormerError)>,
}

// === impl Former ===

impl Former {
    /// Its records among all those of a ledger.
    pub fn of<'r>(records: impl Iterator<Item = (&'r str, &'r [u8])>) -> Self {
        let mut former = Self::default();
        for (key, bytes) in records.filter(|(key, _)| key.starts_with(PREFIX)) {
            match decode(bytes) {
                Ok(pod) => former.pods.push(pod),
                Err(error) => former.faults.push((key.to_owned(), error)),
            }
        }
        former
    }

    /// The one commit that makes this version's records of the former one's, given all records of the ledger. Empty: there are
    /// none to take over.
    pub fn changes(
        &self,
        records: &[(&str, &[u8])],
        machine: &Machine,
        rules: &Rules,
        reserved: &CpuSet,
    ) -> Vec<Change> {
        if self.pods.is_empty() {
            return Vec::new();
        }
        let others = records.iter().copied().filter(|(key, _)| !record::is_pod(key));
        let (empty, _): (State, _) = record::load(others, machine, rules, reserved.clone());
        let plan = take_over(&empty, machine, rules, &self.pods);
        let puts: Vec<Change> = record::changes(&plan, rules).into_iter().map(super::change).collect();
        let kept: BTreeSet<String> = puts.iter().map(|change| change.key().to_owned()).collect();
        let outdated = records.iter().map(|(key, _)| *key);
        let outdated = outdated.filter(|key| record::is_pod(key) && !kept.contains(*key));
        let outdated: Vec<Change> = outdated.map(|key| Change::Delete(key.to_owned())).collect();
        let former = self.pods.iter().map(|pod| Change::Delete(format!("{PREFIX}{}", pod.uid)));
        puts.into_iter().chain(outdated).chain(former).collect()
    }
}

fn decode(bytes: &[u8]) -> Result<KnownPod, FormerError> {
    let record = PodRecord::decode(bytes)?;
    let qos: QosLevel = record.qos_level.parse().map_err(|_| FormerError::Level(record.qos_level))?;
    let mut wishes: Vec<(String, String)> = Vec::new();
    let wish = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let (mut own, mut node_agent) = (None, false);
    match record.place {
        Some(Place::Exclusive(set)) => {
            let cpus: CpuSet = set.cpus.parse()?;
            if cpus.is_empty() {
                return Err(FormerError::Nowhere);
            }
            if set.bound {
                wishes.push(wish("numa_binding", "true"));
            }
            own = Some(cpus);
        }
        Some(Place::Pool(name)) if name == NODE_AGENT => node_agent = true,
        Some(Place::Pool(name)) if name == "reserve" => wishes.push(wish("cpuset_pool", "reserve")),
        Some(Place::Pool(name)) if !["share", "reclaim", "system"].contains(&name.as_str()) => {
            return Err(FormerError::Pool(name));
        }
        Some(Place::Pool(_)) => {}
        None => return Err(FormerError::Nowhere),
    }
    let flags: BTreeSet<Flag> = record.flags.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
    let request = record.request_milli_cpu.map(MilliCpu);
    let source: RequestSource = record.request_source.parse()?;
    let asked = Asked {
        name: ALL.to_owned(),
        role: Role::App,
        cpu: request,
        limit: None,
        memory: None,
        huge_pages: Default::default(),
    };
    Ok(KnownPod {
        uid: record.uid,
        sandbox_id: record.sandbox_id,
        namespace: record.namespace,
        name: record.name,
        qos,
        class: Class::Burstable,
        wishes: wishes.into_iter().collect(),
        kept_labels: Default::default(),
        node_agent,
        pool: None,
        main: ALL.to_owned(),
        containers: vec![(asked, own)],
        told: Told {
            request,
            source,
            decided_by: record.decided_by.parse()?,
            open: flags.contains(&Flag::NoRequest),
        },
        flags,
        since_unix_ms: record.since_unix_ms,
    })
}
