//! Names of containers, from the meta-server. It may be absent: then ids are all there is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use oxalyst_backoff::Backoff;
use oxalyst_cgroups::CgroupPath;
use oxalyst_proto::meta::v1::meta_client::MetaClient;
use oxalyst_proto::meta::v1::{Pod, PodList, WatchPodsRequest};
use tokio::time::{Instant, timeout};

use crate::sources::cgroup::Named;

/// How long the meta-server may take to open its stream.
const OPEN: Duration = Duration::from_secs(5);

/// What is told within this time is arranged together.
const COALESCE: Duration = Duration::from_millis(50);

/// A container as people know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The pod's UID.
    pub pod_uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name; `POD` for the pod's sandbox, as the kubelet's own statistics call it.
    pub container: String,
}

/// Who is who: replaced as a whole, read without waiting.
#[derive(Debug, Default)]
pub struct Directory {
    known: ArcSwap<Known>,
}

/// One list of pods, arranged.
#[derive(Debug, Default)]
pub struct Known {
    /// By container id, and by sandbox id.
    pub by_container: BTreeMap<String, Name>,
    named: Arc<[Named]>,
}

// === impl Known ===

impl Known {
    /// Arranges these pods. A cgroup path that cannot be one is left out: its container may still be found by
    /// its directory.
    pub fn of<'p>(pods: impl IntoIterator<Item = &'p Pod>) -> Self {
        let (mut by_container, mut named) = (BTreeMap::new(), Vec::new());
        for pod in pods {
            let name = |container: &str| Name {
                pod_uid: pod.uid.clone(),
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                container: container.to_owned(),
            };
            if !pod.sandbox_id.is_empty() {
                by_container.insert(pod.sandbox_id.clone(), name("POD"));
            }
            for container in pod.containers.iter().filter(|c| !c.container_id.is_empty()) {
                by_container.insert(container.container_id.clone(), name(&container.name));
                if let Ok((path, _)) = CgroupPath::of_container(&container.cgroups_path) {
                    named.push(Named {
                        path,
                        container_id: container.container_id.clone(),
                        pod_uid: pod.uid.clone(),
                    });
                }
            }
        }
        Self { by_container, named: named.into() }
    }
}

impl Known {
    /// The id of a pod's container by its name.
    pub fn container_id(&self, pod_uid: &str, container: &str) -> Option<&str> {
        let found = self.by_container.iter().find(|(_, n)| n.pod_uid == pod_uid && n.container == container);
        found.map(|(id, _)| id.as_str())
    }
}

// === impl Directory ===

impl Directory {
    /// What is known now.
    pub fn load(&self) -> Arc<Known> {
        self.known.load_full()
    }

    /// Replaces what is known.
    pub fn publish(&self, known: Known) {
        self.known.store(Arc::new(known));
    }

    /// The containers whose cgroup was told.
    pub fn named(&self) -> Arc<[Named]> {
        Arc::clone(&self.known.load().named)
    }
}

/// Follows the meta-server's list of pods for ever. While it is away the last list holds.
pub async fn follow(run_dir: PathBuf, directory: Arc<Directory>) {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
    let channel = oxalyst_mesh::connect(&run_dir, "meta-server");
    let mut client = MetaClient::new(channel).max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT);
    let mut told = None;
    loop {
        let began = Instant::now();
        let ended = watch(&mut client, &directory, &mut told).await;
        if told != Some(false) {
            tracing::info!(reason = %ended, "the meta-server is away; containers keep the names known so far");
            told = Some(false);
        }
        backoff.succeeded_for(began.elapsed());
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

async fn watch(
    client: &mut MetaClient<tonic::transport::Channel>,
    directory: &Directory,
    told: &mut Option<bool>,
) -> String {
    let mut stream = match timeout(OPEN, client.watch_pods(WatchPodsRequest { changes: true })).await {
        Ok(Ok(answer)) => answer.into_inner(),
        Ok(Err(status)) => return status.message().to_owned(),
        Err(_) => return format!("no answer within {OPEN:?}"),
    };
    let mut pods = Pods::default();
    loop {
        let first = match stream.message().await {
            Ok(Some(list)) => list,
            Ok(None) => return "it closed the stream".to_owned(),
            Err(status) => return status.message().to_owned(),
        };
        pods.take_up(first);
        if *told != Some(true) {
            tracing::info!(pods = pods.0.len(), "names come from the meta-server");
            *told = Some(true);
        }
        // A burst of pods is arranged once: to arrange costs what all pods do.
        let more = async {
            while let Ok(Some(list)) = stream.message().await {
                pods.take_up(list);
            }
        };
        // Where the stream has ended meanwhile, its next message tells.
        let _ = timeout(COALESCE, more).await;
        directory.publish(Known::of(pods.0.values()));
    }
}

/// Pods by uid, as they were told last.
#[derive(Debug, Default)]
struct Pods(BTreeMap<String, Pod>);

// === impl Pods ===

impl Pods {
    /// Takes up a list, whole or of what differs.
    fn take_up(&mut self, list: PodList) {
        if !list.changes_only {
            self.0.clear();
        }
        for uid in &list.removed_pod_uids {
            self.0.remove(uid);
        }
        self.0.extend(list.pods.into_iter().map(|pod| (pod.uid.clone(), pod)));
    }
}

#[cfg(test)]
mod tests {
    use oxalyst_proto::meta::v1::PodContainer;

    use super::*;

    #[test]
    fn containers_and_the_sandbox_get_the_pods_names() {
        let container = |id: &str, path: &str| PodContainer {
            name: "app".to_owned(),
            container_id: id.to_owned(),
            cgroups_path: path.to_owned(),
            ..PodContainer::default()
        };
        let pod = Pod {
            uid: "u1".to_owned(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            sandbox_id: "s1".to_owned(),
            containers: vec![container("c1", "/k8s.io/c1"), container("", ""), container("c2", "/../c2")],
            ..Pod::default()
        };
        let known = Known::of([&pod]);
        assert_eq!(known.by_container.keys().collect::<Vec<_>>(), ["c1", "c2", "s1"]);
        assert_eq!(known.by_container["s1"].container, "POD");
        assert_eq!(known.by_container["c1"].pod, "web");
        let paths: Vec<_> = known.named.iter().map(|n| n.path.as_str()).collect();
        assert_eq!(paths, ["k8s.io/c1"]);
    }

    #[test]
    fn a_list_of_what_differs_leaves_all_others_as_they_are() {
        let pod = |uid: &str, name: &str| Pod { uid: uid.into(), name: name.into(), ..Pod::default() };
        let mut pods = Pods::default();
        let whole = PodList { pods: vec![pod("a", "1"), pod("b", "1"), pod("c", "1")], ..PodList::default() };
        pods.take_up(whole.clone());
        pods.take_up(PodList {
            pods: vec![pod("b", "2"), pod("d", "1")],
            changes_only: true,
            removed_pod_uids: vec!["a".into()],
            ..PodList::default()
        });
        let names: Vec<_> = pods.0.values().map(|pod| (pod.uid.as_str(), pod.name.as_str())).collect();
        assert_eq!(names, [("b", "2"), ("c", "1"), ("d", "1")]);
        pods.take_up(whole);
        assert_eq!(pods.0.len(), 3);
    }
}
