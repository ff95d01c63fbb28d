//! Five services on an imitated runtime with pods.

use std::path::{Path, PathBuf};
use std::time::Duration;

use oxalyst_mesh::NODE_SERVICES;
use oxalyst_nri::api::Event;

use super::Fault;
use crate::imitation::{Imitation, MachineLayout, Setup};
use crate::mesh::Mesh;
use crate::runtime::{ContainerId, ContainerSpec, PodSpec, Runtime, SandboxId, poll_until};

/// How long the services may take to settle.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A runtime, the mesh on it, and the pods that run all the time.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) runtime: Imitation,
    pub(super) mesh: Mesh,
    pub(super) folder: PathBuf,
    pub(super) running: Vec<(SandboxId, ContainerId)>,
    made: usize,
    /// Where the made-up machine lies: in memory where possible, for its files are no part of what is measured.
    _machine: tempfile::TempDir,
}

/// What the runtime waited for a starting pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hooks {
    pub(super) run_sandbox: Duration,
    pub(super) create_container: Duration,
}

// === impl Hooks ===

impl Hooks {
    /// In both calls.
    pub(super) fn sum(self) -> Duration {
        self.run_sandbox + self.create_container
    }
}

// === impl Scene ===

impl Scene {
    /// 64 CPUs in four NUMA nodes, nothing runs.
    pub(super) async fn start(folder: &Path) -> Result<Self, Fault> {
        std::fs::create_dir_all(folder)?;
        let setup = Setup { machine: MachineLayout::two_sockets(8), ..Setup::default() };
        let machine = crate::remains::in_memory()?;
        let runtime = Imitation::start(machine.path(), setup).await?;
        let mut mesh = Mesh::new(folder, &runtime)?;
        mesh.start_all().await?;
        let scene = Self {
            runtime,
            mesh,
            folder: folder.to_owned(),
            running: Vec::new(),
            made: 0,
            _machine: machine,
        };
        scene.connected().await?;
        Ok(scene)
    }

    /// Waits for a synchronised plugin.
    pub(super) async fn connected(&self) -> Result<(), Fault> {
        poll_until(PATIENCE, async || {
            if self.runtime.connected() == 1 { Ok(()) } else { Err("the gateway does not connect".into()) }
        })
        .await
    }

    /// Starts pods of one shared container until `count` run; every tenth asks for reclaimed CPUs.
    pub(super) async fn fill(&mut self, count: usize) -> Result<(), Fault> {
        while self.running.len() < count {
            // Next to nothing: as many pods as there are here fit on a machine of any size.
            let (sandbox, container) = self.create(level_of(self.running.len()), 1).await?;
            self.runtime.start_container(&container).await?;
            self.running.push((sandbox, container));
        }
        Ok(())
    }

    /// A pod with one container that is created and not started.
    pub(super) async fn create(
        &mut self,
        level: &str,
        milli_cpu: u64,
    ) -> Result<(SandboxId, ContainerId), Fault> {
        self.made += 1;
        create(&mut self.runtime, self.made, level, milli_cpu).await
    }

    /// What the runtime waits for such a pod. It is removed again, and the pools have grown back.
    pub(super) async fn hooks(&mut self, level: &str, milli_cpu: u64) -> Result<Hooks, Fault> {
        let last = match self.running.last() {
            Some((_, last)) if level == "dedicated_cores" => {
                Some((last.clone(), self.runtime.cpus_allowed(last).await?))
            }
            _ => None,
        };
        self.made += 1;
        let (sandbox, took) = hooks_of(&mut self.runtime, self.made, level, milli_cpu).await?;
        self.runtime.remove_pod(&sandbox).await?;
        // Its release is durable too before the next one is measured.
        poll_until(PATIENCE, async || {
            let held = self.mesh.state().await?.pods.iter().any(|pod| pod.sandbox_id == sandbox.0);
            if held { Err(Fault::from("a removed pod is still held")) } else { Ok(()) }
        })
        .await?;
        if let Some((last, before)) = last {
            poll_until(PATIENCE, async || match self.runtime.cpus_allowed(&last).await {
                Ok(now) if now == before => Ok(()),
                Ok(now) => Err(format!("a pool was on {before} and has not grown back: {now}").into()),
                Err(e) => Err(Fault::from(e)),
            })
            .await?;
        }
        Ok(took)
    }

    /// Names and process ids of the services.
    pub(super) fn pids(&mut self) -> Result<Vec<(&'static str, u32)>, Fault> {
        let pids = NODE_SERVICES.into_iter().map(|service| {
            let pid = self.mesh.pid(service);
            pid.map(|pid| (service, pid)).ok_or_else(|| Fault::from(format!("{service} does not run")))
        });
        pids.collect()
    }

    /// Ends all of it.
    pub(super) async fn end(mut self) -> Result<(), Fault> {
        self.mesh.stop().await?;
        self.runtime.remove().await?;
        std::fs::remove_dir_all(&self.folder)?;
        Ok(())
    }
}

/// The level of the pod that starts as the `n`th of those that stay.
pub(super) fn level_of(n: usize) -> &'static str {
    if n % 10 == 9 { "reclaimed_cores" } else { "shared_cores" }
}

/// A pod with one container that is created and not started.
pub(super) async fn create(
    runtime: &mut Imitation,
    number: usize,
    level: &str,
    milli_cpu: u64,
) -> Result<(SandboxId, ContainerId), Fault> {
    let pod = PodSpec::new(&format!("pod-{number}"), level, milli_cpu);
    let sandbox = runtime.run_pod(&pod).await?;
    let container = runtime.create_container(&sandbox, &ContainerSpec::new("main", milli_cpu)).await?;
    Ok((sandbox, container))
}

/// Such a pod, and what the runtime waited for it.
pub(super) async fn hooks_of(
    runtime: &mut Imitation,
    number: usize,
    level: &str,
    milli_cpu: u64,
) -> Result<(SandboxId, Hooks), Fault> {
    runtime.forget_observed();
    let (sandbox, _) = create(runtime, number, level, milli_cpu).await?;
    let took = runtime.observed(|o| {
        let time = |event| match o.calls_of(event).next() {
            Some(call) => call.error.as_ref().map_or(Ok(call.took), |e| Err(format!("{event:?}: {e}"))),
            None => Err(format!("{event:?} was not asked")),
        };
        Ok::<_, String>(Hooks {
            run_sandbox: time(Event::RunPodSandbox)?,
            create_container: time(Event::CreateContainer)?,
        })
    })?;
    Ok((sandbox, took))
}
