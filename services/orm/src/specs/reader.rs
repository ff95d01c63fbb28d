//! What pods ask for, as this node reads them.

use std::sync::Arc;

use oxalyst_planner::pods::PodRequest;
use oxalyst_proto::runtime::v1::Sandbox;
use oxalyst_qos::{Attributes, KeptLabels, QosRules, QosRulesError};

use super::{PodSpec, ResourceNames, ResourceNamesError, SpecFault, Specs, pod_request};
use crate::settings::Settings;

/// Reads sandboxes and specs by the node's rules. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    specs: Specs,
    rules: Arc<ReadingRules>,
}

/// How the annotations and the resources of pods are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadingRules {
    qos: QosRules,
    names: ResourceNames,
    labels: KeptLabels,
}

/// A setting that says how pods are read, and cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadingRulesError {
    /// One about levels and enhancements.
    #[error(transparent)]
    Qos(#[from] QosRulesError),
    /// One about names of resources.
    #[error(transparent)]
    Names(#[from] ResourceNamesError),
}

// === impl ReadingRules ===

impl ReadingRules {
    /// By the settings.
    ///
    /// # Errors
    /// The first setting that cannot be understood.
    pub fn new(settings: &Settings) -> Result<Self, ReadingRulesError> {
        let Settings { qos_selectors, enhancement_defaults, pod_annotation_kept_keys, .. } = settings;
        Ok(Self {
            qos: QosRules::parse(qos_selectors, enhancement_defaults, pod_annotation_kept_keys)?,
            names: ResourceNames::parse(&settings.orm_resource_names_map)?,
            labels: settings.kept_labels(),
        })
    }
}

// === impl Reader ===

impl Reader {
    /// Reads by these rules; no spec is known yet.
    pub fn new(rules: ReadingRules) -> Self {
        Self { specs: Specs::default(), rules: Arc::new(rules) }
    }

    /// The specs that are known.
    pub fn specs(&self) -> &Specs {
        &self.specs
    }

    /// Under which names resources are asked for.
    pub fn names(&self) -> &ResourceNames {
        &self.rules.names
    }

    /// Those of a pod's labels that are kept with it.
    pub fn kept_labels(&self, labels: &Attributes) -> Attributes {
        self.rules.labels.of(labels)
    }

    /// The sandbox with its annotations as they are understood here.
    pub fn sandbox(&self, sandbox: Sandbox) -> Sandbox {
        Sandbox { annotations: self.rules.qos.understood(&sandbox.annotations), ..sandbox }
    }

    /// What a pod asks for by its spec, in this sandbox.
    ///
    /// # Errors
    /// A container asks for one resource under two names.
    pub fn request(
        &self,
        spec: &PodSpec,
        sandbox_id: &str,
        now_unix_ms: i64,
    ) -> Result<PodRequest, SpecFault> {
        let annotations = self.rules.qos.understood(&spec.annotations);
        let request = pod_request(spec, &annotations, sandbox_id, &self.rules.names, now_unix_ms)?;
        Ok(PodRequest { kept_labels: self.kept_labels(&spec.labels), ..request })
    }
}
