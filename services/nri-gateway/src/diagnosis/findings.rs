//! From what was seen and heard to what an operator reads: pure.

use oxalyst_nri::runtime_config::millis;
use oxalyst_proto::gateway::v1::Finding;

use super::Heard;
use super::evidence::{AtSocket, Config, Configured, Seen};
use super::runtimes::{of_the_runtime, together};
use crate::hands::Way;
use crate::settings::{Mode, Settings};

/// A runtime's own limit where it is not configured, milliseconds.
const REQUEST_TIMEOUT_MS: u64 = 2_000;

/// What is left between our deadline and the runtime's, milliseconds: a pass over the kernel's files.
const MARGIN_MS: u64 = 500;

/// A plugin that registers while the machine boots needs this long, milliseconds.
const REGISTRATION_MS: u64 = 2_000;

/// Every check, in a fixed order.
pub(crate) fn of(seen: &Seen, heard: &Heard, settings: &Settings, way: Way) -> Vec<Finding> {
    let configs = of_the_runtime(seen, heard);
    vec![
        session(heard, settings, way),
        together("nri-enabled", &configs, |config| enabled(config, settings, way)),
        together("nri-connections", &configs, |config| connections(config, settings, way)),
        together("nri-socket", &configs, |config| socket(config, seen, heard, settings, way)),
        together("nri-timeouts", &configs, |config| timeouts(config, heard, settings)),
        cpu_managers(seen, heard),
        plugins(heard, way),
        tree(seen),
    ]
}

pub(super) fn finding(
    check: &str,
    verdict: &str,
    detail: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding { check: check.into(), verdict: verdict.into(), detail: detail.into(), remedy: remedy.into() }
}

fn session(heard: &Heard, settings: &Settings, way: Way) -> Finding {
    let check = "mode";
    let reason = heard.fault.clone().unwrap_or_else(|| "no session yet".to_owned());
    match (settings.mode, way) {
        (_, Way::Nri) => {
            let runtime = heard.runtime.clone().unwrap_or_default();
            finding(check, "ok", format!("decisions go through {runtime}"), "")
        }
        (Mode::Bypass, Way::Bypass) => {
            finding(check, "ok", "decisions are written to the kernel's files, as mode: bypass says", "")
        }
        (Mode::Bypass, Way::Nobody) => match &heard.others {
            Some(held) => finding(
                check,
                "fault",
                format!("nothing is written: another gateway holds {held}"),
                "stop one of the two",
            ),
            None => finding(check, "unknown", "nothing has been written yet", "ask again"),
        },
        (Mode::Auto, Way::Bypass) => finding(
            check,
            "warning",
            format!("bypass mode is at work: {reason}"),
            "see the checks below; it returns by itself",
        ),
        (_, Way::Nobody | Way::Bypass) => {
            finding(check, "fault", format!("nothing is applied: {reason}"), "see the checks below")
        }
    }
}

/// A fault while it stands in the way; a warning where the session is there all the same (the files may be others').
fn bad(way: Way, settings: &Settings) -> &'static str {
    if way == Way::Nri || settings.mode == Mode::Bypass { "warning" } else { "fault" }
}

pub(super) fn unread(check: &str) -> Finding {
    finding(
        check,
        "unknown",
        "the runtime's configuration cannot be read below common.host_root",
        "mount /etc/containerd or /etc/crio there, read-only, to have it checked",
    )
}

/// Where the configuration was read and not understood, nothing that it says counts.
fn misread(check: &str, from: &str, faults: &[String]) -> Option<Finding> {
    let first = faults.first()?;
    Some(finding(
        check,
        "unknown",
        format!("{from} is not understood: {first:?}"),
        "correct it: the runtime may not start with it",
    ))
}

fn enabled(config: Option<&Config>, settings: &Settings, way: Way) -> Finding {
    let check = "nri-enabled";
    let Some(Config { whose, from, says: config, .. }) = config else { return unread(check) };
    if let Some(misread) = misread(check, from, &config.faults) {
        return misread;
    }
    match (config.enabled, whose) {
        (Some(true), _) => finding(check, "ok", format!("{from} enables NRI"), ""),
        (Some(false), Configured::Containerd) if config.is_unloaded => finding(
            check,
            bad(way, settings),
            format!("{from} disables NRI: disabled_plugins names it, whatever its section says"),
            "remove io.containerd.nri.v1.nri from disabled_plugins and restart containerd",
        ),
        (Some(false), Configured::Containerd) => finding(
            check,
            bad(way, settings),
            format!("{from} disables NRI"),
            "set disable = false in [plugins.'io.containerd.nri.v1.nri'] and restart containerd",
        ),
        (Some(false), Configured::Crio) => finding(
            check,
            bad(way, settings),
            format!("{from} disables NRI"),
            "set enable_nri = true in [crio.nri] and restart CRI-O",
        ),
        (None, Configured::Containerd) if way != Way::Nri => finding(
            check,
            "warning",
            format!("{from} does not say: containerd 1.7 has NRI off, 2.0 and later have it on"),
            "with containerd 1.7, set disable = false in [plugins.\"io.containerd.nri.v1.nri\"]",
        ),
        (None, _) => finding(check, "ok", format!("{from} leaves it at the default"), ""),
    }
}

fn connections(config: Option<&Config>, settings: &Settings, way: Way) -> Finding {
    let check = "nri-connections";
    let Some(Config { whose, from, says: config, .. }) = config else { return unread(check) };
    if let Some(misread) = misread(check, from, &config.faults) {
        return misread;
    }
    if config.connections != Some(false) {
        return finding(check, "ok", format!("{from} lets plugins connect"), "");
    }
    let (key, section) = match whose {
        Configured::Containerd => ("disable_connections", "[plugins.'io.containerd.nri.v1.nri']"),
        Configured::Crio => ("nri_disable_connections", "[crio.nri]"),
    };
    finding(
        check,
        bad(way, settings),
        format!("{from} lets no plugin connect"),
        format!("set {key} = false in {section} and restart the runtime"),
    )
}

fn socket(config: Option<&Config>, seen: &Seen, heard: &Heard, settings: &Settings, way: Way) -> Finding {
    let check = "nri-socket";
    let ours = settings.nri_socket.display().to_string();
    let theirs = config.and_then(|config| Some((&config.from, config.says.socket.as_ref()?)));
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    match theirs {
        // A gateway in a container may see the folder elsewhere; the file's name is the same.
        Some((from, theirs)) if name(theirs) != name(&ours) => finding(
            check,
            bad(way, settings),
            format!("{from} says {theirs}, the gateway looks for {ours}"),
            "set nri_socket to the runtime's path, as the gateway sees it",
        ),
        _ if settings.mode == Mode::Bypass => finding(check, "ok", format!("{ours} is not asked for"), ""),
        _ => at_socket(seen, heard, &ours, way),
    }
}

/// A socket counts as well only where it was seen to take a connection.
fn at_socket(seen: &Seen, heard: &Heard, ours: &str, way: Way) -> Finding {
    let check = "nri-socket";
    let remedy = "enable NRI in the runtime, and mount the folder of its socket into the gateway";
    match (&seen.socket, heard.connects) {
        (Some(AtSocket::Nothing), _) => finding(check, "fault", format!("{ours} is not there"), remedy),
        (Some(AtSocket::Other(what)), _) => finding(
            check,
            "fault",
            format!("{ours} is {what}: nobody can listen there"),
            "remove it, and set nri_socket to the runtime's socket as the gateway sees it",
        ),
        (Some(AtSocket::Socket), Some(true)) => finding(check, "ok", format!("{ours} takes connections"), ""),
        (Some(AtSocket::Socket), _) if way == Way::Nri => {
            finding(check, "ok", format!("{ours} takes connections"), "")
        }
        (Some(AtSocket::Socket), Some(false)) => finding(
            check,
            "fault",
            format!("{ours} is there, and nobody listens"),
            "start the runtime; where it runs, its NRI is off or has another socket",
        ),
        (Some(AtSocket::Socket), None) => finding(
            check,
            "unknown",
            format!("{ours} is there, and no connection was tried yet"),
            "ask again",
        ),
        (Some(AtSocket::Unseen(why)), _) => {
            finding(check, "unknown", format!("{ours} cannot be looked at: {why}"), remedy)
        }
        (None, _) => finding(
            check,
            "unknown",
            format!("{ours}: the host's files did not answer"),
            "look at the host's disks and mounts",
        ),
    }
}

fn timeouts(config: Option<&Config>, heard: &Heard, settings: &Settings) -> Finding {
    let check = "nri-timeouts";
    if let Some((from, first)) =
        config.and_then(|config| Some((&config.from, config.says.misplaced.first()?)))
    {
        return finding(
            check,
            "warning",
            format!("{from}: {first} stands where the runtime does not look for it"),
            "move it into the section of NRI, under the runtime's own name for it (CRI-O's begin with nri_)",
        );
    }
    // None at all is how both write that their default counts.
    let given = |told: &Option<String>| told.as_deref().and_then(millis).filter(|ms| *ms > 0);
    let configured = config.and_then(|config| given(&config.says.request_timeout));
    let request = heard.request_timeout_ms.or(configured).unwrap_or(REQUEST_TIMEOUT_MS);
    let ours = settings.hook_deadline_ms;
    if request < ours + MARGIN_MS {
        return finding(
            check,
            "fault",
            format!(
                "the runtime gives up after {request} ms, and a hook may take {ours} ms and {MARGIN_MS} more"
            ),
            "raise plugin_request_timeout (CRI-O: nri_plugin_request_timeout), or lower hook_deadline_ms",
        );
    }
    // What the runtime itself told of the one says nothing of the other.
    let Some(Config { from, says: config, .. }) = config else {
        return match heard.request_timeout_ms {
            Some(ms) => {
                let known = unread(check);
                let detail = format!("the runtime waits {ms} ms for an answer, as it said; {}", known.detail);
                Finding { detail, ..known }
            }
            None => unread(check),
        };
    };
    if let Some(misread) = misread(check, from, &config.faults) {
        return misread;
    }
    for told in [&config.request_timeout, &config.registration_timeout].into_iter().flatten() {
        if millis(told).is_none() {
            return finding(
                check,
                "unknown",
                format!("{from} says {told:?}, which is no duration"),
                "write it as 5s, 500ms, 1.5s or 1m30s",
            );
        }
    }
    match given(&config.registration_timeout) {
        Some(ms) if ms < REGISTRATION_MS => finding(
            check,
            "warning",
            format!("a plugin has to register within {ms} ms, which a booting machine may miss"),
            "raise plugin_registration_timeout (CRI-O: nri_plugin_registration_timeout) to 5s",
        ),
        _ => finding(
            check,
            "ok",
            format!("the runtime waits {request} ms, a hook takes at most {ours} ms"),
            "",
        ),
    }
}

fn cpu_managers(seen: &Seen, heard: &Heard) -> Finding {
    let check = "cpu-managers";
    let remedy = "set cpuManagerPolicy: none in the kubelet's configuration, remove its cpu_manager_state and restart it";
    let told = seen.kubelet_cpus.as_deref();
    let is_static = told.is_some_and(|policy| !["", "none"].contains(&policy));
    match (is_static, heard.foreign.0) {
        (false, 0) if told == Some("none") => {
            finding(check, "ok", "the kubelet's CPU manager has the policy none", "")
        }
        (false, 0) if told.is_some() => finding(
            check,
            "unknown",
            "nobody else has asked for CPUs so far, and the kubelet's cpu_manager_state names no policy",
            "see cpuManagerPolicy in the kubelet's configuration",
        ),
        (false, 0) => finding(
            check,
            "unknown",
            "nobody else has asked for CPUs so far, and the kubelet's cpu_manager_state cannot be read below common.host_root",
            "mount /var/lib/kubelet/cpu_manager_state there, read-only, to have it checked",
        ),
        (true, 0) => {
            let policy = seen.kubelet_cpus.clone().unwrap_or_default();
            finding(
                check,
                "warning",
                format!("two CPU managers are at work: the kubelet's has the policy {policy}; ours stands"),
                remedy,
            )
        }
        (_, count) => finding(
            check,
            "warning",
            format!(
                "two CPU managers are at work: {count} requests for other CPUs were answered with ours, the last for {}",
                heard.foreign.1
            ),
            remedy,
        ),
    }
}

fn plugins(heard: &Heard, way: Way) -> Finding {
    let check = "nri-plugins";
    match heard.conflicts.0 {
        0 if heard.validated > 0 => {
            let count = heard.validated;
            finding(
                check,
                "ok",
                format!("no other plugin set CPUs of the {count} containers made so far"),
                "",
            )
        }
        0 => finding(
            check,
            "unknown",
            match way {
                Way::Nri => "the runtime has not told yet what other plugins make of a container",
                Way::Nobody | Way::Bypass => "without a session the runtime does not tell what plugins do",
            },
            "runtimes with NRI 0.10 or later tell it when a container is made; others never do",
        ),
        count => finding(
            check,
            "warning",
            format!("{count} containers were adjusted by another plugin, the last: {}", heard.conflicts.1),
            "remove the other plugin, or have it leave CPUs and memory nodes alone",
        ),
    }
}

fn tree(seen: &Seen) -> Finding {
    let check = "cgroup-tree";
    match (&seen.tree, &seen.unwritable) {
        (None, _) => finding(
            check,
            "unknown",
            "the tree of cgroups did not answer",
            "look at the host's disks and mounts",
        ),
        (Some(Err(reason)), _) => {
            finding(check, "fault", reason.clone(), "mount /sys/fs/cgroup below common.host_root")
        }
        (Some(Ok(_)), Some((why, remedy))) => finding(check, "fault", why.clone(), *remedy),
        (Some(Ok((version, roots))), None) => finding(
            check,
            "ok",
            format!("cgroup {version}, pods are looked for below {}", roots.join(" ")),
            "",
        ),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use oxalyst_cgroups::Version;
    use oxalyst_nri::runtime_config::NriConfig;
    use std::collections::BTreeSet;

    pub(in super::super) fn config_of(whose: Configured, from: &str, text: &str) -> Config {
        let mut says = NriConfig::default();
        says.read(text);
        Config { whose, from: from.into(), says, is_alive: false }
    }

    pub(in super::super) fn seen(text: &str) -> Seen {
        Seen {
            socket: Some(AtSocket::Socket),
            unwritable: None,
            configs: vec![config_of(Configured::Containerd, "/etc/containerd/config.toml", text)],
            alive: BTreeSet::new(),
            kubelet_cpus: Some("none".into()),
            tree: Some(Ok((Version::V2, vec!["/".into(), "/kubelet".into()]))),
        }
    }

    pub(in super::super) fn check(name: &str, seen: &Seen, heard: &Heard, way: Way) -> Finding {
        of(seen, heard, &Settings::default(), way).into_iter().find(|f| f.check == name).unwrap()
    }

    pub(in super::super) const SECTION: &str = "[plugins.'io.containerd.nri.v1.nri']\n";

    #[test]
    fn a_node_that_is_well_has_nothing_to_say() {
        let heard = Heard { runtime: Some("containerd v2.2.6".into()), validated: 1, ..Heard::default() };
        let seen = seen(&format!("{SECTION}disable = false\n"));
        for finding in of(&seen, &heard, &Settings::default(), Way::Nri) {
            assert_eq!((finding.verdict.as_str(), finding.remedy.as_str()), ("ok", ""), "{finding:?}");
        }
        assert!(check("cgroup-tree", &seen, &heard, Way::Nri).detail.contains("/kubelet"), "c10");
    }

    #[test]
    fn n12_each_setting_of_the_runtime_that_stands_in_the_way_is_named() {
        let heard = Heard::default();
        for (line, name, remedy) in [
            ("disable = true", "nri-enabled", "disable = false"),
            ("disable_connections = true", "nri-connections", "disable_connections = false"),
            ("socket_path = '/run/other.sock'", "nri-socket", "nri_socket"),
            ("plugin_request_timeout = '500ms'", "nri-timeouts", "plugin_request_timeout"),
        ] {
            let finding = check(name, &seen(&format!("{SECTION}{line}\n")), &heard, Way::Nobody);
            assert_eq!(finding.verdict, "fault", "{finding:?}");
            assert!(finding.remedy.contains(remedy), "{finding:?}");
        }
        let none = Seen { socket: Some(AtSocket::Nothing), configs: Vec::new(), ..seen("") };
        assert_eq!(check("nri-socket", &none, &heard, Way::Nobody).verdict, "fault");
        assert_eq!(check("nri-enabled", &none, &heard, Way::Nobody).verdict, "unknown");
    }

    #[test]
    fn what_is_not_known_is_never_ok() {
        let heard = Heard { connects: Some(true), ..Heard::default() };
        let nothing = Seen::default();
        for finding in of(&nothing, &heard, &Settings::default(), Way::Nri).iter().skip(1) {
            assert_eq!(finding.verdict, "unknown", "{finding:?}");
        }
        let misread = seen(&format!("{SECTION}disable = false\nplugin_request_timeout\n"));
        for name in ["nri-enabled", "nri-connections", "nri-timeouts"] {
            let finding = check(name, &misread, &heard, Way::Nri);
            assert!(finding.verdict == "unknown" && finding.detail.contains("not understood"), "{finding:?}");
        }
        let told = Heard { request_timeout_ms: Some(2_000), ..heard.clone() };
        let finding = check("nri-timeouts", &nothing, &told, Way::Nri);
        assert!(finding.verdict == "unknown" && finding.detail.contains("2000 ms"), "{finding:?}");
        let odd = seen(&format!("{SECTION}plugin_registration_timeout = 'soon'\n"));
        assert_eq!(check("nri-timeouts", &odd, &heard, Way::Nri).verdict, "unknown");
    }

    #[test]
    fn n12_a_socket_is_well_only_where_it_took_a_connection() {
        let verdict = |socket: AtSocket, connects: Option<bool>, way: Way| {
            let seen = Seen { socket: Some(socket), ..seen("") };
            check("nri-socket", &seen, &Heard { connects, ..Heard::default() }, way).verdict
        };
        for what in ["a plain file", "a folder"] {
            assert_eq!(verdict(AtSocket::Other(what), Some(false), Way::Nobody), "fault");
        }
        assert_eq!(verdict(AtSocket::Socket, Some(false), Way::Nobody), "fault", "nobody listens");
        assert_eq!(verdict(AtSocket::Socket, None, Way::Nobody), "unknown");
        assert_eq!(verdict(AtSocket::Socket, Some(true), Way::Nobody), "ok");
        assert_eq!(verdict(AtSocket::Unseen("refused".into()), None, Way::Nobody), "unknown");
    }

    #[test]
    fn c07_a_tree_that_takes_nothing_is_a_fault() {
        let told =
            ("/sys/fs/cgroup cannot be written: Read-only file system".to_owned(), "mount it writable");
        let seen = Seen { unwritable: Some(told), ..seen("") };
        let finding = check("cgroup-tree", &seen, &Heard::default(), Way::Nri);
        assert!(finding.verdict == "fault" && finding.detail.contains("Read-only"), "{finding:?}");
    }

    #[test]
    fn n22_a_timeout_in_the_wrong_place_is_named() {
        let misplaced = seen("[plugins.cri]\nplugin_request_timeout = '10s'\n");
        let finding = check("nri-timeouts", &misplaced, &Heard::default(), Way::Nri);
        assert!(finding.verdict == "warning" && finding.detail.contains("[plugins.cri]"), "{finding:?}");
    }

    #[test]
    fn two_cpu_managers_are_told_by_the_kubelets_file_and_by_what_it_asks() {
        let kubelet = Seen { kubelet_cpus: Some("static".into()), ..seen("") };
        let finding = check("cpu-managers", &kubelet, &Heard::default(), Way::Nri);
        assert!(finding.verdict == "warning" && finding.detail.contains("static"), "{finding:?}");
        let heard = Heard { foreign: (3, "CPUs 1 for container c".into()), ..Heard::default() };
        let finding = check("cpu-managers", &seen(""), &heard, Way::Nri);
        assert!(finding.detail.contains("two CPU managers") && finding.detail.contains("container c"));
    }

    #[test]
    fn k6_bypass_is_a_warning_in_auto_and_as_it_should_be_in_bypass() {
        let heard = Heard { fault: Some("cannot connect".into()), ..Heard::default() };
        let finding = check("mode", &seen(""), &heard, Way::Bypass);
        assert!(finding.verdict == "warning" && finding.detail.contains("cannot connect"));
        let settings = Settings { mode: Mode::Bypass, ..Settings::default() };
        assert_eq!(of(&seen(""), &heard, &settings, Way::Bypass)[0].verdict, "ok");
        assert_eq!(of(&seen(""), &heard, &settings, Way::Nobody)[0].verdict, "unknown");
        let heard = Heard { others: Some("/sys/fs/cgroup".into()), ..heard };
        let held = of(&seen(""), &heard, &settings, Way::Nobody).remove(0);
        assert!(held.verdict == "fault" && held.detail.contains("another gateway holds /sys/fs/cgroup"));
    }

    #[test]
    fn a_plugin_that_is_not_loaded_has_its_own_remedy() {
        let text = format!("disabled_plugins = ['io.containerd.nri.v1.nri']\n{SECTION}disable = false\n");
        let found = check("nri-enabled", &seen(&text), &Heard::default(), Way::Nobody);
        assert!(found.verdict == "fault" && found.remedy.contains("disabled_plugins"), "{found:?}");
    }

    #[test]
    fn a_kubelet_that_names_no_policy_is_not_known_and_no_timeout_is_the_default() {
        let kubelet = Seen { kubelet_cpus: Some(String::new()), ..seen("") };
        let found = check("cpu-managers", &kubelet, &Heard::default(), Way::Nri);
        assert!(found.verdict == "unknown" && found.detail.contains("names no policy"), "{found:?}");
        let none = seen(&format!("{SECTION}plugin_request_timeout = '0s'\n"));
        let found = check("nri-timeouts", &none, &Heard::default(), Way::Nri);
        assert!(found.verdict == "ok" && found.detail.contains("2000 ms"), "{found:?}");
    }
}
