//! How scenarios are written.

use super::{MachineRef, cpus, policy::OptionsText};
use oxalyst_planner::{
    plan::{Flag, NativeOption},
    pods::{Asked, Class, CpuPolicy, Native, PodRequest, Role, Rules, Told},
    policy::Options,
    topology_manager::{Policy, Scope},
};
use oxalyst_qos::QosLevel;
use oxalyst_units::{Bytes, MilliCpu};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Deserialize)]
pub struct Case {
    pub machine: MachineRef,
    #[serde(default)]
    pub settings: SettingsText,
    pub steps: Vec<Step>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SettingsText {
    pub cpu_policy: Option<String>,
    pub policy: Option<String>,
    pub align: Option<Vec<String>>,
    pub scope: Option<String>,
    pub prefer_closest: bool,
    pub reserved: String,
    pub root_cpuset: Option<String>,
    pub memory: BTreeMap<u32, u64>,
    pub options: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NativeText {
    pub mode: Option<String>,
    pub group: Option<usize>,
    pub full_physical_cpus_only: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub admit: Option<AdmitText>,
    pub remove: Option<String>,
    pub restart_container: Option<String>,
    pub resize: Option<ResizeText>,
    #[serde(default)]
    pub restart: bool,
    pub elapse: Option<f64>,
    pub machine: Option<MachineRef>,
    pub online: Option<String>,
    pub memory: Option<BTreeMap<u32, u64>>,
    #[serde(default)]
    pub expect: Expect,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmitText {
    pub pod: String,
    pub qos: String,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    pub containers: Vec<ContainerText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerText {
    pub name: String,
    #[serde(rename = "type")]
    pub role: Option<String>,
    pub cpu: Option<f64>,
    pub limit: Option<f64>,
    pub memory: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeText {
    pub container: String,
    pub cpu: Option<f64>,
    pub limit: Option<f64>,
    pub memory: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expect {
    pub refused: Value,
    pub is: BTreeMap<String, Is>,
    pub disjoint: Vec<Vec<String>>,
    pub unchanged: Vec<String>,
    pub flagged: Vec<String>,
    pub absent: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Is {
    pub cpus: Option<String>,
    pub mems: Option<String>,
    pub count: Option<usize>,
    pub min: Option<usize>,
    pub max: Option<usize>,
    pub within: Option<String>,
    pub includes: Option<String>,
    pub excludes: Option<String>,
    pub same_as: Option<usize>,
    pub grew: bool,
    pub shrank: bool,
    pub equals: Option<String>,
    pub local: bool,
    pub numa_count: Option<usize>,
    pub whole_cores: bool,
}

pub fn milli(cpus: f64) -> MilliCpu {
    MilliCpu((cpus * 1000.0).round() as u64)
}

impl SettingsText {
    pub fn rules(&self) -> Result<Rules, String> {
        let cpu_policy = match self.cpu_policy.as_deref() {
            None | Some("dynamic") => {
                let text: OptionsText = options(&self.options)?;
                CpuPolicy::Dynamic(Options { serve_all: true, ..text.understand()? })
            }
            Some("native") => {
                let text: NativeText = options(&self.options)?;
                let option = match text.mode.as_deref() {
                    None | Some("packed") => NativeOption::Packed,
                    Some("distributed") => NativeOption::Distributed { group: text.group.unwrap_or(1) },
                    Some(mode) => return Err(format!("unknown mode {mode:?}")),
                };
                CpuPolicy::Native(Native { option, full_cores: text.full_physical_cpus_only })
            }
            Some(policy) => return Err(format!("unknown CPU policy {policy:?}")),
        };
        let align = self.align.clone().unwrap_or_else(|| vec!["cpu".to_owned(), "memory".to_owned()]);
        let topology = Policy::named(self.policy.as_deref().unwrap_or("best-effort"), &align);
        let scope = match self.scope.as_deref() {
            None | Some("container") => Scope::Container,
            Some("pod") => Scope::Pod,
            Some(scope) => return Err(format!("unknown scope {scope:?}")),
        };
        Ok(Rules {
            cpu_policy,
            topology: topology.map_err(|error| error.to_string())?,
            scope,
            prefer_closest: self.prefer_closest,
            root: self.root_cpuset.as_deref().map(cpus).transpose()?,
            ..Rules::default()
        })
    }
}

fn options<T: Default + serde::de::DeserializeOwned>(value: &Value) -> Result<T, String> {
    if value.is_null() {
        return Ok(T::default());
    }
    serde_json::from_value(value.clone()).map_err(|error| error.to_string())
}

impl AdmitText {
    pub fn request(&self, native: bool, now_unix_ms: i64) -> Result<PodRequest, String> {
        let mut flags = BTreeSet::new();
        let (qos, class) = if native {
            (QosLevel::Shared, self.qos.parse::<Class>().map_err(|error| error.to_string())?)
        } else {
            let qos = self.qos.parse::<QosLevel>().unwrap_or_else(|_| {
                flags.insert(Flag::QosInvalid);
                QosLevel::Shared
            });
            (qos, Class::Burstable)
        };
        let container = |text: &ContainerText| {
            let role = text.role.as_deref().unwrap_or("app").parse::<Role>();
            Ok(Asked {
                name: text.name.clone(),
                role: role.map_err(|error| error.to_string())?,
                cpu: text.cpu.map(milli),
                limit: text.limit.map(milli),
                memory: text.memory.map(Bytes),
                huge_pages: Default::default(),
            })
        };
        Ok(PodRequest {
            kept_labels: [].into(),
            plugins: oxalyst_planner::pods::Plugins::default(),
            uid: self.pod.clone(),
            sandbox_id: format!("sandbox-{}", self.pod),
            namespace: "default".to_owned(),
            name: self.pod.clone(),
            qos,
            class,
            wishes: self.annotations.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            node_agent: false,
            told: Told::default(),
            flags,
            containers: self.containers.iter().map(container).collect::<Result<_, String>>()?,
            now_unix_ms,
        })
    }
}
