//! A machine as a message.

use super::SnapshotError;
use oxalyst_proto::orm::v1::{Cpu as CpuRow, MachineNode, MachineSnapshot};
use oxalyst_topology::{Cpu, Machine, NumaNode};
use oxalyst_units::Bytes;

pub(super) fn encode(machine: &Machine) -> MachineSnapshot {
    let cpu =
        |cpu: &Cpu| CpuRow { id: cpu.id, core: cpu.core, socket: cpu.socket, numa: cpu.numa, l3: cpu.l3 };
    let node = |node: &NumaNode| MachineNode {
        id: node.id,
        memory_bytes: node.memory.map(|bytes| bytes.0),
        has_memory: node.has_memory,
        distances: node.distances.clone(),
        huge_pages: node.huge_pages.iter().map(|(size, bytes)| (size.0, bytes.0)).collect(),
    };
    MachineSnapshot {
        cpus: machine.cpus().iter().map(cpu).collect(),
        nodes: machine.nodes().iter().map(node).collect(),
        offline: machine.offline().to_string(),
        isolated: machine.isolated().to_string(),
    }
}

pub(super) fn decode(message: &MachineSnapshot) -> Result<Machine, SnapshotError> {
    let cpu =
        |cpu: &CpuRow| Cpu { id: cpu.id, core: cpu.core, socket: cpu.socket, numa: cpu.numa, l3: cpu.l3 };
    let node = |node: &MachineNode| NumaNode {
        memory: node.memory_bytes.map(Bytes),
        has_memory: node.has_memory,
        distances: node.distances.clone(),
        huge_pages: node.huge_pages.iter().map(|(size, bytes)| (Bytes(*size), Bytes(*bytes))).collect(),
        ..NumaNode::new(node.id)
    };
    let cpus = message.cpus.iter().map(cpu).collect();
    let machine = Machine::new(cpus, message.nodes.iter().map(node).collect())?;
    Ok(machine.with_offline(&message.offline.parse()?).with_isolated(&message.isolated.parse()?))
}
