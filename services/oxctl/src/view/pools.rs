//! The pools, the CPUs given exclusively, and what is free.

use oxalyst_proto::orm::v1::State;
use oxalyst_topology::{CpuSet, NumaMask};
use serde::Serialize;

use super::{paragraphs, told};
use crate::table::Table;

/// How the node's CPUs are divided.
#[derive(Debug, Serialize)]
pub(crate) struct PoolsView {
    pub(crate) generation: u64,
    pub(crate) online: Option<String>,
    pub(crate) reserved: Option<String>,
    /// "dynamic", "native"; "mixed" as long as pods run that the other policy placed. `None`: an orm that does not tell it.
    pub(crate) cpu_policy: Option<String>,
    pub(crate) pools: Vec<PoolView>,
    /// All exclusive sets together.
    pub(crate) exclusive: PoolView,
    /// What nobody has exclusively; the last CPU of it stays with the pods of the share and reclaim pools.
    pub(crate) free: Vec<FreeView>,
    /// Why new exclusive allocations are refused at present.
    pub(crate) storage_fault: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PoolView {
    pub(crate) name: String,
    pub(crate) cpus: Option<String>,
    pub(crate) mems: Option<String>,
    pub(crate) pods: u32,
}

#[derive(Debug, Serialize)]
pub(crate) struct FreeView {
    pub(crate) numa_node: u32,
    pub(crate) cpus: Option<String>,
    pub(crate) count: u32,
}

// === impl PoolsView ===

impl PoolsView {
    pub(crate) fn new(state: State) -> Self {
        let sets = || state.pods.iter().flat_map(|pod| pod.exclusive_sets());
        let owners = state.pods.iter().filter(|pod| pod.exclusive_sets().next().is_some());
        let cpus =
            sets().filter_map(|own| own.0.parse::<CpuSet>().ok()).fold(CpuSet::default(), |a, b| &a | &b);
        let mems =
            sets().filter_map(|own| own.1.parse::<NumaMask>().ok()).fold(NumaMask::default(), |a, b| &a | &b);
        let exclusive = PoolView {
            name: "exclusive".into(),
            cpus: told(&cpus.to_string()),
            mems: told(&mems.to_string()),
            pods: u32::try_from(owners.count()).unwrap_or(u32::MAX),
        };
        let pool = |p: oxalyst_proto::orm::v1::Pool| PoolView {
            name: p.name,
            cpus: told(&p.cpus),
            mems: told(&p.mems),
            pods: p.pods,
        };
        let free = |f: oxalyst_proto::orm::v1::NumaFree| FreeView {
            numa_node: f.node,
            cpus: told(&f.cpuset),
            count: f.cpus,
        };
        Self {
            generation: state.generation,
            online: told(&state.online),
            reserved: told(&state.reserved),
            cpu_policy: told(&state.cpu_policy),
            exclusive,
            pools: state.pools.into_iter().map(pool).collect(),
            free: state.free.into_iter().map(free).collect(),
            storage_fault: told(&state.storage_fault),
        }
    }

    pub(crate) fn render(&self) -> String {
        let mut pools = Table::new(&["POOL", "CPUS", "MEMS", "PODS"]);
        for p in self.pools.iter().chain([&self.exclusive]) {
            pools.row(vec![
                p.name.clone(),
                p.cpus.clone().unwrap_or_default(),
                p.mems.clone().unwrap_or_default(),
                p.pods.to_string(),
            ]);
        }
        let mut free = Table::new(&["NUMA", "FREE", "CPUS"]);
        for f in &self.free {
            free.row(vec![f.numa_node.to_string(), f.count.to_string(), f.cpus.clone().unwrap_or_default()]);
        }
        let free = if free.is_empty() { String::new() } else { free.render() };
        let or_none = |set: &Option<String>| set.clone().unwrap_or_else(|| "none".into());
        let mut lines =
            format!("online CPUs {}, reserved {}\n", or_none(&self.online), or_none(&self.reserved));
        if let Some(policy) = &self.cpu_policy {
            lines.push_str(&format!("CPU policy {policy}\n"));
        }
        if let Some(kept) = self.kept() {
            lines.push_str(&kept);
        }
        if let Some(fault) = &self.storage_fault {
            lines.push_str(&format!("new exclusive allocations are refused: {fault}\n"));
        }
        paragraphs(&[pools.render(), free, lines])
    }
}

// === impl PoolsView: what is free and yet cannot be given ===

impl PoolsView {
    fn kept(&self) -> Option<String> {
        let pods: u32 = self
            .pools
            .iter()
            .filter(|p| ["share", "reclaim"].contains(&p.name.as_str()))
            .map(|p| p.pods)
            .sum();
        let free = self.free.iter().any(|f| f.count > 0);
        let whose = match pods {
            0 => return None,
            1 => "the 1 pod that runs".to_owned(),
            _ => format!("the {pods} pods that run"),
        };
        free.then(|| format!("the last free CPU stays with {whose} in the share and reclaim pools\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_proto::orm::v1::{NumaFree, PodPlacement, Pool};

    fn state() -> State {
        let exclusive = |cpus: &str| PodPlacement {
            exclusive: true,
            cpus: cpus.into(),
            mems: "0".into(),
            settled: true,
            ..PodPlacement::default()
        };
        State {
            generation: 9,
            pools: vec![Pool { name: "share".into(), cpus: "0,3".into(), mems: "0".into(), pods: 2 }],
            pods: vec![exclusive("1"), exclusive("2"), PodPlacement::default()],
            online: "0-3".into(),
            free: vec![NumaFree { node: 0, cpus: 1, cpuset: "3".into() }],
            ..State::default()
        }
    }

    #[test]
    fn pools_stand_above_the_exclusive_sets_together() {
        assert_eq!(
            PoolsView::new(state()).render(),
            "POOL       CPUS  MEMS  PODS\n\
             share      0,3   0     2\n\
             exclusive  1-2   0     2\n\
             \n\
             NUMA  FREE  CPUS\n\
             0     1     3\n\
             \n\
             online CPUs 0-3, reserved none\n\
             the last free CPU stays with the 2 pods that run in the share and reclaim pools\n"
        );
    }

    #[test]
    fn r03_pods_of_the_other_policy_make_the_policy_mixed_in_text_and_json() {
        let view = PoolsView::new(State { cpu_policy: "mixed".into(), ..state() });
        assert!(view.render().contains("\nCPU policy mixed\n"), "{}", view.render());
        assert_eq!(serde_json::to_value(&view).unwrap()["cpu_policy"], "mixed");
        let untold = serde_json::to_value(PoolsView::new(state())).unwrap();
        assert_eq!(untold["cpu_policy"], serde_json::Value::Null);
    }

    #[test]
    fn a_storage_fault_is_shown() {
        let state = State { storage_fault: "no room on /var".into(), ..state() };
        let view = PoolsView::new(state);
        assert!(view.render().contains("refused: no room on /var"));
    }
}
