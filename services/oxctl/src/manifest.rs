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
    Yaml(serde_yaml_ng::Error),
    #[error("it is YAML and no Pod: {0}")]
    Shape(serde_yaml_ng::Error),
    #[error("it holds more than one document: give the Pod alone, without a further ---")]
    Several,
    #[error("it holds {0:?} and not a Pod: give a Pod, or the template of what makes Pods")]
    Kind(String),
    #[error("the pod has no containers")]
    Empty,
    #[error("two of its containers are named {0:?}: give each a name of its own, init containers too")]
    Twice(String),
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
            Ok(manifest) => manifest,
            Err(_) if is_of_several_documents(text) => return Err(ManifestError::Several),
            Err(error) => {
                let is_yaml = serde_yaml_ng::from_str::<serde_yaml_ng::Value>(text).is_ok();
                let because = if is_yaml { ManifestError::Shape } else { ManifestError::Yaml };
                return Err(because(error));
            }
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

    /// What it asks for and planning does not look at, a line for each container and resource.
    pub(crate) fn passed_over(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for own in self.containers() {
            for name in own.passed_over() {
                let name = name.escape_default();
                lines.push(format!(
                    "container {}: {name} is not looked at: CPUs, memory and huge pages are planned here, other resources by the \
                     scheduler and their device plugins",
                    own.name.escape_default()
                ));
            }
        }
        lines
    }

    fn containers(&self) -> impl Iterator<Item = &ContainerSpec> {
        self.spec.init_containers.iter().chain(&self.spec.containers).flatten()
    }

    /// A name that two containers have.
    fn named_twice(&self) -> Option<String> {
        let mut names = BTreeSet::new();
        self.containers()
            .find(|own| !own.name.is_empty() && !names.insert(&own.name))
            .map(|own| own.name.clone())
    }

    /// What the pod would ask for if it came now, as nobody whom the node knows.
    pub(crate) fn request(self, now_unix_ms: i64) -> Result<PodRequest, ManifestError> {
        if let Some(name) = self.named_twice() {
            return Err(ManifestError::Twice(name));
        }
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

    /// Names of resources that decide nothing here.
    fn passed_over(&self) -> BTreeSet<&str> {
        let resources = self.resources.iter();
        let told = resources.flat_map(|own| [own.limits.as_ref(), own.requests.as_ref()]).flatten().flatten();
        let names = told.map(|(name, _)| name.as_str());
        names.filter(|name| !["cpu", "memory"].contains(name) && !name.starts_with("hugepages-")).collect()
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
    use proptest::prelude::*;

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
        assert!(wrong("{kind: Pod, spec: {containers: 7}}").starts_with("it is YAML and no Pod"));
        let twice = "{kind: Pod, spec: {initContainers: [{name: a}], containers: [{name: b}, {name: a}]}}";
        assert!(wrong(twice).starts_with("two of its containers are named \"a\""));
        assert_eq!(wrong("kind: Pod"), "the pod has no containers");
        let text = "{kind: Pod, spec: {containers: [{name: a, resources: {requests: {cpu: many}}}]}}";
        assert!(wrong(text).starts_with("container a: \"many\" is no quantity of CPU"));
        assert!(level("gold").is_err() && level("shared_cores").is_ok());
        assert!(pair("key").is_err());
    }

    #[test]
    fn huge_pages_are_read_and_what_is_passed_over_is_told() {
        let text = r#"{kind: Pod, spec: {
            initContainers: [{name: init, resources: {requests: {ephemeral-storage: 1Gi}}}],
            containers: [{name: gpu, resources: {
                limits: {nvidia.com/gpu: 2, hugepages-2Mi: 64Mi, memory: 1Gi}, requests: {nvidia.com/gpu: 2, cpu: 1}}}]}}"#;
        let manifest = Manifest::read(text).unwrap();
        let told = manifest.passed_over();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("container init: ephemeral-storage is not looked at"));
        assert!(told[1].starts_with("container gpu: nvidia.com/gpu is not looked at"));
        let pod = manifest.request(0).unwrap();
        assert_eq!(pod.containers[1].huge_pages, [(Bytes(2 << 20), Bytes(64 << 20))].into());
        assert_eq!(Manifest::read(POD).unwrap().passed_over(), [""; 0]);
    }

    /// Words of a manifest, and others; put together in any order they are mostly no manifest, and never a panic.
    fn words() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            8 => prop::sample::select(vec![
                "kind: Pod", "spec:", "metadata:", "containers:", "initContainers:", "- name: a", "resources:", "limits:",
                "requests:", "cpu: ", "memory: ", "hugepages-2Mi: ", "annotations:", "labels:", "priority: ", "{", "}", "[", "]", ",", "\n", "  ",
                "\n  ", "\n    ", "&a ", "*a", "---", "~", "'", "\"", "18446744073709551615", "-1", "1e18", "1e999", ".nan", "99999999999999999999Ei",
                "restartPolicy: Always", "!!binary ", "? ", "| ", "katalyst.kubewharf.io/memory_enhancement: ",
            ]).prop_map(str::to_owned),
            1 => any::<String>(),
        ];
        prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn whatever_the_text_it_is_a_pod_or_an_error(text in words()) {
            if let Ok(manifest) = Manifest::read(&text) {
                let _ = manifest.passed_over();
                let _ = manifest.request(0);
            }
        }

        #[test]
        fn whatever_the_amounts_they_are_a_pod_or_an_error(
            amounts in prop::collection::vec(("(cpu|memory|hugepages-(2Mi|0|1Gi|x)|a/b)", "[0-9]{0,22}[.]?[0-9]{0,3}(m|Ki|Ei|E|e[+-]?[0-9]{1,3}|)"), 0..6),
        ) {
            let amounts: BTreeMap<_, _> = amounts.into_iter().collect();
            let resources = serde_json::json!({ "requests": amounts, "limits": amounts });
            let containers = serde_json::json!([{ "name": "a", "resources": resources }, { "name": "b", "resources": resources }]);
            let pod = serde_json::json!({ "kind": "Pod", "spec": { "containers": containers, "initContainers": [] } });
            let _ = Manifest::read(&pod.to_string()).unwrap().request(0);
        }
    }
}
