//! Family `quantity`.

use super::{cpus, names, nodes, read};
use oxalyst_planner::plan::{Demand, PoolFault, PoolSizes, pool_sizes, proportional, whole_cpus};
use oxalyst_topology::Machine;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Quantity {
    op: String,
    #[serde(default)]
    values: Vec<f64>,
    #[serde(default)]
    containers: Vec<PoolContainer>,
    #[serde(default)]
    pools: BTreeMap<String, usize>,
    #[serde(default)]
    available: usize,
    expect: Value,
}

#[derive(Deserialize)]
struct PoolContainer {
    pool: Option<String>,
    qos: String,
    #[serde(default)]
    container_type: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    cpus: String,
    cpu: f64,
}

pub(super) fn run(machine: &dyn Fn() -> Result<Machine, String>, line: &str) -> Result<(), String> {
    let case: Quantity = read(line)?;
    let got = match case.op.as_str() {
        "ceil" => json!({"quantity": whole_cpus(case.values.iter().sum())}),
        "proportional" => {
            let got = proportional(&case.pools, case.available);
            json!({"pools": got.sizes, "total": got.total})
        }
        "pools" => match pools(&machine()?, &case.containers)? {
            Ok(pools) => json!({ "pools": pools }),
            Err(_) if names(&case.expect["error"], "invalid") => return Ok(()),
            Err(fault) => return Err(format!("expected {}, got {fault}", case.expect)),
        },
        op => return Err(format!("unknown op {op:?}")),
    };
    if got == case.expect { Ok(()) } else { Err(format!("expected {}, got {got}", case.expect)) }
}

type PoolTable = BTreeMap<String, BTreeMap<String, usize>>;

fn pools(machine: &Machine, containers: &[PoolContainer]) -> Result<Result<PoolTable, PoolFault>, String> {
    let mut demands = Vec::new();
    for container in containers {
        if container.qos != "shared_cores" || container.container_type == "sidecar" {
            continue;
        }
        let annotation = |key: &str| container.annotations.get(key).map(String::as_str);
        // One that is in a pool is where it runs, another where it was bound to.
        let nodes = match (annotation("numa_binding"), &container.pool) {
            (Some("true"), Some(_)) => Some(machine.nodes_of(&cpus(&container.cpus)?)),
            (Some("true"), None) => Some(nodes(annotation("numa_hint").unwrap_or_default())?),
            _ => None,
        };
        let base = annotation("cpuset_pool").unwrap_or("share");
        let named = || nodes.as_ref().map_or(base.to_owned(), |nodes| format!("{base}-NUMA{nodes}"));
        let pool = container.pool.clone().unwrap_or_else(named);
        demands.push(Demand { pool, nodes, cores: container.cpu });
    }
    let node = |node: Option<u32>| node.map_or(String::new(), |node| node.to_string());
    let table = |sizes: PoolSizes| {
        sizes.into_iter().map(|(pool, (on, size))| (pool, [(node(on), size)].into())).collect()
    };
    Ok(pool_sizes(&demands).map(table))
}
