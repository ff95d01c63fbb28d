//! What is answered when the orm is not heard in time: pure.

use oxalyst_proto::runtime::v1::Sandbox;

use crate::placements::{Cpuset, Placements};
use crate::settings::OnDeadline;

/// Label and value of the mesh's own pods.
const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "oxalyst");

/// Where the kubelet got a pod from: "api", or "file" and "http" for static pods.
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";

/// On the mirror object of a static pod.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

const QOS_LEVEL: &str = "katalyst.kubewharf.io/qos_level";

/// Deadlines missed in a row after which nothing is asked any more until a probe succeeds.
pub const MISSES: u32 = 2;

/// Whether a pod is let through under either policy: without these the node, or the mesh itself, could not start.
pub fn is_exempt(sandbox: &Sandbox) -> bool {
    let annotation = |key: &str| sandbox.annotations.get(key).map(String::as_str);
    sandbox.labels.get(PART_OF.0).is_some_and(|v| v == PART_OF.1)
        || annotation(CONFIG_SOURCE).is_some_and(|v| v != "api")
        || annotation(CONFIG_MIRROR).is_some()
        || annotation(QOS_LEVEL) == Some("system_cores")
}

/// Whether a sandbox or container is refused because the orm is not heard.
pub fn refuses(policy: OnDeadline, sandbox: &Sandbox) -> bool {
    policy == OnDeadline::Closed && !is_exempt(sandbox)
}

/// Where a container goes of whose pod nothing is known: the last known share pool. `None`: it is not adjusted.
pub fn place(placements: &Placements) -> Option<Cpuset> {
    placements.share_pool()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Sandbox {
        let map =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Sandbox { labels: map(labels), annotations: map(annotations), ..Default::default() }
    }

    #[test]
    fn closed_refuses_an_ordinary_pod_and_open_none() {
        let pod = sandbox(&[], &[(CONFIG_SOURCE, "api"), (QOS_LEVEL, "dedicated_cores")]);
        assert!(refuses(OnDeadline::Closed, &pod));
        assert!(!refuses(OnDeadline::Open, &pod));
    }

    #[test]
    fn closed_lets_through_what_the_node_needs() {
        for pod in [
            sandbox(&[PART_OF], &[]),
            sandbox(&[], &[(CONFIG_SOURCE, "file")]),
            sandbox(&[], &[(CONFIG_MIRROR, "x")]),
            sandbox(&[], &[(QOS_LEVEL, "system_cores")]),
        ] {
            assert!(!refuses(OnDeadline::Closed, &pod), "{pod:?}");
        }
    }
}
