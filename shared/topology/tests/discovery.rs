//! Discovery from folders that imitate sysfs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_topology::{
    Cpu, CpuSet, DiscoveryError, Machine, MachineError, NumaMask, NumaNode, discover, huge_pages,
};
use oxalyst_units::Bytes;
use std::{fs, path::Path};
use tempfile::TempDir;

/// A folder that imitates `<host root>/sys/devices/system`.
struct Sysfs(TempDir);

impl Sysfs {
    fn new(online: &str, present: &str) -> Self {
        let sysfs = Self(TempDir::new().unwrap());
        sysfs.write("cpu/online", online).write("cpu/present", present).write("cpu/isolated", "")
    }

    fn write(self, path: &str, content: &str) -> Self {
        let path = self.0.path().join("sys/devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{content}\n")).unwrap();
        self
    }

    fn cpu(self, id: u32, socket: i32, siblings: &str) -> Self {
        self.write(&format!("cpu/cpu{id}/topology/physical_package_id"), &socket.to_string())
            .write(&format!("cpu/cpu{id}/topology/core_cpus_list"), siblings)
    }

    fn cache(self, cpu: u32, index: u32, level: u32, id: Option<u32>, shared: &str) -> Self {
        let dir = format!("cpu/cpu{cpu}/cache/index{index}");
        let sysfs = self
            .write(&format!("{dir}/level"), &level.to_string())
            .write(&format!("{dir}/shared_cpu_list"), shared)
            .write("cpu/cpu0/cache/uevent", "");
        match id {
            Some(id) => sysfs.write(&format!("{dir}/id"), &id.to_string()),
            None => sysfs,
        }
    }

    fn node(self, id: u32, cpus: &str, distances: &str, kib: u64) -> Self {
        let meminfo = format!(
            "Node {id} MemTotal:       {kib} kB\nNode {id} MemFree:         1 kB\nNode {id} MemUsed: 2 kB"
        );
        self.write(&format!("node/node{id}/cpulist"), cpus)
            .write(&format!("node/node{id}/distance"), distances)
            .write(&format!("node/node{id}/meminfo"), &meminfo)
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn discover(&self) -> Machine {
        discover(self.root()).unwrap()
    }
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn two_cpus() -> Sysfs {
    Sysfs::new("0-1", "0-1")
        .cpu(0, 0, "0")
        .cpu(1, 0, "1")
        .cache(0, 2, 2, Some(0), "0")
        .cache(0, 3, 3, Some(0), "0-1")
        .cache(1, 2, 2, Some(1), "1")
        .cache(1, 3, 3, Some(0), "0-1")
        .node(0, "0-1", "10", 5_728_468)
        .write("node/has_memory", "0")
}

/// Two sockets of two NUMA nodes each, four CPUs a node, CPU i and i + 8 on one core.
fn two_sockets() -> Sysfs {
    let mut sysfs = Sysfs::new("0-15", "0-15").write("node/has_memory", "0-3");
    for cpu in 0..16u32 {
        let core = cpu % 8;
        sysfs = sysfs.cpu(cpu, (core / 4) as i32, &format!("{core},{}", core + 8)).cache(
            cpu,
            3,
            3,
            None,
            &format!("{0}-{1},{2}-{3}", core / 2 * 2, core / 2 * 2 + 1, core / 2 * 2 + 8, core / 2 * 2 + 9),
        );
    }
    for (node, distances) in
        ["10 12 21 21", "12 10 21 21", "21 21 10 12", "21 21 12 10"].into_iter().enumerate()
    {
        let first = node * 2;
        let cpus = format!("{first}-{},{}-{}", first + 1, first + 8, first + 9);
        sysfs = sysfs.node(node as u32, &cpus, distances, 1024);
    }
    sysfs
}

#[test]
fn two_cpus_without_threads() {
    let machine = two_cpus().discover();
    assert_eq!(
        machine.cpus(),
        [
            Cpu { id: 0, core: 0, socket: 0, numa: 0, l3: Some(0) },
            Cpu { id: 1, core: 1, socket: 0, numa: 0, l3: Some(0) },
        ]
    );
    assert_eq!(
        machine.nodes(),
        [NumaNode {
            id: 0,
            socket: Some(0),
            cpus: set("0-1"),
            memory: Some(Bytes(5_728_468 * 1024)),
            has_memory: true,
            distances: vec![10],
            huge_pages: Default::default(),
        }]
    );
    assert!(machine.offline().is_empty() && machine.isolated().is_empty());
}

#[test]
fn two_sockets_of_two_nodes_with_threads() {
    let machine = two_sockets().discover();
    assert_eq!(machine.cpus().len(), 16);
    assert_eq!(machine.cpu(13), Some(&Cpu { id: 13, core: 5, socket: 1, numa: 2, l3: Some(4) }));
    let node = machine.node(3).unwrap();
    assert_eq!((node.cpus.to_string().as_str(), node.socket), ("6-7,14-15", Some(1)));
    assert_eq!(node.distances, [21, 21, 12, 10]);
    assert_eq!(machine.nodes_of(&set("1,14")), NumaMask::from_iter([0, 3]));
}

#[test]
fn huge_pages_are_told_by_node_and_size_in_bytes() {
    let sysfs = two_sockets()
        .write("node/node1/hugepages/hugepages-2048kB/nr_hugepages", "512")
        .write("node/node1/hugepages/hugepages-1048576kB/nr_hugepages", "2")
        .write("node/node3/hugepages/hugepages-2048kB/nr_hugepages", "0");
    let machine = sysfs.discover();
    let told = [(Bytes(2 << 20), Bytes(1 << 30)), (Bytes(1 << 30), Bytes(2 << 30))].into();
    assert_eq!(machine.node(1).unwrap().huge_pages, told);
    assert!(machine.node(3).unwrap().huge_pages.is_empty() && machine.node(0).unwrap().huge_pages.is_empty());
    assert_eq!(huge_pages(sysfs.root()).unwrap(), [(1, told)].into());
    let broken = sysfs.write("node/node0/hugepages/hugepages-2048kB/nr_hugepages", "many");
    assert!(matches!(huge_pages(broken.root()), Err(DiscoveryError::Content { .. })));
}

#[test]
fn offline_cpus_have_no_rows_and_cores_keep_a_name() {
    let sysfs = two_sockets().write("cpu/online", "0-4,6-15");
    fs::remove_dir_all(sysfs.root().join("sys/devices/system/cpu/cpu5/topology")).unwrap();
    let machine = sysfs.discover();
    assert_eq!(machine.offline(), &set("5"));
    assert_eq!(machine.cpu(5), None);
    assert_eq!(machine.cpu(13).unwrap().core, 13);
    assert_eq!(machine.node(2).unwrap().cpus, set("4,12-13"));
    assert_eq!(two_sockets().discover().with_offline(&set("5")).cpus(), machine.cpus());
}

#[test]
fn ids_with_gaps() {
    let machine = Sysfs::new("2,7", "2,7")
        .cpu(2, 1, "2")
        .cpu(7, 4, "7")
        .node(1, "2", "10 30", 4)
        .node(6, "7", "30 10", 4)
        .discover();
    assert_eq!(machine.online(), &set("2,7"));
    assert_eq!(machine.cpu(7).map(|cpu| (cpu.socket, cpu.numa, cpu.l3)), Some((4, 6, None)));
    assert_eq!(machine.nodes().iter().map(|node| node.id).collect::<Vec<_>>(), [1, 6]);
}

#[test]
fn a_node_without_memory_has_a_nearest_one() {
    let sysfs = two_sockets().node(3, "6-7,14-15", "21 21 12 10", 0).write("node/has_memory", "0-2");
    let machine = sysfs.discover();
    assert!(!machine.node(3).unwrap().has_memory);
    assert_eq!(machine.memory_nodes(), NumaMask::from_iter([0, 1, 2]));
    assert_eq!(machine.nearest_memory(3), Some(2));
    assert_eq!(machine.nearest_memory(1), Some(1));
}

#[test]
fn without_has_memory_the_size_tells() {
    let sysfs = two_sockets().node(3, "6-7,14-15", "21 21 12 10", 0);
    fs::remove_file(sysfs.root().join("sys/devices/system/node/has_memory")).unwrap();
    assert_eq!(sysfs.discover().memory_nodes(), NumaMask::from_iter([0, 1, 2]));
}

#[test]
fn a_node_without_cpus_has_no_socket() {
    let machine = two_cpus()
        .node(0, "0-1", "10 17", 4)
        .node(1, "", "17 10", 4)
        .write("node/has_memory", "0-1")
        .discover();
    let node = machine.node(1).unwrap();
    assert_eq!((node.socket, node.cpus.is_empty(), node.has_memory), (None, true, true));
}

#[test]
fn without_a_node_folder_there_is_one_node() {
    let machine = Sysfs::new("0-1", "0-1").cpu(0, -1, "0-1").cpu(1, -1, "0-1").discover();
    assert_eq!(machine.nodes().len(), 1);
    assert_eq!(machine.node(0).map(|node| (node.memory, node.has_memory)), Some((None, true)));
    assert_eq!(machine.cpu(1), Some(&Cpu { id: 1, core: 0, socket: 0, numa: 0, l3: None }));
}

#[test]
fn older_kernels_name_siblings_otherwise() {
    let sysfs = two_cpus().write("cpu/cpu1/topology/thread_siblings_list", "0-1");
    fs::remove_file(sysfs.root().join("sys/devices/system/cpu/cpu1/topology/core_cpus_list")).unwrap();
    assert_eq!(sysfs.discover().cpu(1).unwrap().core, 0);
}

#[test]
fn isolated_cpus_are_those_online() {
    let machine = two_sockets().write("cpu/isolated", "3,15,40").discover();
    assert_eq!(machine.isolated(), &set("3,15"));
}

#[test]
fn reading_again_sees_the_change() {
    let sysfs = two_cpus();
    let before = sysfs.discover();
    let sysfs = sysfs.write("cpu/online", "0");
    assert_eq!(before.online(), &set("0-1"));
    assert_eq!(sysfs.discover().online(), &set("0"));
}

#[test]
fn an_unreadable_file_is_named() {
    let sysfs = two_cpus();
    let path = sysfs.root().join("sys/devices/system/node/node0/cpulist");
    fs::remove_file(&path).unwrap();
    // A folder in a file's place cannot be read by anybody, root included.
    fs::create_dir(&path).unwrap();
    let error = discover(sysfs.root()).unwrap_err();
    assert!(matches!(&error, DiscoveryError::Read { path: named, .. } if *named == path), "{error}");
    assert!(error.to_string().contains("node0/cpulist"), "{error}");
}

#[test]
fn a_missing_sysfs_is_named() {
    let root = TempDir::new().unwrap();
    let error = discover(root.path()).unwrap_err();
    assert!(error.to_string().contains("sys/devices/system/cpu/online"), "{error}");
}

#[test]
fn offending_content_is_quoted() {
    for (path, content) in [
        ("cpu/online", "0-x"),
        ("cpu/online", ""),
        ("cpu/cpu1/topology/physical_package_id", "zero"),
        ("cpu/cpu1/topology/core_cpus_list", "1-"),
        ("cpu/cpu1/cache/index3/id", "-1"),
        ("node/node0/cpulist", "0-4000000000"),
        ("node/node0/distance", "10 far"),
        ("node/node0/meminfo", "Node 0 MemTotal: much kB"),
        ("node/node0/meminfo", "nothing"),
        ("node/has_memory", "N"),
    ] {
        let sysfs = two_cpus().write(path, content);
        let error = discover(sysfs.root()).unwrap_err();
        assert!(matches!(error, DiscoveryError::Content { .. }), "{path}: {error}");
        let text = error.to_string();
        assert!(text.contains(path) && text.contains(content), "{path}: {text}");
    }
}

#[test]
fn a_cpu_on_no_node_is_an_error() {
    let sysfs = two_cpus().node(0, "0", "10", 4);
    assert!(matches!(discover(sysfs.root()), Err(DiscoveryError::Homeless { cpu: 1, .. })));
}

#[test]
fn contradicting_distances_are_an_error() {
    let sysfs = two_cpus().node(0, "0-1", "10 20", 4);
    let error = discover(sysfs.root()).unwrap_err();
    assert!(matches!(
        error,
        DiscoveryError::Contradiction { source: MachineError::Distances { node: 0, got: 2, want: 1 }, .. }
    ));
}

#[test]
fn rows_that_contradict_each_other_are_no_machine() {
    let cpu = |id, numa| Cpu { id, core: id, socket: 0, numa, l3: None };
    assert_eq!(Machine::from_rows(vec![cpu(1, 0), cpu(1, 0)], &[]), Err(MachineError::DuplicateCpu(1)));
    assert_eq!(
        Machine::new(vec![cpu(1, 3)], vec![NumaNode::new(0)]),
        Err(MachineError::UnknownNode { cpu: 1, node: 3 })
    );
    assert_eq!(
        Machine::new(vec![], vec![NumaNode::new(2), NumaNode::new(2)]),
        Err(MachineError::DuplicateNode(2))
    );
    assert_eq!(
        Machine::from_rows(vec![cpu(8192, 0)], &[]),
        Err(MachineError::IdBeyondLimit { kind: "CPU", id: 8192 })
    );
}

#[test]
fn the_machine_underneath_can_be_read() {
    let machine = discover(Path::new("/")).unwrap();
    assert!(!machine.cpus().is_empty() && !machine.nodes().is_empty());
}
