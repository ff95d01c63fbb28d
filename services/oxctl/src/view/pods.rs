//! Pods and their containers: what the orm decided beside what the gateway applied and the kernel says.

use std::collections::BTreeMap;

use oxalyst_proto::gateway::v1::{AppliedContainer, ListContainersReply, RefusedPod};
use oxalyst_proto::orm::v1::{PodPlacement, State};
use oxalyst_proto::runtime::v1::ContainerState;
use serde::Serialize;

use super::{cell, told};
use crate::duration;
use crate::table::Table;

/// All pods known to the orm or to the gateway.
#[derive(Debug, Serialize)]
pub(crate) struct PodsView {
    /// Generation of the orm's ledger; `None`: the orm gave no answer.
    pub(crate) generation: Option<u64>,
    /// "containerd v2.1.9"; `None`: the gateway gave no answer or has met no runtime.
    pub(crate) runtime: Option<String>,
    pub(crate) pods: Vec<PodView>,
    /// Which service gave no answer, and what to do.
    pub(crate) errors: Vec<String>,
    #[serde(skip)]
    now_unix_ms: i64,
}

/// One pod.
#[derive(Debug, Serialize)]
pub(crate) struct PodView {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `None`: the orm does not know the pod.
    pub(crate) placement: Option<PlacementView>,
    pub(crate) containers: Vec<ContainerView>,
    /// Why each of its containers is refused; `None`: they are not.
    pub(crate) refused: Option<String>,
}

/// What the orm decided.
#[derive(Debug, Serialize)]
pub(crate) struct PlacementView {
    pub(crate) qos_level: String,
    pub(crate) cpus: Option<String>,
    pub(crate) mems: Option<String>,
    pub(crate) exclusive: bool,
    pub(crate) pool: Option<String>,
    pub(crate) settled: bool,
    pub(crate) requested_milli_cpu: u64,
    pub(crate) request_source: String,
    pub(crate) since: Option<String>,
    pub(crate) since_unix_ms: i64,
    pub(crate) decided_by: String,
    pub(crate) flags: Vec<String>,
    /// Labels that are kept with it.
    pub(crate) kept_labels: BTreeMap<String, String>,
    pub(crate) sandbox_id: String,
    /// Containers that run elsewhere than the pod.
    pub(crate) containers: Vec<OwnPlaceView>,
}

/// Where a container runs that does not run where its pod does.
#[derive(Debug, Serialize)]
pub(crate) struct OwnPlaceView {
    pub(crate) name: String,
    pub(crate) cpus: Option<String>,
    pub(crate) mems: Option<String>,
    pub(crate) exclusive: bool,
    pub(crate) pool: Option<String>,
}

/// What the gateway knows of a container.
#[derive(Debug, Serialize)]
pub(crate) struct ContainerView {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) state: &'static str,
    pub(crate) wanted_cpus: Option<String>,
    pub(crate) wanted_mems: Option<String>,
    pub(crate) kernel_cpus: Option<String>,
    pub(crate) kernel_mems: Option<String>,
    /// CPUs on which the kernel lets it run.
    pub(crate) effective_cpus: Option<String>,
    /// CPU time that it can have at most in one second, thousandths of a CPU.
    pub(crate) max_milli_cpu: Option<u64>,
    pub(crate) marks: Vec<String>,
}

// === impl PodsView ===

impl PodsView {
    pub(crate) fn new(
        state: Option<State>,
        running: Option<ListContainersReply>,
        errors: Vec<String>,
        now_unix_ms: i64,
    ) -> Self {
        let generation = state.as_ref().map(|s| s.generation);
        let runtime = running.as_ref().and_then(|r| told(&r.runtime));
        let mut pods: BTreeMap<String, PodView> = BTreeMap::new();
        for placed in state.map(|s| s.pods).unwrap_or_default() {
            pods.insert(placed.pod_uid.clone(), PodView::placed(placed));
        }
        let (containers, refused) = running.map(|r| (r.containers, r.refused)).unwrap_or_default();
        for refused in refused {
            let pod = pods.entry(refused.pod_uid.clone()).or_insert_with(|| PodView::refused(&refused));
            pod.refused = Some(refused.message);
        }
        for applied in containers {
            let pod = pods.entry(applied.pod_uid.clone()).or_insert_with(|| PodView::unplaced(&applied));
            pod.containers.push(ContainerView::from(applied));
        }
        let mut pods: Vec<PodView> = pods.into_values().collect();
        for pod in &mut pods {
            pod.containers.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        }
        pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        Self { generation, runtime, pods, errors, now_unix_ms }
    }

    pub(crate) fn render(&self, wide: bool) -> String {
        let mut header =
            vec!["NAMESPACE", "POD", "CONTAINER", "STATE", "QOS", "CPUS", "MEMS", "SET", "SINCE", "BY"];
        if wide {
            header.extend([
                "KERNEL-CPUS",
                "KERNEL-MEMS",
                "EFFECTIVE-CPUS",
                "MAX-CPU",
                "MARKS",
                "FLAGS",
                "REQUEST",
                "REQUEST-FROM",
                "POD-UID",
                "CONTAINER-ID",
            ]);
        }
        let mut table = Table::new(&header);
        for pod in &self.pods {
            for container in pod.containers.iter().map(Some).chain(pod.containers.is_empty().then_some(None))
            {
                let mut cells = pod.cells(container, self.now_unix_ms);
                if wide {
                    cells.extend(pod.wide_cells(container));
                }
                table.row(cells);
            }
        }
        if table.is_empty() {
            return "no pods\n".to_owned();
        }
        table.render()
    }
}

// === impl PodView ===

impl PodView {
    fn placed(placed: PodPlacement) -> Self {
        Self {
            uid: placed.pod_uid.clone(),
            namespace: placed.namespace.clone(),
            name: placed.name.clone(),
            placement: Some(PlacementView::from(placed)),
            containers: Vec::new(),
            refused: None,
        }
    }

    fn unplaced(applied: &AppliedContainer) -> Self {
        Self {
            uid: applied.pod_uid.clone(),
            namespace: applied.namespace.clone(),
            name: applied.pod.clone(),
            placement: None,
            containers: Vec::new(),
            refused: None,
        }
    }

    fn refused(refused: &RefusedPod) -> Self {
        Self {
            uid: refused.pod_uid.clone(),
            namespace: refused.namespace.clone(),
            name: refused.name.clone(),
            placement: None,
            containers: Vec::new(),
            refused: None,
        }
    }

    fn cells(&self, container: Option<&ContainerView>, now_unix_ms: i64) -> Vec<String> {
        let placement = self.placement.as_ref();
        let own = placement.zip(container).and_then(|(placement, container)| placement.own(&container.name));
        // The orm's word counts; without it, what the gateway last heard of it.
        let (cpus, mems) = match (own, placement) {
            (Some(own), _) => (own.cpus.clone(), own.mems.clone()),
            (None, Some(placement)) => (placement.cpus.clone(), placement.mems.clone()),
            (None, None) => {
                container.map(|c| (c.wanted_cpus.clone(), c.wanted_mems.clone())).unwrap_or_default()
            }
        };
        vec![
            self.namespace.clone(),
            self.name.clone(),
            container.map(|c| c.name.clone()).unwrap_or_default(),
            container.map(|c| c.state.to_owned()).unwrap_or_default(),
            placement.map(|p| p.qos_level.clone()).unwrap_or_default(),
            cpus.unwrap_or_default(),
            mems.unwrap_or_default(),
            own.map_or_else(|| self.set(), OwnPlaceView::set),
            placement.and_then(|p| duration::since(now_unix_ms, p.since_unix_ms)).unwrap_or_default(),
            placement.map(|p| p.decided_by.clone()).unwrap_or_default(),
        ]
    }

    fn set(&self) -> String {
        match (&self.placement, &self.refused) {
            (Some(placement), _) => placement.set(),
            (None, Some(_)) => "refused".to_owned(),
            (None, None) => String::new(),
        }
    }

    fn marks(&self, container: Option<&ContainerView>) -> String {
        let own = container.into_iter().flat_map(|c| c.marks.iter().map(String::as_str));
        self.refused.as_ref().map(|_| "refused").into_iter().chain(own).collect::<Vec<_>>().join(",")
    }

    fn wide_cells(&self, container: Option<&ContainerView>) -> Vec<String> {
        let placement = self.placement.as_ref();
        vec![
            cell(container.and_then(|c| c.kernel_cpus.as_ref())),
            cell(container.and_then(|c| c.kernel_mems.as_ref())),
            cell(container.and_then(|c| c.effective_cpus.as_ref())),
            cell(container.and_then(|c| c.max_milli_cpu).map(|most| format!("{most}m")).as_ref()),
            self.marks(container),
            placement.map(|p| p.flags.join(",")).unwrap_or_default(),
            placement.map(|p| format!("{}m", p.requested_milli_cpu)).unwrap_or_default(),
            placement.map(|p| p.request_source.clone()).unwrap_or_default(),
            self.uid.clone(),
            container.map(|c| c.id.clone()).unwrap_or_default(),
        ]
    }
}

// === impl PlacementView ===

impl PlacementView {
    /// "exclusive", or "shared" and the pool's name.
    fn set(&self) -> String {
        match (self.exclusive, &self.pool) {
            (true, _) => "exclusive".to_owned(),
            (false, _) if !self.settled => "undecided".to_owned(),
            (false, Some(pool)) => format!("shared ({pool})"),
            (false, None) => "shared".to_owned(),
        }
    }
}

impl PlacementView {
    /// The container's own place, where it has one.
    fn own(&self, container: &str) -> Option<&OwnPlaceView> {
        self.containers.iter().find(|own| own.name == container)
    }
}

// === impl OwnPlaceView ===

impl OwnPlaceView {
    fn set(&self) -> String {
        match (self.exclusive, &self.pool) {
            (true, _) => "exclusive".to_owned(),
            (false, Some(pool)) => format!("shared ({pool})"),
            (false, None) => "shared".to_owned(),
        }
    }
}

impl From<PodPlacement> for PlacementView {
    fn from(placed: PodPlacement) -> Self {
        Self {
            qos_level: placed.qos_level,
            cpus: told(&placed.cpus),
            mems: told(&placed.mems),
            exclusive: placed.exclusive,
            pool: told(&placed.pool),
            settled: placed.settled,
            requested_milli_cpu: placed.requested_milli_cpu,
            request_source: placed.request_source,
            since: duration::rfc3339(placed.since_unix_ms),
            since_unix_ms: placed.since_unix_ms,
            decided_by: placed.decided_by,
            flags: placed.flags,
            kept_labels: placed.kept_labels.into_iter().collect(),
            sandbox_id: placed.sandbox_id,
            containers: placed
                .containers
                .into_iter()
                .map(|own| OwnPlaceView {
                    cpus: told(&own.cpus),
                    mems: told(if own.mems.is_empty() { &placed.mems } else { &own.mems }),
                    exclusive: own.exclusive,
                    pool: told(&own.pool),
                    name: own.name,
                })
                .collect(),
        }
    }
}

// === impl ContainerView ===

impl From<AppliedContainer> for ContainerView {
    fn from(applied: AppliedContainer) -> Self {
        Self {
            state: match applied.state() {
                ContainerState::Unspecified => "unknown",
                ContainerState::Created => "created",
                ContainerState::Running => "running",
                ContainerState::Stopped => "stopped",
                ContainerState::Paused => "paused",
            },
            id: applied.container_id,
            name: applied.name,
            wanted_cpus: told(&applied.wanted_cpus),
            wanted_mems: told(&applied.wanted_mems),
            kernel_cpus: applied.kernel_cpus,
            kernel_mems: applied.kernel_mems,
            effective_cpus: applied.effective_cpus,
            max_milli_cpu: applied.max_milli_cpu,
            marks: applied.marks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_proto::orm::v1::ContainerPlacement;

    fn placed(uid: &str, exclusive: bool) -> PodPlacement {
        PodPlacement {
            pod_uid: uid.into(),
            namespace: "default".into(),
            name: format!("pod-{uid}"),
            qos_level: if exclusive { "dedicated_cores" } else { "shared_cores" }.into(),
            pool: if exclusive { "" } else { "share" }.into(),
            cpus: if exclusive { "1" } else { "0" }.into(),
            mems: "0".into(),
            exclusive,
            settled: true,
            requested_milli_cpu: 1000,
            since_unix_ms: 10_000,
            decided_by: "admit".into(),
            request_source: "sandbox-resources".into(),
            ..PodPlacement::default()
        }
    }

    fn applied(uid: &str, name: &str) -> AppliedContainer {
        AppliedContainer {
            container_id: format!("id-{name}"),
            pod_uid: uid.into(),
            namespace: "default".into(),
            pod: format!("pod-{uid}"),
            name: name.into(),
            state: ContainerState::Running as i32,
            wanted_cpus: "0".into(),
            kernel_cpus: Some("0-1".into()),
            effective_cpus: Some("1".into()),
            max_milli_cpu: Some(750),
            marks: vec!["drift".into()],
            ..AppliedContainer::default()
        }
    }

    fn state(pods: Vec<PodPlacement>) -> Option<State> {
        Some(State { generation: 3, pods, ..State::default() })
    }

    fn running(containers: Vec<AppliedContainer>) -> Option<ListContainersReply> {
        Some(ListContainersReply {
            mode: "nri".into(),
            connected: true,
            runtime: "containerd v2".into(),
            containers,
            refused: vec![],
        })
    }

    #[test]
    fn each_container_of_a_pod_has_a_row_in_order_of_names() {
        let view = PodsView::new(
            state(vec![placed("b", true), placed("a", false)]),
            running(vec![applied("a", "z"), applied("a", "app"), applied("b", "app")]),
            vec![],
            52_000,
        );
        assert_eq!(
            view.render(false),
            "NAMESPACE  POD    CONTAINER  STATE    QOS              CPUS  MEMS  SET             SINCE  BY\n\
             default    pod-a  app        running  shared_cores     0     0     shared (share)  42s    admit\n\
             default    pod-a  z          running  shared_cores     0     0     shared (share)  42s    admit\n\
             default    pod-b  app        running  dedicated_cores  1     0     exclusive       42s    admit\n"
        );
    }

    #[test]
    fn a_container_with_a_place_of_its_own_is_shown_there() {
        let own = ContainerPlacement {
            name: "side".into(),
            cpus: "7".into(),
            pool: "share".into(),
            ..Default::default()
        };
        let pod = PodPlacement { containers: vec![own], ..placed("a", true) };
        let view = PodsView::new(
            state(vec![pod]),
            running(vec![applied("a", "main"), applied("a", "side")]),
            vec![],
            0,
        );
        let text = view.render(false);
        let rows: Vec<_> = text.lines().skip(1).collect();
        assert!(rows[0].contains("exclusive") && !rows[0].contains(" 7 "), "{text}");
        assert!(rows[1].contains("shared (share)") && rows[1].contains(" 7 "), "{text}");
    }

    #[test]
    fn a_refused_pod_is_said_to_be_refused() {
        let refused = RefusedPod {
            pod_uid: "r".into(),
            name: "pod-r".into(),
            message: "no room".into(),
            ..RefusedPod::default()
        };
        let told = ListContainersReply { refused: vec![refused], ..ListContainersReply::default() };
        let view = PodsView::new(state(vec![]), Some(told), vec![], 0);
        let row = view.render(true).lines().nth(1).unwrap().to_owned();
        assert_eq!(row.matches("refused").count(), 2, "as its set and as its mark: {row}");
        assert!(serde_json::to_string(&view).unwrap().contains("\"refused\":\"no room\""));
    }

    #[test]
    fn wide_adds_what_the_kernel_says_and_the_marks() {
        let view =
            PodsView::new(state(vec![placed("a", false)]), running(vec![applied("a", "app")]), vec![], 0);
        let text = view.render(true);
        let row = text.lines().nth(1).unwrap();
        for cell in ["0-1", "drift", "750m", "1000m", "sandbox-resources", "id-app"] {
            assert!(row.contains(cell), "{cell}: {row}");
        }
    }

    #[test]
    fn a_pod_known_to_one_side_only_is_shown() {
        let view =
            PodsView::new(state(vec![placed("a", false)]), running(vec![applied("b", "app")]), vec![], 0);
        let names: Vec<(&str, bool, usize)> =
            view.pods.iter().map(|p| (p.name.as_str(), p.placement.is_some(), p.containers.len())).collect();
        assert_eq!(names, [("pod-a", true, 0), ("pod-b", false, 1)]);
        assert_eq!(view.render(true).lines().count(), 3);
    }

    #[test]
    fn kept_labels_and_flags_are_in_the_json() {
        let pod = PodPlacement {
            kept_labels: [("team".to_owned(), "a".to_owned())].into(),
            flags: vec!["other-policy".into()],
            ..placed("a", false)
        };
        let json = serde_json::to_value(PodsView::new(state(vec![pod, placed("b", false)]), None, vec![], 0));
        let json = json.unwrap();
        let of = |pod: usize| &json["pods"][pod]["placement"];
        assert_eq!(of(0)["kept_labels"], serde_json::json!({"team": "a"}));
        assert_eq!(of(0)["flags"], serde_json::json!(["other-policy"]));
        assert_eq!(of(1)["kept_labels"], serde_json::json!({}), "none is kept");
    }

    #[test]
    fn an_undecided_pod_has_no_cpus_and_says_so() {
        let undecided = PodPlacement { settled: false, cpus: String::new(), ..placed("a", false) };
        let view = PodsView::new(state(vec![undecided]), None, vec!["nri-gateway is away".into()], 0);
        assert!(view.render(false).contains("undecided"));
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["pods"][0]["placement"]["cpus"], serde_json::Value::Null);
        assert_eq!(json["errors"][0], "nri-gateway is away");
        assert_eq!(json["runtime"], serde_json::Value::Null);
    }
}
