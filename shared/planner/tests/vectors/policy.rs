//! Families `hints` and `allocate`: one container on a state.

use super::{cpus, names, read};
use oxalyst_planner::{
    policy::{
        Container, ContainerId, ContainerKind, Kind, Options, Preference, RECLAIM, RESERVE, Refusal,
        Remembered, Request, State, Wishes, hints, place,
    },
    topology_manager::{Hint, Hints},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine};
use oxalyst_units::MilliCpu;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Case {
    reserved: String,
    #[serde(default)]
    options: OptionsText,
    state: Vec<Entry>,
    request: RequestText,
    hint: Option<HintText>,
    expect: Expect,
}

type HintText = (Option<String>, bool);

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptionsText {
    hint_optimizer: Option<String>,
    packing_threshold: Option<f64>,
    enable_reclaim: bool,
    overlap: bool,
    reclaim_numa_binding: bool,
    numa_headroom: BTreeMap<u32, f64>,
    prefer_existing_numa: bool,
    high_numa_first: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    pool: Option<String>,
    pod: Option<String>,
    container: Option<String>,
    container_type: Option<String>,
    qos: Option<String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    owner: Option<String>,
    #[serde(default)]
    ramp_up: bool,
    cpus: Option<String>,
    request: Option<f64>,
    pod_cpu: Option<f64>,
    #[serde(default)]
    gone: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestText {
    pod: Option<String>,
    container: Option<String>,
    container_type: Option<String>,
    qos: String,
    cpu: f64,
    #[serde(rename = "memory")]
    _memory: Option<u64>,
    annotations: BTreeMap<String, String>,
    pod_cpu: Option<f64>,
    #[serde(default)]
    resize: bool,
    #[serde(default)]
    debug: bool,
    #[serde(default)]
    running: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    #[serde(default, deserialize_with = "present")]
    hints: Option<Option<Vec<HintText>>>,
    #[serde(default)]
    ordered: bool,
    #[serde(default, deserialize_with = "present")]
    cpus: Option<Option<String>>,
    #[serde(default)]
    after: Vec<Entry>,
    error: Option<Value>,
}

/// Null is an answer, unlike nothing.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(value: D) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}

pub fn run_hints(machine: &Machine, line: &str) -> Result<(), String> {
    let case: Case = read(line)?;
    let got = case
        .understand(machine)?
        .and_then(|(state, options, request)| hints(&state, &options, machine, &request));
    let expected = match (&case.expect.hints, &case.expect.error) {
        (_, Some(error)) => return expect_error(error, got.map(|hints| in_words(&hints))),
        (Some(hints), None) => {
            hints.as_ref().map(|hints| hints.iter().map(hint).collect::<Result<Vec<_>, _>>()).transpose()?
        }
        (None, None) => return Err("neither hints nor an error is expected".to_owned()),
    };
    let mut got = got.map_err(|refusal| format!("expected {}, got {refusal:?}", in_words(&expected)))?;
    let mut sorted = expected.clone();
    if !case.expect.ordered {
        let key = |hint: &Hint| (hint.mask.clone(), hint.preferred);
        for hints in [&mut got, &mut sorted].into_iter().flatten() {
            hints.sort_by_key(key);
        }
    }
    if got == sorted {
        Ok(())
    } else {
        Err(format!("expected {}, got {}", in_words(&expected), in_words(&got)))
    }
}

pub fn run_allocate(machine: &Machine, line: &str) -> Result<(), String> {
    let case: Case = read(line)?;
    let given = case.hint.as_ref().map(hint).transpose()?;
    let understood = case.understand(machine)?;
    let before = understood.as_ref().map(|(state, ..)| state.clone()).unwrap_or_default();
    let got = understood
        .and_then(|(state, options, request)| place(&state, &options, machine, &request, given.as_ref()));
    let expected = match (&case.expect.cpus, &case.expect.error) {
        (_, Some(error)) => return expect_error(error, got.map(|placed| format!("{:?}", placed.cpus))),
        (Some(expected), None) => expected.as_deref().map(cpus).transpose()?,
        (None, None) => return Err("neither cpus nor an error is expected".to_owned()),
    };
    let placed = got.map_err(|refusal| format!("expected cpus {expected:?}, got {refusal:?}"))?;
    let mut wanted = sets(&before);
    for entry in &case.expect.after {
        match entry.cpus.as_deref().map(cpus).transpose()? {
            Some(cpus) => wanted.insert(entry.name(), cpus),
            None => wanted.remove(&entry.name()),
        };
    }
    let mut after = before.clone();
    after.apply(&placed.changes);
    let found = sets(&after);
    let mut faults = Vec::new();
    if placed.cpus != expected {
        faults.push(format!("expected cpus {expected:?}, got {:?}", placed.cpus));
    }
    let every: std::collections::BTreeSet<_> = wanted.keys().chain(found.keys()).collect();
    for name in every {
        if wanted.get(name) != found.get(name) {
            faults.push(format!("{name}: expected {:?}, got {:?}", wanted.get(name), found.get(name)));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

/// Every pool and container, an absent pool being the empty set.
fn sets(state: &State) -> BTreeMap<String, CpuSet> {
    let pools = state.pools.iter().filter(|(_, cpus)| !cpus.is_empty());
    let pools = pools.map(|(name, cpus)| (format!("pool:{name}"), cpus.clone()));
    let containers = state.containers.iter();
    pools.chain(containers.map(|(id, c)| (format!("{}/{}", id.pod, id.container), c.cpus.clone()))).collect()
}

fn expect_error(error: &Value, got: Result<String, Refusal>) -> Result<(), String> {
    match got {
        Err(refusal) if names(error, refusal.kind.as_str()) => Ok(()),
        Err(refusal) => Err(format!("expected error {error}, got {refusal:?}")),
        Ok(got) => Err(format!("expected error {error}, got {got}")),
    }
}

fn in_words(hints: &Hints) -> String {
    let Some(hints) = hints else { return "null".to_owned() };
    let one = |hint: &Hint| {
        let mask = hint.mask.as_ref().map_or("nil".to_owned(), ToString::to_string);
        format!("{mask}{}", if hint.preferred { "T" } else { "F" })
    };
    format!("[{}]", hints.iter().map(one).collect::<Vec<_>>().join(" "))
}

fn hint((mask, preferred): &HintText) -> Result<Hint, String> {
    let mask = mask.as_ref().map(|mask| mask.parse().map_err(|error| format!("{error}"))).transpose()?;
    Ok(Hint { mask, preferred: *preferred })
}

fn milli(cpus: f64) -> MilliCpu {
    MilliCpu((cpus * 1000.0 + 1e-6).floor() as u64)
}

fn kind(text: Option<&str>) -> Result<ContainerKind, String> {
    match text {
        None | Some("main") => Ok(ContainerKind::Main),
        Some("init") => Ok(ContainerKind::Init),
        Some("sidecar") => Ok(ContainerKind::Sidecar),
        Some(other) => Err(format!("unknown container type {other:?}")),
    }
}

fn wishes(annotations: &BTreeMap<String, String>) -> Wishes {
    annotations.iter().filter(|(key, _)| *key != "numa_hint").map(|(k, v)| (k.clone(), v.clone())).collect()
}

impl Entry {
    fn name(&self) -> String {
        match &self.pool {
            Some(pool) => format!("pool:{pool}"),
            None => {
                format!(
                    "{}/{}",
                    self.pod.as_deref().unwrap_or("new"),
                    self.container.as_deref().unwrap_or("main")
                )
            }
        }
    }
}

impl Case {
    /// The inner error is the policy's: a level that there is not.
    #[allow(clippy::type_complexity)]
    fn understand(&self, machine: &Machine) -> Result<Result<(State, Options, Request), Refusal>, String> {
        let state = self.state(machine)?;
        let text = &self.request;
        let Ok(qos) = text.qos.parse::<QosLevel>() else {
            return Ok(Err(Refusal::new(Kind::Invalid, "unknown level")));
        };
        let pod = text.pod.clone().unwrap_or_else(|| "new".to_owned());
        let request = Request {
            id: ContainerId::new(pod.as_str(), text.container.as_deref().unwrap_or("main")),
            pod_name: pod,
            kind: kind(text.container_type.as_deref())?,
            qos,
            wishes: wishes(&text.annotations),
            cpu: milli(text.cpu),
            pod_cpu: text.pod_cpu.map(milli),
            resize: text.resize,
            debug: text.debug,
            running: text.running,
        };
        Ok(Ok((state, self.options.understand()?, request)))
    }

    fn state(&self, machine: &Machine) -> Result<State, String> {
        let mut state = State { reserved: cpus(&self.reserved)?, ..State::default() };
        for entry in &self.state {
            let set = cpus(entry.cpus.as_deref().unwrap_or_default())?;
            if let Some(pool) = &entry.pool {
                state.pools.insert(pool.clone(), set);
                continue;
            }
            let (pod, name) = (entry.pod.clone().unwrap(), entry.container.clone().unwrap());
            if entry.gone {
                let nodes = machine.nodes_of(&set);
                state.remembered.push(Remembered { pod_name: pod, container: name, nodes });
                continue;
            }
            let qos = entry.qos.as_deref().unwrap().parse().map_err(|error| format!("{error}"))?;
            let baseline = if qos == QosLevel::Dedicated { set.clone() } else { CpuSet::new() };
            let numa_hint = entry.annotations.get("numa_hint").map(|hint| hint.parse().unwrap());
            let container = Container {
                pod_name: pod.clone(),
                kind: kind(entry.container_type.as_deref())?,
                qos,
                wishes: wishes(&entry.annotations),
                owner: entry.owner.clone(),
                ramp_up: entry.ramp_up,
                cpus: set,
                baseline,
                request: milli(entry.request.unwrap_or_default()),
                pod_request: entry.pod_cpu.map(milli),
                numa_hint,
            };
            state.containers.insert(ContainerId::new(pod, name), container.into());
        }
        let reserved = state.reserved.clone();
        state.pools.entry(RESERVE.to_owned()).or_insert(reserved);
        if !state.pools.contains_key(RECLAIM) {
            state.settle_reclaim(machine);
        }
        Ok(state)
    }
}

impl OptionsText {
    pub fn understand(&self) -> Result<Options, String> {
        let threshold = self.packing_threshold.unwrap_or_default();
        let preference = match self.hint_optimizer.as_deref() {
            None | Some("spreading") => Preference::Spreading,
            Some("packing") => Preference::Packing,
            Some("dynamic_packing") => Preference::DynamicPacking { threshold },
            Some(other) => return Err(format!("unknown hint optimizer {other:?}")),
        };
        Ok(Options {
            reserved_spare: MilliCpu(0),
            preference,
            enable_reclaim: self.enable_reclaim,
            overlap: self.overlap,
            reclaim_numa_binding: self.reclaim_numa_binding,
            numa_headroom: self.numa_headroom.iter().map(|(node, cpus)| (*node, milli(*cpus))).collect(),
            prefer_existing_numa: self.prefer_existing_numa,
            high_numa_first: self.high_numa_first,
            serve_all: false,
        })
    }
}
