//! Wishes by default that no pod could have together, or that this machine cannot serve: told at the start, and not by each pod
//! that is refused or placed otherwise for them.

use std::collections::BTreeMap;

use oxalyst_planner::policy::{INTERRUPT, Wishes};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Machine, NumaMask};

use super::words::{PREFIX, list, pair, wrong};
use super::{Settings, SettingsError};

const KEY: &str = "enhancement_defaults";

/// The wishes of a level, by short name.
type OfLevel<'a> = BTreeMap<&'a str, &'a str>;

/// Checks what follows from the settings alone.
pub(super) fn check(settings: &Settings) -> Result<(), SettingsError> {
    for (level, wishes) in by_level(&settings.enhancement_defaults)? {
        let fault = together(level, &wishes).or_else(|| pool(level, &wishes, settings));
        if let Some((key, fault)) = fault {
            return Err(told(level, key, &wishes, fault));
        }
    }
    Ok(())
}

/// Checks the NUMA nodes that are wished for against the machine.
pub(super) fn check_on(settings: &Settings, machine: &Machine) -> Result<(), SettingsError> {
    for (level, own) in by_level(&settings.enhancement_defaults)? {
        let wishes: Wishes =
            own.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let known: NumaMask = machine.nodes().iter().map(|node| node.id).collect();
        let before = wishes.numa_bind_result().ok().flatten().filter(|nodes| !nodes.is_subset(&known));
        let fault = match (wishes.numa_ids(machine), wishes.numa_number(machine), before) {
            (Err(refusal), _, _) => ("numa_ids", refusal.to_string()),
            (_, Err(refusal), _) => ("numa_number", refusal.to_string()),
            (_, _, Some(nodes)) => {
                ("numa_bind_result", format!("it names {nodes}, the machine has the NUMA nodes {known}"))
            }
            _ => continue,
        };
        return Err(told(level, fault.0, &own, format!("{}: name what this machine has", fault.1)));
    }
    Ok(())
}

fn told(level: QosLevel, key: &str, wishes: &OfLevel<'_>, fault: String) -> SettingsError {
    let value = wishes.get(key).copied().unwrap_or_default();
    wrong(KEY, &format!("{level}:{key}={value}"), fault)
}

/// The form of each is checked elsewhere.
fn by_level(text: &str) -> Result<BTreeMap<QosLevel, OfLevel<'_>>, SettingsError> {
    let mut levels: BTreeMap<QosLevel, OfLevel<'_>> = BTreeMap::new();
    for given in list(text) {
        let level = given.split_once(':').and_then(|(level, _)| level.trim().parse().ok());
        let (Some(level), Some((key, value))) = (level, pair(given)) else { continue };
        let short = key.strip_prefix(PREFIX).unwrap_or(key);
        if levels.entry(level).or_default().insert(short, value).is_some() {
            return Err(wrong(KEY, given, format!("{level} has {short} twice: keep one of them")));
        }
    }
    Ok(levels)
}

/// The wish that cannot be beside the others, and why.
fn together(level: QosLevel, wishes: &OfLevel<'_>) -> Option<(&'static str, String)> {
    let is = |key: &str| wishes.get(key) == Some(&"true");
    if is("numa_exclusive") {
        if !is("numa_binding") {
            let fault = format!(
                "it means nothing without numa_binding: add {level}:numa_binding=true, or leave it out"
            );
            return Some(("numa_exclusive", fault));
        }
        let other = ["distribute_evenly_across_numa", "full_pcpus_pairing"].into_iter().find(|key| is(key));
        if let Some(other) = other {
            let fault = format!(
                "it takes all CPUs of its NUMA nodes, which {other}=true contradicts: keep one of them"
            );
            return Some(("numa_exclusive", fault));
        }
    }
    let ids = wishes.get("numa_ids").and_then(|text| text.parse::<NumaMask>().ok());
    if ids.as_ref().is_some_and(NumaMask::is_empty) {
        return Some(("numa_ids", "it names no NUMA node: name some, or leave it out".to_owned()));
    }
    let number = wishes.get("numa_number").and_then(|text| text.parse::<usize>().ok());
    match (number, ids) {
        (Some(0), _) => {
            Some(("numa_number", "it must be 1 or more: leave it out for as many as needed".to_owned()))
        }
        (Some(number), Some(ids)) if ids.len() != number => {
            let fault = format!("numa_ids names {} NUMA node(s) ({ids}): keep one of them", ids.len());
            Some(("numa_number", fault))
        }
        _ => None,
    }
}

/// A pool that pods of this level cannot run in.
fn pool(level: QosLevel, wishes: &OfLevel<'_>, settings: &Settings) -> Option<(&'static str, String)> {
    let name = *wishes.get("cpuset_pool")?;
    let none = match level {
        QosLevel::Shared => {
            let wishes: Wishes = [("cpuset_pool".to_owned(), name.to_owned())].into_iter().collect();
            wishes.shared_pool().is_none().then_some(
                "no pool of shared pods can have this name: write letters, digits, -, _ and ., 63 at the most, and no name that \
                 the allocator uses itself",
            )
        }
        QosLevel::System if name == INTERRUPT => {
            settings.interrupt_cpus.trim().is_empty().then_some("this pool has no CPU: set interrupt_cpus")
        }
        _ => None,
    };
    none.map(|fault| ("cpuset_pool", fault.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_topology::Cpu;

    fn of(defaults: &str) -> Settings {
        Settings { enhancement_defaults: defaults.into(), ..Settings::default() }
    }

    fn fault(defaults: &str) -> String {
        of(defaults).check().unwrap_err().to_string()
    }

    #[test]
    fn defaults_that_contradict_each_other_are_refused_with_what_to_do() {
        for (defaults, words) in [
            ("numa_exclusive=true", "add dedicated_cores:numa_binding=true"),
            ("numa_binding=false,dedicated_cores:numa_exclusive=true", "means nothing without numa_binding"),
            (
                "numa_binding=true,dedicated_cores:numa_exclusive=true,dedicated_cores:full_pcpus_pairing=true",
                "full_pcpus_pairing=true contradicts",
            ),
            ("numa_ids=0-1,dedicated_cores:numa_number=3", "numa_ids names 2 NUMA node(s) (0-1)"),
            ("numa_ids=", "names no NUMA node"),
            ("numa_number=0", "must be 1 or more"),
            ("numa_number=1,dedicated_cores:katalyst.kubewharf.io/numa_number=2", "has numa_number twice"),
        ] {
            let said = fault(&format!("dedicated_cores:{defaults}"));
            assert!(
                said.starts_with("settings of orm: enhancement_defaults has \"dedicated_cores:"),
                "{said}"
            );
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn what_contradicts_only_across_levels_is_taken() {
        of("shared_cores:numa_ids=0-1,dedicated_cores:numa_number=3").check().unwrap();
        of("dedicated_cores:numa_binding=true,dedicated_cores:numa_exclusive=true").check().unwrap();
        of("dedicated_cores:numa_ids=0-1,dedicated_cores:numa_number=2").check().unwrap();
    }

    #[test]
    fn a_pool_that_cannot_be_is_refused() {
        assert!(fault("shared_cores:cpuset_pool=reclaim").contains("no pool of shared pods"));
        assert!(fault("system_cores:cpuset_pool=interrupt").contains("set interrupt_cpus"));
        let settings = Settings { interrupt_cpus: "0".into(), ..of("system_cores:cpuset_pool=interrupt") };
        settings.check().unwrap();
        of("shared_cores:cpuset_pool=batch").check().unwrap();
    }

    #[test]
    fn nodes_that_the_machine_does_not_have_are_refused_on_it() {
        let cpu = |id| Cpu { id, core: id, socket: 0, numa: id / 2, l3: None };
        let machine = Machine::from_rows((0..4).map(cpu).collect(), &[]).unwrap();
        for (default, words) in [
            ("numa_number=3", "3 NUMA nodes, the machine has 2"),
            ("numa_ids=2", "numa_ids names 2, the machine has the NUMA nodes 0-1"),
            ("numa_bind_result=1-2", "it names 1-2"),
        ] {
            let settings = of(&format!("dedicated_cores:{default}"));
            settings.check().unwrap();
            let said = settings.check_on(&machine).unwrap_err().to_string();
            assert!(said.contains(default) && said.contains(words), "{said}");
            assert!(said.ends_with("name what this machine has"), "{said}");
        }
        of("dedicated_cores:numa_number=2,dedicated_cores:numa_ids=0-1").check_on(&machine).unwrap();
    }
}
