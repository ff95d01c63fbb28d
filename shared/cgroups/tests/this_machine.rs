//! Against the kernel of the machine that runs the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use oxalyst_cgroups::{CgroupPath, Controller, CpusetFiles, Error, Hierarchy, is_dead, parse, read_into};

/// A cgroup in the given tree, removed when the test ends, however it ends.
struct Own(PathBuf);

impl Own {
    fn create(hierarchy: &Hierarchy, controller: Controller, path: &CgroupPath) -> Option<Self> {
        let dir = hierarchy.dir(controller, path).ok()?;
        fs::create_dir(&dir).ok()?;
        Some(Self(dir))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn writable_tree(test: &str) -> Option<(Hierarchy, CgroupPath)> {
    let Ok(hierarchy) = Hierarchy::detect(Path::new("/")) else {
        println!("skipped: no cgroup tree at /sys/fs/cgroup");
        return None;
    };
    let path = CgroupPath::new(&format!("oxalyst-test-{test}-{}", std::process::id())).unwrap();
    Some((hierarchy, path))
}

#[test]
fn the_kernel_takes_and_shows_a_cpuset() {
    let Some((hierarchy, path)) = writable_tree("cpuset") else { return };
    let Some(_own) = Own::create(&hierarchy, Controller::Cpuset, &path) else {
        println!("skipped: no cpuset cgroup can be made here (not root, or read-only)");
        return;
    };
    let files = match CpusetFiles::open(&hierarchy, &path) {
        Err(Error::NoController { .. }) => {
            println!("skipped: the cpuset controller is not enabled at the root");
            return;
        }
        other => other.unwrap(),
    };
    files.write_mems("0").unwrap();
    assert!(files.write_cpus("0").unwrap());
    assert!(!files.write_cpus("0").unwrap(), "nothing changed");
    let state = files.read().unwrap();
    assert_eq!((state.cpus.as_str(), state.mems.as_str()), ("0", "0"));
    assert_eq!(state.effective_cpus.as_deref(), Some("0"));
    let error = files.write_cpus("9999").unwrap_err();
    assert!(error.to_string().contains("cpuset.cpus"), "{error}");
    assert_eq!(files.read().unwrap().cpus, "0", "a refused write changes nothing");
}

#[test]
fn every_parser_understands_the_kernel() {
    let Some((hierarchy, path)) = writable_tree("files") else { return };
    let own: Vec<_> = [Controller::Cpu, Controller::Cpuacct, Controller::Memory]
        .into_iter()
        .filter_map(|c| Own::create(&hierarchy, c, &path))
        .collect();
    if own.is_empty() {
        println!("skipped: no cgroup can be made here (not root, or read-only)");
        return;
    }
    let mut buffer = Vec::new();
    let mut read = |controller, name: &str| {
        let path = hierarchy.dir(controller, &path).ok()?.join(name);
        let file = File::open(&path).ok()?;
        Some(read_into(&file, &path, &mut buffer).unwrap().to_vec())
    };
    let mut understood = 0;
    if let Some(bytes) = read(Controller::Cpu, "cpu.stat") {
        parse::cpu_stat(&bytes).unwrap();
        understood += 1;
    }
    if let Some(bytes) = read(Controller::Cpuacct, "cpuacct.usage") {
        parse::cpuacct_usage(&bytes).unwrap();
        understood += 1;
    }
    if let Some(bytes) = read(Controller::Memory, "memory.stat") {
        let stat = if hierarchy.is_unified() {
            parse::memory_stat_v2(&bytes)
        } else {
            parse::memory_stat_v1(&bytes)
        };
        let stat = stat.unwrap();
        assert!(stat.anon.is_some() && stat.file.is_some(), "{stat:?}");
        understood += 1;
    }
    for name in ["memory.limit_in_bytes", "memory.max"] {
        if let Some(bytes) = read(Controller::Memory, name) {
            assert_eq!(parse::memory_limit(&bytes).unwrap(), parse::Limit::Unlimited);
            understood += 1;
        }
    }
    assert!(understood > 0, "a new cgroup without any known file");
    if let Ok(bytes) = fs::read("/proc/pressure/cpu") {
        assert!(parse::pressure(&bytes).unwrap().some.is_some());
    }
}

#[test]
fn a_descriptor_of_a_removed_cgroup_is_dead() {
    let Some((hierarchy, path)) = writable_tree("removed") else { return };
    let Some(own) = Own::create(&hierarchy, Controller::Memory, &path) else {
        println!("skipped: no memory cgroup can be made here (not root, or read-only)");
        return;
    };
    let stat = own.0.join("memory.stat");
    let file = match File::open(&stat) {
        Ok(file) => file,
        Err(e) => {
            assert!(is_dead(&e));
            println!("skipped: the memory controller is not enabled at the root");
            return;
        }
    };
    let mut buffer = Vec::new();
    assert!(read_into(&file, &stat, &mut buffer).is_ok());
    drop(own);
    assert!(read_into(&file, &stat, &mut buffer).unwrap_err().is_gone());
}
