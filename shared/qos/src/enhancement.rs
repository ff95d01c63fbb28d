//! Enhancements: annotations that hold a flat JSON object of strings.

use crate::Attributes;
use serde_json::Value;
use std::fmt;

/// Annotation of the CPU enhancement.
pub const CPU_ENHANCEMENT: &str = "katalyst.kubewharf.io/cpu_enhancement";

/// Annotation of the memory enhancement.
pub const MEMORY_ENHANCEMENT: &str = "katalyst.kubewharf.io/memory_enhancement";

const NUMA_BINDING: &str = "numa_binding";
const NUMA_EXCLUSIVE: &str = "numa_exclusive";
const CPUSET_POOL: &str = "cpuset_pool";
const BOOLEAN: [&str; 6] = [
    NUMA_BINDING,
    NUMA_EXCLUSIVE,
    "numa_share",
    "align_by_socket",
    "distribute_evenly_across_numa",
    "full_pcpus_pairing",
];

/// The wishes of both enhancement annotations, by their short names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enhancements(Attributes);

/// Something in an enhancement annotation that cannot be understood. The rest of the enhancements holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation}: {fault}")]
pub struct EnhancementFault {
    /// [`CPU_ENHANCEMENT`] or [`MEMORY_ENHANCEMENT`].
    pub annotation: &'static str,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong with an enhancement annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The text is no JSON; with the parser's words.
    NotJson(String),
    /// JSON, but no object.
    NotAnObject,
    /// This key's value is no string.
    NotAString(String),
    /// This key's value is neither "true" nor "false".
    NotABoolean {
        /// The key.
        key: String,
        /// Its value.
        value: String,
    },
}

// === impl Enhancements ===

impl Enhancements {
    /// The wish of this short name.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// All of them, ascending by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether the pod is to be bound to NUMA nodes.
    pub fn numa_binding(&self) -> bool {
        self.get(NUMA_BINDING) == Some("true")
    }

    /// Whether the pod wants its NUMA nodes for itself.
    pub fn numa_exclusive(&self) -> bool {
        self.get(NUMA_EXCLUSIVE) == Some("true")
    }

    /// The pool that the pod names.
    pub fn cpuset_pool(&self) -> Option<&str> {
        self.get(CPUSET_POOL)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJson(words) => write!(f, "not JSON: {words}"),
            Self::NotAnObject => write!(f, "not a JSON object"),
            Self::NotAString(key) => write!(f, "the value of {key:?} is not a string"),
            Self::NotABoolean { key, value } => {
                write!(f, "{key:?} is {value:?}, neither \"true\" nor \"false\"")
            }
        }
    }
}

/// Reads both enhancement annotations. What cannot be understood is left out and told; a key in both comes from the CPU's.
pub fn enhancements(annotations: &Attributes) -> (Enhancements, Vec<EnhancementFault>) {
    let mut read = Enhancements::default();
    let mut faults = Vec::new();
    for annotation in [MEMORY_ENHANCEMENT, CPU_ENHANCEMENT] {
        let Some(text) = annotations.get(annotation) else { continue };
        let fields = match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => fields,
            Ok(_) => {
                faults.push(EnhancementFault { annotation, fault: Fault::NotAnObject });
                continue;
            }
            Err(error) => {
                faults.push(EnhancementFault { annotation, fault: Fault::NotJson(error.to_string()) });
                continue;
            }
        };
        for (key, value) in fields {
            match understand(&key, value) {
                Ok(value) => {
                    read.0.insert(key, value);
                }
                Err(fault) => faults.push(EnhancementFault { annotation, fault }),
            }
        }
    }
    (read, faults)
}

fn understand(key: &str, value: Value) -> Result<String, Fault> {
    let Value::String(value) = value else { return Err(Fault::NotAString(key.to_owned())) };
    if BOOLEAN.contains(&key) && !["true", "false"].contains(&value.as_str()) {
        return Err(Fault::NotABoolean { key: key.to_owned(), value });
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pairs: &[(&str, &str)]) -> (Enhancements, Vec<Fault>) {
        let annotations = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let (read, faults) = enhancements(&annotations);
        (read, faults.into_iter().map(|fault| fault.fault).collect())
    }

    #[test]
    fn both_annotations_are_one_set_of_wishes() {
        let (read, faults) = read(&[
            (MEMORY_ENHANCEMENT, r#"{"numa_binding": "true", "numa_exclusive": "false"}"#),
            (CPU_ENHANCEMENT, r#"{"cpuset_pool": "batch"}"#),
        ]);
        assert!(read.numa_binding());
        assert!(!read.numa_exclusive());
        assert_eq!(read.cpuset_pool(), Some("batch"));
        assert_eq!(faults, []);
    }

    #[test]
    fn without_annotations_nothing_is_wished() {
        let (read, faults) = read(&[("numa_binding", "true")]);
        assert_eq!((read, faults), (Enhancements::default(), vec![]));
    }

    #[test]
    fn what_is_no_json_is_told() {
        let (read, faults) = read(&[(MEMORY_ENHANCEMENT, "{numa_binding: true}"), (CPU_ENHANCEMENT, "[]")]);
        assert!(!read.numa_binding());
        assert!(matches!(faults.as_slice(), [Fault::NotJson(_), Fault::NotAnObject]), "{faults:?}");
    }

    #[test]
    fn a_value_that_is_no_string_is_told_and_the_rest_holds() {
        let (read, faults) =
            read(&[(MEMORY_ENHANCEMENT, r#"{"numa_binding": true, "numa_exclusive": "true"}"#)]);
        assert!(!read.numa_binding() && read.numa_exclusive());
        assert_eq!(faults, [Fault::NotAString("numa_binding".to_owned())]);
    }

    #[test]
    fn a_boolean_is_true_or_false() {
        let (read, faults) = read(&[(MEMORY_ENHANCEMENT, r#"{"numa_binding": "yes"}"#)]);
        assert!(!read.numa_binding());
        let fault = Fault::NotABoolean { key: "numa_binding".to_owned(), value: "yes".to_owned() };
        assert_eq!(fault.to_string(), r#""numa_binding" is "yes", neither "true" nor "false""#);
        assert_eq!(faults, [fault]);
        for key in BOOLEAN {
            let text = |value: &str| format!("{{\"{key}\": \"{value}\"}}");
            let (_, faults) = super::tests::read(&[(CPU_ENHANCEMENT, &text("maybe"))]);
            assert!(matches!(faults.as_slice(), [Fault::NotABoolean { .. }]), "{key}: {faults:?}");
            let (read, faults) = super::tests::read(&[(CPU_ENHANCEMENT, &text("false"))]);
            assert_eq!((read.get(key), faults.len()), (Some("false"), 0));
        }
    }

    proptest! {
        #[test]
        fn text_that_yields_nothing_is_told_unless_it_is_an_empty_object(text in r#"[{}\[\]":,a-z0-9 \\]{0,24}"#) {
            let (read, faults) = read(&[(CPU_ENHANCEMENT, &text)]);
            let empty = matches!(serde_json::from_str(&text), Ok(Value::Object(fields)) if fields.is_empty());
            prop_assert_eq!(read == Enhancements::default() && faults.is_empty(), empty);
        }
    }
}
