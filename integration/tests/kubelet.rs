//! The mesh beside a real kubelet, API server, scheduler and controllers, on a private containerd. Takes a minute or two, so it
//! is run by name: `make tiers TESTS=kubelet`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use integration::containerd::Containerd;
use integration::kubernetes::{ControlPlane, Kubelet, Shown};
use integration::runtime::{ContainerId, Runtime, poll_until};
use integration::scenarios::{World, set};
use integration::{image, lab};
use oxalyst_proto::meta::v1::meta_client::MetaClient;
use oxalyst_proto::meta::v1::{ListPodsRequest, PodList};
use oxalyst_topology::CpuSet;
use serde_json::{Value, json};

/// How long anything may take on a machine that is busy compiling.
const LIMIT: Duration = Duration::from_secs(90);

struct Cluster {
    world: World<Containerd>,
    kubelet: Kubelet,
    control: ControlPlane,
}

/// One after another on one cluster, whose start is the longest part: what a Deployment's pods get, restarts, a resize, and then
/// the same kubelet with a CPU manager of its own.
#[tokio::test]
async fn a_kubelet_and_the_mesh_live_together() {
    let binaries = match lab::script("kube.sh", &[]) {
        Ok(binaries) => binaries,
        Err(reason) => return println!("skipped: no Kubernetes here: {reason}"),
    };
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let runtime = match Containerd::try_start(folder.path()).await {
        Ok(runtime) => runtime,
        Err(reason) => return println!("skipped: no containerd here: {reason}"),
    };
    if runtime.online_cpus() == "0" {
        runtime.remove().await.unwrap();
        return println!("skipped: one CPU can be given to nobody exclusively");
    }
    let mut cluster = Cluster::start(folder.path(), &binaries, runtime).await;

    cluster.pods_run_where_the_ledger_says().await;
    cluster.the_meta_server_reads_the_kubelet().await;
    cluster.restarts_change_nothing().await;
    cluster.a_resize_keeps_the_cpuset().await;
    cluster.nothing_is_left_after_deletion().await;
    cluster.a_static_cpu_manager_does_not_prevail().await;
    cluster.two_cpu_managers_are_told().await;
    cluster.nothing_is_left_after_deletion().await;
    cluster.the_allocator_reserves_what_the_kubelet_does().await;

    let Cluster { mut world, mut kubelet, control } = cluster;
    kubelet.stop().await.unwrap();
    drop(control);
    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}

// === impl Cluster ===

impl Cluster {
    async fn start(folder: &Path, binaries: &Path, runtime: Containerd) -> Self {
        // A runtime without a network is no ready node; pods here use the host's, so that nobody ever calls this plugin.
        let network = json!({"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]});
        std::fs::write(folder.join("cni/10-none.conflist"), network.to_string()).unwrap();
        let control = ControlPlane::start(binaries, &folder.join("kube")).unwrap();
        let mut kubelet =
            Kubelet::new(&control, &folder.join("containerd.sock"), &folder.join("kubelet")).unwrap();
        // Whoever reads pods, and what the kubelet reserves, may do nothing else.
        let role =
            ["create", "clusterrole", "pod-reader", "--verb=get", "--resource=nodes/pods,nodes/configz"];
        control.kubectl(&role).unwrap();
        let binding = ["create", "clusterrolebinding", "pod-reader", "--clusterrole=pod-reader"];
        control.kubectl(&[&binding[..], &["--user=pod-reader"]].concat()).unwrap();
        start_kubelet(&mut kubelet, &control, "").await;
        // It is there before the mesh, and stays to the end: a kubelet that lists no pod at all is taken for one that has failed.
        apply(&control, "resident", "shared_cores", json!({}), 1);
        let runs = poll_until(LIMIT, async || {
            let pods = control.pods()?;
            if pods.iter().any(|pod| pod.phase == "Running") { Ok(()) } else { Err(format!("{pods:?}")) }
        });
        runs.await.unwrap();
        let token = folder.join("reader.token");
        std::fs::write(&token, "reader-token\n").unwrap();
        let settings = [
            format!("kubelet.endpoint={}", kubelet.endpoint()),
            format!("kubelet.token_file={}", token.display()),
            format!("kubelet.ca_file={}", control.dir().join("pki/ca.crt").display()),
            "kubelet.period_ms=1000".to_owned(),
        ];
        let settings = settings.iter().map(|setting| ("meta-server", setting.as_str()));
        let world = World::start_with(folder, runtime, &settings.collect::<Vec<_>>()).await;
        Self { world, kubelet, control }
    }

    async fn start_kubelet(&mut self, configuration: &str) {
        start_kubelet(&mut self.kubelet, &self.control, configuration).await;
    }

    /// Waits until `count` pods of the Deployment `app` run, and at the moment at which each is first shown so compares the
    /// kernel's list with the ledger's.
    async fn running(&mut self, app: &str, count: usize) -> Vec<Shown> {
        let mut compared: BTreeMap<String, Shown> = BTreeMap::new();
        let end = Instant::now() + LIMIT;
        while compared.len() < count {
            assert!(Instant::now() < end, "{app}: {:#?}", self.control.kubectl(&["describe", "pods"]));
            for pod in self.control.pods().unwrap() {
                let ours = pod.name.starts_with(&format!("{app}-")) && !pod.ending;
                if ours && pod.phase == "Running" && !compared.contains_key(&pod.uid) {
                    let (kernel, ledger) = (self.kernel(&pod).await, self.ledger(&pod).await);
                    assert_eq!(Some(&kernel), ledger.as_ref(), "{} is shown as Running", pod.name);
                    compared.insert(pod.uid.clone(), pod);
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        compared.into_values().collect()
    }

    async fn kernel(&mut self, pod: &Shown) -> CpuSet {
        let id = pod.container.clone().unwrap_or_else(|| panic!("{} has no container", pod.name));
        self.world.allowed(&ContainerId(id)).await
    }

    async fn ledger(&self, pod: &Shown) -> Option<CpuSet> {
        let placed = self.world.state().await.pods.into_iter().find(|p| p.pod_uid == pod.uid);
        placed.map(|placed| match placed.containers.iter().find(|container| container.name == "main") {
            Some(own) => set(&own.cpus),
            None => set(&placed.cpus),
        })
    }

    /// Every pod that runs is where the ledger says, and those with a set of their own are alone there.
    async fn agree(&mut self, what: &str) -> BTreeMap<String, CpuSet> {
        let mut lists = BTreeMap::new();
        for pod in self.control.pods().unwrap() {
            let agreed = poll_until(LIMIT, async || {
                let (kernel, ledger) = (self.kernel(&pod).await, self.ledger(&pod).await);
                if Some(&kernel) == ledger.as_ref() { Ok(kernel) } else { Err((kernel, ledger)) }
            });
            let list = agreed.await.unwrap_or_else(|e| panic!("{what}: {}: {e:?}", pod.name));
            lists.insert(pod.name, list);
        }
        let own: Vec<_> = lists.iter().filter(|(name, _)| name.starts_with("dedicated-")).collect();
        for (name, list) in &own {
            let others = lists.iter().filter(|(other, _)| other != name);
            for (other, theirs) in others {
                assert!(list.is_disjoint(theirs), "{what}: {name} on {list}, {other} on {theirs}");
            }
        }
        lists
    }

    async fn pods_run_where_the_ledger_says(&mut self) {
        self.apply("shared", "shared_cores", json!({"requests": {"cpu": "100m"}}), 2);
        self.running("shared", 2).await;
        self.apply("reclaimed", "reclaimed_cores", json!({}), 1);
        self.running("reclaimed", 1).await;
        self.apply("dedicated", "dedicated_cores", whole_cpus(1), 1);
        let dedicated = self.running("dedicated", 1).await;
        let own = self.kernel(&dedicated[0]).await;
        assert_eq!(own.len(), 1, "{own}");
        let lists = self.agree("all run").await;
        assert_eq!(lists.len(), 5, "{lists:?}");
    }

    /// Over https, with a certificate of the cluster's authority and a token that may read pods and nothing else.
    async fn the_meta_server_reads_the_kubelet(&mut self) {
        let known = poll_until(LIMIT, async || {
            let list = self.known().await;
            let told = list.pods.iter().filter(|pod| pod.told_by.iter().any(|by| by == "kubelet")).count();
            if told == 5 { Ok(list) } else { Err(list) }
        });
        let known = known.await.unwrap();
        let kubelet = known.sources.iter().find(|source| source.source == "kubelet").unwrap();
        assert_eq!(kubelet.error, "");
        assert!(kubelet.heard_unix_ms > 0);
        for pod in &known.pods {
            let class = if pod.name.starts_with("dedicated-") {
                "Guaranteed"
            } else if pod.name.starts_with("shared-") {
                "Burstable"
            } else {
                "BestEffort"
            };
            assert_eq!(pod.kubernetes_qos, class, "{}", pod.name);
            assert!(pod.told_by.iter().any(|by| by == "runtime"), "{}: {:?}", pod.name, pod.told_by);
            assert!(!pod.containers[0].container_id.is_empty(), "{}", pod.name);
            assert_eq!(pod.containers[0].r#type, "app", "{}", pod.name);
        }
    }

    async fn known(&self) -> PodList {
        let mut client = MetaClient::new(self.world.mesh.channel("meta-server"));
        client.list_pods(ListPodsRequest {}).await.unwrap().into_inner()
    }

    /// The kubelet, the runtime and both together go away and come back: the same containers run, where they ran.
    async fn restarts_change_nothing(&mut self) {
        let pods = |cluster: &Self| -> Vec<_> {
            let pods = cluster.control.pods().unwrap();
            pods.into_iter().map(|pod| (pod.uid, pod.container)).collect()
        };
        let (before, lists) = (pods(self), self.agree("before").await);

        self.kubelet.stop().await.unwrap();
        assert_eq!(self.agree("no kubelet").await, lists);
        self.start_kubelet("").await;
        assert_eq!(self.agree("kubelet is back").await, lists);

        self.world.runtime.stop().await.unwrap();
        self.world.connected(false).await;
        self.world.runtime.start().await.unwrap();
        self.world.connected(true).await;
        assert_eq!(self.agree("runtime is back").await, lists);

        self.kubelet.stop().await.unwrap();
        self.world.runtime.restart().await.unwrap();
        self.start_kubelet("").await;
        self.world.connected(true).await;
        assert_eq!(self.agree("both are back").await, lists);
        assert_eq!(pods(self), before);
        let held = self.world.state().await.pods.len();
        assert_eq!(held, lists.len(), "nothing leaks");
    }

    /// The kubelet's resize changes the shares, and our cpuset stands.
    async fn a_resize_keeps_the_cpuset(&mut self) {
        let before = self.agree("before the resize").await;
        let shared =
            self.control.pods().unwrap().into_iter().find(|p| p.name.starts_with("shared-")).unwrap();
        let container = ContainerId(shared.container.clone().unwrap());
        let file = ("cpu", "cpu.shares");
        let file = self.world.runtime.cgroup_file(&container, file, "cpu.weight").await.unwrap();
        let weight = std::fs::read_to_string(&file).unwrap();
        let patch =
            json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "150m"}}}]}});

        let arguments = ["patch", "pod", &shared.name, "--subresource", "resize", "--patch"];
        self.control.kubectl(&[&arguments[..], &[&patch.to_string()]].concat()).unwrap();

        let resized = poll_until(LIMIT, async || {
            let now = std::fs::read_to_string(&file).unwrap();
            if now == weight {
                Err(self.control.kubectl(&["get", "pod", &shared.name, "-o", "yaml"]))
            } else {
                Ok(())
            }
        });
        resized.await.unwrap_or_else(|pod| panic!("not resized: {pod:?}"));
        assert_eq!(self.kernel(&shared).await, before[&shared.name]);
        assert_eq!(self.agree("after the resize").await, before);
    }

    /// The same kubelet with a static CPU manager sends a cpuset of its own for each Guaranteed pod of whole CPUs, right after its
    /// creation: 1 s after the start, and for some rounds of its reconciliation, the kernel has ours.
    async fn a_static_cpu_manager_does_not_prevail(&mut self) {
        self.kubelet.stop().await.unwrap();
        self.kubelet.forget_cpus().unwrap();
        let policy = "cpuManagerPolicy: static\ncpuManagerReconcilePeriod: 1s\nreservedSystemCPUs: \"0\"\n";
        self.start_kubelet(policy).await;
        self.apply("guaranteed", "shared_cores", whole_cpus(1), 1);
        let pod = self.running("guaranteed", 1).await.remove(0);
        let kubelets = self.kubelet_gave(&pod).await;
        println!("the kubelet's own choice: CPUs {kubelets}; ours: {:?}", self.ledger(&pod).await);
        assert_ne!(Some(kubelets), self.ledger(&pod).await, "else this proves nothing");

        let (one, end) = (Instant::now() + Duration::from_secs(1), Instant::now() + Duration::from_secs(6));
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if Instant::now() > one {
                let (kernel, ledger) = (self.kernel(&pod).await, self.ledger(&pod).await);
                assert_eq!(Some(kernel), ledger);
            }
        }
    }

    /// With `reserved_cpus = "kubelet"`: the CPUs that the kubelet names, then an amount that another configuration of it says, which
    /// is what it takes off the node's allocatable CPU. The allocator is not restarted in between.
    async fn the_allocator_reserves_what_the_kubelet_does(&mut self) {
        let mesh = &mut self.world.mesh;
        mesh.terminate("orm").await.unwrap();
        mesh.set("orm", "reserved_cpus=kubelet");
        mesh.set("orm", "watch_period_s=1");
        mesh.start("orm").unwrap();
        mesh.ready("orm").await.unwrap();
        // The stage before left a kubelet that has CPU 0 for the system.
        self.reserved("0", &set("0")).await;

        self.kubelet.stop().await.unwrap();
        self.kubelet.forget_cpus().unwrap();
        self.start_kubelet("kubeReserved: {cpu: 300m}\nsystemReserved: {cpu: 200m}\n").await;
        self.reserved("500m", &set("0")).await;
        let takes_off = poll_until(LIMIT, async || {
            let of = |which: &str| {
                let path = format!("jsonpath={{.items[0].status.{which}.cpu}}");
                self.control.kubectl(&["get", "nodes", "-o", &path]).map(|text| milli(&text))
            };
            let (capacity, allocatable) = (of("capacity")?, of("allocatable")?);
            if capacity - allocatable == 500 { Ok(()) } else { Err(format!("{capacity}m, {allocatable}m")) }
        });
        takes_off.await.unwrap();
    }

    /// Waits until the allocator tells this of the kubelet, and keeps these CPUs.
    async fn reserved(&self, told: &str, cpus: &CpuSet) {
        let so = poll_until(LIMIT, async || {
            let facts = self.world.mesh.status("orm").await.unwrap().facts;
            let (now, kept) = (facts.get("reserved.kubelet").cloned(), self.world.state().await.reserved);
            if now.as_deref() == Some(told) && set(&kept) == *cpus { Ok(()) } else { Err((now, kept)) }
        });
        so.await.unwrap_or_else(|now| panic!("{now:?}, not {told}:\n{}", self.world.mesh.log("orm")));
    }

    /// Facts and `oxctl doctor` tell an operator of the other CPU manager, and what to do.
    async fn two_cpu_managers_are_told(&self) {
        let facts = self.world.mesh.status("nri-gateway").await.unwrap().facts;
        let answered = facts.get("foreign_cpusets").and_then(|count| count.parse::<u64>().ok());
        assert!(answered > Some(0), "{facts:?}");
        // Its exit code is about faults, and this is a warning; what else it finds on this machine is not asked here.
        let said = match self.world.mesh.oxctl(&["doctor"]) {
            Ok(said) => said,
            Err(e) => e.to_string(),
        };
        assert!(said.contains("two CPU managers are at work"), "{said}");
        assert!(said.contains("cpuManagerPolicy: none"), "says what to do: {said}");
    }

    /// Waits until the kubelet has noted which CPUs it gave.
    async fn kubelet_gave(&self, pod: &Shown) -> CpuSet {
        let file = self.control.dir().with_file_name("kubelet").join("root/cpu_manager_state");
        let noted = poll_until(LIMIT, async || {
            let text = std::fs::read_to_string(&file).map_err(|e| e.to_string())?;
            let state: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
            let list = state["entries"][&pod.uid]["main"].as_str().map(set);
            list.ok_or_else(|| state.to_string())
        });
        noted.await.unwrap()
    }

    /// Everywhere, only the resident pod is known.
    async fn nothing_is_left_after_deletion(&mut self) {
        let temporary = ["delete", "deployments", "--selector", "app!=resident", "--cascade=foreground"];
        self.control.kubectl(&temporary).unwrap();
        let gone = poll_until(LIMIT, async || {
            let shown = self.control.pods().unwrap().len();
            let held = self.world.state().await.pods.len();
            let applied = self.world.mesh.applied().await.map_err(|e| e.to_string())?.containers.len();
            let known = self.known().await.pods.len();
            let cgroups = pod_cgroups();
            let left = format!(
                "{shown} shown, {held} in the ledger, {applied} at the gateway, {known} at the meta-server, {cgroups:?}"
            );
            if [shown, held, applied, known, cgroups.len()] == [1; 5] { Ok(()) } else { Err(left) }
        });
        gone.await.unwrap_or_else(|left| panic!("left: {left}"));
    }

    fn apply(&self, name: &str, level: &str, resources: Value, replicas: u32) {
        apply(&self.control, name, level, resources, replicas);
    }
}

fn apply(control: &ControlPlane, name: &str, level: &str, resources: Value, replicas: u32) {
    // It obeys at once when it is told to end.
    let program = "trap 'exit 0' TERM; sleep 1000000 & wait";
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {
                    "labels": {"app": name},
                    "annotations": {"katalyst.kubewharf.io/qos_level": level},
                },
                "spec": {
                    "hostNetwork": true,
                    "automountServiceAccountToken": false,
                    "terminationGracePeriodSeconds": 2,
                    "containers": [{
                        "name": "main", "image": image::BUSYBOX, "imagePullPolicy": "Never",
                        "command": ["/bin/sh", "-c", program], "resources": resources,
                    }],
                },
            },
        },
    });
    control.kubectl_with(&["apply", "-f", "-"], &deployment.to_string()).unwrap();
}

/// Starts it, and waits until its node can run pods.
async fn start_kubelet(kubelet: &mut Kubelet, control: &ControlPlane, configuration: &str) {
    let start = Instant::now();
    kubelet.start(configuration).unwrap();
    let ready = poll_until(LIMIT, async || {
        if let Some(end) = kubelet.ended() {
            panic!("the kubelet ended with {end}");
        }
        let condition = r#"jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#;
        match control.kubectl(&["get", "nodes", "-o", condition]) {
            Ok(status) if status == "True" => Ok(()),
            other => Err(other),
        }
    });
    ready.await.unwrap();
    println!("node ready {} ms after the kubelet's start", start.elapsed().as_millis());
}

/// Thousandths of a CPU in a quantity such as `2` or `1500m`.
fn milli(quantity: &str) -> u64 {
    match quantity.strip_suffix('m') {
        Some(milli) => milli.parse().unwrap(),
        None => quantity.parse::<u64>().unwrap() * 1000,
    }
}

/// Guaranteed: requests and limits alike.
fn whole_cpus(cpus: u32) -> Value {
    let each = json!({"cpu": cpus.to_string(), "memory": "64Mi"});
    json!({"requests": each, "limits": each})
}

/// Folders of pods in the hierarchy of cpusets.
fn pod_cgroups() -> Vec<String> {
    let root = Path::new("/sys/fs/cgroup");
    let root = if root.join("cpuset").is_dir() { root.join("cpuset") } else { root.to_owned() };
    let parents = ["kubepods", "kubepods/burstable", "kubepods/besteffort"];
    let entries =
        parents.iter().flat_map(|parent| std::fs::read_dir(root.join(parent)).into_iter().flatten());
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("pod")).collect()
}
