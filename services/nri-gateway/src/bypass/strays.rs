//! Containers that the kubelet lists and that do not lie where any known naming puts them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use oxalyst_cgroups::{CgroupPath, Found, FoundPod};
use oxalyst_proto::meta::v1::PodList;
use tokio::time::Instant;

use crate::kernel::{Kernel, Shown};

/// Between two searches: each asks about every process of the machine.
const PERIOD: Duration = Duration::from_secs(10);

/// What the last search found.
#[derive(Debug, Default)]
pub(super) struct Strays {
    found: Vec<Found>,
    next: Option<Instant>,
}

// === impl Strays ===

impl Strays {
    /// Adds them to what the tree shows, searching anew where one is missing and the last search is old enough.
    pub(super) async fn join(
        &mut self,
        shown: &mut Shown,
        list: Option<&PodList>,
        kernel: &Kernel,
        deadline: Duration,
    ) {
        let wanted = missing(shown, list);
        let now = Instant::now();
        if wanted.is_empty() {
            self.found.clear();
        } else if self.next.is_none_or(|next| now >= next) {
            self.next = Some(now + PERIOD);
            match kernel.elsewhere(wanted.clone(), deadline).await {
                Ok(found) => self.take(found),
                Err(e) => tracing::debug!(error = %e, "processes cannot be asked where they lie"),
            }
        }
        for stray in self.found.iter().filter(|stray| wanted.contains_key(&stray.container_id)) {
            add(shown, stray);
        }
    }

    fn take(&mut self, found: Vec<Found>) {
        let known: BTreeSet<_> = self.found.iter().map(|known| &known.container_id).collect();
        for stray in found.iter().filter(|stray| !known.contains(&stray.container_id)) {
            tracing::info!(
                container = %stray.container_id, cgroup = %stray.path,
                "found by its processes: its cgroup has a name that is not known"
            );
        }
        self.found = found;
    }
}

/// Containers that have an id in the list and no cgroup, and their pods' UIDs.
fn missing(shown: &Shown, list: Option<&PodList>) -> BTreeMap<String, String> {
    let there: BTreeSet<&str> = shown.containers.iter().map(|found| found.container_id.as_str()).collect();
    let pods = list.into_iter().flat_map(|list| &list.pods);
    let listed = pods.flat_map(|pod| pod.containers.iter().map(|own| (&own.container_id, &pod.uid)));
    listed
        .filter(|(id, _)| !id.is_empty() && !there.contains(id.as_str()))
        .map(|(id, uid)| (id.clone(), uid.clone()))
        .collect()
}

fn add(shown: &mut Shown, stray: &Found) {
    if shown.pods.iter().all(|pod| pod.pod_uid != stray.pod_uid) {
        let above = stray.path.as_str().rsplit_once('/').map_or("", |(above, _)| above);
        let path = CgroupPath::new(above).unwrap_or_default();
        shown.pods.push(FoundPod { path, pod_uid: stray.pod_uid.clone() });
    }
    shown.containers.push(stray.clone());
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_cgroups::fixture::{Fixture, Layout};
    use oxalyst_proto::meta::v1::{Pod, PodContainer};

    #[tokio::test]
    async fn c13_a_stray_is_joined_with_its_pod_and_one_that_lies_where_it_should_is_not_searched() {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::create(dir.path(), Layout::V2).unwrap();
        let (usual, stray) = ("a".repeat(64), "b".repeat(64));
        fixture.cgroup(&CgroupPath::new(&format!("kubepods/podu/{usual}")).unwrap()).unwrap();
        fixture.proc("10/cgroup", &format!("0::/odd/v/x-{stray}\n")).unwrap();
        let pod = |uid: &str, id: &str| {
            let own = PodContainer { container_id: id.into(), ..PodContainer::default() };
            Pod { uid: uid.into(), containers: vec![own], ..Pod::default() }
        };
        let list = PodList { pods: vec![pod("u", &usual), pod("v", &stray)], ..PodList::default() };
        let kernel = Kernel::new(dir.path().into());
        let deadline = Duration::from_secs(5);
        let mut shown = kernel.shown(deadline).await.unwrap();
        let mut strays = Strays::default();

        strays.join(&mut shown, Some(&list), &kernel, deadline).await;

        let places: Vec<_> =
            shown.containers.iter().map(|c| (c.pod_uid.as_str(), c.path.as_str().to_owned())).collect();
        assert_eq!(places, [("u", format!("kubepods/podu/{usual}")), ("v", format!("odd/v/x-{stray}"))]);
        assert_eq!(shown.pods.iter().find(|pod| pod.pod_uid == "v").unwrap().path.as_str(), "odd/v");
        let mut again = kernel.shown(deadline).await.unwrap();
        strays.join(&mut again, None, &kernel, deadline).await;
        assert_eq!(again.containers.len(), 1, "nobody lists it any more");
    }
}
