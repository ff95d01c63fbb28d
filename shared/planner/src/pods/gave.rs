//! Plugins give something to a pod that has its place already: what they were asked later than its admission, or what a resize
//! changes.

use super::{
    Plan, PluginAllocation, Plugins, Refusal, Request, Resize, Rules, State, Trace, plan_traced, refuse,
};
use crate::plan::{Flag, Reason, Rule};
use oxalyst_topology::Machine;
use std::{collections::BTreeSet, sync::Arc};

/// What plugins gave a pod that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginsGave {
    /// Pod uid.
    pub uid: String,
    /// What they said and gave. Takes the place of what the same plugin gave the same container before.
    pub plugins: Plugins,
    /// Whether the pod has all that it asks of plugins.
    pub whole: bool,
    /// The container that is resized with it.
    pub resize: Option<Resize>,
}

/// What plugins gave is the pod's from now on. Hints move nobody: they were heard after its CPUs had been decided.
///
/// # Errors
/// The pod is not known, or the resize is refused. Nothing changes then.
pub fn take_gave(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    gave: &PluginsGave,
) -> Result<Plan, Refusal> {
    take_gave_traced(state, machine, rules, gave, &mut Trace::off())
}

/// As [`take_gave`], and notes in `trace` what was weighed.
///
/// # Errors
/// As [`take_gave`].
pub fn take_gave_traced(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    gave: &PluginsGave,
    trace: &mut Trace,
) -> Result<Plan, Refusal> {
    let mut after = match &gave.resize {
        Some(resize) => plan_traced(state, machine, rules, &Request::Resize(resize.clone()), trace)?.after,
        None => state.clone(),
    };
    for (container, provider) in &gave.plugins.hints {
        trace.weighed(Some(container), std::slice::from_ref(provider));
    }
    let Some(known) = after.pods.get(&gave.uid) else {
        let message = format!("pod {} is not known: what plugins gave it is theirs again", gave.uid);
        return Err(refuse(Reason::Invalid, Rule::Named, message));
    };
    let mut pod = known.as_ref().clone();
    for (container, given) in &gave.plugins.given {
        if pod.container(container).is_none() {
            continue;
        }
        let anew: BTreeSet<&String> = given.iter().map(|given| &given.plugin).collect();
        let all = pod.given.entry(container.clone()).or_default();
        all.retain(|before| !anew.contains(&before.plugin));
        all.extend(given.iter().cloned());
        let order = |of: &PluginAllocation| (of.resource.clone(), of.plugin.clone());
        all.sort_by_key(order);
    }
    if gave.whole {
        pod.flags.remove(&Flag::PluginsUnasked);
    }
    if *known.as_ref() != pod {
        after.pods.insert(gave.uid.clone(), Arc::new(pod));
    }
    Ok(Plan::between(state, after, &rules.confine(machine)))
}
