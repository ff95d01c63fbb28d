//! Everything that planning looks at, as one message.

use super::{machine, rules};
use crate::pods::{Rules, State, record};
use oxalyst_proto::orm::v1::StateSnapshot;
use oxalyst_topology::{Machine, MachineError, ParseSetError};
use prost::Message;

/// What steps are planned on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// What is held.
    pub state: State,
    /// Where.
    pub machine: Machine,
    /// By which rules.
    pub rules: Rules,
}

/// A snapshot that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The machine or the rules are missing.
    #[error("the snapshot has no {0}")]
    Missing(&'static str),
    /// The machine contradicts itself.
    #[error("the snapshot's machine: {0}")]
    Machine(#[from] MachineError),
    /// A set that is not in list format.
    #[error("the snapshot: {0}")]
    Set(#[from] ParseSetError),
    /// A word from outside its closed set, as a later version may write.
    #[error("the snapshot has the {what} {word:?}, which this version does not know")]
    Word {
        /// What it should be.
        what: &'static str,
        /// The word.
        word: String,
    },
    /// A record that cannot be understood.
    #[error("the snapshot's record {key}: {source}")]
    Record {
        /// Its key.
        key: String,
        /// What is wrong with it.
        source: record::RecordError,
    },
}

/// All of it as a message, without a generation; equal worlds give equal bytes.
pub fn snapshot(state: &State, machine: &Machine, rules: &Rules) -> StateSnapshot {
    let records = record::whole(state).into_iter();
    StateSnapshot {
        machine: Some(machine::encode(machine)),
        rules: Some(rules::encode(rules)),
        reserved: state.cpus.reserved.to_string(),
        records: records.filter_map(|change| Some((change.key, change.value?))).collect(),
        ended_sandboxes: state.released.iter().map(str::to_owned).collect(),
        generation: 0,
    }
}

/// The world of a snapshot.
///
/// # Errors
/// It is damaged, or written by a later version.
pub fn restore(snapshot: &StateSnapshot) -> Result<World, SnapshotError> {
    let machine = snapshot.machine.as_ref().ok_or(SnapshotError::Missing("machine"))?;
    let machine = machine::decode(machine)?;
    let rules = snapshot.rules.as_ref().ok_or(SnapshotError::Missing("rules"))?;
    let rules = rules::decode(rules)?;
    let records = snapshot.records.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice()));
    let (mut state, faults) = record::restore(records, &machine, &rules, snapshot.reserved.parse()?);
    if let Some((key, source)) = faults.into_iter().next() {
        return Err(SnapshotError::Record { key, source });
    }
    for sandbox_id in &snapshot.ended_sandboxes {
        state.released.remember(sandbox_id);
    }
    Ok(World { state, machine, rules })
}

/// Digests of the state, of the machine and of the rules, in this order.
pub(super) fn digests(state: &State, machine: &Machine, rules: &Rules) -> [String; 3] {
    let mut whole = snapshot(state, machine, rules);
    let StateSnapshot { machine, rules, .. } = &mut whole;
    let (machine, rules) = (machine.take(), rules.take());
    let bytes = |part: Option<Vec<u8>>| digest_of(&part.unwrap_or_default());
    [
        digest_of(&whole.encode_to_vec()),
        bytes(machine.map(|machine| machine.encode_to_vec())),
        bytes(rules.map(|rules| rules.encode_to_vec())),
    ]
}

/// FNV-1a of 64 bits, as 16 hexadecimal digits. Tells states apart; it does not guard against anybody.
pub fn digest_of(bytes: &[u8]) -> String {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_fnv_1a() {
        assert_eq!(digest_of(b""), "cbf29ce484222325");
        assert_eq!(digest_of(b"a"), "af63dc4c8601ec8c");
        assert_eq!(digest_of(b"foobar"), "85944171f73967e8");
    }
}
