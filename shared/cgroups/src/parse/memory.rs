use oxalyst_units::Bytes;

use super::{ParseError, entries, first_line, number, single};

/// From here on a v1 limit means "none": the kernel's `PAGE_COUNTER_MAX` is `i64::MAX` rounded down to a page, and
/// pages have at most 64 KiB.
const V1_UNLIMITED: u64 = (i64::MAX as u64) & !0xffff;

/// A limit that may not be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// "max" (v2), or the kernel's largest number (v1).
    Unlimited,
    /// At most this much.
    At(Bytes),
}

/// `memory.stat` of either version, under v2's names; bytes, and counts of faults. Values include all descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStat {
    /// Anonymous memory (v1 `total_rss`).
    pub anon: Option<u64>,
    /// Page cache, shared memory included (v1 `total_cache`).
    pub file: Option<u64>,
    /// Shared memory, tmpfs included.
    pub shmem: Option<u64>,
    /// Mapped files.
    pub file_mapped: Option<u64>,
    /// Page cache to be written.
    pub file_dirty: Option<u64>,
    /// Page cache being written.
    pub file_writeback: Option<u64>,
    /// Anonymous memory that was not used of late.
    pub inactive_anon: Option<u64>,
    /// Anonymous memory that was.
    pub active_anon: Option<u64>,
    /// Page cache that was not used of late: the first to be reclaimed.
    pub inactive_file: Option<u64>,
    /// Page cache that was.
    pub active_file: Option<u64>,
    /// Page faults.
    pub pgfault: Option<u64>,
    /// Page faults that needed I/O.
    pub pgmajfault: Option<u64>,
    /// Memory that cannot be reclaimed, locked pages among it.
    pub unevictable: Option<u64>,
    /// Swap in use (v1 `total_swap`; v2 tells it in a file of its own).
    pub swap: Option<u64>,
    /// Kernel memory (v2 `kernel`; v1 tells it in a file of its own).
    pub kernel: Option<u64>,
    /// What only v2 tells of reclaim; on a patched v1 kernel `kswapd_steal` and `allocstall` alone.
    pub reclaim: Reclaim,
}

/// Pages reclaimed and brought back: counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaim {
    /// Pages reclaimed.
    pub steal: Option<u64>,
    /// Pages looked at for it.
    pub scan: Option<u64>,
    /// Of the reclaimed ones those by kswapd.
    pub steal_kswapd: Option<u64>,
    /// Of those looked at the ones by kswapd.
    pub scan_kswapd: Option<u64>,
    /// Of the reclaimed ones those by an allocating task.
    pub steal_direct: Option<u64>,
    /// Of those looked at the ones by an allocating task.
    pub scan_direct: Option<u64>,
    /// Anonymous pages that came back after they were reclaimed.
    pub refault_anon: Option<u64>,
    /// File pages that did.
    pub refault_file: Option<u64>,
    /// Anonymous pages that were active at once.
    pub activate_anon: Option<u64>,
    /// File pages that were.
    pub activate_file: Option<u64>,
    /// Stalls of allocations (patched v1 kernels).
    pub allocstall: Option<u64>,
}

// === impl Reclaim ===

impl Reclaim {
    /// Pages that came back, of both kinds.
    pub fn refault(&self) -> Option<u64> {
        Some(self.refault_anon?.saturating_add(self.refault_file?))
    }

    /// Pages that were active at once, of both kinds.
    pub fn activate(&self) -> Option<u64> {
        Some(self.activate_anon?.saturating_add(self.activate_file?))
    }
}

/// Parses `memory.stat` of v1: of each pair of lines the `total_…` one, which includes descendants as v2 does.
///
/// # Errors
/// [`ParseError`] for a known key without a number.
pub fn memory_stat_v1(bytes: &[u8]) -> Result<MemoryStat, ParseError> {
    let mut stat = MemoryStat::default();
    for entry in entries(bytes) {
        // Half of the lines are not totals: passed over by one comparison.
        let Some(key) = entry.key.strip_prefix(b"total_") else { continue };
        let field = match key {
            b"rss" => &mut stat.anon,
            b"cache" => &mut stat.file,
            b"shmem" => &mut stat.shmem,
            b"mapped_file" => &mut stat.file_mapped,
            b"dirty" => &mut stat.file_dirty,
            b"writeback" => &mut stat.file_writeback,
            b"inactive_anon" => &mut stat.inactive_anon,
            b"active_anon" => &mut stat.active_anon,
            b"inactive_file" => &mut stat.inactive_file,
            b"active_file" => &mut stat.active_file,
            b"pgfault" => &mut stat.pgfault,
            b"pgmajfault" => &mut stat.pgmajfault,
            b"unevictable" => &mut stat.unevictable,
            b"swap" => &mut stat.swap,
            b"kswapd_steal" => &mut stat.reclaim.steal_kswapd,
            b"allocstall" => &mut stat.reclaim.allocstall,
            _ => continue,
        };
        *field = Some(entry.number()?);
    }
    Ok(stat)
}

/// Parses `memory.stat` of v2.
///
/// # Errors
/// [`ParseError`] for a known key without a number.
pub fn memory_stat_v2(bytes: &[u8]) -> Result<MemoryStat, ParseError> {
    let mut stat = MemoryStat::default();
    for entry in entries(bytes) {
        let field = match entry.key {
            b"anon" => &mut stat.anon,
            b"file" => &mut stat.file,
            b"shmem" => &mut stat.shmem,
            b"file_mapped" => &mut stat.file_mapped,
            b"file_dirty" => &mut stat.file_dirty,
            b"file_writeback" => &mut stat.file_writeback,
            b"inactive_anon" => &mut stat.inactive_anon,
            b"active_anon" => &mut stat.active_anon,
            b"inactive_file" => &mut stat.inactive_file,
            b"active_file" => &mut stat.active_file,
            b"pgfault" => &mut stat.pgfault,
            b"pgmajfault" => &mut stat.pgmajfault,
            b"unevictable" => &mut stat.unevictable,
            b"kernel" => &mut stat.kernel,
            b"pgsteal" => &mut stat.reclaim.steal,
            b"pgscan" => &mut stat.reclaim.scan,
            b"pgsteal_kswapd" => &mut stat.reclaim.steal_kswapd,
            b"pgscan_kswapd" => &mut stat.reclaim.scan_kswapd,
            b"pgsteal_direct" => &mut stat.reclaim.steal_direct,
            b"pgscan_direct" => &mut stat.reclaim.scan_direct,
            b"workingset_refault_anon" => &mut stat.reclaim.refault_anon,
            b"workingset_refault_file" => &mut stat.reclaim.refault_file,
            b"workingset_activate_anon" => &mut stat.reclaim.activate_anon,
            b"workingset_activate_file" => &mut stat.reclaim.activate_file,
            _ => continue,
        };
        *field = Some(entry.number()?);
    }
    Ok(stat)
}

/// Parses `memory.usage_in_bytes` (v1) or `memory.current` (v2).
///
/// # Errors
/// [`ParseError`] if it is no number.
pub fn memory_usage(bytes: &[u8]) -> Result<Bytes, ParseError> {
    single(bytes).map(Bytes)
}

/// Parses `memory.limit_in_bytes` (v1) or `memory.max` (v2).
///
/// # Errors
/// [`ParseError`] if it is neither a number nor "max".
pub fn memory_limit(bytes: &[u8]) -> Result<Limit, ParseError> {
    match bytes.trim_ascii() {
        b"max" => Ok(Limit::Unlimited),
        text => match number(text) {
            Some(n) if n >= V1_UNLIMITED => Ok(Limit::Unlimited),
            Some(n) => Ok(Limit::At(Bytes(n))),
            None => Err(first_line(bytes, "a number of bytes or \"max\"")),
        },
    }
}

/// `memory.events` (v2), or the events of `memory.oom_control` (v1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomEvents {
    /// Times the limit was reached with nothing left to reclaim (v2).
    pub oom: Option<u64>,
    /// Tasks killed for it.
    pub oom_kill: Option<u64>,
}

/// Parses `memory.events` or `memory.oom_control`.
///
/// # Errors
/// [`ParseError`] for a known key without a number.
pub fn oom_events(bytes: &[u8]) -> Result<OomEvents, ParseError> {
    let mut events = OomEvents::default();
    for entry in entries(bytes) {
        match entry.key {
            b"oom" => events.oom = Some(entry.number()?),
            b"oom_kill" => events.oom_kill = Some(entry.number()?),
            _ => {}
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &[u8] = b"cache 1\nrss 2\nshmem 3\nhierarchical_memory_limit 9223372036854771712\n\
        total_cache 1243181056\ntotal_rss 389488640\ntotal_rss_huge 0\ntotal_shmem 9068544\ntotal_mapped_file 165101568\n\
        total_dirty 102256640\ntotal_writeback 0\ntotal_pgfault 8371872\ntotal_pgmajfault 1670\n\
        total_inactive_anon 378445824\ntotal_active_anon 1609728\ntotal_inactive_file 632012800\n\
        total_active_file 602099712\ntotal_unevictable 18354176\n";
    const V2: &[u8] = b"anon 389488640\nfile 1243181056\nkernel 4472832\nkernel_stack 98304\nshmem 9068544\n\
        file_mapped 165101568\nfile_dirty 102256640\nfile_writeback 0\nswapcached 0\nanon_thp 0\ninactive_anon 378445824\n\
        active_anon 1609728\ninactive_file 632012800\nactive_file 602099712\nunevictable 18354176\nslab 12\n\
        pgfault 8371872\npgmajfault 1670\n";

    #[test]
    fn both_versions_tell_the_same() {
        let stat = memory_stat_v1(V1).unwrap();
        let unified = memory_stat_v2(V2).unwrap();
        assert_eq!((stat.kernel, unified.kernel), (None, Some(4_472_832)), "v1 has a file of its own for it");
        assert_eq!(stat, MemoryStat { kernel: None, ..unified });
        assert_eq!((stat.anon, stat.file), (Some(389_488_640), Some(1_243_181_056)));
        assert_eq!((stat.file_writeback, stat.pgmajfault), (Some(0), Some(1670)));
        assert_eq!(stat.inactive_file, Some(632_012_800));
    }

    #[test]
    fn v1_lines_without_descendants_are_not_taken_for_totals() {
        assert_eq!(memory_stat_v1(b"cache 1\nrss 2\n").unwrap(), MemoryStat::default());
    }

    #[test]
    fn a_broken_value_names_its_line() {
        assert_eq!(memory_stat_v2(b"anon 1\nfile -3\n").unwrap_err().line, 2);
        assert_eq!(memory_stat_v1(b"total_rss\t\nx 1\ntotal_cache nan\n").unwrap_err().line, 3);
    }

    #[test]
    fn no_limit_is_not_a_number() {
        let table = [
            ("max\n", Limit::Unlimited),
            ("9223372036854771712\n", Limit::Unlimited),
            ("9223372036854710272\n", Limit::Unlimited),
            ("536870912\n", Limit::At(Bytes(512 << 20))),
            ("0\n", Limit::At(Bytes(0))),
        ];
        for (text, limit) in table {
            assert_eq!(memory_limit(text.as_bytes()), Ok(limit), "{text}");
        }
        assert!(memory_limit(b"-1\n").is_err());
        assert!(memory_limit(b"").is_err());
    }
}
