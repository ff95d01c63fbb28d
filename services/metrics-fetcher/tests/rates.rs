//! Rates of counters that count in µs and ns, against counters that are known.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use metrics_fetcher::catalogue;
use metrics_fetcher::clock::ManualClock;
use metrics_fetcher::sources::cgroup::{Pass, PassSettings};
use oxalyst_cgroups::CgroupPath;
use oxalyst_cgroups::fixture::{Fixture, Layout, Load};

/// A per cent.
const MOST: f64 = 0.01;

/// Reads are 300 ms apart, now a little less, now a little more, as a machine that is busy makes them.
#[test]
fn a_rate_of_reads_300_ms_apart_is_within_a_per_cent() {
    for layout in [Layout::V1, Layout::V2] {
        for cores in [0.003, 0.06, 0.35, 1.0, 1.9] {
            let dir = tempfile::tempdir().unwrap();
            let fixture = Fixture::create(dir.path(), layout).unwrap();
            let cgroup = CgroupPath::new("kubepods/burstable/pod1/abc").unwrap();
            fixture.cgroup(&cgroup).unwrap();
            let clock = ManualClock::default();
            let settings = PassSettings {
                host_root: dir.path().to_path_buf(),
                roots: vec![CgroupPath::default()],
                forget: Duration::from_secs(60),
                cgroups: Vec::new(),
            };
            let mut pass = Pass::new(settings, Arc::new(clock.clone()));
            let (mut used, mut told) = (0.0, 0);
            for n in 0..60_u64 {
                let since = Duration::from_micros(300_000 + n * 7_919 % 40_000 - 20_000);
                clock.advance(since);
                // Its share changes all the time; the rate is that of the interval.
                let share = cores * (0.5 + (n % 10) as f64 / 18.0);
                let used_now = share * since.as_secs_f64() * 1e9;
                used += used_now;
                let ns = used as u64;
                let load = Load { cpu_ns: ns, throttled: (n, n, ns), ..Load::default() };
                fixture.load(&cgroup, &load).unwrap();
                let snapshot = pass.run(&[]);
                for (metric, truth) in
                    [("cpu.usage.container", share), ("cpu.throttled.time.container.rate", share * 1e6)]
                {
                    let (place, _) = catalogue::find(metric).unwrap();
                    let Some(last) = snapshot.containers[0].cells.get(place).unwrap().last else { continue };
                    let off = (last.value - truth).abs() / truth;
                    assert!(off <= MOST, "{layout:?} {metric}: {} for {truth}", last.value);
                    assert!((last.interval().as_secs_f64() - since.as_secs_f64()).abs() < 1e-3, "{metric}");
                    told += 1;
                }
            }
            assert_eq!(told, 2 * 59, "{layout:?}: all but the first have a rate");
        }
    }
}
