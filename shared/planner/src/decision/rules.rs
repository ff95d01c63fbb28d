//! Rules as a message.

use super::SnapshotError;
use crate::{
    plan::NativeOption,
    pods::{CpuPolicy, Native, Rules},
    policy::{Options, Preference},
    topology_manager::{Policy, Scope},
};
use oxalyst_proto::orm::v1::{DynamicRules, NativeRules, RulesSnapshot, rules_snapshot};
use oxalyst_units::{Bytes, MilliCpu};

const CONTAINER: &str = "container";
const POD: &str = "pod";

pub(super) fn encode(rules: &Rules) -> RulesSnapshot {
    // Named one by one, so that a rule that is added cannot be left out of a recording.
    let Rules { cpu_policy, topology, scope, prefer_closest, root, memory_reserved, ramp_up_ms } = rules;
    RulesSnapshot {
        cpu_policy: Some(match cpu_policy {
            CpuPolicy::Dynamic(options) => rules_snapshot::CpuPolicy::Dynamic(encode_options(options)),
            CpuPolicy::Native(Native { option, full_cores }) => {
                rules_snapshot::CpuPolicy::Native(NativeRules {
                    distributed_group: match option {
                        NativeOption::Packed => None,
                        NativeOption::Distributed { group } => Some(*group as u64),
                    },
                    full_cores: *full_cores,
                })
            }
        }),
        topology_policy: topology.name().to_owned(),
        numeric_align: match topology {
            Policy::Numeric { align } => align.clone(),
            _ => Vec::new(),
        },
        topology_scope: scope_name(*scope).to_owned(),
        prefer_closest: *prefer_closest,
        root: root.as_ref().map(ToString::to_string),
        memory_reserved: memory_reserved.iter().map(|(node, bytes)| (*node, bytes.0)).collect(),
        ramp_up_ms: *ramp_up_ms,
    }
}

pub(super) const fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::Container => CONTAINER,
        Scope::Pod => POD,
    }
}

pub(super) const fn policy_name(policy: &CpuPolicy) -> &'static str {
    match policy {
        CpuPolicy::Dynamic(_) => "dynamic",
        CpuPolicy::Native(_) => "native",
    }
}

fn encode_options(options: &Options) -> DynamicRules {
    let Options {
        preference,
        enable_reclaim,
        serve_all,
        overlap,
        reclaim_numa_binding,
        numa_headroom,
        prefer_existing_numa,
        high_numa_first,
        reserved_spare,
    } = options;
    let (word, threshold) = match preference {
        Preference::Spreading => ("spreading", 0.0),
        Preference::Packing => ("packing", 0.0),
        Preference::DynamicPacking { threshold } => ("dynamic_packing", *threshold),
    };
    DynamicRules {
        preference: word.to_owned(),
        packing_threshold: threshold,
        enable_reclaim: *enable_reclaim,
        serve_all: *serve_all,
        overlap: *overlap,
        reclaim_numa_binding: *reclaim_numa_binding,
        numa_headroom: numa_headroom.iter().map(|(node, milli)| (*node, milli.0)).collect(),
        prefer_existing_numa: *prefer_existing_numa,
        high_numa_first: *high_numa_first,
        reserved_spare: reserved_spare.0,
    }
}

pub(super) fn decode(message: &RulesSnapshot) -> Result<Rules, SnapshotError> {
    let unknown = |what: &'static str, word: &str| SnapshotError::Word { what, word: word.to_owned() };
    let cpu_policy = match &message.cpu_policy {
        Some(rules_snapshot::CpuPolicy::Dynamic(rules)) => CpuPolicy::Dynamic(decode_options(rules)?),
        Some(rules_snapshot::CpuPolicy::Native(rules)) => CpuPolicy::Native(Native {
            option: match rules.distributed_group {
                None => NativeOption::Packed,
                Some(group) => {
                    NativeOption::Distributed { group: usize::try_from(group).unwrap_or(usize::MAX) }
                }
            },
            full_cores: rules.full_cores,
        }),
        None => return Err(unknown("CPU policy", "")),
    };
    Ok(Rules {
        cpu_policy,
        topology: Policy::named(&message.topology_policy, &message.numeric_align)
            .map_err(|error| unknown("topology policy", &error.name))?,
        scope: match message.topology_scope.as_str() {
            CONTAINER => Scope::Container,
            POD => Scope::Pod,
            word => return Err(unknown("topology scope", word)),
        },
        prefer_closest: message.prefer_closest,
        root: message.root.as_ref().map(|root| root.parse()).transpose()?,
        memory_reserved: message.memory_reserved.iter().map(|(node, bytes)| (*node, Bytes(*bytes))).collect(),
        ramp_up_ms: message.ramp_up_ms,
    })
}

fn decode_options(message: &DynamicRules) -> Result<Options, SnapshotError> {
    Ok(Options {
        preference: match message.preference.as_str() {
            "spreading" => Preference::Spreading,
            "packing" => Preference::Packing,
            "dynamic_packing" => Preference::DynamicPacking { threshold: message.packing_threshold },
            word => return Err(SnapshotError::Word { what: "preference", word: word.to_owned() }),
        },
        enable_reclaim: message.enable_reclaim,
        serve_all: message.serve_all,
        overlap: message.overlap,
        reclaim_numa_binding: message.reclaim_numa_binding,
        numa_headroom: message.numa_headroom.iter().map(|(node, milli)| (*node, MilliCpu(*milli))).collect(),
        prefer_existing_numa: message.prefer_existing_numa,
        high_numa_first: message.high_numa_first,
        reserved_spare: MilliCpu(message.reserved_spare),
    })
}
