//! From settings to the rules of placement. The running service does not offer these settings yet.

use std::collections::BTreeMap;

use oxalyst_topology::{CpuSet, Machine, ParseSetError};
use oxalyst_units::{Bytes, MilliCpu};

use crate::plan::{End, NativeOption, NotEnoughCpus, Spread, take_by_numa_balance};
use crate::pods::{CpuPolicy, Native, Rules};
use crate::policy::{Options, Preference};
use crate::topology_manager::{Policy, Scope, UnknownPolicy};

/// What can be set of the rules. Sets of CPUs are in Linux list format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSettings {
    /// CPUs kept for `system_cores`: in Linux list format (`0-1,8`), or how much in thousandths of a CPU (`750m`), for which
    /// that many whole CPUs are set aside, spread over the NUMA nodes. None by default.
    pub reserved_cpus: String,
    /// CPUs kept for the system by number, spread over the NUMA nodes, where `reserved_cpus` is empty. None by default.
    pub reserved_cpu_count: u64,
    /// CPUs that serve interrupts, in Linux list format: nobody is given them but `system_cores` that name the pool. None by default.
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
}

/// A setting that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// A number out of its range.
    #[error("{key} is {given}: it must lie within {range}")]
    Range {
        /// The setting.
        key: &'static str,
        /// As given.
        given: u64,
        /// What it may be.
        range: &'static str,
    },
    /// A word from outside its closed set.
    #[error("{key} is {given:?}: set it to one of {choices}")]
    Word {
        /// The setting.
        key: &'static str,
        /// As given.
        given: String,
        /// What it could be.
        choices: &'static str,
    },
    /// No topology policy.
    #[error("topology_policy: {0}")]
    Topology(#[from] UnknownPolicy),
    /// No list of CPUs.
    #[error("{key} {given:?}: {source}: write a list such as 0-1,8")]
    Set {
        /// The setting.
        key: &'static str,
        /// As given.
        given: String,
        /// What is wrong with it.
        source: ParseSetError,
    },
    /// No amounts by node.
    #[error("memory_reserved has {0:?}: write node=bytes, separated by commas, such as 0=1073741824")]
    Memory(String),
    /// More CPUs are to be reserved than there are.
    #[error("{key}: {source}: reserve fewer")]
    Count {
        /// The setting.
        key: &'static str,
        /// How many there are.
        source: NotEnoughCpus,
    },
    /// An amount of CPU to reserve that is none.
    #[error("reserved_cpus has {0:?}: write thousandths of a CPU such as 750m")]
    Amount(String),
}

// === impl RuleSettings ===

impl Default for RuleSettings {
    fn default() -> Self {
        Self {
            reserved_cpus: String::new(),
            reserved_cpu_count: 0,
            interrupt_cpus: String::new(),
            root_cpuset: String::new(),
            cpu_policy: "dynamic".to_owned(),
            topology_policy: "best-effort".to_owned(),
            topology_scope: "container".to_owned(),
            numeric_align: "cpu,memory".to_owned(),
            prefer_closest_numa: false,
            enable_reclaim: false,
            overlap_reclaim: false,
            reclaim_numa_binding: false,
            hint_optimizer: "spreading".to_owned(),
            packing_threshold_percent: 0,
            prefer_existing_numa: false,
            high_numa_first: false,
            native_distribute: false,
            native_full_cores: false,
            memory_reserved: String::new(),
            ramp_up_s: 30,
        }
    }
}

impl RuleSettings {
    fn check(&self) -> Result<(), RulesError> {
        let within = |key, given: u64, low, high, range| {
            if (low..=high).contains(&given) { Ok(()) } else { Err(RulesError::Range { key, given, range }) }
        };
        reserved_amount(self)?;
        interrupt(self)?;
        within("ramp_up_s", self.ramp_up_s, 30, 3600, "30 to 3600")?;
        within("packing_threshold_percent", self.packing_threshold_percent, 0, 100, "0 to 100")
    }
}

/// The rules that these settings make up.
///
/// # Errors
/// The first setting that is out of its range or cannot be understood.
pub fn rules(settings: &RuleSettings) -> Result<Rules, RulesError> {
    settings.check()?;
    let align: Vec<String> = settings.numeric_align.split(',').map(|name| name.trim().to_owned()).collect();
    let root = set("root_cpuset", &settings.root_cpuset)?;
    let word = |key, given: &String, choices| RulesError::Word { key, given: given.clone(), choices };
    Ok(Rules {
        cpu_policy: match settings.cpu_policy.as_str() {
            "dynamic" => CpuPolicy::Dynamic(options(settings)?),
            "native" => CpuPolicy::Native(Native {
                option: if settings.native_distribute {
                    NativeOption::Distributed { group: 1 }
                } else {
                    NativeOption::Packed
                },
                full_cores: settings.native_full_cores,
            }),
            _ => return Err(word("cpu_policy", &settings.cpu_policy, "dynamic, native")),
        },
        topology: Policy::named(&settings.topology_policy, &align)?,
        scope: match settings.topology_scope.as_str() {
            "container" => Scope::Container,
            "pod" => Scope::Pod,
            _ => return Err(word("topology_scope", &settings.topology_scope, "container, pod")),
        },
        prefer_closest: settings.prefer_closest_numa,
        root: Some(root).filter(|root| !root.is_empty()),
        memory_reserved: memory(&settings.memory_reserved)?,
        ramp_up_ms: i64::try_from(settings.ramp_up_s).unwrap_or(i64::MAX / 1000).saturating_mul(1000),
    })
}

/// The CPUs kept for the system.
///
/// # Errors
/// Neither a list nor an amount, or more than there are.
pub fn reserved(settings: &RuleSettings, machine: &Machine) -> Result<CpuSet, RulesError> {
    let (key, count) = match reserved_amount(settings)? {
        Some(amount) => ("reserved_cpus", amount.ceil_cpus()),
        None => {
            let listed = set("reserved_cpus", &settings.reserved_cpus)?;
            if !listed.is_empty() || settings.reserved_cpu_count == 0 {
                return Ok(listed);
            }
            ("reserved_cpu_count", settings.reserved_cpu_count)
        }
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let from = machine.online() - machine.isolated();
    take_by_numa_balance(machine, &from, count, Spread::Cores, End::Lowest)
        .map_err(|source| RulesError::Count { key, source })
}

/// The CPUs that serve interrupts.
///
/// # Errors
/// No list.
pub fn interrupt(settings: &RuleSettings) -> Result<CpuSet, RulesError> {
    set("interrupt_cpus", &settings.interrupt_cpus)
}

/// How much CPU is to be reserved; `None`: it is told by a list, or by a number.
fn reserved_amount(settings: &RuleSettings) -> Result<Option<MilliCpu>, RulesError> {
    let given = settings.reserved_cpus.trim();
    let Some(number) = given.strip_suffix('m') else { return Ok(None) };
    let wrong = || RulesError::Amount(given.to_owned());
    // A sign is no digit.
    let amount = number.bytes().all(|digit| digit.is_ascii_digit()).then(|| number.parse().ok()).flatten();
    amount.map(|amount| Some(MilliCpu(amount))).ok_or_else(wrong)
}

fn options(settings: &RuleSettings) -> Result<Options, RulesError> {
    let threshold = settings.packing_threshold_percent as f64 / 100.0;
    Ok(Options {
        preference: match settings.hint_optimizer.as_str() {
            "spreading" => Preference::Spreading,
            "packing" => Preference::Packing,
            "dynamic_packing" => Preference::DynamicPacking { threshold },
            given => {
                return Err(RulesError::Word {
                    key: "hint_optimizer",
                    given: given.to_owned(),
                    choices: "spreading, packing, dynamic_packing",
                });
            }
        },
        enable_reclaim: settings.enable_reclaim,
        serve_all: true,
        overlap: settings.overlap_reclaim,
        reclaim_numa_binding: settings.reclaim_numa_binding,
        numa_headroom: BTreeMap::new(),
        prefer_existing_numa: settings.prefer_existing_numa,
        high_numa_first: settings.high_numa_first,
        reserved_spare: reserved_amount(settings)?.map_or(MilliCpu(0), |amount| {
            let whole = amount.ceil_cpus().saturating_mul(1000);
            MilliCpu(whole.saturating_sub(amount.0))
        }),
    })
}

fn set(key: &'static str, given: &str) -> Result<CpuSet, RulesError> {
    given.parse().map_err(|source| RulesError::Set { key, given: given.to_owned(), source })
}

fn memory(given: &str) -> Result<BTreeMap<u32, Bytes>, RulesError> {
    let parts = given.split(',').map(str::trim).filter(|part| !part.is_empty());
    let amount = |part: &str| {
        let (node, bytes) = part.split_once('=')?;
        Some((node.trim().parse().ok()?, Bytes(bytes.trim().parse().ok()?)))
    };
    parts.map(|part| amount(part).ok_or_else(|| RulesError::Memory(part.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_rules_defaults() {
        assert_eq!(rules(&RuleSettings::default()).unwrap(), Rules::default());
    }

    #[test]
    fn every_word_is_checked() {
        let wrong = |change: fn(&mut RuleSettings)| {
            let mut settings = RuleSettings::default();
            change(&mut settings);
            rules(&settings).unwrap_err().to_string()
        };
        assert!(wrong(|s| s.cpu_policy = "static".into()).starts_with("cpu_policy"));
        assert!(wrong(|s| s.topology_policy = "strict".into()).starts_with("topology_policy"));
        assert!(wrong(|s| s.topology_scope = "node".into()).starts_with("topology_scope"));
        assert!(wrong(|s| s.hint_optimizer = "best".into()).starts_with("hint_optimizer"));
        assert!(wrong(|s| s.interrupt_cpus = "x".into()).starts_with("interrupt_cpus"));
        assert!(wrong(|s| s.root_cpuset = "x".into()).starts_with("root_cpuset"));
        assert!(wrong(|s| s.memory_reserved = "1GiB".into()).starts_with("memory_reserved"));
        assert!(wrong(|s| s.ramp_up_s = 29).starts_with("ramp_up_s"));
        assert!(wrong(|s| s.packing_threshold_percent = 101).starts_with("packing_threshold_percent"));
    }

    #[test]
    fn reserved_memory_is_told_by_node() {
        let told = memory("0=1024, 3=2048").unwrap();
        assert_eq!(told, [(0, Bytes(1024)), (3, Bytes(2048))].into());
    }

    #[test]
    fn a_list_of_reserved_cpus_counts_before_a_number() {
        let cpu = |id| oxalyst_topology::Cpu { id, core: id, socket: 0, numa: id / 2, l3: None };
        let machine = Machine::from_rows((0..4).map(cpu).collect(), &[]).unwrap();
        let mut settings = RuleSettings { reserved_cpu_count: 2, ..RuleSettings::default() };
        assert_eq!(reserved(&settings, &machine).unwrap().to_string(), "0,2");
        settings.reserved_cpus = "3".into();
        assert_eq!(reserved(&settings, &machine).unwrap().to_string(), "3");
        settings = RuleSettings { reserved_cpu_count: 5, ..RuleSettings::default() };
        assert!(reserved(&settings, &machine).unwrap_err().to_string().starts_with("reserved_cpu_count"));
    }

    #[test]
    fn a09_an_amount_of_reserved_cpu_sets_whole_cpus_aside_and_leaves_the_rest_of_the_last_one() {
        let cpu = |id| oxalyst_topology::Cpu { id, core: id, socket: 0, numa: id / 2, l3: None };
        let machine = Machine::from_rows((0..4).map(cpu).collect(), &[]).unwrap();
        let told = |amount: &str| RuleSettings { reserved_cpus: amount.into(), ..RuleSettings::default() };
        for (amount, cpus, spare) in
            [("0m", "", 0), ("1m", "0", 999), ("750m", "0", 250), ("1000m", "0", 0), ("1750m", "0,2", 250)]
        {
            assert_eq!(reserved(&told(amount), &machine).unwrap().to_string(), cpus, "{amount}");
            let CpuPolicy::Dynamic(options) = rules(&told(amount)).unwrap().cpu_policy else { panic!() };
            assert_eq!(options.reserved_spare, MilliCpu(spare), "{amount}");
        }
        for amount in ["m", "-1m", "+1m", "0.75m", "1 m", "99999999999999999999m"] {
            assert!(matches!(rules(&told(amount)), Err(RulesError::Amount(_))), "{amount}");
        }
        assert!(matches!(
            reserved(&told("4001m"), &machine),
            Err(RulesError::Count { key: "reserved_cpus", .. })
        ));
    }
}
