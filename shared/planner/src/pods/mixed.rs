//! Pods that another policy than the one that there is has placed: the policy was changed while they ran. They keep what they have
//! until they end.

use super::{Pod, PolicyName, Rules, State};
use crate::{plan::Flag, policy::Container};
use oxalyst_qos::QosLevel;
use std::sync::Arc;

/// What gives out CPUs in this state, in one word: the policy's name, or `mixed` as long as there are pods that the other one placed.
pub fn policy_in_force(state: &State, rules: &Rules) -> String {
    match of_other_policy(state) {
        0 => rules.policy_name().to_string(),
        _ => "mixed".to_owned(),
    }
}

/// How many pods the other policy has placed.
pub fn of_other_policy(state: &State) -> usize {
    state.pods.of_kind(|pod| pod.flags.contains(&Flag::OtherPolicy)).count()
}

/// Flags the pods that the other policy has placed, of those that are flagged by nobody yet: the flag is in no record. Node agents are
/// placed the same by both.
pub(super) fn mark(state: &mut State, rules: &Rules) {
    let now = rules.policy_name();
    let who = |pod: &Arc<Pod>| Some((pod.uid.clone(), placed_under(state, pod)?));
    let others: Vec<(String, PolicyName)> =
        state.pods.values().filter_map(who).filter(|(_, policy)| *policy != now).collect();
    for (uid, policy) in others {
        state.change_pod(&uid, |pod| {
            pod.placed_under = Some(policy);
            if !pod.node_agent {
                pod.flags.insert(Flag::OtherPolicy);
            }
        });
    }
}

/// Who placed the pod, as far as that can be told. Records of earlier versions do not say so, but only the native policy gives CPUs
/// of their own to pods that are not dedicated, and only the dynamic one has pools other than the shared one.
fn placed_under(state: &State, pod: &Pod) -> Option<PolicyName> {
    pod.placed_under.or_else(|| {
        let entries: Vec<_> = state.cpus.of_pod(&pod.uid).map(|(_, own)| own).collect();
        let is = |which: fn(&Container) -> bool| entries.iter().any(|own| which(own));
        if is(|own| own.qos == QosLevel::Dedicated) && pod.qos != QosLevel::Dedicated {
            Some(PolicyName::Native)
        } else if is(|own| matches!(own.qos, QosLevel::Reclaimed | QosLevel::System))
            || is(|own| own.is_bound_shared())
        {
            Some(PolicyName::Dynamic)
        } else {
            None
        }
    })
}
