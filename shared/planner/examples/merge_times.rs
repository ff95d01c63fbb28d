//! How long merging takes where every resource offers every mask: `cargo run --release -p oxalyst-planner --example merge_times`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

use oxalyst_planner::topology_manager::{Hint, Nodes, Policy, Provider, every_mask, merge};
use oxalyst_topology::NumaMask;
use std::{hint::black_box, time::Instant};

const RESOURCES: [&str; 3] = ["cpu", "memory", "net"];

fn main() {
    let numeric = Policy::Numeric { align: vec!["cpu".to_owned(), "memory".to_owned()] };
    let unaligned = Policy::Numeric { align: Vec::new() };
    println!("{:<58} {:>12} {:>12}", "case", "median", "worst of 200");
    for nodes in [8, 12, 16] {
        for policy in [&Policy::BestEffort, &Policy::Restricted, &Policy::SingleNumaNode, &numeric] {
            row(nodes, policy, "single nodes preferred", |_, mask| mask.len() == 1);
        }
        row(nodes, &Policy::BestEffort, "different sizes preferred", |at, mask| mask.len() == at + 1);
        row(nodes, &Policy::BestEffort, "nothing preferred", |_, _| false);
        row(nodes, &Policy::BestEffort, "everything preferred", |_, _| true);
    }
    row(8, &numeric, "all nodes preferred by net", move |at, mask| at < 2 || mask.len() == 8);
    row(8, &numeric, "different sizes preferred", |at, mask| mask.len() == at + 1);
    row(8, &unaligned, "not aligned, all nodes preferred", |_, mask| mask.len() == 8);
}

fn row(count: u32, policy: &Policy, what: &str, preferred: impl Fn(usize, &NumaMask) -> bool) {
    let all: NumaMask = (0..count).collect();
    let masks = every_mask(&all, count as usize);
    let hints =
        |at| -> Vec<Hint> { masks.iter().map(|mask| Hint::on(mask.clone(), preferred(at, mask))).collect() };
    let provider: Provider =
        RESOURCES.iter().enumerate().map(|(at, name)| ((*name).to_owned(), Some(hints(at)))).collect();
    let (nodes, providers) = (Nodes::new(all), [provider]);
    let mut times: Vec<_> = (0..200)
        .map(|_| {
            let start = Instant::now();
            black_box(merge(policy, &nodes, black_box(&providers)).unwrap());
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let case = format!("{} {count} nodes, {what}", policy.name());
    println!("{case:<58} {:>12.1?} {:>12.1?}", times[100], times[199]);
}
