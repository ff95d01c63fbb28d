//! The pods and containers that the tree of cgroups shows, without asking anybody.

use std::time::Duration;

use oxalyst_cgroups::{CgroupPath, Found, FoundPod, Hierarchy, pod_roots, read_text, walk};

use super::{Kernel, KernelError};

/// What the tree shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Every pod.
    pub pods: Vec<FoundPod>,
    /// Every container but those that only keep a pod's namespaces.
    pub containers: Vec<Found>,
    /// Where pods were found.
    pub roots: Vec<String>,
}

impl Kernel {
    /// Looks at the whole tree.
    ///
    /// # Errors
    /// [`KernelError`] where it could not be read.
    pub async fn shown(&self, deadline: Duration) -> Result<Shown, KernelError> {
        let look = self.work(deadline, |hierarchy| {
            let roots = pod_roots(hierarchy)?;
            let walk = walk(hierarchy, &roots)?;
            let containers = walk.found.into_iter().filter(|found| !is_pause(hierarchy, &found.path));
            let roots = roots.iter().filter(|root| walk.pods.iter().any(|pod| is_below(&pod.path, root)));
            Ok::<_, oxalyst_cgroups::Error>(Shown {
                containers: containers.collect(),
                roots: roots.map(CgroupPath::to_string).collect(),
                pods: walk.pods,
            })
        });
        look.await?.map_err(|e| KernelError::Tree(std::sync::Arc::new(e)))
    }
}

fn is_below(path: &CgroupPath, root: &CgroupPath) -> bool {
    let next = path.as_str().strip_prefix(root.as_str()).map(|rest| rest.trim_start_matches('/'));
    next.and_then(|rest| rest.split('/').next())
        .is_some_and(|first| first.split(['.', '-']).any(|word| word == "kubepods"))
}

/// Whether all that runs there is the process that keeps a pod's namespaces.
fn is_pause(hierarchy: &Hierarchy, path: &CgroupPath) -> bool {
    let Ok(mount) = hierarchy.any_mount() else { return false };
    let Ok(pids) = read_text(&path.under(mount).join("cgroup.procs")) else { return false };
    let Some(host) = hierarchy.root().ancestors().nth(3) else { return false };
    let mut pids = pids.lines().peekable();
    pids.peek().is_some()
        && pids.all(|pid| {
            read_text(&host.join("proc").join(pid.trim()).join("comm")).is_ok_and(|name| name == "pause")
        })
}
