//! Which of the configurations on a host is that of the node's runtime, and what they say together: pure.

use oxalyst_proto::gateway::v1::Finding;

use super::Heard;
use super::evidence::{Config, Configured, Seen};
use super::findings::{finding, unread};

/// The configurations of the runtime that said its name, or whose socket alone is there; all, where nothing shows whose count.
pub(super) fn of_the_runtime<'a>(seen: &'a Seen, heard: &Heard) -> Vec<&'a Config> {
    let name = heard.runtime.as_deref().unwrap_or_default();
    let names =
        [("containerd", Configured::Containerd), ("cri-o", Configured::Crio), ("crio", Configured::Crio)];
    let said = names.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, whose)| *whose);
    let only = || seen.alive.first().copied().filter(|_| seen.alive.len() == 1);
    let whose = said.or_else(only);
    let of_it = seen.configs.iter().filter(|config| whose.is_none_or(|whose| whose == config.whose));
    let all: Vec<&Config> = of_it.collect();
    let alive: Vec<&Config> = all.iter().copied().filter(|config| config.is_alive).collect();
    if alive.is_empty() { all } else { alive }
}

/// How grave a verdict is.
fn weight(verdict: &str) -> usize {
    ["ok", "unknown", "warning", "fault"].iter().position(|of_set| *of_set == verdict).unwrap_or_default()
}

/// What a check finds in each configuration, in one. Where there are several, one of them is not the node's runtime's: what not all
/// find is no fault for certain.
pub(super) fn together(
    check: &str,
    configs: &[&Config],
    find: impl Fn(Option<&Config>) -> Finding,
) -> Finding {
    let found: Vec<Finding> = match configs {
        [] => vec![find(None)],
        several => several.iter().map(|config| find(Some(config))).collect(),
    };
    let Some(gravest) = found.iter().max_by_key(|finding| weight(&finding.verdict)).cloned() else {
        return unread(check);
    };
    if found.iter().all(|finding| finding.detail == gravest.detail) {
        return gravest;
    }
    let named = configs.iter().zip(&found).map(|(config, found)| match found.detail.contains(&config.from) {
        true => found.detail.clone(),
        false => format!("{}: {}", config.from, found.detail),
    });
    let detail = named.collect::<Vec<_>>().join("; ");
    if found.iter().all(|finding| finding.verdict == gravest.verdict) {
        return Finding { detail, ..gravest };
    }
    let verdict = if gravest.verdict == "fault" { "warning" } else { &gravest.verdict };
    let detail = format!("{detail}; which of them is the node's runtime's is not known");
    finding(check, verdict, detail, gravest.remedy.clone())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::findings::tests::{SECTION, check, config_of, seen};
    use super::*;
    use crate::hands::Way;

    /// Docker's containerd beside CRI-O.
    fn both(crio: &str) -> Seen {
        let crio = config_of(Configured::Crio, "/etc/crio/crio.conf", crio);
        let docker = seen("disabled_plugins = ['cri']\n").configs.remove(0);
        Seen { configs: vec![docker, crio], ..seen("") }
    }

    #[test]
    fn of_two_runtimes_the_one_that_said_its_name_is_judged() {
        let off = both("[crio.nri]\nenable_nri = false\n");
        let heard = |name: &str| Heard { runtime: Some(name.into()), ..Heard::default() };
        let found = check("nri-enabled", &off, &heard("cri-o 1.33.0"), Way::Nobody);
        assert!(found.verdict == "fault" && found.remedy.contains("[crio.nri]"), "{found:?}");
        assert!(!found.detail.contains("containerd"), "{found:?}");
        let found = check("nri-enabled", &off, &heard("containerd v2.1.9"), Way::Nobody);
        assert!(found.verdict == "warning" && !found.detail.contains("crio"), "{found:?}");
        let late = both("[crio.nri]\nnri_plugin_request_timeout = '100us'\n");
        assert_eq!(check("nri-timeouts", &late, &heard("cri-o 1.33.0"), Way::Nri).verdict, "fault");
        // A name whose configuration is not there: another's says nothing of it.
        let found = check("nri-enabled", &seen(SECTION), &heard("cri-o 1.33.0"), Way::Nri);
        assert_eq!(found.verdict, "unknown");
    }

    #[test]
    fn of_two_runtimes_the_one_whose_socket_is_there_is_judged_and_else_both_are_told() {
        let on = both("[crio.nri]\nenable_nri = true\n");
        let found = check("nri-enabled", &on, &Heard::default(), Way::Nobody);
        assert_eq!(found.verdict, "warning", "{found:?}");
        for part in
            ["/etc/containerd/config.toml does not say", "/etc/crio/crio.conf enables NRI", "not known"]
        {
            assert!(found.detail.contains(part), "{found:?}");
        }
        let alive = BTreeSet::from([Configured::Crio]);
        let found = check("nri-enabled", &Seen { alive, ..on.clone() }, &Heard::default(), Way::Nobody);
        assert_eq!(
            (found.verdict.as_str(), found.detail.as_str()),
            ("ok", "/etc/crio/crio.conf enables NRI")
        );
        // Of k3s's containerd and Docker's, the one that runs.
        let mut two = seen("disabled_plugins = ['io.containerd.nri.v1.nri']\n");
        let k3s =
            config_of(Configured::Containerd, "/k3s/config.toml", &format!("{SECTION}disable = false\n"));
        two.configs.push(Config { is_alive: true, ..k3s });
        assert_eq!(check("nri-enabled", &two, &Heard::default(), Way::Nobody).verdict, "ok");
        // One that is off for certain is not the node's for certain.
        let off = both("[crio.nri]\nnri_disable_connections = true\n");
        let found = check("nri-connections", &off, &Heard::default(), Way::Nobody);
        assert!(found.verdict == "warning" && found.remedy.contains("nri_disable_connections"), "{found:?}");
        let found = check("nri-timeouts", &both(""), &Heard::default(), Way::Nobody);
        assert!(found.verdict == "ok" && !found.detail.contains("/etc"), "both alike: {found:?}");
        let late = both("[crio.nri]\nnri_plugin_request_timeout = '1ms'\n");
        let found = check("nri-timeouts", &late, &Heard::default(), Way::Nobody);
        assert!(found.detail.contains("/etc/crio/crio.conf: the runtime gives up after 1 ms"), "{found:?}");
    }
}
