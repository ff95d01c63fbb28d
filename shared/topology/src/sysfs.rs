//! Discovery from sysfs (kernel: `Documentation/ABI/stable/sysfs-devices-system-cpu` and `-node`).

use crate::{Cpu, CpuSet, Machine, MachineError, NumaMask, NumaNode};
use oxalyst_units::Bytes;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Why the machine's layout could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// A file or folder could not be read.
    #[error("reading the machine's layout: {path}: {source}; check that the host's /sys is there, below the host root", path = .path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that does not say what it should.
    #[error("reading the machine's layout: {path} says {content:?}: {fault}", path = .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Its offending content, cut to the first 80 characters.
        content: String,
        /// What is wrong with it.
        fault: String,
    },
    /// An online CPU that no NUMA node lists, though there are nodes.
    #[error("reading the machine's layout: CPU {cpu} is online, but no {path}/node*/cpulist lists it; read again if it has just come online", path = .path.display())]
    Homeless {
        /// The CPU.
        cpu: u32,
        /// The folder of the nodes.
        path: PathBuf,
    },
    /// Files that contradict each other.
    #[error("reading the machine's layout below {path}: {source}", path = .path.display())]
    Contradiction {
        /// The folder.
        path: PathBuf,
        /// The contradiction.
        source: MachineError,
    },
}

/// Reads the machine's layout below `<host_root>/sys/devices/system`. Blocks on file reads; call again to see changes.
///
/// A machine without a `node` folder is one NUMA node 0 of memory of unknown size. A core is named by its lowest online CPU; an
/// L3 cache without `id` by the lowest CPU that shares it.
///
/// # Errors
/// A file that is missing, unreadable or does not say what it should: the error names it and quotes it.
pub fn discover(host_root: &Path) -> Result<Machine, DiscoveryError> {
    let system = host_root.join("sys/devices/system");
    let cpu_dir = system.join("cpu");
    let online: CpuSet = required(&cpu_dir.join("online"))?;
    if online.is_empty() {
        return Err(content(&cpu_dir.join("online"), "", "no CPU is online"));
    }
    let present: CpuSet = optional(&cpu_dir.join("present"))?.unwrap_or_default();
    let isolated: CpuSet = optional(&cpu_dir.join("isolated"))?.unwrap_or_default();

    let node_dir = system.join("node");
    let nodes = nodes(&node_dir)?;
    let cpus = online
        .iter()
        .map(|id| {
            let node = match nodes.iter().find(|node| node.cpus.contains(id)) {
                Some(node) => node.id,
                None if nodes.is_empty() => 0,
                None => return Err(DiscoveryError::Homeless { cpu: id, path: node_dir.clone() }),
            };
            cpu(&cpu_dir, id, node, &online)
        })
        .collect::<Result<Vec<_>, _>>()?;

    let nodes = if nodes.is_empty() { vec![NumaNode::new(0)] } else { nodes };
    let machine = Machine::new(cpus, nodes)
        .map_err(|source| DiscoveryError::Contradiction { path: system.clone(), source })?;
    Ok(machine.with_offline(&(present - &online)).with_isolated(&isolated))
}

fn cpu(cpu_dir: &Path, id: u32, numa: u32, online: &CpuSet) -> Result<Cpu, DiscoveryError> {
    let dir = cpu_dir.join(format!("cpu{id}"));
    let topology = dir.join("topology");
    // The newer name first; kernels before 5.3 have only the older one.
    let siblings: CpuSet = match optional(&topology.join("core_cpus_list"))? {
        Some(siblings) => siblings,
        None => required(&topology.join("thread_siblings_list"))?,
    };
    let core = (siblings & online).first().unwrap_or(id);
    // Some ARM machines say -1: one package.
    let socket: i64 = required(&topology.join("physical_package_id"))?;
    Ok(Cpu { id, core, socket: u32::try_from(socket).unwrap_or(0), numa, l3: l3(&dir.join("cache"))? })
}

fn l3(cache: &Path) -> Result<Option<u32>, DiscoveryError> {
    for (_, index) in numbered(cache, "index")? {
        if optional::<u32>(&index.join("level"))? != Some(3) {
            continue;
        }
        if let Some(id) = optional::<u32>(&index.join("id"))? {
            return Ok(Some(id));
        }
        return Ok(optional::<CpuSet>(&index.join("shared_cpu_list"))?.and_then(|cpus| cpus.first()));
    }
    Ok(None)
}

fn nodes(dir: &Path) -> Result<Vec<NumaNode>, DiscoveryError> {
    let with_memory: Option<NumaMask> = optional(&dir.join("has_memory"))?;
    numbered(dir, "node")?
        .into_iter()
        .map(|(id, dir)| {
            let memory = meminfo(&dir.join("meminfo"))?;
            let distances = match text(&dir.join("distance"))? {
                Some(text) => numbers(&dir.join("distance"), &text)?,
                None => Vec::new(),
            };
            Ok(NumaNode {
                cpus: required(&dir.join("cpulist"))?,
                has_memory: match &with_memory {
                    Some(with_memory) => with_memory.contains(id),
                    None => memory.is_none_or(|memory| memory > Bytes(0)),
                },
                memory,
                distances,
                huge_pages: huge_pages_of(&dir)?,
                ..NumaNode::new(id)
            })
        })
        .collect()
}

/// What is set aside as huge pages by NUMA node, in bytes by the bytes of a page; nodes without any are left out. Unlike the rest of
/// the layout an operator changes it while the machine runs.
///
/// # Errors
/// A file that is unreadable or holds no number.
pub fn huge_pages(host_root: &Path) -> Result<BTreeMap<u32, BTreeMap<Bytes, Bytes>>, DiscoveryError> {
    let mut found = BTreeMap::new();
    for (id, dir) in numbered(&host_root.join("sys/devices/system/node"), "node")? {
        let pages = huge_pages_of(&dir)?;
        if !pages.is_empty() {
            found.insert(id, pages);
        }
    }
    Ok(found)
}

/// `hugepages/hugepages-2048kB/nr_hugepages` of one node: pages, not bytes.
fn huge_pages_of(node: &Path) -> Result<BTreeMap<Bytes, Bytes>, DiscoveryError> {
    let dir = node.join("hugepages");
    let read = |source| DiscoveryError::Read { path: dir.clone(), source };
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(read(error)),
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(read)?;
        let name = entry.file_name();
        let size =
            name.to_str().and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok());
        let Some(kib) = size else { continue };
        let size = u64::saturating_mul(kib, 1024);
        let count: u64 = optional(&entry.path().join("nr_hugepages"))?.unwrap_or_default();
        if count > 0 {
            found.insert(Bytes(size), Bytes(count.saturating_mul(size)));
        }
    }
    Ok(found)
}

/// `Node 0 MemTotal:        5728468 kB`
fn meminfo(path: &Path) -> Result<Option<Bytes>, DiscoveryError> {
    let Some(text) = text(path)? else { return Ok(None) };
    let Some(line) = text.lines().find(|line| line.split_whitespace().any(|word| word == "MemTotal:")) else {
        return Err(content(path, &text, "there is no MemTotal"));
    };
    let mut words = line.split_whitespace().skip_while(|word| *word != "MemTotal:").skip(1);
    match (words.next().map(u64::from_str), words.next()) {
        (Some(Ok(kib)), Some("kB")) => Ok(Some(Bytes(kib.saturating_mul(1024)))),
        _ => Err(content(path, line, "MemTotal is no number of kB")),
    }
}

fn numbers(path: &Path, text: &str) -> Result<Vec<u32>, DiscoveryError> {
    text.split_whitespace()
        .map(|word| word.parse().map_err(|_| content(path, text, "not a row of distances")))
        .collect()
}

/// Subfolders named `<prefix><number>`, ascending by number; none where the folder is missing.
fn numbered(dir: &Path, prefix: &str) -> Result<Vec<(u32, PathBuf)>, DiscoveryError> {
    let read = |source| DiscoveryError::Read { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(read(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(read)?;
        let number = entry.file_name().to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok());
        if let Some(number) = number {
            found.push((number, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

fn required<T: FromStr<Err: ToString>>(path: &Path) -> Result<T, DiscoveryError> {
    optional(path)?.ok_or_else(|| DiscoveryError::Read {
        path: path.to_owned(),
        source: io::Error::from(io::ErrorKind::NotFound),
    })
}

fn optional<T: FromStr<Err: ToString>>(path: &Path) -> Result<Option<T>, DiscoveryError> {
    let Some(text) = text(path)? else { return Ok(None) };
    text.trim().parse().map(Some).map_err(|fault: T::Err| content(path, text.trim(), &fault.to_string()))
}

/// A file's text; `None` where there is no such file.
fn text(path: &Path) -> Result<Option<String>, DiscoveryError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DiscoveryError::Read { path: path.to_owned(), source }),
    }
}

fn content(path: &Path, content: &str, fault: &str) -> DiscoveryError {
    DiscoveryError::Content {
        path: path.to_owned(),
        content: content.chars().take(80).collect(),
        fault: fault.to_owned(),
    }
}
