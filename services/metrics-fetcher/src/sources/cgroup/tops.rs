//! Which cgroups are measured beside containers.

use oxalyst_cgroups::CgroupPath;

/// The cgroups above the pods: below each root the kubelet's own three, under both drivers' names, and the given ones;
/// each once, whether it exists or not.
pub fn top_cgroups(roots: &[CgroupPath], given: &[CgroupPath]) -> Vec<CgroupPath> {
    const KUBELET: [&str; 6] = [
        "kubepods",
        "kubepods/burstable",
        "kubepods/besteffort",
        "kubepods.slice",
        "kubepods.slice/kubepods-burstable.slice",
        "kubepods.slice/kubepods-besteffort.slice",
    ];
    let kubelet = roots.iter().flat_map(|root| KUBELET.iter().filter_map(|name| root.join(name).ok()));
    let mut all: Vec<CgroupPath> = kubelet.chain(given.iter().cloned()).collect();
    all.sort();
    all.dedup();
    all
}
