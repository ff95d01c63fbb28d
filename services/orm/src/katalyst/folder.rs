//! The files in their folder.

use std::io;
use std::path::Path;

use super::{CPU_STATE, Fault, MEMORY_STATE, ORM_CHECKPOINT};

/// Bytes of the three files; `None` where a file is absent or cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// `cpu_plugin_state`.
    pub cpu_state: Option<Vec<u8>>,
    /// `memory_plugin_state`.
    pub memory_state: Option<Vec<u8>>,
    /// `kubelet_qrm_checkpoint`.
    pub orm_checkpoint: Option<Vec<u8>>,
}

/// Reads what there is, and tells what there is not. Blocks.
pub fn read(dir: &Path) -> (Files, Vec<Fault>) {
    let mut faults = Vec::new();
    let mut file = |name: &'static str| match std::fs::read(dir.join(name)) {
        Ok(bytes) => Some(bytes),
        Err(e) => {
            faults.push(match e.kind() {
                io::ErrorKind::NotFound => Fault::Missing { file: name },
                _ => Fault::Unreadable { file: name, why: e.to_string() },
            });
            None
        }
    };
    let files = Files {
        cpu_state: file(CPU_STATE),
        memory_state: file(MEMORY_STATE),
        orm_checkpoint: file(ORM_CHECKPOINT),
    };
    (files, faults)
}
