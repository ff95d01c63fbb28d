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
        let change = [Change::Put(format!("pod/{:036}", n % PODS), value(n))];
        // Each follows the other as often as it precedes it: the second of two syncs finds the file system less to do.
        if n % 2 == 0 {
            floor.push(appends.sample()?);
        }
        let start = Instant::now();
        ledger.commit(&change)?;
        commits.push(start.elapsed());
        if n % 2 == 1 {
            floor.push(appends.sample()?);
        }
    }
    Ok(vec![Row {
        id: "commit".to_owned(),
        what: format!(
            "durable commit of one record of about {RECORD} bytes, {PODS} pods in the ledger, medians of {ROUNDS} samples in turn \
             with the floor (append of {RECORD} bytes with fdatasync, same file system); 99th percentiles {:.3} and {:.3} ms",
            commits.quantile_ms(0.99),
            floor.quantile_ms(0.99)
        ),
        value: commits.quantile_ms(0.5),
        unit: "ms",
        floor: Some(floor.quantile_ms(0.5)),
        budget: 1.5,
    }])
}
