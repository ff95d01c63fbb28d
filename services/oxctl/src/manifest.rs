//! A pod's manifest, as far as it decides where the pod runs.

use std::collections::{BTreeMap, BTreeSet};

use oxalyst_planner::plan::{DecidedBy, Flag, RequestSource};
use oxalyst_planner::pods::{Asked, Class, PodRequest, Role, Told};
use oxalyst_qos::{QOS_LEVEL, QosLevel, enhancements, node_agent, qos_level};
use oxalyst_units::{Bytes, MilliCpu};
use serde::Deserialize;

use crate::quantity::{self, QuantityError};

/// A manifest that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("it is no YAML: {0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    #[error("it holds more than one document: give the Pod alone, without a further ---")]
    Several,
    #[error("it holds {0:?} and not a Pod: give a Pod, or the template of what makes Pods")]
    Kind(String),
    #[error("the pod has no containers")]
    Empty,
    #[error("container {container}: {source}")]
    Quantity { container: String, source: QuantityError },
    #[error("{0:?} is no QoS level: write dedicated, shared, reclaimed or system")]
    Level(String),
    #[error("{0:?} is not KEY=VALUE")]
    Pair(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Manifest {
    kind: String,
    pub(crate) metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    name: String,
    namespace: String,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    priority: Option<i32>,
    init_containers: Option<Vec<ContainerSpec>>,
    containers: Option<Vec<ContainerSpec>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerSpec {
    name: String,
    restart_policy: Option<String>,
    resources: Option<Resources>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Resources {
    requests: Option<BTreeMap<String, Scalar>>,
    limits: Option<BTreeMap<String, Scalar>>,
}

/// Quantities may stand without quotes.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Scalar {
    Text(String),
    Whole(u64),
    Decimal(f64),
}

/// The level of an annotation, from its name with or without `_cores`.
pub(crate) fn level(text: &str) -> Result<String, ManifestError> {
    let whole = if text.ends_with("_cores") { text.to_owned() } else { format!("{text}_cores") };
    whole
        .parse::<QosLevel>()
        .map(|level| level.to_string())
        .map_err(|_| ManifestError::Level(text.to_owned()))
}

fn is_of_several_documents(text: &str) -> bool {
    let is_sound = |document| serde_yaml_ng::Value::deserialize(document).is_ok();
    let mut documents = serde_yaml_ng::Deserializer::from_str(text);
    documents.next().is_some_and(is_sound) && documents.next().is_some_and(is_sound)
}

pub(crate) fn pair(text: &str) -> Result<(String, String), ManifestError> {
    let (key, value) = text.split_once('=').ok_or_else(|| ManifestError::Pair(text.to_owned()))?;
    Ok((key.to_owned(), value.to_owned()))
}

// === impl Manifest ===

impl Manifest {
    /// Reads YAML, of which JSON is a part.
    pub(crate) fn read(text: &str) -> Result<Self, ManifestError> {
        let manifest: Self = match serde_yaml_ng::from_str(text) {
            Err(_) if is_of_several_documents(text) => return Err(ManifestError::Several),
            read => read?,
        };
        match manifest.kind.as_str() {
            "Pod" => Ok(manifest),
            kind => Err(ManifestError::Kind(kind.to_owned())),
        }
    }

    /// A pod of one container that asks for this; `guaranteed`: and may not have more.
    pub(crate) fn of_flags(
        level: Option<&str>,
        cpu: Option<&str>,
        memory: Option<&str>,
        guaranteed: bool,
    ) -> Result<Self, ManifestError> {
        let asked = || {
            let told = [("cpu", cpu), ("memory", memory)].into_iter();
            told.filter_map(|(name, text)| Some((name.to_owned(), Scalar::Text(text?.to_owned())))).collect()
        };
        let resources = Resources { requests: Some(asked()), limits: guaranteed.then(asked) };
        let app = ContainerSpec { name: "app".to_owned(), restart_policy: None, resources: Some(resources) };
        let mut manifest =
            Self { spec: Spec { containers: Some(vec![app]), ..Spec::default() }, ..Self::default() };
        if let Some(given) = level {
            manifest.annotate([(QOS_LEVEL.to_owned(), self::level(given)?)]);
        }
        Ok(manifest)
    }

    /// Adds annotations, or replaces them.
    pub(crate) fn annotate(&mut self, more: impl IntoIterator<Item = (String, String)>) {
        self.metadata.annotations.get_or_insert_default().extend(more);
    }

    /// Adds labels, or replaces them.
    pub(crate) fn label(&mut self, more: impl IntoIterator<Item = (String, String)>) {
        self.metadata.labels.get_or_insert_default().extend(more);
    }

    /// What the pod would ask for if it came now, as nobody whom the node knows.
    pub(crate) fn request(self, now_unix_ms: i64) -> Result<PodRequest, ManifestError> {
        let Metadata { name, namespace, labels, annotations } = self.metadata;
        let (labels, annotations) = (labels.unwrap_or_default(), annotations.unwrap_or_default());
        let (init, app) =
            (self.spec.init_containers.unwrap_or_default(), self.spec.containers.unwrap_or_default());
        if app.is_empty() {
            return Err(ManifestError::Empty);
        }
        let mut flags = BTreeSet::new();
        let qos = qos_level(&annotations).unwrap_or_else(|_| {
            flags.insert(Flag::QosInvalid);
            None
        });
        let (wishes, faults) = enhancements(&annotations);
        if !faults.is_empty() {
            flags.insert(Flag::EnhancementInvalid);
        }
        let class = class(init.iter().chain(&app))?;
        let init = init.iter().map(|own| own.asked(own.init_role()));
        let containers: Vec<Asked> =
            init.chain(app.iter().map(|own| own.asked(Role::App))).collect::<Result<_, _>>()?;
        Ok(PodRequest {
            kept_labels: [].into(),
            plugins: oxalyst_planner::pods::Plugins::default(),
            uid: "what-if".to_owned(),
            sandbox_id: "what-if".to_owned(),
            namespace: if namespace.is_empty() { "default".to_owned() } else { namespace },
            name: if name.is_empty() { "what-if".to_owned() } else { name },
            qos: qos.unwrap_or_default(),
            class,
            wishes: wishes.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            node_agent: node_agent(&labels, &annotations, self.spec.priority).is_some(),
            told: Told {
                request: total(&containers),
                source: RequestSource::PodSpec,
                decided_by: DecidedBy::Admit,
                open: false,
            },
            flags,
            containers,
            now_unix_ms,
        })
    }
}

/// As Kubernetes counts a pod's CPUs; `None` where none are asked for.
fn total(containers: &[Asked]) -> Option<MilliCpu> {
    let (mut lasting, mut peak) = (0u64, 0u64);
    for own in containers {
        let milli = own.cpu.unwrap_or_default().0;
        match own.role {
            Role::Init => peak = peak.max(lasting.saturating_add(milli)),
            Role::RestartableInit => lasting = lasting.saturating_add(milli),
            Role::App | Role::Ephemeral => {}
        }
    }
    let app = containers.iter().filter(|own| own.role == Role::App);
    let whole = app.fold(lasting, |sum, own| sum.saturating_add(own.cpu.unwrap_or_default().0)).max(peak);
    (whole > 0).then_some(MilliCpu(whole))
}

fn class<'a>(all: impl Iterator<Item = &'a ContainerSpec>) -> Result<Class, ManifestError> {
    let (mut guaranteed, mut nothing) = (true, true);
    for own in all {
        let limits = (own.cpu(own.limit("cpu"))?, own.memory(own.limit("memory"))?);
        let requests = (own.cpu(own.request("cpu"))?, own.memory(own.request("memory"))?);
        nothing &= [limits, requests].iter().all(|(cpu, memory)| cpu.is_none() && memory.is_none());
        guaranteed &= limits.0.is_some() && limits.1.is_some() && limits == requests;
    }
    Ok(match (guaranteed, nothing) {
        (_, true) => Class::BestEffort,
        (true, false) => Class::Guaranteed,
        (false, false) => Class::Burstable,
    })
}

// === impl ContainerSpec ===

impl ContainerSpec {
    fn init_role(&self) -> Role {
        if self.restart_policy.as_deref() == Some("Always") { Role::RestartableInit } else { Role::Init }
    }

    fn limit(&self, resource: &str) -> Option<&Scalar> {
        self.resources.as_ref()?.limits.as_ref()?.get(resource)
    }

    /// Where only a limit is told, it is the request as well.
    fn request(&self, resource: &str) -> Option<&Scalar> {
        let requests = self.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        requests.and_then(|requests| requests.get(resource)).or_else(|| self.limit(resource))
    }

    fn cpu(&self, told: Option<&Scalar>) -> Result<Option<MilliCpu>, ManifestError> {
        let read =
            told.map(|told| quantity::cpu(&told.text())).transpose().map_err(|source| self.wrong(source))?;
        Ok(read.filter(|milli| milli.0 > 0))
    }

    fn memory(&self, told: Option<&Scalar>) -> Result<Option<Bytes>, ManifestError> {
        let read = told
            .map(|told| quantity::memory(&told.text()))
            .transpose()
            .map_err(|source| self.wrong(source))?;
        Ok(read.filter(|bytes| bytes.0 > 0))
    }

    /// Kubernetes has requests and limits of huge pages equal.
    fn huge_pages(&self) -> Result<BTreeMap<Bytes, Bytes>, ManifestError> {
        let mut pages = BTreeMap::new();
        let resources = self.resources.iter();
        let told = resources.flat_map(|own| [own.limits.as_ref(), own.requests.as_ref()]).flatten().flatten();
        for (name, amount) in told {
            let Some(size) = name.strip_prefix("hugepages-") else { continue };
            let size = quantity::memory(size).map_err(|source| self.wrong(source))?;
            if let Some(bytes) = self.memory(Some(amount))? {
                pages.insert(size, bytes);
            }
        }
        Ok(pages)
    }

    fn wrong(&self, source: QuantityError) -> ManifestError {
        ManifestError::Quantity { container: self.name.clone(), source }
    }

    fn asked(&self, role: Role) -> Result<Asked, ManifestError> {
        Ok(Asked {
            name: self.name.clone(),
            role,
            cpu: self.cpu(self.request("cpu"))?,
            limit: self.cpu(self.limit("cpu"))?,
            memory: self.memory(self.request("memory"))?,
            huge_pages: self.huge_pages()?,
        })
    }
}

// === impl Scalar ===

impl Scalar {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Whole(number) => number.to_string(),
            Self::Decimal(number) => number.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: db
  annotations:
    katalyst.kubewharf.io/qos_level: dedicated_cores
    katalyst.kubewharf.io/memory_enhancement: '{"numa_binding": "true"}'
spec:
  initContainers:
  - {name: migrate, resources: {requests: {cpu: 6}}}
  - {name: mesh, restartPolicy: Always, resources: {requests: {cpu: 500m}}}
  containers:
  - name: server
    image: db:1
    resources: {requests: {cpu: 2, memory: 4Gi}, limits: {cpu: "4", memory: 4Gi}}
  - {name: backup, resources: {limits: {cpu: 0.5}}}
"#;

    #[test]
    fn a_manifest_tells_what_each_container_asks_for() {
        let pod = Manifest::read(POD).unwrap().request(7).unwrap();
        let told: Vec<_> = pod
            .containers
            .iter()
            .map(|own| (own.name.as_str(), own.role, own.cpu.map(|milli| milli.0)))
            .collect();
        assert_eq!(
            told,
            [
                ("migrate", Role::Init, Some(6000)),
                ("mesh", Role::RestartableInit, Some(500)),
                ("server", Role::App, Some(2000)),
                ("backup", Role::App, Some(500)),
            ]
        );
        assert_eq!(pod.containers[2].memory, Some(Bytes(4 << 30)));
        assert_eq!(pod.told.request, Some(MilliCpu(6000)));
        assert_eq!((pod.qos, pod.class), (QosLevel::Dedicated, Class::Burstable));
        assert!(pod.wishes.numa_binding());
        assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("default", "db"));
    }

    #[test]
    fn flags_make_a_pod_of_one_container() {
        let mut manifest = Manifest::of_flags(Some("dedicated"), Some("1500m"), Some("1Gi"), false).unwrap();
        manifest.annotate([
            pair("katalyst.kubewharf.io/memory_enhancement={\"numa_binding\": \"true\"}").unwrap()
        ]);
        let pod = manifest.request(0).unwrap();
        assert_eq!((pod.qos, pod.class), (QosLevel::Dedicated, Class::Burstable));
        assert_eq!(pod.told.request, Some(MilliCpu(1500)));
        assert!(pod.wishes.numa_binding());
    }

    #[test]
    fn l14_flags_make_a_guaranteed_pod_where_that_is_said() {
        let pod = Manifest::of_flags(None, Some("2"), Some("1Gi"), true).unwrap().request(0).unwrap();
        assert_eq!((pod.class, pod.containers[0].limit), (Class::Guaranteed, Some(MilliCpu(2000))));
    }

    #[test]
    fn equal_requests_and_limits_of_all_containers_are_guaranteed() {
        let text = "{kind: Pod, spec: {containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}]}}";
        assert_eq!(Manifest::read(text).unwrap().request(0).unwrap().class, Class::Guaranteed);
        let text = "{kind: Pod, spec: {containers: [{name: a}]}}";
        assert_eq!(Manifest::read(text).unwrap().request(0).unwrap().class, Class::BestEffort);
    }

    #[test]
    fn what_is_wrong_with_a_manifest_is_told() {
        let wrong = |text: &str| match Manifest::read(text) {
            Ok(manifest) => manifest.request(0).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(wrong("kind: Deployment").contains("\"Deployment\""));
        assert!(wrong("kind: Pod\n---\nkind: Pod\n").starts_with("it holds more than one document"));
        assert!(wrong("kind: [").starts_with("it is no YAML"));
        assert_eq!(wrong("kind: Pod"), "the pod has no containers");
        let text = "{kind: Pod, spec: {containers: [{name: a, resources: {requests: {cpu: many}}}]}}";
        assert!(wrong(text).starts_with("container a: \"many\" is no quantity of CPU"));
        assert!(level("gold").is_err() && level("shared_cores").is_ok());
        assert!(pair("key").is_err());
    }
}
