//! Which CPU sits on which NUMA node.

use std::collections::BTreeMap;
use std::path::Path;

use oxalyst_cgroups::read_text;

/// CPUs and NUMA nodes, as sysfs tells them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    nodes: Vec<u32>,
    /// By the CPU's number.
    of_cpu: Vec<Option<u32>>,
    /// Sizes of huge pages, KiB; `None` if it does not tell any.
    huge_kib: Option<Vec<u64>>,
}

/// The NUMA node of each L3 cache, by the cache's id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caches(BTreeMap<u64, u32>);

/// An L3 cache whose CPUs are on no known NUMA node.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("L3 cache {0} is on no NUMA node: no CPU under /sys/devices/system/cpu has it")]
pub struct UnknownCache(pub u64);

// === impl Machine ===

impl Machine {
    /// Reads `<host_root>/sys/devices/system/node`. A machine that tells no NUMA nodes has none here.
    pub fn read(host_root: &Path) -> Self {
        let root = host_root.join("sys/devices/system/node");
        let entries = std::fs::read_dir(&root).into_iter().flatten().flatten();
        let lists = entries.filter_map(|entry| {
            let node = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            Some((node, read_text(&entry.path().join("cpulist")).ok()?))
        });
        Self { huge_kib: huge_pages(&host_root.join("sys/kernel/mm/hugepages")), ..Self::of(lists) }
    }

    /// From the nodes and their lists of CPUs.
    pub fn of(lists: impl IntoIterator<Item = (u32, String)>) -> Self {
        let mut machine = Self::default();
        for (node, list) in lists {
            machine.nodes.push(node);
            for cpu in cpulist(&list) {
                let place = usize::try_from(cpu).unwrap_or(usize::MAX);
                if machine.of_cpu.len() <= place {
                    machine.of_cpu.resize(place + 1, None);
                }
                if let Some(of_cpu) = machine.of_cpu.get_mut(place) {
                    *of_cpu = Some(node);
                }
            }
        }
        machine.nodes.sort_unstable();
        machine
    }

    /// Every CPU that may be on a node, by its number.
    pub fn cpus(&self) -> impl Iterator<Item = u32> + use<> {
        0..u32::try_from(self.of_cpu.len()).unwrap_or(u32::MAX)
    }

    /// The NUMA nodes, sorted.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Whether it has huge pages of a size. One that tells no sizes is taken to have the two that most have.
    pub fn has_huge_pages(&self, kib: u64) -> bool {
        self.huge_kib.as_ref().map_or(matches!(kib, 2048 | 1_048_576), |sizes| sizes.contains(&kib))
    }

    /// The node of a CPU.
    pub fn node_of(&self, cpu: u32) -> Option<u32> {
        self.of_cpu.get(usize::try_from(cpu).ok()?).copied().flatten()
    }

    /// Its L3 caches, by the CPUs below `<host_root>/sys/devices/system/cpu`. The first CPU of a cache says on which node it is.
    pub fn caches(&self, host_root: &Path) -> Caches {
        let mut caches = Caches::default();
        for (cpu, node) in (0u32..).zip(&self.of_cpu) {
            let file = host_root.join(format!("sys/devices/system/cpu/cpu{cpu}/cache/index3/id"));
            let id = node.zip(read_text(&file).ok().and_then(|text| text.trim().parse().ok()));
            if let Some((node, id)) = id {
                caches.0.entry(id).or_insert(node);
            }
        }
        caches
    }
}

// === impl Caches ===

impl Caches {
    /// Reads the machine anew if there is one among `ids` that is not known: a file for each CPU, so not in every pass.
    pub fn know(&mut self, host_root: &Path, mut ids: impl Iterator<Item = u64>) {
        if ids.any(|id| !self.0.contains_key(&id)) {
            *self = Machine::read(host_root).caches(host_root);
        }
    }

    /// The NUMA node of a cache.
    ///
    /// # Errors
    /// [`UnknownCache`] if no CPU on a known node has it.
    pub fn node_of(&self, id: u64) -> Result<u32, UnknownCache> {
        self.0.get(&id).copied().ok_or(UnknownCache(id))
    }
}

/// `hugepages-2048kB` and the like.
fn huge_pages(folder: &Path) -> Option<Vec<u64>> {
    let size = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()
    };
    Some(std::fs::read_dir(folder).ok()?.flatten().filter_map(size).collect())
}

/// The most that one list may name: far above any machine, far below what exhausts memory.
const MOST: u32 = 8192;

/// CPUs of a list like "0-3,8". What is no number or range is passed over.
pub fn cpulist(text: &str) -> impl Iterator<Item = u32> {
    text.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            (Ok(first), Ok(last)) => first..last.saturating_add(1).min(MOST),
            _ => 0..0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t10_lists_of_cpus_and_the_node_of_a_cache() {
        let has = |list: &str, cpu| cpulist(list).any(|c| c == cpu);
        assert!(has("0-7", 5) && has("1,3,5", 5));
        assert!(!has("0-7", 8));
        assert_eq!(cpulist("x,2-y,-,3,,9-4,0-4294967295").take(3).collect::<Vec<_>>(), [3, 0, 1]);

        let dir = tempfile::tempdir().unwrap();
        for (node, list) in [(0, "0-1"), (1, "2-3")] {
            let folder = dir.path().join(format!("sys/devices/system/node/node{node}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("cpulist"), list).unwrap();
        }
        for (cpu, id) in [(0, 0), (1, 0), (2, 7), (3, 7)] {
            let folder = dir.path().join(format!("sys/devices/system/cpu/cpu{cpu}/cache/index3"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("id"), format!("{id}\n")).unwrap();
        }
        let machine = Machine::read(dir.path());
        assert_eq!(machine.nodes(), [0, 1]);
        assert_eq!((machine.node_of(1), machine.node_of(2), machine.node_of(9)), (Some(0), Some(1), None));
        let caches = machine.caches(dir.path());
        assert_eq!((caches.node_of(0), caches.node_of(7)), (Ok(0), Ok(1)));
        assert_eq!(caches.node_of(8), Err(UnknownCache(8)));
        // Who is known is not looked for again.
        let mut known = Caches([(9, 3)].into());
        known.know(Path::new("/nowhere"), [9].into_iter());
        assert_eq!(known.node_of(9), Ok(3));
        known.know(dir.path(), [9, 7].into_iter());
        assert_eq!((known.node_of(9), known.node_of(7)), (Err(UnknownCache(9)), Ok(1)));
    }

    #[test]
    fn sizes_of_huge_pages_are_those_of_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Machine::read(dir.path()).has_huge_pages(2048));
        for size in ["64", "32768"] {
            let name = format!("sys/kernel/mm/hugepages/hugepages-{size}kB");
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let machine = Machine::read(dir.path());
        let has: Vec<u64> =
            [64, 2048, 32_768, 1_048_576].into_iter().filter(|kib| machine.has_huge_pages(*kib)).collect();
        assert_eq!(has, [64, 32_768]);
    }

    #[test]
    fn a_machine_that_tells_no_nodes_has_none() {
        assert_eq!(Machine::read(Path::new("/nowhere")), Machine::default());
    }
}
