//! What must hold of the mesh, written once for any [`Runtime`]. Each scenario gets a [`World`] of its own, in which nothing
//! runs yet but the runtime and the five services, and leaves it to be taken down.

mod admission;
mod attainable;
mod faults;
mod placement;
mod trouble;

pub use admission::*;
pub use attainable::*;
pub use faults::*;
pub use placement::*;
pub use trouble::*;

use std::path::Path;
use std::time::Duration;

use oxalyst_proto::orm::v1::{PodPlacement, State as OrmState};
use oxalyst_topology::CpuSet;

use crate::mesh::Mesh;
use crate::runtime::{ContainerId, ContainerSpec, PodSpec, Runtime, SandboxId, poll_until};

/// How long the mesh may take to bring the kernel in line with what it decided, on a machine that is busy compiling.
const CONVERGE: Duration = Duration::from_secs(20);

/// A runtime with the mesh on it.
#[derive(Debug)]
pub struct World<R> {
    /// The runtime.
    pub runtime: R,
    /// The services.
    pub mesh: Mesh,
}

/// A pod with one running container.
#[derive(Clone, Debug)]
pub struct Running {
    /// What it was made from.
    pub pod: PodSpec,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// Its container.
    pub container: ContainerId,
}

// === impl World ===

impl<R: Runtime> World<R> {
    /// Starts the services, in `folder`, on a running `runtime`.
    pub async fn start(folder: &Path, runtime: R) -> Self {
        Self::start_with(folder, runtime, &[]).await
    }

    /// As [`World::start`], with settings beyond the usual ones: (service, "key=value").
    pub async fn start_with(folder: &Path, runtime: R, settings: &[(&str, &str)]) -> Self {
        let mut mesh = Mesh::new(folder, &runtime).unwrap();
        for (service, setting) in settings {
            mesh.set(service, setting);
        }
        // As long as a runtime allows: on a machine that is busy compiling, the default's policy would answer now and then.
        mesh.set("nri-gateway", "hook_deadline_ms=1500");
        mesh.start_all().await.unwrap();
        Self { runtime, mesh }
    }

    /// Has pods refused at their sandboxes even where the runtime is harmed by it: what is promised of every other runtime.
    pub async fn refuses_at_sandboxes(&mut self) {
        self.mesh.terminate("nri-gateway").await.unwrap();
        self.mesh.set("nri-gateway", "refuse_at=sandbox");
        self.mesh.start("nri-gateway").unwrap();
        self.mesh.ready("nri-gateway").await.unwrap();
        self.connected(true).await;
    }

    /// All CPUs that are online.
    pub fn online(&self) -> CpuSet {
        set(&self.runtime.online_cpus())
    }

    /// Runs a pod with one container, both asking for `milli_cpu`.
    pub async fn run(&mut self, name: &str, level: &str, milli_cpu: u64) -> Running {
        let pod = PodSpec::new(name, level, milli_cpu);
        let sandbox = self.runtime.run_pod(&pod).await.unwrap();
        let container =
            self.runtime.create_container(&sandbox, &ContainerSpec::new("main", milli_cpu)).await.unwrap();
        self.runtime.start_container(&container).await.unwrap();
        Running { pod, sandbox, container }
    }

    /// The CPUs that the kernel lets the container run on, now.
    pub async fn allowed(&mut self, container: &ContainerId) -> CpuSet {
        set(&self.runtime.cpus_allowed(container).await.unwrap())
    }

    /// The CPUs that the container's first instruction saw.
    pub async fn first(&mut self, container: &ContainerId) -> CpuSet {
        set(&self.runtime.first_cpus(container).await.unwrap())
    }

    /// Waits until the kernel lets the container run on exactly `cpus`.
    pub async fn converges(&mut self, container: &ContainerId, cpus: &CpuSet) {
        let agreed = poll_until(CONVERGE, async || {
            let now = self.allowed(container).await;
            if now == *cpus { Ok(()) } else { Err(now) }
        })
        .await;
        if let Err(now) = agreed {
            panic!(
                "{} runs on {now}, not on {cpus}; gateway:\n{}",
                container.0,
                self.mesh.log("nri-gateway")
            );
        }
    }

    /// What the allocator holds.
    pub async fn state(&self) -> OrmState {
        self.mesh.state().await.unwrap()
    }

    /// The allocator's placement of a pod.
    pub async fn placement(&self, pod: &PodSpec) -> Option<PodPlacement> {
        self.state().await.pods.into_iter().find(|p| p.pod_uid == pod.uid)
    }

    /// Waits until the allocator holds the pod in `sandbox`.
    pub async fn knows(&self, pod: &PodSpec, sandbox: &SandboxId) {
        let known = poll_until(CONVERGE, async || match self.placement(pod).await {
            Some(placement) if placement.sandbox_id == sandbox.0 => Ok(()),
            other => Err(other),
        })
        .await;
        assert!(known.is_ok(), "not in {}: {known:?}", sandbox.0);
    }

    /// Waits until the gateway has (or, with false, has lost) a synchronised session with the runtime.
    pub async fn connected(&mut self, wanted: bool) {
        let done = poll_until(CONVERGE, async || {
            let now = self.mesh.applied().await.map(|reply| reply.connected);
            if now.as_ref().is_ok_and(|&now| now == wanted) { Ok(()) } else { Err(now) }
        })
        .await;
        if let Err(now) = done {
            panic!("gateway connected: {now:?}, wanted {wanted}:\n{}", self.mesh.log("nri-gateway"));
        }
    }

    /// A dedicated pod's exclusive set: exactly one CPU, and none that the others may use.
    async fn exclusive(&mut self, dedicated: &Running, others: &[&Running]) -> CpuSet {
        let own = self.allowed(&dedicated.container).await;
        for other in others {
            let theirs = self.allowed(&other.container).await;
            assert!(
                own.is_disjoint(&theirs),
                "{} has {own}, {} has {theirs}",
                dedicated.pod.name,
                other.pod.name
            );
            assert!(!theirs.is_empty());
        }
        own
    }
}

/// A list in the kernel's notation.
pub fn set(list: &str) -> CpuSet {
    list.parse().unwrap_or_else(|e| panic!("{list:?} is no list of CPUs: {e}"))
}

fn without(mut all: CpuSet, some: &CpuSet) -> CpuSet {
    all -= some;
    all
}

/// Makes a test of every scenario: `$run` gets the scenario, and sees to the world before and after.
#[macro_export]
macro_rules! every_scenario {
    ($run:ident) => {
        $crate::every_scenario! { $run:
            a_dedicated_pod_has_its_cpu_alone
            everybody_else_keeps_off_an_exclusive_set
            a_created_container_starts_off_an_exclusive_set
            a_crash_loop_keeps_its_set
            an_old_sandbox_frees_nothing
            the_last_cpu_is_refused
            an_unplaceable_pod_is_refused_at_its_sandbox
            a_bare_sandbox_is_refused_at_its_container
            a_bare_sandbox_is_placed_at_its_container
            any_service_may_be_killed
            k2_a_returning_gateway_pins_what_it_missed
            the_runtime_may_restart
            closed_lets_the_orms_own_container_start
            a_pull_that_outlasts_an_admission_starts_with_todays_pool
            n02_a_required_plugin_answers_marks_and_pins_later
        }
    };
    ($run:ident: $($scenario:ident)*) => {
        $(
            #[tokio::test]
            async fn $scenario() {
                $run(async |world| $crate::scenarios::$scenario(world).await).await;
            }
        )*
    };
}
