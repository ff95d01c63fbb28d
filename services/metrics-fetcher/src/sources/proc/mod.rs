//! `/proc`: the node's own counters (proc(5)).

mod devices;
mod vm;

pub use devices::{Disk, Interface, diskstats, net_dev};
pub use vm::{NumaCounts, NumaInfo, Vmstat, Watermarks, numa_meminfo, numastat, vmstat, zoneinfo};

use oxalyst_cgroups::parse::{ParseError, entries, lines, number};

/// Ticks a second in `/proc/stat`: `USER_HZ` is part of the kernel's interface and 100 on every architecture that
/// Kubernetes runs on.
pub const USER_HZ: f64 = 100.0;

/// `/proc/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcStat {
    /// user + nice + system + irq + softirq of all CPUs since boot. Guests are within user; idle, iowait and steal
    /// are not busy.
    pub busy_ticks: u64,
    /// CPUs online.
    pub cpus: u64,
    /// Runnable threads.
    pub procs_running: Option<u64>,
    /// Threads that wait for I/O.
    pub procs_blocked: Option<u64>,
    /// Of all CPUs since boot.
    pub all: CpuTicks,
}

/// Ticks of one CPU, or of all, since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// Neither idle, nor waiting for I/O, nor stolen.
    pub busy: u64,
    /// Of it in the kernel, interrupts left out.
    pub system: u64,
    /// Idle while I/O was under way.
    pub iowait: u64,
    /// Of it in interrupts, hard and soft.
    pub irq: u64,
    /// Taken by the hypervisor; old kernels do not tell it.
    pub steal: Option<u64>,
}

/// `/proc/meminfo`, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// `MemTotal`.
    pub total: Option<u64>,
    /// `MemFree`.
    pub free: Option<u64>,
    /// `MemAvailable`.
    pub available: Option<u64>,
    /// `Buffers`.
    pub buffers: Option<u64>,
    /// `Cached`.
    pub cached: Option<u64>,
    /// `Shmem`.
    pub shmem: Option<u64>,
    /// `Dirty`.
    pub dirty: Option<u64>,
    /// `Writeback`.
    pub writeback: Option<u64>,
    /// `SReclaimable`.
    pub slab_reclaimable: Option<u64>,
    /// `SwapTotal`.
    pub swap_total: Option<u64>,
    /// `SwapFree`.
    pub swap_free: Option<u64>,
    /// `Active(anon)`.
    pub active_anon: Option<u64>,
    /// `Inactive(anon)`.
    pub inactive_anon: Option<u64>,
    /// `Active(file)`.
    pub active_file: Option<u64>,
    /// `Inactive(file)`.
    pub inactive_file: Option<u64>,
}

/// `/proc/loadavg`: over 1, 5 and 15 minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadAverage(pub [f64; 3]);

/// Parses `/proc/stat`.
///
/// # Errors
/// [`ParseError`] if the line of all CPUs is absent or broken.
pub fn stat(bytes: &[u8]) -> Result<ProcStat, ParseError> {
    stat_of_each(bytes, |_, _| {})
}

/// The same, with `each` called for every CPU online, by its number.
///
/// # Errors
/// As [`stat`], and for the broken line of a CPU.
pub fn stat_of_each(bytes: &[u8], mut each: impl FnMut(u32, CpuTicks)) -> Result<ProcStat, ParseError> {
    let mut stat = ProcStat::default();
    let mut seen = false;
    for (line, text) in lines(bytes) {
        let mut words = text.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
        match words.next() {
            Some(b"cpu") => {
                stat.all = ticks(words).ok_or_else(|| ParseError::new(line, CPU_LINE, text))?;
                stat.busy_ticks = stat.all.busy;
                seen = true;
            }
            Some(key) if key.starts_with(b"cpu") => {
                stat.cpus += 1;
                // A name that is no number is of no CPU.
                if let Some(cpu) = key.get(3..).and_then(number).and_then(|n| u32::try_from(n).ok()) {
                    each(cpu, ticks(words).ok_or_else(|| ParseError::new(line, CPU_LINE, text))?);
                }
            }
            Some(b"procs_blocked") => stat.procs_blocked = words.next().and_then(number),
            Some(b"procs_running") => stat.procs_running = words.next().and_then(number),
            _ => {}
        }
    }
    if seen { Ok(stat) } else { Err(ParseError::new(1, "a line that begins with \"cpu \"", bytes)) }
}

const CPU_LINE: &str = "cpu user nice system idle iowait irq softirq";

fn ticks<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Option<CpuTicks> {
    let mut next = || words.next().and_then(number);
    let (user, nice, system, _idle, iowait, irq, softirq) =
        (next()?, next()?, next()?, next()?, next()?, next()?, next()?);
    let busy = [user, nice, system, irq, softirq].iter().try_fold(0u64, |sum, n| sum.checked_add(*n))?;
    Some(CpuTicks { busy, system, iowait, irq: irq.checked_add(softirq)?, steal: next() })
}

/// Parses `/proc/meminfo`.
///
/// # Errors
/// [`ParseError`] for a known key without a number of kB.
pub fn meminfo(bytes: &[u8]) -> Result<MemoryInfo, ParseError> {
    let mut info = MemoryInfo::default();
    for entry in entries(bytes) {
        let field = match entry.key {
            b"MemTotal:" => &mut info.total,
            b"MemFree:" => &mut info.free,
            b"MemAvailable:" => &mut info.available,
            b"Buffers:" => &mut info.buffers,
            b"Cached:" => &mut info.cached,
            b"Shmem:" => &mut info.shmem,
            b"Dirty:" => &mut info.dirty,
            b"Writeback:" => &mut info.writeback,
            b"SReclaimable:" => &mut info.slab_reclaimable,
            b"SwapTotal:" => &mut info.swap_total,
            b"SwapFree:" => &mut info.swap_free,
            b"Active(anon):" => &mut info.active_anon,
            b"Inactive(anon):" => &mut info.inactive_anon,
            b"Active(file):" => &mut info.active_file,
            b"Inactive(file):" => &mut info.inactive_file,
            _ => continue,
        };
        let kib = entry.value.strip_suffix(b" kB").and_then(number).and_then(|n| n.checked_mul(1024));
        *field = Some(kib.ok_or_else(|| entry.unexpected("a number of kB"))?);
    }
    Ok(info)
}

/// Parses `/proc/loadavg`.
///
/// # Errors
/// [`ParseError`] if it does not begin with three numbers.
pub fn loadavg(bytes: &[u8]) -> Result<LoadAverage, ParseError> {
    let mut words = bytes.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
    let mut next = || {
        let word = std::str::from_utf8(words.next()?).ok()?;
        word.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0)
    };
    match (next(), next(), next()) {
        (Some(a), Some(b), Some(c)) => Ok(LoadAverage([a, b, c])),
        _ => Err(ParseError::new(1, "three load averages", bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_neither_idle_nor_waiting_nor_stolen() {
        let text = b"cpu  100 20 30 4000 500 6 7 800 90 0\ncpu0 50 10 15 2000 250 3 3 400 45 0\ncpu1 50 10 15 2000 250 3 4 400 45 0\n\
                     intr 1\nprocs_running 3\n";
        let stat = stat(text).unwrap();
        let all = CpuTicks { busy: 163, system: 30, iowait: 500, irq: 13, steal: Some(800) };
        let expected =
            ProcStat { busy_ticks: 163, cpus: 2, procs_running: Some(3), procs_blocked: None, all };
        assert_eq!(stat, expected);
        let mut each = Vec::new();
        stat_of_each(text, |cpu, ticks| each.push((cpu, ticks.busy))).unwrap();
        assert_eq!(each, [(0, 50 + 10 + 15 + 3 + 3), (1, 50 + 10 + 15 + 3 + 4)]);
    }

    #[test]
    fn a_stat_file_without_its_first_line_is_broken() {
        assert!(stat(b"intr 1\n").is_err());
        assert_eq!(stat(b"x\ncpu 1 2 three\n").unwrap_err().line, 2);
    }

    #[test]
    fn memory_is_told_in_bytes_and_unknown_lines_do_not_matter() {
        let info =
            meminfo(b"MemTotal:       16384000 kB\nHugePages_Total:       0\nNew: what\nMemFree: 5 kB\n")
                .unwrap();
        assert_eq!((info.total, info.free, info.available), (Some(16_384_000 << 10), Some(5 << 10), None));
        assert_eq!(meminfo(b"MemTotal: 1 kB\nMemFree: 5 MB\n").unwrap_err().line, 2);
    }

    #[test]
    fn load_averages() {
        assert_eq!(loadavg(b"0.50 0.25 1.10 2/345 6789\n").unwrap(), LoadAverage([0.5, 0.25, 1.1]));
        for bad in ["", "1 2", "a b c", "1 2 NaN", "-1 0 0"] {
            assert!(loadavg(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics_on_arbitrary_bytes(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..512)) {
            let _ = (stat(&bytes), meminfo(&bytes), loadavg(&bytes), vmstat(&bytes), numa_meminfo(&bytes), numastat(&bytes));
            let _ = (zoneinfo(&bytes, 4096, |_, _| {}), diskstats(&bytes, |_, _| {}), net_dev(&bytes, |_, _| {}));
        }
    }
}
