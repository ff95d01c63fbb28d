//! Measures the budgets (all, or the groups that are named: `bench commit hook-latency`), prints them, and writes `bench.json` beside the folder of the binaries (`target/bench.json`).
//!
//! Ends with a code other than 0 where something could not be measured; a budget that is missed is told, not punished.
#![allow(clippy::print_stdout)]

use std::path::PathBuf;
use std::process::ExitCode;

use integration::bench::{self, Fault, Row};
use integration::remains::{self, Folder};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if remains::keep() || bench::serve_bare_plugin().await {
        return ExitCode::SUCCESS;
    }
    let stop = match remains::asked_to_stop() {
        Ok(stop) => stop,
        Err(fault) => {
            println!("cannot hear signals: {fault}");
            return ExitCode::FAILURE;
        }
    };
    // What is dropped here ends its processes and removes its folders.
    let measured = tokio::select! {
        measured = measure() => measured,
        () = stop => Err("ended before it was done".into()),
    };
    match measured {
        Ok(faults) if faults.is_empty() => ExitCode::SUCCESS,
        Ok(faults) => {
            for fault in faults {
                println!("could not measure {fault}");
            }
            ExitCode::FAILURE
        }
        Err(fault) => {
            println!("{fault}");
            ExitCode::FAILURE
        }
    }
}

async fn measure() -> Result<Vec<String>, Fault> {
    let exe = std::env::current_exe()?;
    let target = exe.ancestors().nth(2).map_or_else(|| PathBuf::from("target"), PathBuf::from);
    // Short, for unix sockets lie there; on a disk, for fdatasync is measured.
    let folder = Folder::new()?;
    let asked: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = asked.iter().find(|a| !bench::GROUPS.contains(&a.as_str())) {
        return Err(format!("no group {unknown:?}: there are {}", bench::GROUPS.join(", ")).into());
    }
    let wanted = |group: &str| asked.is_empty() || asked.iter().any(|a| a == group);
    let (rows, faults) = bench::run(folder.path(), wanted, |what| println!("measuring {what}")).await;
    println!("\n{}", bench::table(&rows));
    let file = target.join("bench.json");
    let all: Vec<_> = rows.iter().map(Row::json).collect();
    std::fs::write(&file, serde_json::to_string_pretty(&all)? + "\n")
        .map_err(|e| format!("write {}: {e}", file.display()))?;
    println!("written to {}", file.display());
    Ok(faults)
}
