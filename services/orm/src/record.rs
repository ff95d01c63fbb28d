//! What the ledger holds beside the records of pods, which are [`oxalyst_planner::pods::record`]'s: the machine that pools followed
//! from, what is still to be heard or read, and the records that the version before this one wrote.

pub mod former;
mod removal;

pub use removal::{removal, removal_of};

use oxalyst_ledger::{Change, Ledger};
use oxalyst_planner::pods::record;
use oxalyst_proto::orm::v1::MachineRecord;
use oxalyst_topology::{CpuSet, Machine};
use prost::Message as _;

/// Key of the machine's record.
pub const MACHINE_KEY: &str = "machine";
/// Key of what the kubelet reserves, as was told last.
const KUBELET_KEY: &str = "kubelet-reservation";
/// Only while the runtime's list is awaited, after a loss.
const AWAITED_LIST_KEY: &str = "awaited-list";
/// Only while Katalyst's files have not been understood.
const PENDING_IMPORT_KEY: &str = "pending-import";
/// Written while the disk fails, read by nobody.
const PROBE_KEY: &str = "storage-probe";

/// A change of the planner's as one of the ledger's.
pub fn change(change: record::Change) -> Change {
    match change.value {
        Some(bytes) => Change::Put(change.key, bytes),
        None => Change::Delete(change.key),
    }
}

/// A change that is none of the state's: that it can be written is all that it tells.
pub fn storage_probe(unix_ms: i64) -> Change {
    Change::Put(PROBE_KEY.to_owned(), unix_ms.to_le_bytes().to_vec())
}

/// The change that remembers whether the runtime's list is awaited.
pub fn list_awaited(awaited: bool) -> Change {
    mark(AWAITED_LIST_KEY, awaited)
}

/// Whether the runtime's list was awaited when this ledger was used last.
pub fn is_list_awaited(ledger: &Ledger) -> bool {
    ledger.get(AWAITED_LIST_KEY).is_some()
}

/// The change that remembers whether Katalyst's files are yet to be understood.
pub fn import_pending(pending: bool) -> Change {
    mark(PENDING_IMPORT_KEY, pending)
}

/// Whether Katalyst's files were there and not understood.
pub fn is_import_pending(ledger: &Ledger) -> bool {
    ledger.get(PENDING_IMPORT_KEY).is_some()
}

fn mark(key: &str, there: bool) -> Change {
    if there { Change::Put(key.to_owned(), b"1".to_vec()) } else { Change::Delete(key.to_owned()) }
}

/// The change that remembers this machine.
pub fn machine(machine: &Machine, reserved: &CpuSet) -> Change {
    let record = MachineRecord { online: machine.online().to_string(), reserved: reserved.to_string() };
    Change::Put(MACHINE_KEY.to_owned(), record.encode_to_vec())
}

/// The change that remembers what the kubelet reserves.
pub fn kubelet_reservation(told: &str) -> Change {
    Change::Put(KUBELET_KEY.to_owned(), told.as_bytes().to_vec())
}

/// What the kubelet reserved when it was last told.
pub fn kubelet_reservation_of<'r>(mut records: impl Iterator<Item = (&'r str, &'r [u8])>) -> Option<String> {
    let (_, told) = records.find(|(key, _)| *key == KUBELET_KEY)?;
    String::from_utf8(told.to_vec()).ok()
}
