//! What a node adds to what pods say of themselves: other annotations that stand for a level, wishes that hold where a pod names
//! none, and annotations that count as wishes.

use crate::{Attributes, CPU_ENHANCEMENT, MEMORY_ENHANCEMENT, QOS_LEVEL, QosLevel, qos_level};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// How the annotations of pods are read. The default reads them as they stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QosRules {
    /// Annotation and value, each with the level that it stands for.
    selectors: BTreeMap<(String, String), QosLevel>,
    /// Wishes of pods of a level that do not name them, by short name.
    defaults: BTreeMap<(QosLevel, String), String>,
    /// Annotations that count as wishes.
    kept: BTreeSet<String>,
}

/// Something that is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QosRulesError {
    /// Not of the form `level:key=value`.
    #[error("{setting} has {given:?}: write level:key=value, separated by commas, the level one of {}", QosLevel::ALL.map(QosLevel::as_str).join(", "))]
    Form {
        /// The setting.
        setting: &'static str,
        /// As given.
        given: String,
    },
    /// The same key, and for selectors the same value, twice.
    #[error("{setting} says {key} twice")]
    Twice {
        /// The setting.
        setting: &'static str,
        /// As given.
        key: String,
    },
}

// === impl QosRules ===

impl QosRules {
    /// Reads the settings `qos_selectors` and `enhancement_defaults` (each `level:key=value` pairs separated by commas) and
    /// `pod_annotation_kept_keys` (keys separated by commas).
    ///
    /// # Errors
    /// The first pair that cannot be understood, or that contradicts another.
    pub fn parse(selectors: &str, defaults: &str, kept: &str) -> Result<Self, QosRulesError> {
        let mut rules = Self::default();
        for (level, key, value) in triples("qos_selectors", selectors)? {
            let pair = format!("{key}={value}");
            if rules.selectors.insert((key, value), level).is_some() {
                return Err(QosRulesError::Twice { setting: "qos_selectors", key: pair });
            }
        }
        for (level, key, value) in triples("enhancement_defaults", defaults)? {
            let named = format!("{level}:{key}");
            if rules.defaults.insert((level, key), value).is_some() {
                return Err(QosRulesError::Twice { setting: "enhancement_defaults", key: named });
            }
        }
        rules.kept = list(kept).map(str::to_owned).collect();
        Ok(rules)
    }

    /// The annotations as they are understood here: the level that they stand for is named, and what is added to the pod's wishes
    /// stands among them. Two levels at once are named both, which is no level.
    pub fn understood(&self, annotations: &Attributes) -> Attributes {
        let mut understood = annotations.clone();
        let mut named: BTreeSet<&str> = annotations.get(QOS_LEVEL).map(String::as_str).into_iter().collect();
        let selected = self.selectors.iter().filter(|((key, value), _)| annotations.get(key) == Some(value));
        named.extend(selected.map(|(_, level)| level.as_str()));
        if !named.is_empty() {
            let words: Vec<_> = named.into_iter().collect();
            understood.insert(QOS_LEVEL.to_owned(), words.join(" and "));
        }
        let level = qos_level(&understood).ok().flatten().unwrap_or_default();
        let mut more: BTreeMap<&str, &str> = self
            .defaults
            .iter()
            .filter(|((of, _), _)| *of == level)
            .map(|((_, key), value)| (key.as_str(), value.as_str()))
            .collect();
        let kept = self.kept.iter().filter_map(|key| Some((short(key), annotations.get(key)?.as_str())));
        more.extend(kept);
        if !more.is_empty() {
            add(&mut understood, &more);
        }
        understood
    }
}

/// The name of a wish that an annotation holds by itself.
fn short(key: &str) -> &str {
    match key.rsplit_once('/') {
        Some((domain, name)) if domain.ends_with("katalyst.kubewharf.io") => name,
        _ => key,
    }
}

/// Adds the wishes that neither enhancement annotation names. One that is no object is left as it is, and told by who reads it.
fn add(annotations: &mut Attributes, more: &BTreeMap<&str, &str>) {
    let read = |key: &str| match annotations.get(key).map(|text| serde_json::from_str(text)) {
        None => Some(Map::new()),
        Some(Ok(Value::Object(fields))) => Some(fields),
        Some(_) => None,
    };
    let objects = [(CPU_ENHANCEMENT, read(CPU_ENHANCEMENT)), (MEMORY_ENHANCEMENT, read(MEMORY_ENHANCEMENT))];
    let named: BTreeSet<String> =
        objects.iter().filter_map(|(_, fields)| fields.as_ref()).flat_map(Map::keys).cloned().collect();
    let Some((annotation, mut fields)) =
        objects.into_iter().find_map(|(annotation, fields)| Some((annotation, fields?)))
    else {
        return;
    };
    for (key, value) in more.iter().filter(|(key, _)| !named.contains(**key)) {
        fields.insert((*key).to_owned(), Value::String((*value).to_owned()));
    }
    annotations.insert(annotation.to_owned(), Value::Object(fields).to_string());
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn triples(setting: &'static str, text: &str) -> Result<Vec<(QosLevel, String, String)>, QosRulesError> {
    let triple = |given: &str| {
        let (level, pair) = given.split_once(':')?;
        let (key, value) = pair.split_once('=')?;
        let (key, value) = (key.trim(), value.trim());
        let level = level.trim().parse().ok()?;
        (!key.is_empty()).then(|| (level, key.to_owned(), value.to_owned()))
    };
    list(text)
        .map(|given| triple(given).ok_or_else(|| QosRulesError::Form { setting, given: given.to_owned() }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enhancements;
    use proptest::prelude::*;

    fn annotations(pairs: &[(&str, &str)]) -> Attributes {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn level(rules: &QosRules, pairs: &[(&str, &str)]) -> Option<QosLevel> {
        qos_level(&rules.understood(&annotations(pairs))).ok().flatten()
    }

    #[test]
    fn another_annotation_stands_for_a_level() {
        let rules =
            QosRules::parse("dedicated_cores:team.io/tier=gold, reclaimed_cores:team.io/tier=batch", "", "")
                .unwrap();
        assert_eq!(level(&rules, &[("team.io/tier", "gold")]), Some(QosLevel::Dedicated));
        assert_eq!(level(&rules, &[("team.io/tier", "batch")]), Some(QosLevel::Reclaimed));
        assert_eq!(level(&rules, &[("team.io/tier", "tin")]), None);
        let same = [("team.io/tier", "gold"), (QOS_LEVEL, "dedicated_cores")];
        assert_eq!(level(&rules, &same), Some(QosLevel::Dedicated));
    }

    #[test]
    fn a_pod_that_stands_for_two_levels_has_none() {
        let rules = QosRules::parse("dedicated_cores:team.io/tier=gold", "", "").unwrap();
        let both = annotations(&[("team.io/tier", "gold"), (QOS_LEVEL, "shared_cores")]);
        let fault = qos_level(&rules.understood(&both)).unwrap_err();
        assert_eq!(fault.value, "dedicated_cores and shared_cores");
    }

    #[test]
    fn a_default_holds_for_its_level_where_the_pod_says_nothing() {
        let rules =
            QosRules::parse("", "dedicated_cores:numa_binding=true,shared_cores:cpuset_pool=batch", "")
                .unwrap();
        let wishes = |pairs: &[(&str, &str)]| enhancements(&rules.understood(&annotations(pairs))).0;
        assert!(wishes(&[(QOS_LEVEL, "dedicated_cores")]).numa_binding());
        assert!(!wishes(&[(QOS_LEVEL, "reclaimed_cores")]).numa_binding());
        assert_eq!(wishes(&[]).cpuset_pool(), Some("batch"), "shared where nothing is said");
        let says = [(QOS_LEVEL, "dedicated_cores"), (MEMORY_ENHANCEMENT, r#"{"numa_binding":"false"}"#)];
        assert!(!wishes(&says).numa_binding());
    }

    #[test]
    fn an_enhancement_that_cannot_be_read_is_still_told() {
        let rules = QosRules::parse("", "dedicated_cores:numa_binding=true", "").unwrap();
        let broken = annotations(&[(QOS_LEVEL, "dedicated_cores"), (CPU_ENHANCEMENT, "{")]);
        let (wishes, faults) = enhancements(&rules.understood(&broken));
        assert!(wishes.numa_binding());
        assert_eq!(faults.len(), 1);
        let both = annotations(&[(CPU_ENHANCEMENT, "{"), (MEMORY_ENHANCEMENT, "[]")]);
        assert_eq!(rules.understood(&both), both);
    }

    #[test]
    fn a_kept_annotation_is_a_wish_and_any_other_is_none() {
        let key = "qrm.katalyst.kubewharf.io/numa_bind_result";
        let pod = annotations(&[(key, "1"), ("other", "x")]);
        let kept = QosRules::parse("", "", &format!("{key}, mine.io/hint")).unwrap();
        assert_eq!(enhancements(&kept.understood(&pod)).0.get("numa_bind_result"), Some("1"));
        assert_eq!(enhancements(&kept.understood(&pod)).0.get("other"), None);
        assert_eq!(QosRules::default().understood(&pod), pod);
    }

    #[test]
    fn what_is_no_rule_is_named() {
        for (selectors, defaults, named) in [
            ("gold", "", "qos_selectors has \"gold\""),
            ("gold:a=b", "", "qos_selectors has \"gold:a=b\""),
            ("shared_cores:a=b,dedicated_cores:a=b", "", "qos_selectors says a=b twice"),
            ("", "shared_cores:numa_binding", "enhancement_defaults has"),
            ("", "shared_cores:a=1,shared_cores:a=2", "enhancement_defaults says shared_cores:a twice"),
        ] {
            let error = QosRules::parse(selectors, defaults, "").unwrap_err().to_string();
            assert!(error.starts_with(named), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_a_pod_says_itself_is_never_replaced(key in "[a-z]{1,4}", own in "[a-z]{0,4}", other in "[a-z]{0,4}") {
            let rules = QosRules::parse("", &format!("shared_cores:{key}={other}"), "").unwrap();
            let json = format!(r#"{{"{key}":"{own}"}}"#);
            let understood = rules.understood(&annotations(&[(CPU_ENHANCEMENT, &json)]));
            let (wishes, _) = enhancements(&understood);
            prop_assert_eq!(wishes.get(&key), Some(own.as_str()));
        }
    }
}
