//! Pods without a claim to CPUs or NUMA nodes of their own, taken in together: what follows from all of them is computed once, not
//! once for each.

use super::{
    Asked, CpuPolicy, Pod, PodRequest, Rules, RunningSandbox, State, adopt::has_claim, dynamic, join, native,
    sandbox::understood, settled,
};
use crate::{plan::DecidedBy, policy};
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;
use std::sync::Arc;

/// How pods are taken in together.
pub(super) struct Batch<'a> {
    machine: &'a Machine,
    rules: &'a Rules,
}

// === impl Batch ===

impl<'a> Batch<'a> {
    pub(super) fn new(machine: &'a Machine, rules: &'a Rules) -> Self {
        Self { machine, rules }
    }

    /// Whether the pod is new, and is one that runs where its pool does.
    pub(super) fn may_take(&self, state: &State, running: &RunningSandbox) -> bool {
        let request = &running.request;
        if state.pods.contains_key(&request.pod_uid) || has_claim(self.rules, request) {
            return false;
        }
        let pod = understood(request, DecidedBy::Reconcile);
        let native = matches!(self.rules.cpu_policy, CpuPolicy::Native(_));
        native || pod.qos != QosLevel::Dedicated && (!pod.wishes.numa_binding() || pod.node_agent)
    }

    /// Takes them in, and gives those that have to be taken in one by one: what they ask for passes what there is. Halving finds
    /// these without trying each of the others.
    pub(super) fn take_in<'r>(
        &self,
        after: &mut State,
        running: &[&'r RunningSandbox],
    ) -> Vec<&'r RunningSandbox> {
        if running.is_empty() {
            return Vec::new();
        }
        if let Some(together) = self.together(after, running) {
            *after = together;
            return Vec::new();
        }
        if running.len() == 1 {
            return running.to_vec();
        }
        let (some, others) = running.split_at(running.len() / 2);
        let mut apart = self.take_in(after, some);
        apart.extend(self.take_in(after, others));
        apart
    }

    /// `None` where one of them would be refused if it came last.
    fn together(&self, state: &State, running: &[&RunningSandbox]) -> Option<State> {
        let mut after = state.clone();
        let mut last_shared: Option<PodRequest> = None;
        for running in running {
            let request = understood(&running.request, DecidedBy::Reconcile);
            after.released.forget(&request.sandbox_id);
            let mut pod = join::draft(&request, self.rules);
            pod.containers.clone_from(&request.containers);
            pod.settle_main();
            self.put(&mut after, &pod);
            after.pods.insert(pod.uid.clone(), Arc::new(pod));
            if request.qos == QosLevel::Shared {
                last_shared = Some(request);
            }
        }
        settled::settle(&mut after, self.machine, self.rules);
        settled::check(state, &after, self.machine).ok()?;
        // What shared pods ask for together is the same whoever comes last.
        if let (CpuPolicy::Dynamic(options), Some(request)) = (&self.rules.cpu_policy, last_shared) {
            let pod = after.pods.get(&request.uid).cloned()?;
            let mut joining = dynamic::Joining::new(&mut after, self.machine, self.rules, options, &pod);
            if !pod.node_agent {
                joining.providers(request.containers.first()?).ok()?;
            }
        }
        Some(after)
    }

    fn put(&self, after: &mut State, pod: &Pod) {
        let Some(asked) = pod.containers.first().filter(|_| !pod.node_agent) else { return };
        match &self.rules.cpu_policy {
            CpuPolicy::Dynamic(options) => {
                let mut joining = dynamic::Joining::new(after, self.machine, self.rules, options, pod);
                joining.put_pooled(asked);
            }
            CpuPolicy::Native(option) => {
                let supply = self.rules.supply(self.machine);
                let (machine, native) = (self.machine, *option);
                let mut joining =
                    native::Joining { after, machine, native, supply, pod, plugins: None, lacking: None };
                joining.put_cpus(asked, None);
                joining.put_unbound_memory(asked);
            }
        }
    }
}

impl dynamic::Joining<'_> {
    /// In its pool, without a look at what else is there: its CPUs follow when the pools are computed.
    fn put_pooled(&mut self, asked: &Asked) {
        let (cpus, memory) = (self.cpu_request(asked), self.memory_request(asked));
        self.after.cpus.containers.insert(cpus.id.clone(), Arc::new(policy::pooled_entry(&cpus)));
        self.after
            .memory
            .containers
            .insert(memory.id.clone(), Arc::new(policy::memory::unbound_entry(&memory)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Class, SandboxRequest, adopt, placements, record};
    use super::*;
    use crate::plan::{RequestSource, Stage};
    use oxalyst_topology::{Cpu, CpuSet};
    use oxalyst_units::MilliCpu;

    fn machine() -> Machine {
        let cpu = |id: u32| Cpu { id, core: id / 2, socket: id / 128, numa: id / 64, l3: Some(id / 16) };
        Machine::from_rows((0..256).map(cpu).collect(), &[]).unwrap()
    }

    fn running(number: usize, level: &str, milli: u64) -> RunningSandbox {
        let uid = format!("{number:05}");
        RunningSandbox {
            request: SandboxRequest {
                sandbox_id: format!("s{uid}"),
                namespace: "ns".into(),
                name: uid.clone(),
                pod_uid: uid,
                labels: [].into(),
                kept_labels: [].into(),
                annotations: [(oxalyst_qos::QOS_LEVEL.to_owned(), level.to_owned())].into(),
                priority: None,
                class: Class::Burstable,
                request: Some(MilliCpu(milli)),
                request_source: RequestSource::ContainerResources,
                stage: Stage::Container,
                plugins_unasked: false,
                now_unix_ms: 5,
            },
            cpus: None,
        }
    }

    fn level(number: usize) -> &'static str {
        ["shared_cores", "reclaimed_cores", "shared_cores", "system_cores"][number % 4]
    }

    fn all(count: usize) -> Vec<RunningSandbox> {
        (0..count).map(|number| running(number, level(number), 10)).collect()
    }

    /// How often what follows from all pods is computed while these are taken in.
    fn computed(rules: &Rules, running: &[RunningSandbox]) -> usize {
        let machine = machine();
        let before = settled::times();
        let plan = adopt(&State::new(&machine, CpuSet::new()), &machine, rules, running);
        assert_eq!(plan.after.pods.len(), running.len());
        settled::times() - before
    }

    #[test]
    fn what_follows_from_all_pods_is_computed_as_often_for_a_thousand_new_ones_as_for_ten() {
        let native = CpuPolicy::Native(super::super::Native::default());
        for rules in [Rules::default(), Rules { cpu_policy: native, ..Rules::default() }] {
            assert_eq!(computed(&rules, &all(1000)), computed(&rules, &all(10)));
            assert!(computed(&rules, &all(1000)) <= 2);
        }
    }

    #[test]
    fn pods_that_ask_for_more_than_there_is_cost_halvings_and_not_a_look_at_each_of_the_others() {
        let mut running = all(1000);
        running[500].request.request = Some(MilliCpu(300_000));
        assert!(computed(&Rules::default(), &running) < 40);
    }

    #[test]
    fn together_they_are_placed_as_one_by_one() {
        let machine = machine();
        for rules in [
            Rules::default(),
            Rules { cpu_policy: CpuPolicy::Native(Default::default()), ..Rules::default() },
        ] {
            let mut running = all(24);
            running.push(running_agent(24));
            running.push(self::running(25, "shared_cores", 400_000));
            let empty = State::new(&machine, CpuSet::new());
            let together = adopt(&empty, &machine, &rules, &running).after;
            let mut apart = empty;
            for one in &running {
                apart = adopt(&apart, &machine, &rules, std::slice::from_ref(one)).after;
            }
            assert_eq!(placements(&together, &machine), placements(&apart, &machine));
            assert_eq!(record::whole(&together), record::whole(&apart));
        }
    }

    #[test]
    fn the_entries_are_those_of_an_admission() {
        let machine = machine();
        for rules in [
            Rules::default(),
            Rules { cpu_policy: CpuPolicy::Native(Default::default()), ..Rules::default() },
        ] {
            let empty = State::new(&machine, CpuSet::new());
            for number in 0..4 {
                let one = running(number, level(number), 500);
                let taken_in = adopt(&empty, &machine, &rules, std::slice::from_ref(&one)).after;
                let mut admitted =
                    super::super::admit(&empty, &machine, &rules, &one.request).unwrap().plan.after;
                admitted.change_pod(&one.request.pod_uid, |pod| pod.told.decided_by = DecidedBy::Reconcile);
                assert_eq!(record::whole(&taken_in), record::whole(&admitted));
                assert_eq!(placements(&taken_in, &machine), placements(&admitted, &machine));
            }
        }
    }

    fn running_agent(number: usize) -> RunningSandbox {
        let mut agent = running(number, "shared_cores", 100);
        for label in ["pod-template-generation", "controller-revision-hash"] {
            agent.request.labels.insert(label.to_owned(), "1".to_owned());
        }
        agent
    }
}
