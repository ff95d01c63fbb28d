//! The language-neutral vectors: every `*.jsonl` in `testdata/vectors` and in the folder named by `OXALYST_VECTORS`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

#[path = "vectors/native.rs"]
mod native;
#[path = "vectors/policy.rs"]
mod policy;
#[path = "vectors/quantity.rs"]
mod quantity;
#[path = "vectors/scenario.rs"]
mod scenario;
#[path = "vectors/scenario_checks.rs"]
mod scenario_checks;
#[path = "vectors/scenario_text.rs"]
mod scenario_text;

use oxalyst_planner::plan::{End, L3, NotEnoughCpus, Spread, take_by_numa_balance, take_by_topology};
use oxalyst_planner::topology_manager::{Hint, Merged, Nodes, Policy, Provider, merge};
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaMask};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

type Row = (u32, u32, u32, u32, Option<u32>);

#[derive(Clone, Deserialize)]
struct MachineRows {
    cpus: Vec<Row>,
    #[serde(default)]
    distances: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MachineRef {
    Name(String),
    Rows(MachineRows),
}

/// What every case has, or those families that run on a machine.
#[derive(Deserialize)]
struct Case {
    id: String,
    family: String,
    machine: Option<MachineRef>,
}

#[derive(Deserialize)]
struct Take {
    available: String,
    need: i64,
    l3: bool,
    expect: Expect,
}

#[derive(Deserialize)]
struct Balance {
    available: String,
    need: i64,
    function: String,
    expect: Expect,
}

/// A mask (`None`: any node) and whether it is preferred.
type HintRow = (Option<String>, bool);

#[derive(Deserialize)]
struct Merge {
    policy: String,
    #[serde(default)]
    align: Vec<String>,
    numa: String,
    providers: Vec<BTreeMap<String, Option<Vec<HintRow>>>>,
    expect: MergeExpect,
}

#[derive(Deserialize)]
struct MergeExpect {
    admit: bool,
    best: Option<BTreeMap<String, HintRow>>,
}

#[derive(Deserialize)]
struct Expect {
    cpus: Option<String>,
    error: Option<Value>,
}

type Machines = BTreeMap<String, MachineRows>;

#[test]
fn vectors() {
    let folders = folders();
    let mut machines = Machines::new();
    for folder in &folders {
        if let Ok(text) = fs::read_to_string(folder.join("machines.json")) {
            machines.extend(serde_json::from_str::<Machines>(&text).unwrap());
        }
    }
    let mut tally: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for file in folders.iter().flat_map(|folder| jsonl(folder)) {
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let place = format!("{}:{}", file.display(), number + 1);
            let (family, id, outcome) = match serde_json::from_str::<Case>(line) {
                Ok(case) => (case.family.clone(), case.id.clone(), run(&case, line, &machines)),
                Err(error) => ("unreadable".to_owned(), place.clone(), Err(error.to_string())),
            };
            let (passed, failed) = tally.entry(family).or_default();
            match outcome {
                Ok(()) => *passed += 1,
                Err(why) => {
                    *failed += 1;
                    println!("{id}: {why} ({place})");
                }
            }
        }
    }
    for (family, (passed, failed)) in &tally {
        println!("{family}: {passed} passed, {failed} failed");
    }
    assert!(tally.values().any(|(passed, _)| *passed > 0), "no vectors in {folders:?}");
    assert_eq!(tally.values().map(|(_, failed)| failed).sum::<usize>(), 0, "some vectors failed");
}

fn folders() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/vectors");
    let further = env::var_os("OXALYST_VECTORS").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    [own].into_iter().chain(further).collect()
}

fn jsonl(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    files
}

fn run(case: &Case, line: &str, machines: &Machines) -> Result<(), String> {
    let machine = || machine(case.machine.as_ref(), machines);
    match case.family.as_str() {
        "merge" => merged(line),
        "take" => take(&machine()?, line),
        "balance" => balance(&machine()?, line),
        "hints" => policy::run_hints(&machine()?, line),
        "allocate" => policy::run_allocate(&machine()?, line),
        "native" => native::run(&machine()?, line),
        "scenario" => scenario::run(line, machines),
        "quantity" => quantity::run(&machine, line),
        family => Err(format!("unknown family {family:?}")),
    }
}

fn machine(named: Option<&MachineRef>, machines: &Machines) -> Result<Machine, String> {
    let rows = match named {
        Some(MachineRef::Rows(rows)) => rows,
        Some(MachineRef::Name(name)) => machines.get(name).ok_or_else(|| format!("no machine {name:?}"))?,
        None => return Err("names no machine".to_owned()),
    };
    let cpus = rows.cpus.iter().map(|&(id, core, socket, numa, l3)| Cpu { id, core, socket, numa, l3 });
    Machine::from_rows(cpus.collect(), &rows.distances).map_err(|error| error.to_string())
}

fn merged(line: &str) -> Result<(), String> {
    let case: Merge = read(line)?;
    let policy = Policy::named(&case.policy, &case.align).map_err(|error| error.to_string())?;
    let provider = |provider: &BTreeMap<String, Option<Vec<HintRow>>>| -> Result<Provider, String> {
        let hints = |rows: &Vec<HintRow>| rows.iter().map(hint).collect::<Result<Vec<_>, _>>();
        let entry = |(name, rows): (&String, &Option<Vec<HintRow>>)| {
            Ok((name.clone(), rows.as_ref().map(hints).transpose()?))
        };
        provider.iter().map(entry).collect()
    };
    let providers = case.providers.iter().map(provider).collect::<Result<Vec<_>, _>>()?;
    let best = |rows: &BTreeMap<String, HintRow>| {
        rows.iter().map(|(name, row)| Ok((name.clone(), hint(row)?))).collect::<Result<_, String>>()
    };
    let want = Merged { admit: case.expect.admit, best: case.expect.best.as_ref().map(best).transpose()? };
    let got =
        merge(&policy, &Nodes::new(nodes(&case.numa)?), &providers).map_err(|error| error.to_string())?;
    if got == want { Ok(()) } else { Err(format!("expected {want:?}, got {got:?}")) }
}

fn hint((mask, preferred): &HintRow) -> Result<Hint, String> {
    Ok(Hint { mask: mask.as_deref().map(nodes).transpose()?, preferred: *preferred })
}

fn take(machine: &Machine, line: &str) -> Result<(), String> {
    let case: Take = read(line)?;
    let l3 = if case.l3 { L3::Aligned } else { L3::Ignored };
    compare(&case.expect, take_by_topology(machine, &cpus(&case.available)?, need(case.need), l3))
}

fn balance(machine: &Machine, line: &str) -> Result<(), String> {
    let case: Balance = read(line)?;
    let (spread, end) = match case.function.as_str() {
        "numa-balance" => (Spread::Cores, End::Lowest),
        "numa-balance-reversely" => (Spread::Cores, End::Highest),
        "ht" => (Spread::Threads, End::Lowest),
        "ht-reversely" => (Spread::Threads, End::Highest),
        function => return Err(format!("unknown function {function:?}")),
    };
    compare(
        &case.expect,
        take_by_numa_balance(machine, &cpus(&case.available)?, need(case.need), spread, end),
    )
}

fn compare(expect: &Expect, got: Result<CpuSet, NotEnoughCpus>) -> Result<(), String> {
    match (&expect.cpus, &expect.error, got) {
        (Some(cpus), None, Ok(got)) if got == self::cpus(cpus)? => Ok(()),
        (None, Some(error), Err(NotEnoughCpus { .. })) if names(error, "insufficient") => Ok(()),
        (Some(cpus), None, Ok(got)) => Err(format!("expected {cpus}, got {got}")),
        (cpus, error, got) => Err(format!("expected cpus {cpus:?} or error {error:?}, got {got:?}")),
    }
}

/// An error's kind, or an array of kinds: any of them.
fn names(error: &Value, kind: &str) -> bool {
    error == kind || error.as_array().is_some_and(|kinds| kinds.iter().any(|any| any == kind))
}

fn cpus(text: &str) -> Result<CpuSet, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn nodes(text: &str) -> Result<NumaMask, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn need(need: i64) -> usize {
    usize::try_from(need).unwrap_or(0)
}

fn read<'a, T: Deserialize<'a>>(line: &'a str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|error| error.to_string())
}
