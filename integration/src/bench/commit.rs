//! A durable commit of one admission against the bare append.

use std::path::Path;
use std::time::Instant;

use oxalyst_ledger::{Change, Ledger, Options};

use super::floor::{Appends, RECORD};
use super::samples::Samples;
use super::{Fault, Row};

const ROUNDS: usize = 1000;

/// Pods in the ledger meanwhile.
const PODS: usize = 110;

pub(super) fn measure(folder: &Path) -> Result<Vec<Row>, Fault> {
    std::fs::create_dir_all(folder)?;
    let (mut ledger, _) = Ledger::open(folder.join("ledger"), Options::default())?;
    let mut appends = Appends::create(folder)?;
    let value = |n: usize| {
        let mut value = format!("{n:08}").into_bytes();
        // The record's envelope and the key are the rest of its 400 bytes.
        value.resize(RECORD - 100, b'v');
        value
    };
    let (mut commits, mut floor) = (Samples::default(), Samples::default());
    for n in 0..ROUNDS {
        floor.push(appends.sample()?);
        let change = [Change::Put(format!("pod/{:036}", n % PODS), value(n))];
        let start = Instant::now();
        ledger.commit(&change)?;
        commits.push(start.elapsed());
    }
    let row = |quantile: f64, name: &str, also: &str| Row {
        id: format!("commit{name}"),
        what: format!(
            "durable commit of one record of about {RECORD} bytes, {PODS} pods in the ledger, {ROUNDS} samples in turn with the \
             floor (append of {RECORD} bytes with fdatasync, same file system); {also}"
        ),
        value: commits.quantile_ms(quantile),
        unit: "ms",
        floor: Some(floor.quantile_ms(quantile)),
        budget: 1.5,
    };
    Ok(vec![row(0.5, "", "medians"), row(0.99, "-p99", "99th percentiles")])
}
