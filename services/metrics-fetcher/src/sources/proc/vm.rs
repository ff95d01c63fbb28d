//! `/proc/vmstat`, `/proc/zoneinfo`, and what sysfs tells of each NUMA node.

use oxalyst_cgroups::parse::{ParseError, entries, lines, number};

/// `/proc/vmstat`: counters of pages and events since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vmstat {
    /// Pages reclaimed by kswapd.
    pub steal_kswapd: Option<u64>,
    /// Pages reclaimed by allocating tasks.
    pub steal_direct: Option<u64>,
    /// Pages looked at by kswapd.
    pub scan_kswapd: Option<u64>,
    /// Pages looked at by allocating tasks.
    pub scan_direct: Option<u64>,
    /// Allocations that waited for compaction.
    pub compact_stall: Option<u64>,
    /// Tasks killed for want of memory.
    pub oom_kill: Option<u64>,
}

/// Watermarks of a node's zones, summed, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Below it only the kernel's own emergencies allocate.
    pub min: u64,
    /// Below it kswapd wakes.
    pub low: u64,
    /// Above it kswapd sleeps.
    pub high: u64,
}

/// `meminfo` of a NUMA node, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumaInfo {
    /// `MemTotal`.
    pub total: Option<u64>,
    /// `MemFree`.
    pub free: Option<u64>,
    /// `MemUsed`.
    pub used: Option<u64>,
    /// `Shmem`.
    pub shmem: Option<u64>,
    /// `FilePages`.
    pub file: Option<u64>,
    /// `Inactive(file)`.
    pub inactive_file: Option<u64>,
    /// `Active(file)`.
    pub active_file: Option<u64>,
    /// `SReclaimable`.
    pub slab_reclaimable: Option<u64>,
}

/// `numastat` of a NUMA node: pages since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumaCounts {
    /// Allocated here as wanted.
    pub hit: Option<u64>,
    /// Allocated here though another node was wanted.
    pub miss: Option<u64>,
    /// Wanted here, allocated elsewhere.
    pub foreign: Option<u64>,
    /// Allocated here by a task that runs here.
    pub local: Option<u64>,
    /// Allocated here by a task that runs elsewhere.
    pub other: Option<u64>,
}

/// Parses `/proc/vmstat`.
///
/// # Errors
/// [`ParseError`] for a known key without a number.
pub fn vmstat(bytes: &[u8]) -> Result<Vmstat, ParseError> {
    let mut stat = Vmstat::default();
    for entry in entries(bytes) {
        let field = match entry.key {
            b"pgsteal_kswapd" => &mut stat.steal_kswapd,
            b"pgsteal_direct" => &mut stat.steal_direct,
            b"pgscan_kswapd" => &mut stat.scan_kswapd,
            b"pgscan_direct" => &mut stat.scan_direct,
            b"compact_stall" => &mut stat.compact_stall,
            b"oom_kill" => &mut stat.oom_kill,
            _ => continue,
        };
        *field = Some(entry.number()?);
    }
    Ok(stat)
}

/// Parses `/proc/zoneinfo`; `each` is called once per NUMA node.
///
/// # Errors
/// [`ParseError`] for a zone's head or watermark that is broken.
pub fn zoneinfo(bytes: &[u8], page: u64, mut each: impl FnMut(u32, Watermarks)) -> Result<(), ParseError> {
    let mut current: Option<(u32, Watermarks)> = None;
    for (line, text) in lines(bytes) {
        let mut words = text.split(|b| b.is_ascii_whitespace() || *b == b',').filter(|w| !w.is_empty());
        let sum = match (words.next(), &mut current) {
            (Some(b"Node"), _) => {
                let node = words.next().and_then(number).and_then(|n| u32::try_from(n).ok());
                let node = node.ok_or_else(|| ParseError::new(line, "Node number, zone name", text))?;
                if let Some((before, sums)) = current.filter(|(before, _)| *before != node) {
                    each(before, sums);
                    current = None;
                }
                current.get_or_insert((node, Watermarks::default()));
                continue;
            }
            (Some(b"min"), Some((_, sums))) => &mut sums.min,
            (Some(b"low"), Some((_, sums))) => &mut sums.low,
            (Some(b"high"), Some((_, sums))) => &mut sums.high,
            _ => continue,
        };
        let pages =
            words.next().and_then(number).ok_or_else(|| ParseError::new(line, "a number of pages", text))?;
        *sum = sum.saturating_add(pages.saturating_mul(page));
    }
    if let Some((node, sums)) = current {
        each(node, sums);
    }
    Ok(())
}

/// Parses `meminfo` of a NUMA node: "Node 0 MemTotal: 5 kB".
///
/// # Errors
/// [`ParseError`] for a known key without a number of kB.
pub fn numa_meminfo(bytes: &[u8]) -> Result<NumaInfo, ParseError> {
    let mut info = NumaInfo::default();
    for (line, text) in lines(bytes) {
        let mut words = text.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).skip(2);
        let field = match words.next() {
            Some(b"MemTotal:") => &mut info.total,
            Some(b"MemFree:") => &mut info.free,
            Some(b"MemUsed:") => &mut info.used,
            Some(b"Shmem:") => &mut info.shmem,
            Some(b"FilePages:") => &mut info.file,
            Some(b"Inactive(file):") => &mut info.inactive_file,
            Some(b"Active(file):") => &mut info.active_file,
            Some(b"SReclaimable:") => &mut info.slab_reclaimable,
            _ => continue,
        };
        let kib = words.next().and_then(number).and_then(|n| n.checked_mul(1024));
        *field = Some(kib.ok_or_else(|| ParseError::new(line, "Node number key: number kB", text))?);
    }
    Ok(info)
}

/// Parses `numastat` of a NUMA node.
///
/// # Errors
/// [`ParseError`] for a known key without a number.
pub fn numastat(bytes: &[u8]) -> Result<NumaCounts, ParseError> {
    let mut counts = NumaCounts::default();
    for entry in entries(bytes) {
        let field = match entry.key {
            b"numa_hit" => &mut counts.hit,
            b"numa_miss" => &mut counts.miss,
            b"numa_foreign" => &mut counts.foreign,
            b"local_node" => &mut counts.local,
            b"other_node" => &mut counts.other,
            _ => continue,
        };
        *field = Some(entry.number()?);
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_of_a_node_are_summed() {
        let text = b"Node 0, zone      DMA\n  per-node stats\n      nr_dirty 5\n  pages free     1\n        min      1\n        low      2\n        high     3\n\
            Node 0, zone   Normal\n        min      10\n        low      20\n        high     30\n\
            Node 1, zone   Normal\n        min      7\n        low      8\n        high     9\n    high:  4\n";
        let mut seen = Vec::new();
        zoneinfo(text, 4096, |node, marks| {
            seen.push((node, marks.min / 4096, marks.low / 4096, marks.high / 4096))
        })
        .unwrap();
        assert_eq!(seen, [(0, 11, 22, 33), (1, 7, 8, 9)]);
        assert!(zoneinfo(b"Node x, zone DMA\n", 4096, |_, _| {}).is_err());
    }

    #[test]
    fn a_numa_node_tells_its_memory_in_bytes_and_its_counts() {
        let info =
            numa_meminfo(b"Node 0 MemTotal:       16384 kB\nNode 0 Inactive(file): 5 kB\nNode 0 New: x\n")
                .unwrap();
        assert_eq!((info.total, info.inactive_file, info.free), (Some(16_384 << 10), Some(5 << 10), None));
        assert_eq!(numa_meminfo(b"Node 0 MemTotal: x kB\n").unwrap_err().line, 1);
        let counts = numastat(b"numa_hit 5\nnuma_miss 0\n").unwrap();
        assert_eq!((counts.hit, counts.miss, counts.other), (Some(5), Some(0), None));
    }

    #[test]
    fn counters_of_reclaim() {
        let stat = vmstat(b"nr_free_pages 1\npgsteal_kswapd 7\ncompact_stall 2\n").unwrap();
        assert_eq!((stat.steal_kswapd, stat.compact_stall, stat.scan_direct), (Some(7), Some(2), None));
    }
}
