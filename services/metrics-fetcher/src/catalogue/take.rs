//! What each parsed file says of a row, and the formulas of derived rows.

use oxalyst_cgroups::parse::{IoStat, Limit, MemoryStat, NumaMemory, Reclaim, Stall};

use super::Told;
use crate::contents::Contents;
use crate::sources::proc::{
    CpuTicks, Disk, Interface, MemoryInfo, NumaCounts, NumaInfo, USER_HZ, Vmstat, Watermarks,
};

const NANO: f64 = 1e9;

/// Counts and bytes are below 2^53 on any machine that exists; beyond it the last digits blur.
#[allow(clippy::cast_precision_loss)]
pub(super) fn told(value: Option<u64>) -> Told {
    value.map_or(Told::Nothing, |v| Told::Value(v as f64))
}

fn scaled(told: Told, scale: f64) -> Told {
    if let Told::Value(v) = told { Told::Value(v * scale) } else { told }
}

pub(super) fn nothing(_: &Contents) -> Told {
    Told::Nothing
}

pub(super) fn cpu_seconds(c: &Contents) -> Told {
    match c {
        Contents::Nanoseconds(ns) => scaled(told(Some(*ns)), 1.0 / NANO),
        Contents::CpuStat(stat) => scaled(told(stat.usage_ns), 1.0 / NANO),
        _ => Told::Nothing,
    }
}

pub(super) fn user_seconds(c: &Contents) -> Told {
    if let Contents::CpuStat(stat) = c { scaled(told(stat.user_ns), 1.0 / NANO) } else { cpu_seconds(c) }
}

pub(super) fn system_seconds(c: &Contents) -> Told {
    if let Contents::CpuStat(stat) = c { scaled(told(stat.system_ns), 1.0 / NANO) } else { cpu_seconds(c) }
}

pub(super) fn cpu_ns(c: &Contents) -> Told {
    if let Contents::Nanoseconds(ns) = c { told(Some(*ns)) } else { Told::Nothing }
}

pub(super) fn periods(c: &Contents) -> Told {
    if let Contents::CpuStat(stat) = c { told(stat.nr_periods) } else { Told::Nothing }
}

pub(super) fn throttled(c: &Contents) -> Told {
    if let Contents::CpuStat(stat) = c { told(stat.nr_throttled) } else { Told::Nothing }
}

pub(super) fn throttled_us(c: &Contents) -> Told {
    if let Contents::CpuStat(stat) = c { scaled(told(stat.throttled_ns), 1e-3) } else { Told::Nothing }
}

pub(super) fn quota(c: &Contents) -> Told {
    match c {
        Contents::CpuMax(max) => max.quota_us.map_or(Told::Unlimited, |us| told(Some(us))),
        Contents::Quota(quota) => quota.map_or(Told::Unlimited, |us| told(Some(us))),
        _ => Told::Nothing,
    }
}

pub(super) fn period(c: &Contents) -> Told {
    if let Contents::CpuMax(max) = c { told(Some(max.period_us)) } else { number(c) }
}

pub(super) fn number(c: &Contents) -> Told {
    if let Contents::Number(n) = c { told(Some(*n)) } else { Told::Nothing }
}

pub(super) fn limit(c: &Contents) -> Told {
    match c {
        Contents::Limit(Limit::Unlimited) => Told::Unlimited,
        Contents::Limit(Limit::At(bytes)) => told(Some(bytes.0)),
        _ => Told::Nothing,
    }
}

pub(super) fn kernel(c: &Contents) -> Told {
    if let Contents::MemoryStat(stat) = c { told(stat.kernel) } else { number(c) }
}

pub(super) fn swap(c: &Contents) -> Told {
    if let Contents::MemoryStat(stat) = c { told(stat.swap) } else { number(c) }
}

pub(super) fn memory(c: &Contents, field: fn(&MemoryStat) -> Option<u64>) -> Told {
    if let Contents::MemoryStat(stat) = c { told(field(stat)) } else { Told::Nothing }
}

pub(super) fn reclaim(c: &Contents, field: fn(&Reclaim) -> Option<u64>) -> Told {
    if let Contents::MemoryStat(stat) = c { told(field(&stat.reclaim)) } else { Told::Nothing }
}

pub(super) fn oom_kill(c: &Contents) -> Told {
    if let Contents::Oom(events) = c { told(events.oom_kill) } else { Told::Nothing }
}

pub(super) fn io(c: &Contents, v2: fn(&IoStat) -> u64) -> Told {
    if let Contents::Io(stat) = c { told(Some(v2(stat))) } else { Told::Nothing }
}

pub(super) fn read(c: &Contents, v2: fn(&IoStat) -> u64) -> Told {
    if let Contents::ReadWritten(read, ..) = c { told(Some(*read)) } else { io(c, v2) }
}

pub(super) fn written(c: &Contents, v2: fn(&IoStat) -> u64) -> Told {
    if let Contents::ReadWritten(_, written, _) = c { told(Some(*written)) } else { io(c, v2) }
}

pub(super) fn some(c: &Contents, field: fn(&Stall) -> f64) -> Told {
    match c {
        Contents::Pressure(p) => p.some.as_ref().map_or(Told::Nothing, |s| Told::Value(field(s))),
        _ => Told::Nothing,
    }
}

pub(super) fn full(c: &Contents, field: fn(&Stall) -> f64) -> Told {
    match c {
        Contents::Pressure(p) => p.full.as_ref().map_or(Told::Nothing, |s| Told::Value(field(s))),
        _ => Told::Nothing,
    }
}

pub(super) fn numa(c: &Contents, field: fn(&NumaMemory) -> Option<u64>) -> Told {
    if let Contents::NumaMemory(memory) = c { told(field(memory)) } else { Told::Nothing }
}

pub(super) fn cpus(c: &Contents) -> Told {
    match c {
        Contents::NodeStat(stat) => told(Some(stat.cpus)),
        Contents::Cpus(_, cpus) => told(Some(*cpus)),
        _ => Told::Nothing,
    }
}

pub(super) fn running(c: &Contents) -> Told {
    if let Contents::NodeStat(stat) = c { told(stat.procs_running) } else { Told::Nothing }
}

pub(super) fn blocked(c: &Contents) -> Told {
    if let Contents::NodeStat(stat) = c { told(stat.procs_blocked) } else { Told::Nothing }
}

/// Seconds of one CPU, of a NUMA node's, or of all.
pub(super) fn ticks(c: &Contents, field: fn(&CpuTicks) -> Option<u64>) -> Told {
    let ticks = match c {
        Contents::NodeStat(stat) => &stat.all,
        Contents::Cpu(ticks) | Contents::Cpus(ticks, _) => ticks,
        _ => return Told::Nothing,
    };
    scaled(told(field(ticks)), 1.0 / USER_HZ)
}

/// The same divided by the number of CPUs.
pub(super) fn ticks_share(c: &Contents, field: fn(&CpuTicks) -> Option<u64>) -> Told {
    match (ticks(c, field), cpus(c)) {
        (Told::Value(seconds), Told::Value(cpus)) if cpus > 0.0 => Told::Value(seconds / cpus),
        _ => Told::Nothing,
    }
}

pub(super) fn load(c: &Contents, which: usize) -> Told {
    match c {
        Contents::NodeLoad(load) => load.0.get(which).map_or(Told::Nothing, |v| Told::Value(*v)),
        _ => Told::Nothing,
    }
}

pub(super) fn meminfo(c: &Contents, field: fn(&MemoryInfo) -> Option<u64>) -> Told {
    if let Contents::NodeMemory(info) = c { told(field(info)) } else { Told::Nothing }
}

pub(super) fn vmstat(c: &Contents, field: fn(&Vmstat) -> Option<u64>) -> Told {
    if let Contents::Vmstat(stat) = c { told(field(stat)) } else { Told::Nothing }
}

pub(super) fn marks(c: &Contents, field: fn(&Watermarks) -> u64) -> Told {
    if let Contents::Watermarks(marks) = c { told(Some(field(marks))) } else { Told::Nothing }
}

pub(super) fn numa_info(c: &Contents, field: fn(&NumaInfo) -> Option<u64>) -> Told {
    if let Contents::NumaInfo(info) = c { told(field(info)) } else { Told::Nothing }
}

pub(super) fn numa_counts(c: &Contents, field: fn(&NumaCounts) -> Option<u64>) -> Told {
    if let Contents::NumaCounts(counts) = c { told(field(counts)) } else { Told::Nothing }
}

pub(super) fn disk(c: &Contents, field: fn(&Disk) -> u64) -> Told {
    if let Contents::Disk(disk) = c { told(Some(field(disk))) } else { Told::Nothing }
}

pub(super) fn received(c: &Contents, place: usize) -> Told {
    let of = |i: &Interface| i.received.get(place).copied();
    if let Contents::Interface(interface) = c { told(of(interface)) } else { Told::Nothing }
}

pub(super) fn sent(c: &Contents, place: usize) -> Told {
    let of = |i: &Interface| i.sent.get(place).copied();
    if let Contents::Interface(interface) = c { told(of(interface)) } else { Told::Nothing }
}

/// First by second; nothing by 0.
pub(super) fn quotient(inputs: &[f64]) -> Told {
    match inputs {
        [a, b] if *b > 0.0 && a.is_finite() => Told::Value(a / b),
        _ => Told::Nothing,
    }
}

/// First less second, never below 0: the two are read one after the other and may contradict each other.
pub(super) fn less(inputs: &[f64]) -> Told {
    match inputs {
        [a, b] if a >= b => Told::Value(a - b),
        [_, _] => Told::Clamped(0.0),
        _ => Told::Nothing,
    }
}

pub(super) fn sum(inputs: &[f64]) -> Told {
    Told::Value(inputs.iter().sum())
}

/// Of all stores the share that came from memory, times the lines written, 64 bytes each, in MiB.
pub(super) fn written_bandwidth(inputs: &[f64]) -> Told {
    match inputs {
        [_, all, _] if *all <= 0.0 => Told::Value(0.0),
        [stores, all, writes] => Told::Value(stores / all * writes * 64.0 / f64::from(1 << 20)),
        _ => Told::Nothing,
    }
}

/// 0.8 of what the memory can do in theory.
pub(super) fn usable(inputs: &[f64]) -> Told {
    if let [theory] = inputs { Told::Value(theory * 0.8) } else { Told::Nothing }
}

pub(super) fn half(inputs: &[f64]) -> Told {
    if let [a, b] = inputs { Told::Value((a + b) / 2.0) } else { Told::Nothing }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m03_a_difference_is_never_negative_and_says_that_it_was_clamped() {
        assert_eq!(less(&[5.0, 3.0]), Told::Value(2.0));
        assert_eq!(less(&[3.0, 5.0]), Told::Clamped(0.0));
    }

    #[test]
    fn m10_nothing_is_divided_by_zero() {
        assert_eq!(quotient(&[1.0, 4.0]), Told::Value(0.25));
        assert_eq!(quotient(&[1.0, 0.0]), Told::Nothing);
        assert_eq!(quotient(&[0.0, 0.0]), Told::Nothing);
        assert_eq!(written_bandwidth(&[1.0, 0.0, 9.0]), Told::Value(0.0));
    }

    proptest::proptest! {
        #[test]
        fn m10_formulas_give_finite_numbers_of_finite_ones(a in 0.0..1e15f64, b in 0.0..1e15f64, c in 0.0..1e15f64) {
            for told in [quotient(&[a, b.max(1e-9)]), less(&[a, b]), sum(&[a, b]), half(&[a, b]), usable(&[a]), written_bandwidth(&[a.min(b), b, c])] {
                if let Told::Value(v) | Told::Clamped(v) = told {
                    proptest::prop_assert!(v.is_finite() && v >= 0.0, "{v}");
                }
            }
        }
    }
}
