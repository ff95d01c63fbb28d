//! Family `scenario`: whole pods through plan, commit and ledger.

use super::{
    MachineRef, MachineRows, Machines, cpus, read,
    scenario_text::{Case, Expect, Is, SettingsText, Step, milli},
};
use oxalyst_ledger::Ledger;
use oxalyst_planner::{
    plan::Flag,
    pods::{CpuPolicy, Request, Resize, Rules, State, placements, plan, pools, record},
};
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaMask, NumaNode};
use oxalyst_units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Where a container or a pool is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub cpus: CpuSet,
    pub mems: NumaMask,
    /// `None` for a pool.
    pub pod: Option<String>,
    pub exclusive: bool,
    pub flags: BTreeSet<Flag>,
}

pub type Sight = BTreeMap<String, Seen>;

/// The allocator with its ledger, and the world around it.
struct Node {
    rows: MachineRows,
    online: Option<CpuSet>,
    memory: BTreeMap<u32, u64>,
    rules: Rules,
    reserved: CpuSet,
    state: State,
    folder: tempfile::TempDir,
    ledger: Option<Ledger>,
    now_unix_ms: i64,
    history: Vec<Sight>,
}

const MEMORY: u64 = 16 << 30;

pub fn run(line: &str, machines: &Machines) -> Result<(), String> {
    let case: Case = read(line)?;
    let rows = rows(&case.machine, machines)?;
    let mut node = Node::new(rows, &case.settings)?;
    let mut faults = Vec::new();
    for (number, step) in case.steps.iter().enumerate() {
        let before = node.sight();
        let refused = node.take(step, machines).map_err(|fault| format!("step {number}: {fault}"))?;
        let now = node.sight();
        node.history.push(now.clone());
        let told = node.check(&step.expect, &before, &now, refused.as_ref());
        faults.extend(told.into_iter().map(|fault| format!("step {number}: {fault}")));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

fn rows(machine: &MachineRef, machines: &Machines) -> Result<MachineRows, String> {
    match machine {
        MachineRef::Rows(rows) => Ok(rows.clone()),
        MachineRef::Name(name) => machines.get(name).cloned().ok_or_else(|| format!("no machine {name:?}")),
    }
}

fn two(name: &str) -> Result<(String, String), String> {
    let (pod, container) = name.split_once('/').ok_or_else(|| format!("{name:?} names no container"))?;
    Ok((pod.to_owned(), container.to_owned()))
}

impl Node {
    fn new(rows: MachineRows, settings: &SettingsText) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut node = Self {
            rows,
            online: None,
            memory: settings.memory.clone(),
            rules: settings.rules()?,
            reserved: cpus(&settings.reserved)?,
            state: State::default(),
            folder,
            ledger: None,
            now_unix_ms: 1_700_000_000_000,
            history: Vec::new(),
        };
        node.start()?;
        Ok(node)
    }

    /// The process starts: everything is read from the ledger, as the last one left it.
    fn start(&mut self) -> Result<(), String> {
        self.ledger = None;
        let (ledger, _) = Ledger::open(self.folder.path().join("ledger"), oxalyst_ledger::Options::default())
            .map_err(|error| error.to_string())?;
        self.ledger = Some(ledger);
        self.state = self.read_back()?;
        let took = self.plan(&Request::TakeUp { reserved: Some(self.reserved.clone()) })?;
        took.map_or(Ok(()), |refused| Err(format!("a start is refused: {refused}")))
    }

    fn read_back(&self) -> Result<State, String> {
        let ledger = self.ledger.as_ref().unwrap();
        let (state, faults) =
            record::load(ledger.records(), &self.machine()?, &self.rules, self.reserved.clone());
        if faults.is_empty() { Ok(state) } else { Err(format!("records: {faults:?}")) }
    }

    fn machine(&self) -> Result<Machine, String> {
        let cpus: Vec<Cpu> = self
            .rows
            .cpus
            .iter()
            .map(|&(id, core, socket, numa, l3)| Cpu { id, core, socket, numa, l3 })
            .collect();
        let ids: BTreeSet<u32> = cpus.iter().map(|cpu| cpu.numa).collect();
        let mut distances = self.rows.distances.iter();
        let node = |id: u32| {
            let memory = self.memory.get(&id).copied().unwrap_or(MEMORY);
            NumaNode {
                memory: Some(Bytes(memory)),
                has_memory: memory > 0,
                distances: distances.next().cloned().unwrap_or_default(),
                ..NumaNode::new(id)
            }
        };
        let nodes = ids.into_iter().map(node).collect();
        let machine = Machine::new(cpus, nodes).map_err(|error| error.to_string())?;
        Ok(match &self.online {
            Some(online) => {
                let offline = machine.online() - online;
                machine.with_offline(&offline)
            }
            None => machine,
        })
    }

    /// The kind of the refusal, if there is one.
    fn take(&mut self, step: &Step, machines: &Machines) -> Result<Option<String>, String> {
        let native = matches!(self.rules.cpu_policy, CpuPolicy::Native(_));
        if let Some(admit) = &step.admit {
            return self.plan(&Request::Admit(admit.request(native, self.now_unix_ms)?));
        }
        if let Some(uid) = &step.remove {
            return self.plan(&Request::Remove { uid: uid.clone() });
        }
        if let Some(name) = &step.restart_container {
            let (uid, container) = two(name)?;
            return self.plan(&Request::RestartContainer { uid, container });
        }
        if let Some(text) = &step.resize {
            let (uid, container) = two(&text.container)?;
            let (cpu, limit, memory) = (text.cpu.map(milli), text.limit.map(milli), text.memory.map(Bytes));
            return self.plan(&Request::Resize(Resize { uid, container, cpu, limit, memory }));
        }
        if step.restart {
            return self.start().map(|()| None);
        }
        if let Some(seconds) = step.elapse {
            self.now_unix_ms += (seconds * 1000.0) as i64;
            return self.plan(&Request::Elapse { now_unix_ms: self.now_unix_ms });
        }
        if let Some(machine) = &step.machine {
            self.rows = rows(machine, machines)?;
            self.online = None;
        } else if let Some(online) = &step.online {
            self.online = Some(cpus(online)?);
        } else if let Some(memory) = &step.memory {
            self.memory.extend(memory);
        } else {
            return Err("the step does nothing".to_owned());
        }
        self.plan(&Request::TakeUp { reserved: None })
    }

    /// Plans, commits and holds; what is refused must leave no trace.
    fn plan(&mut self, request: &Request) -> Result<Option<String>, String> {
        let machine = self.machine()?;
        let outcome = plan(&self.state, &machine, &self.rules, request);
        let again = plan(&self.state, &machine, &self.rules, request);
        let bytes = |outcome: &Result<oxalyst_planner::pods::Plan, _>| {
            let changes = outcome.as_ref().map(|plan| format!("{:?}", record::changes(plan, &self.rules)));
            changes.map_err(|refusal: &oxalyst_planner::pods::Refusal| format!("{refusal:?}"))
        };
        if outcome != again || bytes(&outcome) != bytes(&again) {
            return Err("planning again gives another answer".to_owned());
        }
        let before = (self.state.clone(), self.ledger.as_ref().unwrap().generation());
        let refused = match outcome {
            Ok(plan) => {
                let changes: Vec<_> =
                    record::changes(&plan, &self.rules).into_iter().map(ledger_change).collect();
                if !changes.is_empty() {
                    let ledger = self.ledger.as_mut().unwrap();
                    ledger.commit(&changes).map_err(|error| error.to_string())?;
                }
                self.state = plan.after;
                None
            }
            Err(refusal) => {
                if (self.state.clone(), self.ledger.as_ref().unwrap().generation()) != before {
                    return Err("what is refused has left a trace".to_owned());
                }
                Some(refusal.reason.to_string())
            }
        };
        let read = self.read_back()?;
        if read != self.state {
            return Err(format!("the ledger reads back {read:?} instead of {:?}", self.state));
        }
        Ok(refused)
    }

    fn sight(&self) -> Sight {
        let machine = self.machine().unwrap();
        let machine = self.rules.confine(&machine);
        let mut sight = Sight::new();
        for (name, cpus) in pools(&self.state, &machine) {
            sight.insert(format!("pool:{name}"), Seen { cpus, ..Seen::default() });
        }
        for (uid, pod) in placements(&self.state, &machine) {
            for container in pod.containers {
                let seen = Seen {
                    cpus: container.cpus,
                    mems: container.mems,
                    pod: Some(uid.clone()),
                    exclusive: container.exclusive,
                    flags: container.flags,
                };
                sight.insert(format!("{uid}/{}", container.name), seen);
            }
        }
        sight
    }

    fn check(&self, expect: &Expect, before: &Sight, now: &Sight, refused: Option<&String>) -> Vec<String> {
        let machine = self.machine().unwrap();
        let mut faults = super::scenario_checks::always(now, &self.rules.confine(&machine));
        faults.extend(super::scenario_checks::outcome(&expect.refused, refused));
        let get = |sight: &Sight, name: &str| sight.get(name).cloned().unwrap_or_default();
        for (name, is) in &expect.is {
            if !now.contains_key(name) && !name.starts_with("pool:") {
                faults.push(format!("{name} is not there"));
                continue;
            }
            let past = |step: usize| self.history.get(step).map(|sight| get(sight, name)).unwrap_or_default();
            let other = |name: &str| get(now, name);
            let looks = is.looks(&get(before, name), &get(now, name), &past, &other);
            faults.extend(looks.into_iter().map(|fault| format!("{name}: {fault}")));
            faults
                .extend(is.on(&get(now, name), name, now, &machine).map(|fault| format!("{name}: {fault}")));
        }
        for names in &expect.disjoint {
            for (index, one) in names.iter().enumerate() {
                for other in &names[index + 1..] {
                    if !get(now, one).cpus.is_disjoint(&get(now, other).cpus) {
                        faults.push(format!("{one} and {other} overlap"));
                    }
                }
            }
        }
        for name in &expect.unchanged {
            if get(before, name).cpus != get(now, name).cpus {
                faults.push(format!("{name} was {} and is {}", get(before, name).cpus, get(now, name).cpus));
            }
        }
        let unflagged = expect.flagged.iter().filter(|name| get(now, name).flags.is_empty());
        faults.extend(unflagged.map(|name| format!("{name} is not flagged")));
        let present = expect.absent.iter().filter(|name| now.contains_key(*name));
        faults.extend(present.map(|name| format!("{name} is still there")));
        faults
    }
}

impl Is {
    fn looks(
        &self,
        before: &Seen,
        now: &Seen,
        past: &dyn Fn(usize) -> Seen,
        other: &dyn Fn(&str) -> Seen,
    ) -> Vec<String> {
        let mut faults = Vec::new();
        let mut must = |holds: bool, what: String| {
            if !holds {
                faults.push(format!("{what}, got {}", now.cpus));
            }
        };
        let set = |text: &String| cpus(text).unwrap();
        let len = now.cpus.len();
        self.cpus.iter().for_each(|want| must(now.cpus == set(want), format!("must be {want}")));
        self.count.iter().for_each(|want| must(len == *want, format!("must be {want} CPUs")));
        self.min.iter().for_each(|want| must(len >= *want, format!("must be at least {want} CPUs")));
        self.max.iter().for_each(|want| must(len <= *want, format!("must be at most {want} CPUs")));
        self.within
            .iter()
            .for_each(|want| must(now.cpus.is_subset(&set(want)), format!("must lie in {want}")));
        self.includes
            .iter()
            .for_each(|want| must(set(want).is_subset(&now.cpus), format!("must have {want}")));
        self.excludes
            .iter()
            .for_each(|want| must(now.cpus.is_disjoint(&set(want)), format!("must avoid {want}")));
        if let Some(step) = self.same_as {
            let want = past(step).cpus;
            must(now.cpus == want, format!("must be {want} as after step {step}"));
        }
        must(!self.grew || before.cpus.is_subset(&now.cpus), format!("must grow from {}", before.cpus));
        must(!self.shrank || now.cpus.is_subset(&before.cpus), format!("must shrink from {}", before.cpus));
        if let Some(name) = &self.equals {
            let want = other(name).cpus;
            must(now.cpus == want, format!("must be {want} as {name}"));
        }
        if let Some(want) = &self.mems
            && now.mems.to_string() != *want
        {
            faults.push(format!("mems must be {want}, got {}", now.mems));
        }
        faults
    }

    fn on<'a>(
        &'a self,
        now: &'a Seen,
        name: &'a str,
        sight: &'a Sight,
        machine: &'a Machine,
    ) -> impl Iterator<Item = String> + 'a {
        let nodes = machine.nodes_of(&now.cpus);
        let local = self.local && now.mems != nodes;
        let local = local.then(|| format!("mems {} are not those of CPUs {}", now.mems, now.cpus));
        let count = self.numa_count.filter(|want| *want != nodes.len());
        let count = count.map(|want| format!("must be on {want} NUMA nodes, is on {nodes}"));
        let mut split = None;
        for cpu in machine.cpus().iter().filter(|cpu| self.whole_cores && now.cpus.contains(cpu.id)) {
            let siblings: CpuSet =
                machine.cpus().iter().filter(|other| other.core == cpu.core).map(|other| other.id).collect();
            let rest = siblings - &now.cpus;
            let others = sight.iter().filter(|(other, seen)| *other != name && seen.pod.is_some());
            if others.into_iter().any(|(_, seen)| !seen.cpus.is_disjoint(&rest)) {
                split = Some(format!("core {} is split", cpu.core));
            }
        }
        local.into_iter().chain(count).chain(split)
    }
}

fn ledger_change(record::Change { key, value }: record::Change) -> oxalyst_ledger::Change {
    match value {
        Some(value) => oxalyst_ledger::Change::Put(key, value),
        None => oxalyst_ledger::Change::Delete(key),
    }
}
