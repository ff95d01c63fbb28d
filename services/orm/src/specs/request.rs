//! From a pod's spec to what is asked of the planner. Pure.

use std::collections::{BTreeMap, BTreeSet};

use oxalyst_planner::plan::{DecidedBy, Flag, RequestSource};
use oxalyst_planner::pods::{Asked, PodRequest, Role, Told};
use oxalyst_qos::{Attributes, enhancements, qos_level};
use oxalyst_units::{Bytes, MilliCpu};

use super::resource_names::NamedTwice;
use super::{ContainerSpec, InPlace, PodSpec, ResourceNames};

/// Annotation that names the container that a pod is about; without it the first of the application is.
const MAIN_CONTAINER: &str = "kubernetes.io/main-container-name";

/// Why a pod cannot be decided by its spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("container {container} {fault}")]
pub struct SpecFault {
    /// The container.
    pub container: String,
    /// What is wrong with what it asks for.
    pub fault: NamedTwice,
}

/// What the planner is asked for a pod by its spec, in this sandbox, but for the labels that are kept. `annotations` are the pod's as
/// they are understood.
///
/// # Errors
/// A container asks for one resource under two names.
pub fn pod_request(
    spec: &PodSpec,
    annotations: &Attributes,
    sandbox_id: &str,
    names: &ResourceNames,
    now_unix_ms: i64,
) -> Result<PodRequest, SpecFault> {
    let mut flags = BTreeSet::new();
    let qos = qos_level(annotations).unwrap_or_else(|_| {
        flags.insert(Flag::QosInvalid);
        None
    });
    let (wishes, faults) = enhancements(annotations);
    if !faults.is_empty() {
        flags.insert(Flag::EnhancementInvalid);
    }
    let containers = containers(spec, names)?;
    let own = total(&containers);
    let whole = spec.whole.as_ref().and_then(|whole| whole.cpu);
    let request = Some(whole.unwrap_or(own)).filter(|request| *request > MilliCpu(0));
    Ok(PodRequest {
        plugins: oxalyst_planner::pods::Plugins::default(),
        uid: spec.uid.clone(),
        sandbox_id: sandbox_id.to_owned(),
        namespace: spec.namespace.clone(),
        name: spec.name.clone(),
        qos: qos.unwrap_or_default(),
        class: spec.class,
        wishes: wishes.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        kept_labels: Attributes::new(),
        node_agent: spec.node_agent.is_some(),
        told: Told { request, source: RequestSource::PodSpec, decided_by: DecidedBy::Admit, open: false },
        flags,
        containers,
        now_unix_ms,
    })
}

/// The containers as they ask, the one that the pod is about before the others of the application.
fn containers(spec: &PodSpec, names: &ResourceNames) -> Result<Vec<Asked>, SpecFault> {
    let mut containers = Vec::with_capacity(spec.containers.len());
    for container in &spec.containers {
        containers.push(asked(spec, container, names)?);
    }
    if let Some(main) = spec.annotations.get(MAIN_CONTAINER) {
        containers.sort_by_key(|asked| (asked.role == Role::App) && asked.name != *main);
    }
    Ok(containers)
}

/// What one container asks for.
///
/// # Errors
/// It asks for one resource under two names.
fn asked(spec: &PodSpec, container: &ContainerSpec, names: &ResourceNames) -> Result<Asked, SpecFault> {
    let fault = |fault| SpecFault { container: container.name.clone(), fault };
    let (mut cpu, mut memory) =
        (names.cpu(&container.asked).map_err(fault)?, names.memory(&container.asked).map_err(fault)?);
    names.all(&container.asked).map_err(fault)?;
    let mut limit = container.asked.limit;
    if spec.in_place == InPlace::NotTaken {
        // What is proposed holds only once the kubelet has taken it up; until then what it set aside before does.
        let guaranteed = cpu.is_some() && cpu == limit;
        cpu = container.allocated_cpu.or(cpu);
        memory = container.allocated_memory.or(memory);
        limit = if guaranteed { cpu } else { limit };
    }
    Ok(Asked {
        name: container.name.clone(),
        role: container.role,
        cpu: cpu.filter(|cpu| *cpu > MilliCpu(0)),
        limit: limit.filter(|limit| *limit > MilliCpu(0)),
        memory: memory.filter(|bytes| *bytes > Bytes(0)),
        huge_pages: huge_pages(container),
    })
}

/// Huge pages by size, whatever size a node has.
fn huge_pages(container: &ContainerSpec) -> BTreeMap<Bytes, Bytes> {
    let asked = container.asked.huge_pages.iter().map(|(size, bytes)| (Bytes(*size), *bytes));
    asked.filter(|(size, bytes)| *size > Bytes(0) && *bytes > Bytes(0)).collect()
}

/// As Kubernetes counts a pod: plain init containers one after the other, beside the restartable ones before them.
fn total(containers: &[Asked]) -> MilliCpu {
    let cpu = |asked: &Asked| asked.cpu.unwrap_or_default().0;
    let (mut lasting, mut peak) = (0u64, 0u64);
    for asked in containers {
        match asked.role {
            Role::Init => peak = peak.max(lasting.saturating_add(cpu(asked))),
            Role::RestartableInit => lasting = lasting.saturating_add(cpu(asked)),
            Role::App | Role::Ephemeral => {}
        }
    }
    let apps = containers.iter().filter(|asked| asked.role == Role::App).map(cpu);
    MilliCpu(peak.max(apps.fold(lasting, u64::saturating_add)))
}

#[cfg(test)]
mod tests {
    use oxalyst_planner::pods::Class;
    use oxalyst_qos::QosLevel;

    use super::*;
    use crate::specs::Amounts;

    fn container(name: &str, role: Role, milli: u64) -> ContainerSpec {
        let cpu = Some(MilliCpu(milli)).filter(|cpu| cpu.0 > 0);
        ContainerSpec {
            name: name.into(),
            role,
            asked: Amounts { cpu, limit: cpu, memory: Some(Bytes(1024)), ..Amounts::default() },
            allocated_cpu: None,
            allocated_memory: None,
        }
    }

    fn spec(containers: Vec<ContainerSpec>) -> PodSpec {
        PodSpec {
            uid: "u".into(),
            namespace: "ns".into(),
            name: "pod".into(),
            labels: Attributes::new(),
            annotations: [("katalyst.kubewharf.io/qos_level".to_owned(), "dedicated_cores".to_owned())]
                .into(),
            priority: None,
            class: Class::Guaranteed,
            node_agent: None,
            containers,
            whole: None,
            in_place: InPlace::Settled,
        }
    }

    fn requested(spec: &PodSpec) -> PodRequest {
        pod_request(spec, &spec.annotations, "s", &ResourceNames::default(), 7).unwrap()
    }

    #[test]
    fn containers_of_every_kind_come_with_what_they_ask_for() {
        let request = requested(&spec(vec![
            container("once", Role::Init, 3000),
            container("side", Role::RestartableInit, 500),
            container("app", Role::App, 2000),
            container("debug", Role::Ephemeral, 0),
        ]));
        assert_eq!(request.qos, QosLevel::Dedicated);
        let told: Vec<_> = request.containers.iter().map(|c| (c.role, c.cpu, c.memory)).collect();
        let one = Some(Bytes(1024));
        assert_eq!(
            told,
            [
                (Role::Init, Some(MilliCpu(3000)), one),
                (Role::RestartableInit, Some(MilliCpu(500)), one),
                (Role::App, Some(MilliCpu(2000)), one),
                (Role::Ephemeral, None, one),
            ]
        );
        assert_eq!(
            (request.told.request, request.told.source, request.told.open, request.now_unix_ms),
            (Some(MilliCpu(3000)), RequestSource::PodSpec, false, 7)
        );
    }

    #[test]
    fn huge_pages_of_every_size_come_with_their_container() {
        let mut pages = spec(vec![container("app", Role::App, 1000), container("none", Role::App, 1000)]);
        pages.containers[0].asked.huge_pages =
            [(2 << 20, Bytes(64 << 20)), (1 << 30, Bytes(1 << 30)), (16 << 20, Bytes(0))].into();
        let asked = requested(&pages).containers;
        let told = [(Bytes(2 << 20), Bytes(64 << 20)), (Bytes(1 << 30), Bytes(1 << 30))].into();
        assert_eq!((&asked[0].huge_pages, asked[1].huge_pages.len()), (&told, 0));
    }

    #[test]
    fn the_main_container_is_the_one_that_the_annotation_names() {
        let mut named = spec(vec![
            container("init", Role::Init, 0),
            container("proxy", Role::App, 100),
            container("app", Role::App, 2000),
        ]);
        named.annotations.insert(MAIN_CONTAINER.to_owned(), "app".to_owned());
        let names: Vec<_> = requested(&named).containers.into_iter().map(|c| c.name).collect();
        assert_eq!(names, ["init", "app", "proxy"]);
        named.annotations.insert(MAIN_CONTAINER.to_owned(), "nobody".to_owned());
        let names: Vec<_> = requested(&named).containers.into_iter().map(|c| c.name).collect();
        assert_eq!(names, ["init", "proxy", "app"]);
    }

    #[test]
    fn what_the_pod_asks_for_as_a_whole_is_its_total() {
        let mut whole = spec(vec![container("app", Role::App, 1000)]);
        whole.whole = Some(Amounts { cpu: Some(MilliCpu(4000)), ..Amounts::default() });
        assert_eq!(requested(&whole).told.request, Some(MilliCpu(4000)));
    }

    #[test]
    fn a_change_that_the_kubelet_has_not_taken_up_leaves_what_it_set_aside() {
        let mut proposed = spec(vec![container("app", Role::App, 4000)]);
        proposed.containers[0].allocated_cpu = Some(MilliCpu(2000));
        proposed.in_place = InPlace::NotTaken;
        let app = requested(&proposed).containers.remove(0);
        assert_eq!((app.cpu, app.limit), (Some(MilliCpu(2000)), Some(MilliCpu(2000))));
        proposed.in_place = InPlace::Settled;
        assert_eq!(requested(&proposed).containers[0].cpu, Some(MilliCpu(4000)));
    }

    #[test]
    fn o2_a_container_that_asks_under_two_names_is_named() {
        let mut twice = spec(vec![container("app", Role::App, 1000)]);
        let name = "resource.katalyst.kubewharf.io/reclaimed_millicpu".to_owned();
        twice.containers[0].asked.extended.insert(name, 2000);
        let fault = pod_request(&twice, &twice.annotations, "s", &ResourceNames::default(), 0).unwrap_err();
        assert!(fault.to_string().starts_with("container app asks for cpu under two names"), "{fault}");
    }
}
