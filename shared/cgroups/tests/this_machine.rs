//! Against the kernel of the machine that runs the test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    missing_docs
)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use oxalyst_cgroups::bandwidth::{Bandwidth, Step};
use oxalyst_cgroups::{
    Attainable, CgroupPath, Confined, Controller, CpusetFile, CpusetFiles, Error, Hierarchy, is_dead,
    is_frozen, parse, read_into, read_text, set_cpuset, write_text,
};

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

/// Nested cgroups in one tree, removed innermost first.
struct Nest(Vec<Own>);

impl Nest {
    fn create(hierarchy: &Hierarchy, controller: Controller, paths: &[String]) -> Option<Self> {
        let mut nest = Self(Vec::new());
        for path in paths {
            nest.0.insert(0, Own::create(hierarchy, controller, &CgroupPath::new(path).unwrap())?);
        }
        Some(nest)
    }
}

#[test]
fn c01_the_kernel_takes_nested_cpusets_in_our_order_and_refuses_them_in_the_other() {
    let Some((hierarchy, path)) = writable_tree("nested") else { return };
    if !fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default().starts_with("0-") {
        println!("skipped: one CPU alone cannot be taken away");
        return;
    }
    let (root, pods) =
        (path.as_str().to_owned(), format!("{path}/kubepods").trim_start_matches('/').to_owned());
    let paths =
        [root, pods.clone(), format!("{pods}/pod1"), format!("{pods}/pod1/c"), format!("{pods}/pod1/c/in")];
    let Some(nest) = Nest::create(&hierarchy, Controller::Cpuset, &paths) else {
        println!("skipped: no cpuset cgroup can be made here (not root, or read-only)");
        return;
    };
    if hierarchy.is_unified() {
        println!("skipped: v2 takes nested cpusets in any order");
        return;
    }
    for own in nest.0.iter().rev() {
        write_text(&own.0.join("cpuset.mems"), "0").unwrap();
        write_text(&own.0.join("cpuset.cpus"), if own.0.ends_with(&paths[0]) { "0-1" } else { "0" }).unwrap();
    }
    let container = CgroupPath::new(&paths[3]).unwrap();
    let says = |path: &str| {
        let dir = hierarchy.dir(Controller::Cpuset, &CgroupPath::new(path).unwrap()).unwrap();
        read_text(&dir.join("cpuset.cpus")).unwrap()
    };
    let plain = CpusetFiles::open(&hierarchy, &container).unwrap().write_cpus("0-1").unwrap_err();
    assert!(plain.to_string().contains("not within the parent's"), "{plain}");
    set_cpuset(&hierarchy, &container, CpusetFile::Cpus, "0-1").unwrap();
    assert_eq!([says(&paths[1]), says(&paths[2]), says(&paths[3]), says(&paths[4])], ["0-1"; 4]);
    let plain = CpusetFiles::open(&hierarchy, &container).unwrap().write_cpus("1").unwrap_err();
    assert!(plain.to_string().contains("a child cgroup still uses"), "{plain}");
    set_cpuset(&hierarchy, &container, CpusetFile::Cpus, "1").unwrap();
    assert_eq!([says(&paths[2]), says(&paths[3]), says(&paths[4])], ["0-1", "1", "1"]);
    assert_eq!(set_cpuset(&hierarchy, &container, CpusetFile::Cpus, "1").unwrap().len(), 0);
}

#[test]
fn c02_an_empty_cpuset_is_what_no_space_left_on_device_means() {
    let Some((hierarchy, path)) = writable_tree("empty") else { return };
    let Some(own) = Own::create(&hierarchy, Controller::Cpuset, &path) else {
        println!("skipped: no cpuset cgroup can be made here (not root, or read-only)");
        return;
    };
    if hierarchy.is_unified() {
        println!("skipped: v2 has no empty cpusets");
        return;
    }
    let error = write_text(&own.0.join("cgroup.procs"), "0").unwrap_err().to_string();
    assert!(error.contains("empty cpuset"), "{error}");
}

#[test]
fn c03_c05_the_kernel_takes_bandwidth_in_our_order() {
    let Some((hierarchy, path)) = writable_tree("bandwidth") else { return };
    let Some(own) = Own::create(&hierarchy, Controller::Cpu, &path) else {
        println!("skipped: no cpu cgroup can be made here (not root, or read-only)");
        return;
    };
    if hierarchy.is_unified() || !own.0.join("cpu.cfs_burst_us").exists() {
        println!("skipped: not v1 with cpu.cfs_burst_us");
        return;
    }
    let band =
        |quota, period_us, burst| Bandwidth { quota_us: Some(quota), period_us, burst_us: Some(burst) };
    let mut now = Bandwidth { quota_us: None, period_us: 100_000, burst_us: Some(0) };
    let wishes = [band(200_000, 100_000, 200_000), band(100_000, 100_000, 100_000), band(500, 50_000, 5_000)];
    for wanted in wishes {
        for step in now.steps(wanted, false) {
            let (file, value) = match step {
                Step::Quota(quota) => ("cpu.cfs_quota_us", quota.map_or("-1".to_owned(), |q| q.to_string())),
                Step::Period(period) => ("cpu.cfs_period_us", period.to_string()),
                Step::Burst(burst) => ("cpu.cfs_burst_us", burst.to_string()),
                Step::Max(..) => panic!("v2 alone"),
            };
            write_text(&own.0.join(file), &value).unwrap();
            assert_eq!(read_text(&own.0.join(file)).unwrap(), value, "{step:?}");
        }
        now = wanted.clamped();
    }
    assert_eq!(read_text(&own.0.join("cpu.cfs_quota_us")).unwrap(), "1000");
    write_text(&own.0.join("cpu.cfs_quota_us"), "500").unwrap_err();
}

/// A process that ends with the test, and what has to be written before it can: a frozen one does not die.
struct Sleeper {
    process: std::process::Child,
    thaw: Vec<(PathBuf, &'static str)>,
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        for (file, word) in &self.thaw {
            let _ = fs::write(file, word);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_kernel_says_of_a_cgroup_that_it_is_frozen_by_itself_or_by_one_above() {
    let Some((hierarchy, path)) = writable_tree("frozen") else { return };
    let (mount, file, freeze, thaw) = match hierarchy.is_unified() {
        true => (hierarchy.root().to_owned(), "cgroup.freeze", "1", "0"),
        false => (hierarchy.root().join("freezer"), "freezer.state", "FROZEN", "THAWED"),
    };
    let inner = CgroupPath::new(format!("{path}/c").trim_start_matches('/')).unwrap();
    let (pod, container) = (Own(path.under(&mount)), Own(inner.under(&mount)));
    if !mount.exists() || fs::create_dir(&pod.0).and_then(|()| fs::create_dir(&container.0)).is_err() {
        println!("skipped: no freezer cgroup can be made here (not root, or read-only)");
        return;
    }
    let sleeper = Sleeper {
        process: std::process::Command::new("sleep").arg("600").spawn().unwrap(),
        thaw: [&container, &pod].map(|own| (own.0.join(file), thaw)).into(),
    };
    fs::write(container.0.join("cgroup.procs"), sleeper.process.id().to_string()).unwrap();
    assert_eq!(is_frozen(&hierarchy, &inner), Some(false));

    for by in [&container, &pod] {
        for (word, frozen) in [(freeze, true), (thaw, false)] {
            fs::write(by.0.join(file), word).unwrap();
            // The kernel stops one process after another.
            let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while is_frozen(&hierarchy, &inner) != Some(frozen) {
                assert!(std::time::Instant::now() < end, "{word} in {} is not seen", by.0.display());
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn what_the_kernel_holds_is_within_what_is_asked_for_and_nothing_above_confines_it() {
    let Some((hierarchy, path)) = writable_tree("confined") else { return };
    let inner = CgroupPath::new(format!("{path}/c").trim_start_matches('/')).unwrap();
    let names = [path.as_str().to_owned(), inner.as_str().to_owned()];
    let Some(nest) = Nest::create(&hierarchy, Controller::Cpuset, &names) else {
        println!("skipped: no cpuset cgroup can be made here (not root, or read-only)");
        return;
    };
    if hierarchy.is_unified() {
        println!("skipped: on v2 the controller has to be passed on first");
        return;
    }
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let (pod, container) = (&nest.0[1].0, &nest.0[0].0);
    for dir in [pod, container] {
        write_text(&dir.join("cpuset.mems"), "0").unwrap();
        write_text(&dir.join("cpuset.cpus"), online.trim()).unwrap();
    }
    // v1 refuses to narrow what is above; whoever narrows has to begin at the container, and that is seen in its own file.
    let refused = write_text(&pod.join("cpuset.cpus"), "0");
    assert_eq!(refused.is_err(), online.trim() != "0", "{refused:?}");
    for (dir, cpus) in [(container, online.trim()), (container, "0"), (pod, "0")] {
        write_text(&dir.join("cpuset.cpus"), cpus).unwrap();
        let state = CpusetFiles::open(&hierarchy, &inner).unwrap().read().unwrap();
        let held = state.effective_cpus.unwrap_or_default();
        assert_eq!(Confined::read(&hierarchy, &inner, CpusetFile::Cpus, &state.cpus, &held), None, "{dir:?}");
        let attainable = Attainable::read(&hierarchy, &inner).cpus;
        assert_eq!(attainable.map(|cpus| cpus.to_string()).as_deref(), Some(state.cpus.as_str()));
    }
}
