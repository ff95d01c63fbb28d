//! The machine.

use oxalyst_proto::orm::v1::Topology;
use serde::Serialize;

use super::{paragraphs, told};
use crate::table::Table;

/// NUMA nodes and CPUs, ascending by id.
#[derive(Debug, Serialize)]
pub(crate) struct TopologyView {
    pub(crate) online: Option<String>,
    pub(crate) offline: Option<String>,
    pub(crate) isolated: Option<String>,
    pub(crate) numa_nodes: Vec<NumaNodeView>,
    pub(crate) cpus: Vec<CpuView>,
}

#[derive(Debug, Serialize)]
pub(crate) struct NumaNodeView {
    pub(crate) id: u32,
    pub(crate) socket: Option<u32>,
    pub(crate) cpus: Option<String>,
    pub(crate) memory_bytes: u64,
    pub(crate) distances: Vec<u32>,
}

#[derive(Debug, Serialize)]
pub(crate) struct CpuView {
    pub(crate) id: u32,
    pub(crate) core: u32,
    pub(crate) socket: u32,
    pub(crate) numa_node: u32,
    pub(crate) l3: Option<u32>,
}

// === impl TopologyView ===

impl TopologyView {
    pub(crate) fn new(topology: Topology) -> Self {
        let mut numa_nodes: Vec<NumaNodeView> = topology
            .nodes
            .into_iter()
            .map(|n| NumaNodeView {
                id: n.id,
                socket: n.socket,
                cpus: told(&n.cpus),
                memory_bytes: n.memory_bytes,
                distances: n.distances,
            })
            .collect();
        numa_nodes.sort_by_key(|n| n.id);
        let mut cpus: Vec<CpuView> = topology
            .cpus
            .into_iter()
            .map(|c| CpuView { id: c.id, core: c.core, socket: c.socket, numa_node: c.numa, l3: c.l3 })
            .collect();
        cpus.sort_by_key(|c| c.id);
        Self {
            online: told(&topology.online),
            offline: told(&topology.offline),
            isolated: told(&topology.isolated),
            numa_nodes,
            cpus,
        }
    }

    pub(crate) fn render(&self, wide: bool) -> String {
        let number = |n: Option<u32>| n.map(|n| n.to_string()).unwrap_or_default();
        let mut nodes = Table::new(&["NUMA", "SOCKET", "CPUS", "MEMORY", "DISTANCES"]);
        for n in &self.numa_nodes {
            let distances: Vec<String> = n.distances.iter().map(u32::to_string).collect();
            nodes.row(vec![
                n.id.to_string(),
                number(n.socket),
                n.cpus.clone().unwrap_or_default(),
                mebibytes(n.memory_bytes),
                distances.join(" "),
            ]);
        }
        let mut cpus = Table::new(&["CPU", "CORE", "SOCKET", "NUMA", "L3"]);
        for c in &self.cpus {
            cpus.row(vec![
                c.id.to_string(),
                c.core.to_string(),
                c.socket.to_string(),
                c.numa_node.to_string(),
                number(c.l3),
            ]);
        }
        let or_none = |set: &Option<String>| set.clone().unwrap_or_else(|| "none".into());
        let line = format!(
            "online CPUs {}, offline {}, isolated {}\n",
            or_none(&self.online),
            or_none(&self.offline),
            or_none(&self.isolated)
        );
        paragraphs(&[nodes.render(), if wide { cpus.render() } else { String::new() }, line])
    }
}

/// A node without memory is told as such.
fn mebibytes(bytes: u64) -> String {
    if bytes == 0 { "none".to_owned() } else { format!("{} MiB", bytes >> 20) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_proto::orm::v1::{Cpu, NumaNode};

    fn topology() -> Topology {
        let cpu = |id| Cpu { id, core: id, socket: 0, numa: 0, l3: (id == 0).then_some(0) };
        Topology {
            cpus: vec![cpu(1), cpu(0)],
            nodes: vec![NumaNode {
                id: 0,
                socket: Some(0),
                cpus: "0-1".into(),
                memory_bytes: 4 << 30,
                distances: vec![10],
                huge_pages: Default::default(),
            }],
            online: "0-1".into(),
            ..Topology::default()
        }
    }

    #[test]
    fn nodes_by_default_and_every_cpu_in_wide() {
        let view = TopologyView::new(topology());
        assert_eq!(
            view.render(false),
            "NUMA  SOCKET  CPUS  MEMORY    DISTANCES\n\
             0     0       0-1   4096 MiB  10\n\
             \n\
             online CPUs 0-1, offline none, isolated none\n"
        );
        assert!(view.render(true).contains(
            "CPU  CORE  SOCKET  NUMA  L3\n0    0     0       0     0\n1    1     0       0     -\n"
        ));
    }
}
