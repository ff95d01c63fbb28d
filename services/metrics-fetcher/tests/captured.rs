//! Files of real kernels, captured by `captured/capture.sh`: both versions, containers named by both drivers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use metrics_fetcher::catalogue::{self, Scope};
use metrics_fetcher::cells::Layout;
use metrics_fetcher::clock::ManualClock;
use metrics_fetcher::sample::{Absent, Cell};
use metrics_fetcher::sources::cgroup::{Pass, PassSettings};
use metrics_fetcher::store::{Snapshot, Source, Subject};
use oxalyst_cgroups::CgroupPath;

const CAPTURES: [(&str, bool); 2] =
    [(include_str!("captured/v1.txt"), false), (include_str!("captured/v2.txt"), true)];

/// A captured file, by its path.
type Files<'a> = BTreeMap<&'a str, &'a str>;

fn files(capture: &str) -> Files<'_> {
    let sections = capture.split("=== ").skip(1);
    sections.map(|section| section.split_once('\n').unwrap()).collect()
}

fn unpack(files: &Files<'_>, root: &Path) {
    for (path, text) in files {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
}

fn pass(root: &Path) -> Snapshot {
    let settings = PassSettings {
        host_root: root.to_path_buf(),
        roots: vec![CgroupPath::default()],
        forget: Duration::from_secs(60),
        cgroups: Vec::new(),
    };
    Pass::new(settings, Arc::new(ManualClock::default())).run(&[])
}

fn cell<'a>(subject: &'a Subject, metric: &str) -> &'a Cell {
    subject.cells.get(catalogue::find(metric).unwrap().0).unwrap()
}

fn value(subject: &Subject, metric: &str) -> f64 {
    cell(subject, metric).last.unwrap_or_else(|| panic!("{metric}: {:?}", cell(subject, metric))).value
}

/// What stands behind a key in a file of the container, read by nobody's parser: the file is given by the end of its path.
fn naive(files: &Files<'_>, of: &str, file: &str, key: &str) -> f64 {
    let (_, text) =
        files.iter().find(|(path, _)| path.contains(of) && path.ends_with(&format!("/{file}"))).unwrap();
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || c == '=').filter(|word| !word.is_empty()).collect();
    let at = if key.is_empty() { 0 } else { words.iter().position(|w| *w == key).unwrap() + 1 };
    words[at].parse().unwrap()
}

#[test]
fn what_real_kernels_wrote_is_read_whole_and_agrees_with_a_naive_reading() {
    for (capture, unified) in CAPTURES {
        let (dir, files) = (tempfile::tempdir().unwrap(), files(capture));
        unpack(&files, dir.path());
        let snapshot = pass(dir.path());
        assert_eq!((snapshot.unified, snapshot.pass.failed_files), (Some(unified), 0), "{:?}", snapshot.pass);
        let [busy, idle] = ["a", "b"].map(|letter| {
            let id = letter.repeat(64);
            snapshot.containers.iter().find(|s| s.id.container_id == id).unwrap()
        });
        assert_eq!(busy.id.pod_uid, "6a1f6e0c-1111-2222-3333-444455556666");
        assert_eq!(idle.id.pod_uid, "7b2f7e1d-1111-2222-3333-444455556666");
        let (usage, anon, fault) = if unified {
            (("memory.current", ""), "anon", "pgfault")
        } else {
            (("memory.usage_in_bytes", ""), "total_rss", "total_pgfault")
        };
        for (subject, id) in [(busy, "aaaa"), (idle, "bbbb")] {
            for (metric, file, key) in [
                ("mem.usage.container", usage.0, usage.1),
                ("mem.rss.container", "memory.stat", anon),
                ("mem.pgfault.container", "memory.stat", fault),
                ("cpu.nr.period.container", "cpu.stat", "nr_periods"),
                ("cpu.nr.throttled.container", "cpu.stat", "nr_throttled"),
                ("pids.container", "pids.current", ""),
            ] {
                assert_eq!(value(subject, metric), naive(&files, id, file, key), "{unified} {id} {metric}");
            }
        }
        let limits = ["cpu.limit.container", "mem.limit.container", "pids.limit.container"];
        assert_eq!(limits.map(|limit| value(busy, limit)), [0.2, 67_108_864.0, 16.0]);
        for limit in &limits[..2] {
            assert_eq!(cell(idle, limit).absent, Some(Absent::Unlimited), "{limit}");
        }
        assert!(value(busy, "cpu.nr.throttled.container") > 0.0 && value(busy, "mem.rss.container") >= 8e6);
        if unified {
            let stalled = naive(&files, "aaaa", "cpu.pressure", "avg10") / 100.0;
            assert_eq!(value(busy, "cpu.psi.some.avg10.container"), stalled);
        }
        // The machine that was captured.
        let total = naive(&files, "proc/", "meminfo", "MemTotal:") * 1024.0;
        assert_eq!(value(&snapshot.node, "mem.total.system"), total);
        let nodes = snapshot.parts.iter().filter(|s| s.scope == Scope::Numa).count();
        assert_eq!(nodes, files.keys().filter(|p| p.ends_with("/numastat")).count());
    }
}

#[test]
fn both_drivers_are_told_the_same_rows_and_every_row_of_the_version_is_told() {
    for (capture, unified) in CAPTURES {
        let (dir, files) = (tempfile::tempdir().unwrap(), files(capture));
        unpack(&files, dir.path());
        let snapshot = pass(dir.path());
        for subject in &snapshot.containers {
            let layout = Layout::of(Scope::Container, Source::Kernel, unified);
            let rows = layout.rows().iter().zip(subject.cells.held());
            let untold: Vec<_> = rows
                .filter_map(|(metric, cell)| match &cell.absent {
                    // One reading is no rate, no limit no number, and this kernel's files are those that it has.
                    None
                    | Some(Absent::FirstReading | Absent::Unlimited | Absent::NotHere | Absent::NotTold) => {
                        None
                    }
                    Some(other) => Some((metric.name, other.clone())),
                })
                .collect();
            assert!(untold.is_empty(), "{unified}: {untold:?}");
        }
        let told = |subject: &Arc<Subject>| -> Vec<bool> {
            let known = |c: &Cell| matches!(c.absent, None | Some(Absent::Unlimited | Absent::FirstReading));
            subject.cells.held().iter().map(known).collect()
        };
        let [one, other] = [&snapshot.containers[0], &snapshot.containers[1]].map(told);
        assert_eq!(one, other, "a name changes nothing of what is told");
        // The v1 kernel counted no block I/O.
        assert!(one.iter().filter(|told| **told).count() >= 40, "{one:?}");
    }
}
