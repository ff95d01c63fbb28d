//! QoS levels.

use crate::Attributes;
use std::{fmt, str::FromStr};

/// Annotation that names a pod's QoS level; absent means [`QosLevel::Shared`].
pub const QOS_LEVEL: &str = "katalyst.kubewharf.io/qos_level";

/// How a pod's CPUs are chosen. Katalyst's four levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosLevel {
    /// `shared_cores`: runs in a shared pool.
    #[default]
    Shared,
    /// `dedicated_cores`: has CPUs of its own.
    Dedicated,
    /// `reclaimed_cores`: best effort, runs in the reclaim pool.
    Reclaimed,
    /// `system_cores`: an agent of the system, runs in a named pool or everywhere.
    System,
}

/// A QoS annotation that names no level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("annotation {QOS_LEVEL} says {value:?}, which is none of {valid}", valid = QosLevel::ALL.map(QosLevel::as_str).join(", "))]
pub struct UnknownQosLevel {
    /// What the annotation says.
    pub value: String,
}

// === impl QosLevel ===

impl QosLevel {
    /// All levels.
    pub const ALL: [Self; 4] = [Self::Shared, Self::Dedicated, Self::Reclaimed, Self::System];

    /// The level as annotations spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared_cores",
            Self::Dedicated => "dedicated_cores",
            Self::Reclaimed => "reclaimed_cores",
            Self::System => "system_cores",
        }
    }
}

impl fmt::Display for QosLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for QosLevel {
    type Err = UnknownQosLevel;

    /// Exactly one of the four spellings.
    fn from_str(value: &str) -> Result<Self, UnknownQosLevel> {
        Self::ALL
            .into_iter()
            .find(|level| level.as_str() == value)
            .ok_or_else(|| UnknownQosLevel { value: value.to_owned() })
    }
}

/// The level that a pod's annotations ask for; `None` where they say nothing, which stands for [`QosLevel::Shared`].
///
/// # Errors
/// The annotation is there and names no level.
pub fn qos_level(annotations: &Attributes) -> Result<Option<QosLevel>, UnknownQosLevel> {
    annotations.get(QOS_LEVEL).map(|value| value.parse()).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_read_as_it_is_written() {
        for level in QosLevel::ALL {
            let annotations = Attributes::from([(QOS_LEVEL.to_owned(), level.to_string())]);
            assert_eq!(qos_level(&annotations), Ok(Some(level)));
        }
    }

    #[test]
    fn no_annotation_is_no_level() {
        assert_eq!(qos_level(&Attributes::new()), Ok(None));
        assert_eq!(QosLevel::default(), QosLevel::Shared);
    }

    #[test]
    fn an_unknown_level_is_named_with_the_valid_ones() {
        for value in ["", "shared", "Shared_Cores", "shared_cores "] {
            let annotations = Attributes::from([(QOS_LEVEL.to_owned(), value.to_owned())]);
            assert_eq!(
                qos_level(&annotations).unwrap_err().to_string(),
                format!(
                    "annotation katalyst.kubewharf.io/qos_level says {value:?}, which is none of shared_cores, \
                     dedicated_cores, reclaimed_cores, system_cores"
                )
            );
        }
    }
}
