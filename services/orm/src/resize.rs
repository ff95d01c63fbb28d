//! A running container is to have other resources: what that means to the pod as it is known. Pure.

use oxalyst_planner::plan::{Reason, Refusal, Rule};
use oxalyst_planner::pods::{ALL, Asked, Class, Pod, PodRequest, Resize};
use oxalyst_proto::orm::v1::ResizeContainerRequest;
use oxalyst_qos::QosLevel;
use oxalyst_units::{Bytes, MilliCpu};

use crate::wire;

/// What the runtime was told of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Pod uid.
    pub uid: String,
    /// The sandbox that the container is in.
    pub sandbox_id: String,
    /// The container's name.
    pub container: String,
    /// CPUs that it asks for from now on.
    pub cpu: Option<MilliCpu>,
    /// CPUs that it may not pass from now on.
    pub limit: Option<MilliCpu>,
    /// Memory that it may not pass from now on.
    pub memory_limit: Option<Bytes>,
    /// What all containers that run in the sandbox asked for before, this one included, in milli-CPU.
    pub running: MilliCpu,
    /// What they ask for together from now on, in milli-CPU.
    pub will_run: MilliCpu,
    /// Whether the container is among those that run in the sandbox.
    pub is_listed: bool,
}

// === impl Told ===

impl From<&ResizeContainerRequest> for Told {
    fn from(request: &ResizeContainerRequest) -> Self {
        let sandbox = request.sandbox.clone().unwrap_or_default();
        let container = request.container.clone().unwrap_or_default();
        let resources = container.resources.as_ref();
        let own = wire::asked(resources);
        let mut running = 0u64;
        let mut will_run = 0u64;
        let mut is_listed = false;
        for other in &request.running {
            let asked = wire::asked(other.resources.as_ref()).unwrap_or_default().0;
            running = running.saturating_add(asked);
            let is_it = other.container_id == container.container_id;
            is_listed |= is_it;
            will_run = will_run.saturating_add(own.filter(|_| is_it).map_or(asked, |own| own.0));
        }
        Self {
            uid: if sandbox.pod_uid.is_empty() { sandbox.sandbox_id.clone() } else { sandbox.pod_uid },
            sandbox_id: sandbox.sandbox_id,
            container: wire::container_name(&container).to_owned(),
            cpu: own,
            limit: resources.and_then(|r| MilliCpu::from_quota(r.cpu_quota_us?, r.cpu_period_us?)),
            memory_limit: resources
                .and_then(|r| r.memory_limit_bytes)
                .and_then(|bytes| u64::try_from(bytes).ok())
                .filter(|bytes| *bytes > 0)
                .map(Bytes),
            running: MilliCpu(running),
            will_run: MilliCpu(will_run),
            is_listed,
        }
    }
}

impl Told {
    /// Whether other CPUs are asked for than before, as far as that is known.
    fn changes_cpus(&self) -> bool {
        self.running != self.will_run || (!self.is_listed && self.cpu.is_some())
    }

    /// What is asked of the container by its name.
    pub fn resize(&self) -> Resize {
        Resize {
            uid: self.uid.clone(),
            container: self.container.clone(),
            cpu: self.cpu,
            limit: self.limit,
            memory: self.memory_limit,
        }
    }
}

/// The pod that is meant; `None`: it is not known, or by another sandbox.
pub fn meant<'a>(pod: Option<&'a Pod>, told: &Told) -> Option<&'a Pod> {
    pod.filter(|pod| pod.sandbox_id == told.sandbox_id)
}

/// What is to change of the pod by what the runtime was told; `None`: nothing, or the pod is not the one that is meant.
///
/// # Errors
/// The pod has CPUs of its own, and what part of them the container has is not known: the pod is known by its total alone, and the
/// containers that run do not add up to that or the container is not among them; or it has no container of this name.
pub fn by_runtime(pod: Option<&Pod>, told: &Told) -> Result<Option<Resize>, Refusal> {
    let Some(pod) = meant(pod, told) else { return Ok(None) };
    if pod.container(&told.container).is_some() {
        // A limit is a request only where every container's requests are its limits.
        let memory = told.memory_limit.filter(|_| pod.class == Class::Guaranteed);
        return Ok(Some(Resize { memory, ..told.resize() }));
    }
    if !told.changes_cpus() {
        return Ok(None);
    }
    let whole = pod.container(ALL);
    let total = whole.map(|whole| whole.cpu.unwrap_or_default());
    if told.is_listed && total == Some(told.running) {
        return Ok(Some(whole_to(pod, told.will_run)));
    }
    if (told.is_listed && total == Some(told.will_run)) || pod.served != QosLevel::Dedicated {
        return Ok(None);
    }
    let (name, container) = (pod.full_name(), &told.container);
    let message = match total {
        None => format!("pod {name} has no container {container}: name one of those that its spec has"),
        Some(total) if told.is_listed => format!(
            "pod {name} is known by what it asks for in total, {total}, and its containers ask for {} together: how much of it \
             container {container} has needs the pod's spec, which the meta-server has not told",
            told.running
        ),
        Some(total) => format!(
            "pod {name} is known by what it asks for in total, {total}, and container {container} is not among those that run in \
             its sandbox: how much of it the container has needs the pod's spec, which the meta-server has not told"
        ),
    };
    Err(Refusal {
        reason: Reason::Unsupported,
        rule: Rule::Understood,
        message,
        asked: told.cpu,
        free: Vec::new(),
    })
}

fn whole_to(pod: &Pod, total: MilliCpu) -> Resize {
    Resize { uid: pod.uid.clone(), container: ALL.to_owned(), cpu: Some(total), limit: None, memory: None }
}

/// What is to change of the pod by its spec, `before` being what its spec asked for before (`None`: not known). What the spec
/// has not changed stays: the runtime may have told of it first.
pub fn by_spec(pod: &Pod, before: Option<&PodRequest>, now: &PodRequest) -> Vec<Resize> {
    if let Some(whole) = pod.container(ALL) {
        let changed = before.is_some_and(|before| before.told.request != now.told.request);
        let total = now.told.request.filter(|total| changed && whole.cpu != Some(*total));
        return total.map(|total| whole_to(pod, total)).into_iter().collect();
    }
    let changed = |asked: &&Asked| {
        let before = before.map(|before| before.containers.iter().find(|b| b.name == asked.name));
        before.is_none_or(|before| before != Some(asked))
    };
    let differing = now.containers.iter().filter(changed).filter_map(|asked| {
        let known = pod.container(&asked.name)?;
        let differs = |told: bool, same: bool| told && !same;
        let any = differs(asked.cpu.is_some(), asked.cpu == known.cpu)
            || differs(asked.limit.is_some(), asked.limit == known.limit)
            || differs(asked.memory.is_some(), asked.memory == known.memory);
        any.then(|| Resize {
            uid: pod.uid.clone(),
            container: asked.name.clone(),
            cpu: asked.cpu,
            limit: asked.limit,
            memory: asked.memory,
        })
    });
    differing.collect()
}

/// Containers whose spec asks for other huge pages than they were admitted with: they keep those, since Kubernetes sets huge pages
/// aside when a container starts and has no way to change them later. Told once for each change of the spec.
pub fn fixed_by_spec(pod: &Pod, before: Option<&PodRequest>, now: &PodRequest) -> Vec<Refusal> {
    let in_words = |asked: &Asked| {
        let amounts = asked.huge_pages.iter().map(|(size, bytes)| format!("{bytes} of hugepages-{size}"));
        let amounts: Vec<_> = amounts.collect();
        if amounts.is_empty() { "no huge pages".to_owned() } else { amounts.join(", ") }
    };
    let differing = now.containers.iter().filter_map(|asked| {
        let known = pod.container(&asked.name).filter(|known| known.huge_pages != asked.huge_pages)?;
        let told = before.and_then(|before| before.containers.iter().find(|b| b.name == asked.name));
        told.is_none_or(|told| told.huge_pages != asked.huge_pages).then(|| Refusal {
            reason: Reason::Unsupported,
            rule: Rule::RunningStays,
            message: format!(
                "container {} of pod {} has {} for as long as it runs, and its spec asks for {}: make the pod anew",
                asked.name,
                pod.full_name(),
                in_words(known),
                in_words(asked)
            ),
            asked: asked.cpu,
            free: Vec::new(),
        })
    });
    differing.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use oxalyst_planner::plan::{DecidedBy, RequestSource};
    use oxalyst_planner::pods::{self, Role};
    use oxalyst_planner::policy::Wishes;
    use oxalyst_proto::runtime::v1::{Container, Resources, Sandbox};

    use super::*;

    fn asked(name: &str, milli: u64) -> Asked {
        let cpu = Some(MilliCpu(milli));
        Asked {
            name: name.into(),
            role: Role::App,
            cpu,
            limit: cpu,
            memory: Some(Bytes(1 << 20)),
            huge_pages: BTreeMap::new(),
        }
    }

    fn pod(served: QosLevel, containers: Vec<Asked>) -> Pod {
        Pod {
            uid: "u".into(),
            sandbox_id: "s".into(),
            namespace: "ns".into(),
            name: "pod".into(),
            qos: served,
            class: Class::Guaranteed,
            wishes: Wishes::default(),
            kept_labels: [].into(),
            placed_under: None,
            served,
            node_agent: false,
            main: containers[0].name.clone(),
            containers,
            told: pods::Told::default(),
            flags: BTreeSet::new(),
            given: pods::Given::new(),
            since_unix_ms: 0,
        }
    }

    fn container(id: &str, shares: u64) -> Container {
        let resources = Resources {
            cpu_shares: Some(shares),
            cpu_quota_us: Some(200_000),
            cpu_period_us: Some(100_000),
            memory_limit_bytes: Some(4096),
            ..Resources::default()
        };
        Container {
            container_id: id.into(),
            name: id.into(),
            resources: Some(resources),
            ..Container::default()
        }
    }

    fn told(running: &[(&str, u64)], id: &str, shares: u64) -> Told {
        Told::from(&ResizeContainerRequest {
            sandbox: Some(Sandbox { pod_uid: "u".into(), sandbox_id: "s".into(), ..Sandbox::default() }),
            container: Some(container(id, shares)),
            running: running.iter().map(|(id, shares)| container(id, *shares)).collect(),
            ..ResizeContainerRequest::default()
        })
    }

    fn spec(containers: Vec<Asked>) -> PodRequest {
        PodRequest {
            kept_labels: [].into(),
            plugins: oxalyst_planner::pods::Plugins::default(),
            uid: "u".into(),
            sandbox_id: "s".into(),
            namespace: "ns".into(),
            name: "pod".into(),
            qos: QosLevel::Dedicated,
            class: Class::Guaranteed,
            wishes: Wishes::default(),
            node_agent: false,
            told: pods::Told {
                request: Some(MilliCpu(containers.iter().filter_map(|c| c.cpu).map(|cpu| cpu.0).sum())),
                source: RequestSource::PodSpec,
                decided_by: DecidedBy::Admit,
                open: false,
            },
            flags: BTreeSet::new(),
            containers,
            now_unix_ms: 0,
        }
    }

    #[test]
    fn a_container_that_is_known_is_resized_by_what_it_was_told() {
        let pod = pod(QosLevel::Dedicated, vec![asked("a", 1000), asked("b", 1000)]);
        let resize = by_runtime(Some(&pod), &told(&[("a", 1024), ("b", 1024)], "b", 2048)).unwrap().unwrap();
        assert_eq!(
            (resize.container.as_str(), resize.cpu, resize.limit, resize.memory),
            ("b", Some(MilliCpu(2000)), Some(MilliCpu(2000)), Some(Bytes(4096)))
        );
        let burstable = Pod { class: Class::Burstable, ..pod };
        let resize = by_runtime(Some(&burstable), &told(&[], "b", 2048)).unwrap().unwrap();
        assert_eq!(resize.memory, None, "a limit is no request");
    }

    #[test]
    fn a_pod_known_by_its_total_changes_by_what_one_container_does_and_only_once() {
        let told = told(&[("a", 1024), ("b", 2048)], "b", 3072);
        let whole = |milli| pod(QosLevel::Dedicated, vec![asked(ALL, milli)]);
        let resize = by_runtime(Some(&whole(3000)), &told).unwrap().unwrap();
        assert_eq!((resize.container.as_str(), resize.cpu), (ALL, Some(MilliCpu(4000))));
        assert_eq!(by_runtime(Some(&whole(4000)), &told), Ok(None), "the same again");
    }

    #[test]
    fn a_total_that_the_containers_do_not_add_up_to_is_told() {
        let told = told(&[("a", 1024)], "a", 2048);
        let whole = |level| pod(level, vec![asked(ALL, 5000)]);
        let refusal = by_runtime(Some(&whole(QosLevel::Dedicated)), &told).unwrap_err();
        assert_eq!(refusal.reason, Reason::Unsupported);
        assert!(refusal.message.contains("spec"), "{}", refusal.message);
        assert_eq!(by_runtime(Some(&whole(QosLevel::Shared)), &told), Ok(None));
    }

    #[test]
    fn a_container_that_the_pod_is_not_known_to_have_is_not_said_to_be_resized() {
        let whole = |level| pod(level, vec![asked(ALL, 2000)]);
        for nobody in [told(&[("main", 2048)], "nope", 3072), told(&[], "main", 3072)] {
            let refusal = by_runtime(Some(&whole(QosLevel::Dedicated)), &nobody).unwrap_err();
            assert_eq!((refusal.reason, refusal.rule), (Reason::Unsupported, Rule::Understood));
            assert!(refusal.message.contains("not among those that run"), "{}", refusal.message);
            assert_eq!(by_runtime(Some(&whole(QosLevel::Shared)), &nobody), Ok(None));
        }
        let by_name = pod(QosLevel::Dedicated, vec![asked("main", 2000)]);
        let refusal = by_runtime(Some(&by_name), &told(&[("main", 2048)], "nope", 3072)).unwrap_err();
        assert!(refusal.message.contains("no container nope"), "{}", refusal.message);
        let same = told(&[("main", 2048), ("beside", 1024)], "beside", 1024);
        assert_eq!(by_runtime(Some(&by_name), &same), Ok(None), "its CPUs stay the same");
    }

    #[test]
    fn an_older_sandbox_and_an_unknown_pod_change_nothing() {
        let told = told(&[("a", 1024)], "a", 2048);
        let newer = Pod { sandbox_id: "s2".into(), ..pod(QosLevel::Dedicated, vec![asked("a", 1000)]) };
        assert_eq!(by_runtime(Some(&newer), &told), Ok(None));
        assert_eq!(by_runtime(None, &told), Ok(None));
    }

    #[test]
    fn only_what_the_spec_itself_changes_is_a_change() {
        // The runtime told of two CPUs first; the list of the kubelet still has one.
        let pod = pod(QosLevel::Dedicated, vec![asked("a", 2000), asked("b", 1000)]);
        let old = spec(vec![asked("a", 1000), asked("b", 1000)]);
        assert_eq!(by_spec(&pod, Some(&old), &old), []);
        let new = spec(vec![asked("a", 2000), asked("b", 1000)]);
        assert_eq!(by_spec(&pod, Some(&old), &new), [], "and then has what the runtime told");
        let newer = spec(vec![asked("a", 3000), asked("b", 1000)]);
        let resizes = by_spec(&pod, Some(&new), &newer);
        assert_eq!(resizes.len(), 1);
        assert_eq!((resizes[0].container.as_str(), resizes[0].cpu), ("a", Some(MilliCpu(3000))));
    }

    #[test]
    fn other_huge_pages_in_a_spec_change_nothing_and_are_told_once() {
        let with = |bytes: u64| {
            let huge_pages = BTreeMap::from([(Bytes(2 << 20), Bytes(bytes << 20))]);
            Asked { huge_pages, ..asked("a", 2000) }
        };
        let pod = pod(QosLevel::Dedicated, vec![with(4)]);
        let (old, new) = (spec(vec![with(4)]), spec(vec![with(8)]));
        assert_eq!(by_spec(&pod, Some(&old), &new), []);
        let told = fixed_by_spec(&pod, Some(&old), &new);
        assert_eq!((told.len(), told[0].reason), (1, Reason::Unsupported));
        let words = ["container a", "4Mi of hugepages-2Mi", "8Mi of hugepages-2Mi"];
        assert!(words.iter().all(|words| told[0].message.contains(words)), "{}", told[0].message);
        assert_eq!(fixed_by_spec(&pod, Some(&new), &new), [], "it has been told");
        assert_eq!(fixed_by_spec(&pod, None, &old), []);
    }

    #[test]
    fn a_spec_heard_for_the_first_time_is_compared_with_what_is_known() {
        let pod = pod(QosLevel::Dedicated, vec![asked("a", 2000)]);
        assert_eq!(by_spec(&pod, None, &spec(vec![asked("a", 2000)])), []);
        assert_eq!(by_spec(&pod, None, &spec(vec![asked("a", 1000)])).len(), 1);
        let silent = Asked { cpu: None, limit: None, memory: None, ..asked("a", 0) };
        assert_eq!(by_spec(&pod, None, &spec(vec![silent])), [], "what is not told stays");
    }

    #[test]
    fn a_pod_known_by_its_total_follows_its_specs_total() {
        let pod = pod(QosLevel::Dedicated, vec![asked(ALL, 2000)]);
        let (old, new) = (spec(vec![asked("a", 2000)]), spec(vec![asked("a", 3000)]));
        assert_eq!(by_spec(&pod, None, &new), [], "which of both is newer is not known");
        assert_eq!(by_spec(&pod, Some(&old), &new), [whole_to(&pod, MilliCpu(3000))]);
    }
}
