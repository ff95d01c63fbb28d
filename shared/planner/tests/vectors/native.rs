//! Family `native`.

use super::{Expect, compare, cpus, need, read};
use oxalyst_planner::plan::{NativeOption, take_native};
use oxalyst_topology::Machine;
use serde::Deserialize;

#[derive(Deserialize)]
struct Native {
    available: String,
    need: i64,
    mode: String,
    #[serde(default)]
    group: usize,
    expect: Expect,
}

pub(super) fn run(machine: &Machine, line: &str) -> Result<(), String> {
    let case: Native = read(line)?;
    let option = match case.mode.as_str() {
        "packed" => NativeOption::Packed,
        "distributed" => NativeOption::Distributed { group: case.group },
        mode => return Err(format!("unknown mode {mode:?}")),
    };
    compare(&case.expect, take_native(machine, &cpus(&case.available)?, need(case.need), option))
}
