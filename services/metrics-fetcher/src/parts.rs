//! Files that tell of several CPUs, NUMA nodes or devices at once: a row for each.

use oxalyst_cgroups::parse::{self, ParseError};

use crate::catalogue::Scope;
use crate::contents::{Contents, File, Reading, Row};
use crate::sources::proc::{self, CpuTicks};
use crate::store::Instance;

/// Pages of the kernel that `memory.numa_stat` of v1 and `/proc/zoneinfo` count.
fn page() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(4096)
}

/// Understands one of them: rows for its parts, and what it says of the whole.
///
/// # Errors
/// [`ParseError`] with the offending line.
pub fn parse(file: File, reading: &mut Reading<'_>, bytes: &[u8]) -> Result<Contents, ParseError> {
    let machine = reading.machine;
    let rows = &mut *reading.rows;
    let numbered =
        |scope, number: u32, contents| Row { scope, instance: Instance::Number(number), file, contents };
    match file {
        File::NodeStat => {
            let mut nodes = vec![(CpuTicks::default(), 0u64); machine.nodes().len()];
            let stat = proc::stat_of_each(bytes, |cpu, ticks| {
                rows.push(numbered(Scope::Cpu, cpu, Contents::Cpu(ticks)));
                let place =
                    machine.node_of(cpu).and_then(|node| machine.nodes().iter().position(|n| *n == node));
                if let Some((sum, cpus)) = place.and_then(|p| nodes.get_mut(p)) {
                    sum.busy = sum.busy.saturating_add(ticks.busy);
                    sum.iowait = sum.iowait.saturating_add(ticks.iowait);
                    *cpus += 1;
                }
            })?;
            for (node, (ticks, cpus)) in machine.nodes().iter().zip(nodes) {
                rows.push(numbered(Scope::Numa, *node, Contents::Cpus(ticks, cpus)));
            }
            return Ok(Contents::NodeStat(stat));
        }
        File::NodeZones => proc::zoneinfo(bytes, page(), |node, marks| {
            rows.push(numbered(Scope::Numa, node, Contents::Watermarks(marks)));
        })?,
        File::NodeDisks => proc::diskstats(bytes, |name, disk| {
            // Devices of the kernel's own that come and go by the hundred and hold nobody's disk.
            if !name.starts_with("loop") && !name.starts_with("ram") {
                let instance = Instance::Name(name.into());
                rows.push(Row { scope: Scope::Device, instance, file, contents: Contents::Disk(disk) });
            }
        })?,
        File::NodeNetwork => proc::net_dev(bytes, |name, interface| {
            // One end of a pod's own pair is no card of the node.
            if name != "lo" && !name.starts_with("veth") {
                let instance = Instance::Name(name.into());
                rows.push(Row {
                    scope: Scope::Network,
                    instance,
                    file,
                    contents: Contents::Interface(interface),
                });
            }
        })?,
        File::NumaStat => {
            parse::numa_stat(reading.unified, page(), bytes, reading.numa)?;
            let scope = reading.numa_scope;
            rows.extend(reading.numa.iter().map(|m| numbered(scope, m.node, Contents::NumaMemory(*m))));
        }
        File::CpuEach => {
            let (first, scope) = (rows.len(), reading.numa_scope);
            for node in machine.nodes() {
                rows.push(numbered(scope, *node, Contents::Nanoseconds(0)));
            }
            parse::cpuacct_usage_percpu(bytes, |cpu, ns| {
                let node = u32::try_from(cpu).ok().and_then(|cpu| machine.node_of(cpu));
                let place = node.and_then(|node| machine.nodes().iter().position(|n| *n == node));
                if let Some(Row { contents: Contents::Nanoseconds(sum), .. }) =
                    place.and_then(|p| rows.get_mut(first + p))
                {
                    *sum = sum.saturating_add(ns);
                }
            })?;
        }
        _ => {}
    }
    Ok(Contents::Parts)
}
