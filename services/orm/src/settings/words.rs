//! Texts that can be read and would mean nothing: told at the start, not found out from pods that are placed otherwise.

use std::collections::BTreeSet;

use oxalyst_topology::NumaMask;

use super::{Settings, SettingsError};
use crate::specs::ResourceNames;

/// Wishes that are `true` or `false`.
const SWITCHES: [&str; 6] = [
    "numa_binding",
    "numa_exclusive",
    "align_by_socket",
    "distribute_evenly_across_numa",
    "full_pcpus_pairing",
    "numa_share",
];
/// Prefix that names of wishes may have.
pub(super) const PREFIX: &str = "katalyst.kubewharf.io/";

/// Checks what the rules of placement and of reading take as it stands.
pub(super) fn check(settings: &Settings) -> Result<(), SettingsError> {
    if settings.ledger_dir.as_os_str().is_empty() {
        return Err(wrong("ledger_dir", "", "name a folder"));
    }
    if settings.import_katalyst_dir.as_ref().is_some_and(|dir| dir.as_os_str().is_empty()) {
        return Err(wrong("import_katalyst_dir", "", "name a folder, or leave it out"));
    }
    aligned(settings)?;
    memory_nodes(&settings.memory_reserved)?;
    list(&settings.qos_selectors).try_for_each(selector)?;
    list(&settings.enhancement_defaults).try_for_each(wish)?;
    let key = "pod_annotation_kept_keys";
    list(&settings.pod_annotation_kept_keys).try_for_each(|given| annotation(key, given, given))?;
    let key = "pod_label_kept_keys";
    list(&settings.pod_label_kept_keys).try_for_each(|given| label(key, given))
}

pub(super) fn wrong(key: &'static str, given: &str, fault: impl Into<String>) -> SettingsError {
    SettingsError::Word { key, given: given.to_owned(), fault: fault.into() }
}

pub(super) fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// Each name once, and each one that something may be called: CPUs, memory, or a resource of a plugin, which has a domain or stands
/// among the other names of resources.
fn aligned(settings: &Settings) -> Result<(), SettingsError> {
    let key = "numeric_align";
    let names = ResourceNames::parse(&settings.orm_resource_names_map).unwrap_or_default();
    let mut seen = BTreeSet::new();
    for name in settings.numeric_align.split(',').map(str::trim) {
        if !["cpu", "memory"].contains(&name) && !name.contains('/') && !names.means(name) {
            let fault = "write cpu, memory or the names of plugins' resources, separated by commas";
            return Err(wrong(key, name, fault));
        }
        if !seen.insert(name) {
            return Err(wrong(key, name, "name it once"));
        }
    }
    Ok(())
}

fn memory_nodes(text: &str) -> Result<(), SettingsError> {
    let node = |part: &str| part.split_once('=')?.0.trim().parse::<u32>().ok();
    let mut seen = BTreeSet::new();
    for (part, node) in list(text).filter_map(|part| Some((part, node(part)?))) {
        if !seen.insert(node) {
            return Err(wrong("memory_reserved", part, format!("NUMA node {node} is named twice")));
        }
    }
    Ok(())
}

fn selector(given: &str) -> Result<(), SettingsError> {
    let Some((key, value)) = pair(given) else { return Ok(()) };
    if value.is_empty() {
        return Err(wrong("qos_selectors", given, "the annotation's value is missing"));
    }
    annotation("qos_selectors", given, key)
}

fn wish(given: &str) -> Result<(), SettingsError> {
    let Some((key, value)) = pair(given) else { return Ok(()) };
    let fault = match key.strip_prefix(PREFIX).unwrap_or(key) {
        switch if SWITCHES.contains(&switch) => {
            (!["true", "false"].contains(&value)).then_some("its value must be true or false")
        }
        "numa_number" => value.parse::<u32>().is_err().then_some("its value must be a number of NUMA nodes"),
        "numa_ids" | "numa_bind_result" => {
            value.parse::<NumaMask>().is_err().then_some("its value must be a list of NUMA nodes such as 0-1")
        }
        "cpuset_pool" => value.is_empty().then_some("its value must be the name of a pool"),
        _ => Some(
            "no such wish is known: numa_binding, numa_exclusive, align_by_socket, distribute_evenly_across_numa, \
             full_pcpus_pairing, numa_share, numa_number, numa_ids, numa_bind_result and cpuset_pool are",
        ),
    };
    fault.map_or(Ok(()), |fault| Err(wrong("enhancement_defaults", given, fault)))
}

/// Key and value of `level:key=value`, the form of which is checked elsewhere.
pub(super) fn pair(given: &str) -> Option<(&str, &str)> {
    let (key, value) = given.split_once(':')?.1.split_once('=')?;
    Some((key.trim(), value.trim()))
}

/// An annotation's key.
fn annotation(setting: &'static str, given: &str, key: &str) -> Result<(), SettingsError> {
    if is_key(key) { Ok(()) } else { Err(wrong(setting, given, "it is no key of an annotation")) }
}

fn label(setting: &'static str, key: &str) -> Result<(), SettingsError> {
    if is_key(key) { Ok(()) } else { Err(wrong(setting, key, "it is no key of a label")) }
}

/// Letters, digits, `-`, `_`, `.`, and a domain before a `/` at the most.
fn is_key(key: &str) -> bool {
    let (domain, name) = key.rsplit_once('/').unwrap_or(("x", key));
    let is_named = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&c))
    };
    is_named(domain) && is_named(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, value: &str) -> Settings {
        let mut settings = Settings::default();
        let field = match key {
            "numeric_align" => &mut settings.numeric_align,
            "memory_reserved" => &mut settings.memory_reserved,
            "qos_selectors" => &mut settings.qos_selectors,
            "enhancement_defaults" => &mut settings.enhancement_defaults,
            "pod_annotation_kept_keys" => &mut settings.pod_annotation_kept_keys,
            "pod_label_kept_keys" => &mut settings.pod_label_kept_keys,
            "orm_resource_names_map" => &mut settings.orm_resource_names_map,
            _ => panic!("{key}"),
        };
        *field = value.to_owned();
        settings
    }

    #[test]
    fn l8_what_means_nothing_is_refused_by_the_name_of_its_setting() {
        for (key, value) in [
            ("numeric_align", "bogus"),
            ("numeric_align", ""),
            ("numeric_align", "cpu,cpu"),
            ("memory_reserved", "0=1,0=2"),
            ("qos_selectors", "dedicated_cores:a="),
            ("qos_selectors", "dedicated_cores:a b=c"),
            ("enhancement_defaults", "dedicated_cores:bogus=true"),
            ("enhancement_defaults", "dedicated_cores:numa_binding=maybe"),
            ("enhancement_defaults", "dedicated_cores:numa_number=-2"),
            ("enhancement_defaults", "dedicated_cores:numa_ids=x"),
            ("pod_annotation_kept_keys", "a b"),
            ("pod_label_kept_keys", "a b"),
            ("orm_resource_names_map", "cpu=memory"),
        ] {
            let text = set(key, value).check().unwrap_err().to_string();
            assert!(text.starts_with(&format!("settings of orm: {key}")), "{key}={value}: {text}");
        }
        let empty = Settings { ledger_dir: "".into(), ..Settings::default() };
        assert!(empty.check().unwrap_err().to_string().contains("ledger_dir"));
    }

    #[test]
    fn what_means_something_is_taken() {
        Settings::default().check().unwrap();
        for (key, value) in [
            ("numeric_align", "cpu, memory,vendor.io/gpu"),
            ("memory_reserved", "0=1,1=1"),
            ("qos_selectors", "dedicated_cores:team.io/tier=gold"),
            ("enhancement_defaults", "dedicated_cores:numa_binding=true,shared_cores:cpuset_pool=batch"),
            ("enhancement_defaults", "dedicated_cores:katalyst.kubewharf.io/numa_number=2"),
            ("pod_annotation_kept_keys", "qrm.katalyst.kubewharf.io/numa_bind_result, mine.io/hint"),
            ("pod_label_kept_keys", "app, katalyst.kubewharf.io/pod_role"),
        ] {
            set(key, value).check().unwrap_or_else(|e| panic!("{key}={value}: {e}"));
        }
        let mapped = Settings {
            numeric_align: "cpu,gpu".into(),
            orm_resource_names_map: "vendor.io/gpu=gpu".into(),
            ..Settings::default()
        };
        mapped.check().unwrap();
    }
}
