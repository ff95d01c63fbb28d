//! The same as `churn.rs` over cgroups of the kernel's own: there a removed one leaves descriptors that answer nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(clippy::print_stdout)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use metrics_fetcher::clock::ManualClock;
use metrics_fetcher::sources::cgroup::{Pass, PassSettings};
use metrics_fetcher::store::Store;
use oxalyst_cgroups::{CgroupPath, Controller, Hierarchy};

const CONTAINERS: usize = 10_000;
const AT_ONCE: usize = 100;

/// Cgroups of this test alone, in the trees of CPU and memory.
struct Own {
    /// Its folder in each tree.
    roots: Vec<PathBuf>,
    path: CgroupPath,
}

impl Own {
    fn create(hierarchy: &Hierarchy, name: &str) -> Result<Self, String> {
        let path = CgroupPath::new(&format!("oxalyst-test-{name}-{}", std::process::id())).unwrap();
        let trees = [Controller::Cpu, Controller::Cpuacct, Controller::Memory].map(|c| hierarchy.mount(c));
        let mut roots: Vec<PathBuf> = trees
            .into_iter()
            .map(|t| t.map(|t| path.under(t)).map_err(|e| e.to_string()))
            .collect::<Result<_, _>>()?;
        roots.sort();
        roots.dedup();
        let own = Self { roots, path };
        for root in &own.roots {
            for dir in [root.clone(), root.join("kubepods")] {
                // On v2 a controller is handed down one level at a time; elsewhere this fails and does not matter.
                let _ = fs::write(dir.with_file_name("cgroup.subtree_control"), "+cpu +memory");
                fs::create_dir(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
            }
        }
        if own.roots.iter().any(|root| root.join("kubepods/memory.stat").is_file()) {
            Ok(own)
        } else {
            Err("the memory controller is not enabled here".to_owned())
        }
    }

    fn each(&self, n: usize, mut work: impl FnMut(&Path)) {
        for root in &self.roots {
            work(&root.join(format!("kubepods/pod{n}")));
        }
    }

    fn make(&self, n: usize) {
        self.each(n, |pod| fs::create_dir_all(pod.join(format!("{n:064x}"))).unwrap());
    }

    fn remove(&self, n: usize) {
        self.each(n, |pod| {
            let _ = fs::remove_dir(pod.join(format!("{n:064x}")));
            let _ = fs::remove_dir(pod);
        });
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        for root in &self.roots {
            for pod in fs::read_dir(root.join("kubepods")).into_iter().flatten().flatten() {
                for container in fs::read_dir(pod.path()).into_iter().flatten().flatten() {
                    let _ = fs::remove_dir(container.path());
                }
                let _ = fs::remove_dir(pod.path());
            }
            let _ = fs::remove_dir(root.join("kubepods"));
            let _ = fs::remove_dir(root);
        }
    }
}

/// Bytes of this process in memory.
fn resident() -> f64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * rustix::param::page_size() as f64
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn m13_ten_thousand_cgroups_of_the_kernel_leave_neither_memory_nor_descriptors_behind() {
    let own =
        Hierarchy::detect(Path::new("/")).map_err(|e| e.to_string()).and_then(|h| Own::create(&h, "churn"));
    let own = match own {
        Ok(own) => own,
        Err(why) => return println!("skipped: {why}"),
    };
    let (clock, store) = (ManualClock::default(), Store::default());
    let settings = PassSettings {
        host_root: "/".into(),
        roots: vec![own.path.clone()],
        forget: Duration::from_secs(3),
        cgroups: Vec::new(),
    };
    let mut pass = Pass::new(settings, Arc::new(clock.clone()));
    let mut tick = || {
        clock.advance(Duration::from_secs(1));
        let snapshot = pass.run(&[]);
        store.histories.add(&snapshot);
        store.publish(snapshot);
    };
    tick();
    tick();
    let open = descriptors();
    let mut warm = 0.0;
    for round in 0..CONTAINERS / AT_ONCE {
        let numbers = round * AT_ONCE..(round + 1) * AT_ONCE;
        numbers.clone().for_each(|n| own.make(n));
        tick();
        assert_eq!(store.load().containers.iter().filter(|s| s.removed.is_none()).count(), AT_ONCE);
        numbers.for_each(|n| own.remove(n));
        tick();
        if round == 19 {
            warm = resident();
        }
    }
    let after = resident();
    (0..10).for_each(|_| tick());
    assert!(after <= warm * 1.1, "{after} bytes, {warm} after the first rounds");
    assert!(store.load().containers.is_empty() && store.load().container_parts.is_empty());
    assert!(descriptors() <= open + 3, "{} of {open}", descriptors());
    assert_eq!(store.load().pass.removed, CONTAINERS as u64);
}

#[test]
fn a_container_that_goes_folder_by_folder_is_no_failure_of_any_file() {
    let own = Hierarchy::detect(Path::new("/")).map_err(|e| e.to_string()).and_then(|hierarchy| {
        let memory = hierarchy.mount(Controller::Memory).map(Path::to_path_buf).map_err(|e| e.to_string())?;
        Ok((Own::create(&hierarchy, "going")?, memory))
    });
    let (own, memory) = match own {
        Ok((own, _)) if own.roots.len() < 2 => return println!("skipped: there is one tree"),
        Ok(own) => own,
        Err(why) => return println!("skipped: {why}"),
    };
    let clock = ManualClock::default();
    let settings = PassSettings {
        host_root: "/".into(),
        roots: vec![own.path.clone()],
        forget: Duration::from_secs(3),
        cgroups: Vec::new(),
    };
    let mut pass = Pass::new(settings, Arc::new(clock.clone()));
    let mut failed = || {
        clock.advance(Duration::from_secs(1));
        let report = pass.run(&[]).pass;
        (report.failure, report.removed)
    };
    own.make(1);
    assert_eq!(failed(), (None, 0));
    for root in own.roots.iter().filter(|root| !root.starts_with(&memory)) {
        let pod = root.join("kubepods/pod1");
        fs::remove_dir(pod.join(format!("{:064x}", 1))).unwrap();
    }
    // First its open files answer nothing, then they are not there to be opened.
    assert_eq!([failed(), failed()], [(None, 0), (None, 0)]);
    own.remove(1);
    assert_eq!(failed(), (None, 1));
}
