//! Ten thousand containers come and go: neither memory nor descriptors stay behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use metrics_fetcher::clock::{Clock as _, ManualClock};
use metrics_fetcher::sources::cgroup::{Pass, PassSettings};
use metrics_fetcher::store::Store;
use oxalyst_cgroups::CgroupPath;
use oxalyst_cgroups::fixture::{Fixture, Layout};

const CONTAINERS: usize = 10_000;
const AT_ONCE: usize = 100;

/// Bytes of this process in memory.
fn resident() -> f64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * rustix::param::page_size() as f64
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Few files: it is the coming and going that counts, not what is in them.
fn create(root: &Path, n: usize) {
    let dir = root.join(format!("kubepods/pod{n}/{n:064x}"));
    fs::create_dir_all(&dir).unwrap();
    for (name, text) in
        [("cpu.stat", "usage_usec 5\n"), ("memory.current", "5\n"), ("memory.numa_stat", "anon N0=1\n")]
    {
        fs::write(dir.join(name), text).unwrap();
    }
}

#[test]
fn m13_ten_thousand_containers_leave_neither_memory_nor_descriptors_behind() {
    // In memory where there is such a place: thousands of folders on a slow disk would take minutes.
    let parent = if Path::new("/dev/shm").is_dir() { Path::new("/dev/shm") } else { Path::new("/tmp") };
    let dir = tempfile::tempdir_in(parent).unwrap();
    let fixture = Fixture::create(dir.path(), Layout::V2).unwrap();
    fs::create_dir_all(fixture.root().join("kubepods")).unwrap();
    let (clock, store) = (ManualClock::default(), Store::default());
    let settings = PassSettings {
        host_root: dir.path().to_path_buf(),
        roots: vec![CgroupPath::default()],
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
        numbers.clone().for_each(|n| create(&fixture.root(), n));
        tick();
        assert_eq!(store.load().containers.iter().filter(|s| s.removed.is_none()).count(), AT_ONCE);
        numbers.for_each(|n| fs::remove_dir_all(fixture.root().join(format!("kubepods/pod{n}"))).unwrap());
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
    assert!(clock.now().monotonic_ns > 0);
}
