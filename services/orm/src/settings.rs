//! What the allocator can be told.

mod defaults;
mod words;

use std::path::PathBuf;
use std::time::Duration;

use oxalyst_planner::rules::{RuleSettings, RulesError, rules};
use oxalyst_qos::KeptLabels;
use oxalyst_settings::{Common, HasCommon};
use oxalyst_topology::Machine;
use serde::{Deserialize, Serialize};

use crate::decisions::Limits;
use crate::specs::{ReadingRules, ReadingRulesError, ResourceNames};

/// Settings of the service `orm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What every service can be told.
    pub common: Common,
    /// Folder of the ledger. It belongs to this process alone.
    pub ledger_dir: PathBuf,
    /// Seconds for which a pod may be absent from the runtime's list before its set is freed. 1 to 3600.
    pub absent_grace_s: u64,
    /// Seconds between looks at which CPUs are online and which pods have been absent for too long. 1 to 60.
    pub watch_period_s: u64,
    /// Folder of Katalyst's state files, which are taken over into a ledger that is new; `None`: nothing is taken over.
    pub import_katalyst_dir: Option<PathBuf>,
    /// Decisions that are kept at the most, with the states that they were made on. 16 to 100000.
    pub decisions_max_records: u64,
    /// Bytes that their files take at the most, and again as much in memory. 65536 to 1073741824.
    pub decisions_max_bytes: u64,
    /// CPUs kept for `system_cores`: in Linux list format (`0-1,8`), or how much in thousandths of a CPU (`750m`), for which
    /// that many whole CPUs are set aside, spread over the NUMA nodes; `kubelet`: what the kubelet reserves. None by default.
    pub reserved_cpus: String,
    /// CPUs kept for the system by number, spread over the NUMA nodes, where `reserved_cpus` is empty. None by default.
    pub reserved_cpu_count: u64,
    /// CPUs that serve interrupts, in Linux list format: nobody is given them but `system_cores` that name the pool `interrupt`. None
    /// by default.
    pub interrupt_cpus: String,
    /// CPUs that the root of the cgroup tree may use, in Linux list format; empty: all.
    pub root_cpuset: String,
    /// `dynamic`: by QoS level; `native`: as the kubelet's static managers do, by Kubernetes' own class.
    pub cpu_policy: String,
    /// How strictly CPUs and memory have to agree: `none`, `best-effort`, `restricted`, `single-numa-node`, `numeric`.
    pub topology_policy: String,
    /// What has to agree: each `container`, or the `pod`.
    pub topology_scope: String,
    /// Under `numeric`, the resources whose NUMA nodes must be the same, separated by commas.
    pub numeric_align: String,
    /// Whether among equally many NUMA nodes those closest together are better.
    pub prefer_closest_numa: bool,
    /// Whether CPUs that shared pools do not need are kept for reclaimed pods; else shared pools get them.
    pub enable_reclaim: bool,
    /// Whether shared and reclaimed pods may run on the same CPUs.
    pub overlap_reclaim: bool,
    /// Whether reclaimed pods that ask for it are bound to a NUMA node.
    pub reclaim_numa_binding: bool,
    /// How bound shared pods choose a NUMA node: `spreading`, `packing`, `dynamic_packing`.
    pub hint_optimizer: String,
    /// Under `dynamic_packing`, the percentage of a node's CPUs that must be free for it to be packed on. 0 to 100.
    pub packing_threshold_percent: u64,
    /// Whether a choice of NUMA nodes made before (`numa_bind_result`) is preferred to all others.
    pub prefer_existing_numa: bool,
    /// Whether NUMA nodes of a high id come first for bound shared pods.
    pub high_numa_first: bool,
    /// Under `native`: whether sets are spread in equal shares over the NUMA nodes that they need.
    pub native_distribute: bool,
    /// Under `native`: whether only whole cores are given out.
    pub native_full_cores: bool,
    /// Memory kept for the system by NUMA node, in bytes: `0=1073741824,1=536870912`. None by default.
    pub memory_reserved: String,
    /// Seconds after which a shared pod joins its pool. 30 to 3600.
    pub ramp_up_s: u64,
    /// Folder of the socket on which resource plugins register themselves (`kubelet.sock`), below `common.host_root`.
    pub orm_plugin_registration_dir: PathBuf,
    /// Folder into which resource plugins put their own sockets to be found, below `common.host_root`.
    pub plugin_registration_dir: PathBuf,
    /// Milliseconds for which a pod's admission waits for all plugins together. 10 to 1500.
    pub plugin_deadline_ms: u64,
    /// Other names under which CPUs, memory and what plugins give out are asked for: `requested-name=cpu`, `requested-name=memory`
    /// or `requested-name=` a plugin's resource, separated by commas. By default those by which Katalyst gives out reclaimed CPUs and memory.
    pub orm_resource_names_map: String,
    /// Annotations that stand for a QoS level: `level:key=value`, separated by commas. None by default.
    pub qos_selectors: String,
    /// Wishes of pods of a level that do not name them themselves: `level:key=value`, separated by commas. None by default.
    pub enhancement_defaults: String,
    /// Annotations that count among a pod's wishes beside its enhancements, separated by commas. None by default.
    pub pod_annotation_kept_keys: String,
    /// Labels that are kept with what a pod was given, separated by commas; of a pod's labels plugins are told these alone. By default
    /// none is kept, and plugins are told all.
    pub pod_label_kept_keys: String,
}

/// `reserved_cpus`: as the kubelet does.
const KUBELET: &str = "kubelet";

/// A setting that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A number out of its range.
    #[error("settings of orm: {key} is {given}: it must lie within {range}")]
    Range {
        /// The setting.
        key: &'static str,
        /// As given.
        given: u64,
        /// What it may be.
        range: &'static str,
    },
    /// One of the rules of placement.
    #[error("settings of orm: {0}")]
    Rules(#[from] RulesError),
    /// One that says how pods are read.
    #[error("settings of orm: {0}")]
    Reading(#[from] ReadingRulesError),
    /// A text that can be read and means nothing.
    #[error("settings of orm: {key} has {given:?}: {fault}")]
    Word {
        /// The setting.
        key: &'static str,
        /// The offending part, as given.
        given: String,
        /// What is wrong, and what it may be.
        fault: String,
    },
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        let rules = RuleSettings::default();
        Self {
            common: Common::default(),
            ledger_dir: PathBuf::from("/var/lib/oxalyst/orm"),
            absent_grace_s: 30,
            watch_period_s: 5,
            import_katalyst_dir: None,
            decisions_max_records: 500,
            decisions_max_bytes: 2 << 20,
            reserved_cpus: rules.reserved_cpus,
            reserved_cpu_count: rules.reserved_cpu_count,
            interrupt_cpus: rules.interrupt_cpus,
            root_cpuset: rules.root_cpuset,
            cpu_policy: rules.cpu_policy,
            topology_policy: rules.topology_policy,
            topology_scope: rules.topology_scope,
            numeric_align: rules.numeric_align,
            prefer_closest_numa: rules.prefer_closest_numa,
            enable_reclaim: rules.enable_reclaim,
            overlap_reclaim: rules.overlap_reclaim,
            reclaim_numa_binding: rules.reclaim_numa_binding,
            hint_optimizer: rules.hint_optimizer,
            packing_threshold_percent: rules.packing_threshold_percent,
            prefer_existing_numa: rules.prefer_existing_numa,
            high_numa_first: rules.high_numa_first,
            native_distribute: rules.native_distribute,
            native_full_cores: rules.native_full_cores,
            memory_reserved: rules.memory_reserved,
            ramp_up_s: rules.ramp_up_s,
            orm_plugin_registration_dir: PathBuf::from("/var/lib/katalyst/resource-plugins"),
            plugin_registration_dir: PathBuf::from("/var/lib/katalyst/plugin-socks"),
            plugin_deadline_ms: 150,
            orm_resource_names_map: ResourceNames::default().to_string(),
            qos_selectors: String::new(),
            enhancement_defaults: String::new(),
            pod_annotation_kept_keys: String::new(),
            pod_label_kept_keys: String::new(),
        }
    }
}

impl HasCommon for Settings {
    fn common(&self) -> &Common {
        &self.common
    }
}

impl Settings {
    /// Checks all that can be checked without the machine.
    ///
    /// # Errors
    /// The first setting that is out of its range or cannot be understood.
    pub fn check(&self) -> Result<(), SettingsError> {
        let within = |key, given: u64, low, high, range| {
            if (low..=high).contains(&given) {
                Ok(())
            } else {
                Err(SettingsError::Range { key, given, range })
            }
        };
        within("absent_grace_s", self.absent_grace_s, 1, 3600, "1 to 3600")?;
        within("watch_period_s", self.watch_period_s, 1, 60, "1 to 60")?;
        within("decisions_max_records", self.decisions_max_records, 16, 100_000, "16 to 100000")?;
        within("decisions_max_bytes", self.decisions_max_bytes, 1 << 16, 1 << 30, "65536 to 1073741824")?;
        within("plugin_deadline_ms", self.plugin_deadline_ms, 10, 1500, "10 to 1500")?;
        rules(&self.rules())?;
        ReadingRules::new(self)?;
        words::check(self)?;
        defaults::check(self)
    }

    /// Checks against the machine what of the wishes by default names NUMA nodes.
    ///
    /// # Errors
    /// The first that this machine cannot serve.
    pub fn check_on(&self, machine: &Machine) -> Result<(), SettingsError> {
        defaults::check_on(self, machine)
    }

    /// Which labels of pods are kept and told.
    pub fn kept_labels(&self) -> KeptLabels {
        KeptLabels::parse(&self.pod_label_kept_keys)
    }

    /// Whether what the kubelet reserves is to be reserved.
    pub fn reserves_as_kubelet(&self) -> bool {
        self.reserved_cpus.trim() == KUBELET
    }

    /// The rules of placement with this as `reserved_cpus`.
    pub fn rules_reserving(&self, reserved_cpus: String) -> RuleSettings {
        RuleSettings { reserved_cpus, ..self.rules() }
    }

    /// What of it makes the rules of placement. What the kubelet reserves is not in it.
    pub fn rules(&self) -> RuleSettings {
        let Self {
            common: _,
            ledger_dir: _,
            absent_grace_s: _,
            watch_period_s: _,
            import_katalyst_dir: _,
            decisions_max_records: _,
            decisions_max_bytes: _,
            orm_plugin_registration_dir: _,
            plugin_registration_dir: _,
            plugin_deadline_ms: _,
            orm_resource_names_map: _,
            qos_selectors: _,
            enhancement_defaults: _,
            pod_annotation_kept_keys: _,
            pod_label_kept_keys: _,
            reserved_cpus,
            reserved_cpu_count,
            interrupt_cpus,
            root_cpuset,
            cpu_policy,
            topology_policy,
            topology_scope,
            numeric_align,
            prefer_closest_numa,
            enable_reclaim,
            overlap_reclaim,
            reclaim_numa_binding,
            hint_optimizer,
            packing_threshold_percent,
            prefer_existing_numa,
            high_numa_first,
            native_distribute,
            native_full_cores,
            memory_reserved,
            ramp_up_s,
        } = self.clone();
        RuleSettings {
            reserved_cpus: if self.reserves_as_kubelet() { String::new() } else { reserved_cpus },
            reserved_cpu_count,
            interrupt_cpus,
            root_cpuset,
            cpu_policy,
            topology_policy,
            topology_scope,
            numeric_align,
            prefer_closest_numa,
            enable_reclaim,
            overlap_reclaim,
            reclaim_numa_binding,
            hint_optimizer,
            packing_threshold_percent,
            prefer_existing_numa,
            high_numa_first,
            native_distribute,
            native_full_cores,
            memory_reserved,
            ramp_up_s,
        }
    }

    /// How large the ring of decisions may become.
    pub fn decision_limits(&self) -> Limits {
        let size = |given| usize::try_from(given).unwrap_or(usize::MAX);
        Limits { records: size(self.decisions_max_records), bytes: size(self.decisions_max_bytes) }
    }

    /// Where plugins register themselves, and where they are found.
    pub fn plugin_dirs(&self) -> (PathBuf, PathBuf) {
        let below = |dir: &PathBuf| self.common.host_root.join(dir.strip_prefix("/").unwrap_or(dir));
        (below(&self.orm_plugin_registration_dir), below(&self.plugin_registration_dir))
    }

    /// [`Settings::plugin_deadline_ms`] as a duration.
    pub fn plugin_deadline(&self) -> Duration {
        Duration::from_millis(self.plugin_deadline_ms)
    }

    /// [`Settings::absent_grace_s`] as a duration.
    pub fn absent_grace(&self) -> Duration {
        Duration::from_secs(self.absent_grace_s)
    }

    /// [`Settings::watch_period_s`] as a duration.
    pub fn watch_period(&self) -> Duration {
        Duration::from_secs(self.watch_period_s)
    }
}
