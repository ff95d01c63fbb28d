//! What the budgets of `docs/architecture.md` measure, each figure beside its floor, which is taken in the same run and in turn
//! with it so that noise hits both.

mod bare_plugin;
mod bare_reads;
mod beside;
mod cgroups;
mod commit;
mod floor;
mod growth;
mod hook;
mod memory;
mod metrics;
mod planner;
mod resync;
mod row;
mod samples;
mod scene;

pub use bare_plugin::serve as serve_bare_plugin;
pub use row::{Row, table};

use std::path::Path;

/// Why something could not be measured.
pub type Fault = Box<dyn std::error::Error>;

/// Groups of figures, by the name under which one can be asked for.
pub const GROUPS: [&str; 6] =
    ["merge", "plan-large", "commit", "hook-latency", "hook-growth", "metrics-pass"];

/// Measures the groups that `wanted` takes; a budget that is missed is a row, what could not be measured is a fault. `note`
/// hears what is at work.
pub async fn run(
    folder: &Path,
    wanted: impl Fn(&str) -> bool,
    mut note: impl FnMut(&str),
) -> (Vec<Row>, Vec<String>) {
    let (mut rows, mut faults) = (Vec::new(), Vec::new());
    let mut keep = |what: &str, outcome: Result<Vec<Row>, Fault>| match outcome {
        Ok(measured) => rows.extend(measured),
        Err(e) => faults.push(format!("{what}: {e}")),
    };
    if wanted("merge") {
        note("merge-8, merge-16, merge-numeric-8: 3 resources, all masks of 8 and 16 NUMA nodes");
        keep("merge", planner::merges());
    }
    if wanted("plan-large") {
        note("plan-large: 384 CPUs, 12 NUMA nodes, 500 containers");
        keep("plan-large", planner::plan_large());
    }
    if wanted("commit") {
        note("commit: a durable commit against an append with fdatasync");
        keep("commit", commit::measure(&folder.join("commit")));
    }
    if wanted("hook-latency") {
        note("hook-latency, memory-110, hook-frozen, resync: five services, 100 and 110 pods");
        keep("hook-latency", hook::latency(&folder.join("w")).await);
    }
    if wanted("hook-growth") {
        note(
            "hook-10 to hook-1000, hook-growth, memory-1000: 10 to 1,000 running containers, with and without the mesh",
        );
        keep("hook-growth", growth::measure(&folder.join("g")).await);
    }
    for containers in [100, 500, 2000] {
        if wanted("metrics-pass") {
            note(&format!("metrics-pass: {containers} containers"));
            let folder = folder.join(format!("m{containers}"));
            keep("metrics-pass", metrics::measure(&folder, containers, &mut note).await);
        }
    }
    (rows, faults)
}
