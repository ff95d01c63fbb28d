//! What the orm decided, as far as it was heard: an immutable snapshot, replaced as a whole.
//!
//! Two things tell of it: the stream, and the answers to our own calls, which may overtake the stream. Each carries the
//! ledger's generation; nothing newer is replaced by something older. A stream that was lost starts a new epoch, because the
//! orm may have come back from an earlier state of its ledger with lower generations: the next snapshot then replaces all
//! that was heard before the loss.

mod shared_map;

use std::collections::BTreeSet;
use std::sync::Arc;

use oxalyst_proto::orm::v1::{AdmitReply, PlacementEvent, PodPlacement, Pool, State, admit_reply};

use shared_map::SharedMap;

/// Removed pods that are remembered at the least, so that a late answer does not bring them back.
const REMEMBERED: usize = 1024;

/// When something was decided: the epoch it was heard in, then the ledger's generation.
type At = (u64, u64);

/// CPUs and memory nodes, each in the Linux list format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpuset {
    /// Never empty where it is sent.
    pub cpus: String,
    /// May be empty: not decided, or not to be changed.
    pub mems: String,
}

/// What is known now.
#[derive(Clone, Debug, Default)]
pub struct Placements {
    epoch: u64,
    pods: SharedMap<Known>,
    /// Pods that have CPUs of their own, or containers of theirs do.
    owners: Arc<BTreeSet<Arc<str>>>,
    /// Removed pods that are remembered.
    removed: usize,
    pools: Arc<Vec<Pool>>,
    pools_at: At,
    heard: bool,
}

#[derive(Clone, Debug)]
struct Known {
    at: At,
    /// `None`: removed.
    placement: Option<Arc<PodPlacement>>,
}

// === impl Placements ===

impl Placements {
    /// Whether an orm was ever heard.
    pub fn heard(&self) -> bool {
        self.heard
    }

    /// The placement of a pod.
    pub fn pod(&self, uid: &str) -> Option<&PodPlacement> {
        self.pods.get(uid)?.placement.as_deref()
    }

    /// Where a container of this name is to run: CPUs and memory nodes, its own where it has its own place, else its pod's.
    pub fn place(&self, uid: &str, container: &str) -> Option<(&str, &str)> {
        let pod = self.pod(uid)?;
        let own = pod.containers.iter().find(|own| own.name == container && !own.cpus.is_empty());
        let (cpus, mems) = own.map_or((&pod.cpus, &pod.mems), |own| {
            (&own.cpus, if own.mems.is_empty() { &pod.mems } else { &own.mems })
        });
        (!cpus.is_empty()).then_some((cpus, mems))
    }

    /// As [`Placements::place`].
    pub fn cpuset_of(&self, uid: &str, container: &str) -> Option<Cpuset> {
        let (cpus, mems) = self.place(uid, container)?;
        Some(Cpuset { cpus: cpus.to_owned(), mems: mems.to_owned() })
    }

    /// As [`Placements::cpuset_of`], where the orm need not be asked for each container of the pod: one that has told of no
    /// request so far may bring it.
    pub fn settled_cpuset_of(&self, uid: &str, container: &str) -> Option<Cpuset> {
        self.pod(uid).filter(|pod| pod.settled)?;
        self.cpuset_of(uid, container)
    }

    /// Every set of CPUs that is a pod's or a container's own, with the pod's uid.
    pub fn exclusive(&self) -> impl Iterator<Item = (&str, &str)> {
        let owners = self.owners.iter().filter_map(|uid| self.pod(uid));
        owners.flat_map(|pod| pod.exclusive_sets().map(|(cpus, _)| (pod.pod_uid.as_str(), cpus)))
    }

    /// The share pool, where it has CPUs: the place of a container of which nothing is known.
    pub fn share_pool(&self) -> Option<Cpuset> {
        let pool = self.pools.iter().find(|p| p.name == "share" && !p.cpus.is_empty())?;
        Some(Cpuset { cpus: pool.cpus.clone(), mems: pool.mems.clone() })
    }

    /// The stream broke.
    #[must_use]
    pub fn after_loss(&self) -> Self {
        Self { epoch: self.epoch + 1, ..self.clone() }
    }

    /// Whether an event of the stream says nothing new: our own call's answer came first, nearly always. The same generation may
    /// say other things, when the machine changed and the ledger did not: the words are compared.
    pub fn knows(&self, event: &PlacementEvent) -> bool {
        let at = (self.epoch, event.generation);
        let known = |uid: &str, said: Option<&PodPlacement>| {
            let known = self.pods.get(uid);
            known.is_some_and(|k| k.at > at || (k.at == at && k.placement.as_deref() == said))
        };
        !event.snapshot
            && (self.pools_at > at || (self.pools_at == at && *self.pools == event.pools))
            && event.placed.iter().all(|pod| known(&pod.pod_uid, Some(pod)))
            && event.removed_pod_uids.iter().all(|uid| known(uid, None))
    }

    /// With an event of the stream.
    #[must_use]
    pub fn with_event(&self, event: PlacementEvent) -> Self {
        if event.snapshot {
            return self.with_everything(event.generation, event.placed, event.pools);
        }
        let removes = !event.removed_pod_uids.is_empty();
        let mut next = self.with_some(event.generation, event.placed, event.pools);
        for uid in event.removed_pod_uids {
            next.put(&uid, event.generation, None);
        }
        if removes {
            next.forget_some();
        }
        next
    }

    /// With the answer to an admission.
    #[must_use]
    pub fn with_reply(&self, reply: &AdmitReply) -> Self {
        let placed = match &reply.outcome {
            Some(admit_reply::Outcome::Placed(placed)) => Some(placed.clone()),
            _ => None,
        };
        // A refusal carries no pools where it changed nothing; the answer's own placement goes last: it is the same or newer.
        self.with_some(reply.generation, reply.changed.iter().cloned().chain(placed), reply.pools.clone())
    }

    /// With the whole state, as an answer tells it.
    #[must_use]
    pub fn with_state(&self, state: State) -> Self {
        self.with_everything(state.generation, state.pods, state.pools)
    }

    fn with_everything(&self, generation: u64, pods: Vec<PodPlacement>, pools: Vec<Pool>) -> Self {
        let at = (self.epoch, generation);
        let mut next = self.clone();
        next.pods.retain(|known| known.at > at);
        next.count_anew();
        let mut next = next.with_some(generation, pods, pools);
        next.heard = true;
        next
    }

    fn with_some(
        &self,
        generation: u64,
        placed: impl IntoIterator<Item = PodPlacement>,
        pools: Vec<Pool>,
    ) -> Self {
        let mut next = self.clone();
        let at = (self.epoch, generation);
        if at >= next.pools_at && !pools.is_empty() {
            next.pools = Arc::new(pools);
            next.pools_at = at;
        }
        for pod in placed {
            let pod = Arc::new(pod);
            next.put(&pod.pod_uid, generation, Some(pod.clone()));
        }
        next
    }

    fn put(&mut self, uid: &str, generation: u64, placement: Option<Arc<PodPlacement>>) {
        let at = (self.epoch, generation);
        let before = self.pods.get(uid);
        if before.is_some_and(|known| known.at > at) {
            return;
        }
        self.removed -= usize::from(before.is_some_and(|known| known.placement.is_none()));
        self.removed += usize::from(placement.is_none());
        let owns = placement.as_ref().is_some_and(|pod| owns(pod));
        if owns != self.owners.contains(uid) {
            let owners = Arc::make_mut(&mut self.owners);
            if owns {
                owners.insert(uid.into())
            } else {
                owners.remove(uid)
            };
        }
        self.pods.insert(uid, Known { at, placement });
    }

    /// What is said of all pods together, from what is said of each.
    fn count_anew(&mut self) {
        let placed = |known: &Known| known.placement.clone();
        let owners = self.pods.iter().filter(|(_, known)| placed(known).is_some_and(|pod| owns(&pod)));
        self.owners = Arc::new(owners.map(|(uid, _)| Arc::clone(uid)).collect());
        self.removed = self.pods.iter().filter(|(_, known)| known.placement.is_none()).count();
    }

    /// Forgets the oldest removals once twice as many are there as are remembered.
    fn forget_some(&mut self) {
        if self.removed < 2 * REMEMBERED {
            return;
        }
        let gone = self.pods.iter().filter(|(_, known)| known.placement.is_none());
        let mut gone: Vec<_> = gone.map(|(uid, known)| (known.at, Arc::clone(uid))).collect();
        gone.sort();
        for (_, uid) in gone.iter().take(gone.len().saturating_sub(REMEMBERED)) {
            self.pods.remove(uid);
            self.removed -= 1;
        }
    }
}

fn owns(pod: &PodPlacement) -> bool {
    pod.exclusive_sets().next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_proto::orm::v1::ContainerPlacement;
    use proptest::prelude::*;

    fn placed(uid: &str, cpus: &str) -> PodPlacement {
        PodPlacement {
            pod_uid: uid.into(),
            cpus: cpus.into(),
            mems: "0".into(),
            settled: true,
            ..Default::default()
        }
    }

    fn event(generation: u64, placed: Vec<PodPlacement>, removed: &[&str]) -> PlacementEvent {
        PlacementEvent {
            generation,
            placed,
            removed_pod_uids: removed.iter().map(|s| (*s).to_owned()).collect(),
            ..Default::default()
        }
    }

    fn snapshot(generation: u64, placed: Vec<PodPlacement>) -> PlacementEvent {
        PlacementEvent { snapshot: true, ..event(generation, placed, &[]) }
    }

    fn reply(generation: u64, pod: PodPlacement) -> AdmitReply {
        AdmitReply { generation, outcome: Some(admit_reply::Outcome::Placed(pod)), ..Default::default() }
    }

    fn cpus(p: &Placements, uid: &str) -> Option<String> {
        p.cpuset_of(uid, "main").map(|c| c.cpus)
    }

    #[test]
    fn an_older_event_does_not_replace_a_newer_answer() {
        let p = Placements::default()
            .with_event(snapshot(1, vec![placed("a", "0-3")]))
            .with_reply(&reply(3, placed("a", "0-1")))
            .with_event(event(2, vec![placed("a", "0-2"), placed("b", "5")], &[]));
        assert_eq!(cpus(&p, "a").as_deref(), Some("0-1"));
        assert_eq!(cpus(&p, "b").as_deref(), Some("5"));
    }

    #[test]
    fn an_event_that_the_answer_told_already_is_known_and_no_other_is() {
        let pools = vec![Pool { name: "share".into(), ..Default::default() }];
        let told = AdmitReply { pools: pools.clone(), ..reply(3, placed("a", "1")) };
        let p = Placements::default().with_event(snapshot(2, vec![])).with_reply(&told);
        let same = PlacementEvent { pools, ..event(3, vec![placed("a", "1")], &[]) };
        assert!(p.knows(&same));
        assert!(!p.knows(&PlacementEvent { generation: 4, ..same.clone() }), "newer");
        assert!(!p.knows(&PlacementEvent { removed_pod_uids: vec!["a".into()], ..same.clone() }));
        assert!(!p.knows(&PlacementEvent { placed: vec![placed("b", "2")], ..same.clone() }), "more");
        let offline = PlacementEvent { placed: vec![placed("a", "0")], ..same.clone() };
        assert!(!p.knows(&offline), "the same generation on another machine");
        assert!(!p.knows(&PlacementEvent { pools: vec![], ..same.clone() }));
        assert!(!p.knows(&PlacementEvent { snapshot: true, ..same.clone() }));
        assert!(!p.after_loss().knows(&same), "another epoch");
    }

    #[test]
    fn a_late_answer_does_not_bring_back_a_removed_pod() {
        let p = Placements::default()
            .with_event(event(5, vec![], &["a"]))
            .with_reply(&reply(4, placed("a", "1")));
        assert_eq!(cpus(&p, "a"), None);
    }

    #[test]
    fn a_snapshot_after_a_loss_replaces_all_even_with_a_lower_generation() {
        let p = Placements::default()
            .with_event(snapshot(90, vec![placed("a", "1"), placed("b", "2")]))
            .after_loss()
            .with_event(snapshot(7, vec![placed("a", "3")]));
        assert_eq!((cpus(&p, "a").as_deref(), cpus(&p, "b")), (Some("3"), None));
    }

    #[test]
    fn an_answer_that_overtook_the_first_snapshot_stays() {
        let p = Placements::default()
            .after_loss()
            .with_reply(&reply(8, placed("new", "1")))
            .with_event(snapshot(7, vec![placed("old", "0")]));
        assert_eq!(cpus(&p, "new").as_deref(), Some("1"));
        assert_eq!(cpus(&p, "old").as_deref(), Some("0"));
    }

    #[test]
    fn what_is_empty_is_no_cpuset_and_what_is_not_settled_is_one_that_is_asked_for_again() {
        let open = PodPlacement { settled: false, ..placed("a", "1") };
        let p = Placements::default().with_event(snapshot(1, vec![open, placed("b", "")]));
        assert_eq!((cpus(&p, "a").as_deref(), cpus(&p, "b")), (Some("1"), None));
        assert_eq!(p.settled_cpuset_of("a", "main"), None);
    }

    #[test]
    fn a_container_with_a_place_of_its_own_runs_there_and_the_others_where_the_pod_does() {
        let own = |name: &str, cpus: &str, mems: &str| ContainerPlacement {
            name: name.into(),
            cpus: cpus.into(),
            mems: mems.into(),
            exclusive: true,
            ..Default::default()
        };
        let containers = vec![own("side", "4", "1"), own("once", "5", ""), own("lost", "", "")];
        let pod = PodPlacement { containers, exclusive: true, ..placed("a", "2-3") };
        let p = Placements::default().with_event(snapshot(1, vec![pod]));
        assert_eq!(p.place("a", "side"), Some(("4", "1")));
        assert_eq!(p.place("a", "once"), Some(("5", "0")));
        assert_eq!([p.place("a", "main"), p.place("a", "lost")], [Some(("2-3", "0")); 2]);
        let sets: Vec<_> = p.exclusive().collect();
        assert_eq!(sets, [("a", "2-3"), ("a", "4"), ("a", "5"), ("a", "")]);
    }

    #[test]
    fn removals_are_remembered_up_to_a_bound() {
        let mut p = Placements::default();
        let last = 2 * REMEMBERED as u64 + 50;
        for n in 0..last {
            p = p.with_event(event(n, vec![], &[&n.to_string()]));
            assert!(p.pods.iter().count() < 2 * REMEMBERED && p.removed == p.pods.iter().count());
        }
        assert!(p.pods.get("0").is_none() && p.pods.get(&(last - REMEMBERED as u64).to_string()).is_some());
    }

    #[test]
    fn who_has_cpus_of_its_own_is_known_however_it_was_told() {
        let own = |uid: &str| PodPlacement { exclusive: true, ..placed(uid, "1") };
        let owners = |p: &Placements| p.exclusive().map(|(uid, _)| uid.to_owned()).collect::<Vec<_>>();
        let p = Placements::default().with_event(snapshot(1, vec![own("a"), placed("b", "0")]));
        assert_eq!(owners(&p), ["a"]);
        let p = p.with_reply(&reply(2, own("c"))).with_event(event(3, vec![placed("a", "0")], &["b"]));
        assert_eq!(owners(&p), ["c"]);
        assert_eq!(owners(&p.with_event(event(4, vec![], &["c"]))), [""; 0]);
        assert_eq!(owners(&p.after_loss().with_event(snapshot(1, vec![own("b")]))), ["b"]);
    }

    proptest! {
        #[test]
        fn the_order_of_arrival_within_an_epoch_does_not_matter(
            order in Just((1u64..20).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let arrive = |order: &[u64]| order.iter().fold(Placements::default(), |p, g| {
                if g % 5 == 0 { p.with_event(event(*g, vec![], &["a"])) }
                else { p.with_reply(&reply(*g, placed("a", &g.to_string()))) }
            });
            let sorted: Vec<_> = (1u64..20).collect();
            prop_assert_eq!(cpus(&arrive(&order), "a"), cpus(&arrive(&sorted), "a"));
        }
    }
}
