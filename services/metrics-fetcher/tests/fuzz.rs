//! Every parser against what no kernel writes, for a bounded time: a tenth of a second each file, or `OXALYST_FUZZ_SECONDS`.
//!
//! Inputs are captured files, changed: bytes flipped, cut, doubled, lines of one file in another, numbers replaced by ones at
//! the edge. A failing input is printed; `OXALYST_FUZZ_SEED` makes a run again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use metrics_fetcher::catalogue::{self, Origin, Scope, Told};
use metrics_fetcher::contents::{File, Reading};
use metrics_fetcher::machine::{Machine, cpulist};
use oxalyst_cgroups::CgroupPath;

const CAPTURES: [&str; 2] = [include_str!("captured/v1.txt"), include_str!("captured/v2.txt")];
const EDGES: [&str; 12] = [
    "0",
    "-1",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "99999999999999999999999999999999",
    "max",
    "nan",
    "inf",
    "1e999",
    "0.0000000000000000000000001",
    "",
];

/// Prints what was being parsed when a parser panics.
struct Said<'a>(&'a str, u64, &'a [u8]);

impl Drop for Said<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{} fails, seed {}: \"{}\"", self.0, self.1, self.2.escape_ascii());
        }
    }
}

fn budget() -> Duration {
    let seconds = std::env::var("OXALYST_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(0.1))
}

fn corpus() -> Vec<Vec<u8>> {
    let sections = CAPTURES.iter().flat_map(|capture| capture.split("=== ").skip(1));
    sections.filter_map(|s| s.split_once('\n')).map(|(_, text)| text.as_bytes().to_vec()).collect()
}

fn changed(corpus: &[Vec<u8>], rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = corpus[rng.usize(..corpus.len())].clone();
    for _ in 0..rng.usize(0..6) {
        let at = rng.usize(..=bytes.len());
        match rng.u8(..7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(..8),
            1 => bytes.truncate(at),
            2 => bytes.insert(at, rng.u8(..)),
            3 => {
                let part = bytes[at..].to_vec();
                bytes.extend(part);
            }
            4 => {
                // A line of another file.
                let other = &corpus[rng.usize(..corpus.len())];
                let lines: Vec<&[u8]> = other.split_inclusive(|b| *b == b'\n').collect();
                let line = lines.get(rng.usize(..=lines.len())).copied().unwrap_or_default().to_vec();
                let start = bytes[..at].iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
                bytes.splice(start..start, line);
            }
            5 => {
                // A number at the edge in place of one.
                let digits = |b: &u8| b.is_ascii_digit();
                if let Some(from) = bytes[at..].iter().position(digits).map(|n| n + at) {
                    let to = bytes[from..].iter().position(|b| !digits(b)).map_or(bytes.len(), |n| n + from);
                    bytes.splice(from..to, EDGES[rng.usize(..EDGES.len())].bytes());
                }
            }
            _ => {
                let blank = [b' ', b'\n', b'\t', 0, b'=', b':'][rng.usize(..6)];
                if at < bytes.len() {
                    bytes[at] = blank;
                }
            }
        }
        bytes.truncate(1 << 20);
    }
    bytes
}

/// Feeds `target` for the budget; at least some hundred inputs whatever the machine does.
fn feed(name: &str, mut target: impl FnMut(&[u8])) {
    let given = std::env::var("OXALYST_FUZZ_SEED").ok().and_then(|s| s.parse().ok());
    let (corpus, began) = (corpus(), Instant::now());
    let mut rounds = 0u64;
    while rounds < 200 || began.elapsed() < budget() {
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        let bytes = changed(&corpus, &mut fastrand::Rng::with_seed(seed));
        let _said = Said(name, seed, &bytes);
        target(&bytes);
        rounds += 1;
    }
    println!("{name}: {rounds} inputs");
}

/// The rows that are taken out of a file.
fn rows(file: File, unified: bool) -> Vec<&'static catalogue::Metric> {
    catalogue::all().filter(|m| matches!(m.origin(unified), Origin::From(f) if f == file)).collect()
}

fn parser(files: &[File]) {
    let machine = Machine::of([(0, "0-3".to_owned()), (1, "4-7".to_owned())]);
    let all: Vec<_> =
        files.iter().flat_map(|f| [false, true].map(|unified| (*f, unified, rows(*f, unified)))).collect();
    let (mut parts, mut numa) = (Vec::new(), Vec::new());
    feed(&format!("{files:?}"), |bytes| {
        for (file, unified, metrics) in &all {
            parts.clear();
            let mut reading = Reading {
                unified: *unified,
                machine: &machine,
                numa_scope: Scope::ContainerNuma,
                rows: &mut parts,
                numa: &mut numa,
            };
            let Ok(contents) = file.parse(&mut reading, bytes) else { continue };
            for contents in parts.iter().map(|row| &row.contents).chain([&contents]) {
                for metric in metrics {
                    match (metric.take)(contents) {
                        Told::Value(value) | Told::Clamped(value) => {
                            assert!(value.is_finite() && value >= 0.0, "{}: {value}", metric.name);
                        }
                        Told::Unlimited | Told::Nothing => {}
                    }
                }
            }
            // What is kept is bounded by what was said.
            assert!(parts.len() <= bytes.len() + 16, "{} parts of {} bytes", parts.len(), bytes.len());
        }
    });
}

#[test]
fn files_of_containers() {
    for file in File::CONTAINER {
        parser(&[file]);
    }
}

#[test]
fn files_of_the_node() {
    for file in File::NODE.into_iter().chain(File::NUMA.map(|(file, _)| file)) {
        parser(&[file]);
    }
}

#[test]
fn names_and_lists() {
    feed("cpulist, cgroup paths", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        for word in text.split_whitespace() {
            assert!(cpulist(word).take(100_000).count() < 100_000 || word.contains(','), "{word}");
            if let Ok((path, _)) = CgroupPath::of_container(word) {
                assert!(!path.as_str().split('/').any(|part| part == ".."), "{word} leads out of the tree");
            }
        }
    });
}

#[test]
fn fuzz_answers_of_netlink() {
    feed("CGROUPSTATS", |bytes| {
        let _ = metrics_fetcher::sources::cgroupstats::parse(bytes);
    });
}
