//! A runtime without the mesh: a plugin in a process of its own that decides nothing, or that knows its answer beforehand.

use std::path::{Path, PathBuf};
use std::process::Command;

use oxalyst_nri::api::{
    ConfigureRequest, ConfigureResponse, ContainerAdjustment, ContainerUpdate, CreateContainerRequest,
    CreateContainerResponse, Event, LinuxContainerAdjustment, LinuxContainerUpdate, LinuxCpu, LinuxResources,
    StopContainerRequest, StopContainerResponse, UpdateContainerRequest, UpdateContainerResponse,
};
use oxalyst_nri::events::mask_for;
use oxalyst_nri::plugin::{Happened, Plugin, PluginSession, connect};
use oxalyst_nri::status::Status;
use oxalyst_nri::sync_chunks::Inventory;

use super::Fault;
use super::scene::{Hooks, PATIENCE, create, hooks_of, level_of};
use crate::imitation::{Imitation, MachineLayout, Setup};
use crate::process::Process;
use crate::runtime::{ContainerId, Runtime, SandboxId, poll_until};

/// First argument of such a plugin's process; the runtime's socket is the second, the answer the third.
const ARGUMENT: &str = "--bare-plugin";

/// A runtime with such a plugin, and pods.
#[derive(Debug)]
pub(super) struct Bare {
    runtime: Imitation,
    plugin: Process,
    running: Vec<(SandboxId, ContainerId)>,
    made: usize,
    _machine: tempfile::TempDir,
}

/// What such a plugin answers when a container is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing.
    Nothing,
    /// CPUs for the container, and other CPUs for each that runs.
    CpusForAll,
}

/// Serves as such a plugin if this process was started as one.
pub async fn serve() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != ARGUMENT) {
        return false;
    }
    let (Some(socket), Some(answer)) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        return true;
    };
    let answer = if answer == "cpus" { Answer::CpusForAll } else { Answer::Nothing };
    let Ok(socket) = connect(&socket).await else { return true };
    let session = PluginSession::start(socket, Known { answer, running: Vec::new(), odd: false });
    if session.register("bare", "10", PATIENCE).await.is_ok() {
        session.ended().await;
    }
    true
}

struct Known {
    answer: Answer,
    running: Vec<String>,
    odd: bool,
}

// === impl Known ===

fn cpus(list: &str) -> Option<LinuxResources> {
    let cpu = Some(LinuxCpu { cpus: list.to_owned(), ..LinuxCpu::default() });
    Some(LinuxResources { cpu, ..LinuxResources::default() })
}

impl Plugin for Known {
    async fn configure(&mut self, request: ConfigureRequest) -> Result<ConfigureResponse, Status> {
        Ok(ConfigureResponse { events: mask_for(&request, &[]) })
    }

    async fn synchronize(&mut self, list: Inventory) -> Result<Vec<ContainerUpdate>, Status> {
        self.running = list.containers.into_iter().map(|container| container.id).collect();
        Ok(Vec::new())
    }

    async fn create_container(
        &mut self,
        _: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, Status> {
        if self.answer == Answer::Nothing {
            return Ok(CreateContainerResponse::default());
        }
        self.odd = !self.odd;
        let list = if self.odd { "4-61" } else { "4-63" };
        let update = |id: &String| ContainerUpdate {
            container_id: id.clone(),
            linux: Some(LinuxContainerUpdate { resources: cpus(list) }),
            ignore_failure: true,
        };
        let linux = Some(LinuxContainerAdjustment { resources: cpus("62-63"), ..Default::default() });
        Ok(CreateContainerResponse {
            adjust: Some(ContainerAdjustment { linux, ..ContainerAdjustment::default() }),
            update: self.running.iter().map(update).collect(),
            evict: Vec::new(),
        })
    }

    async fn update_container(
        &mut self,
        _: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, Status> {
        Ok(UpdateContainerResponse::default())
    }

    async fn stop_container(&mut self, _: StopContainerRequest) -> Result<StopContainerResponse, Status> {
        Ok(StopContainerResponse::default())
    }

    async fn happened(&mut self, happened: Happened) -> Result<(), Status> {
        if let (Event::PostStartContainer, Some(container)) = (happened.event, happened.container) {
            self.running.push(container.id);
        }
        Ok(())
    }

    async fn shutdown(&mut self) {}
}

// === impl Bare ===

impl Bare {
    /// As [`super::scene::Scene::start`], with such a plugin in place of the mesh.
    pub(super) async fn start(folder: &Path, answer: Answer) -> Result<Self, Fault> {
        std::fs::create_dir_all(folder)?;
        let setup = Setup { machine: MachineLayout::two_sockets(8), ..Setup::default() };
        let machine = crate::remains::in_memory()?;
        let runtime = Imitation::start(machine.path(), setup).await?;
        let mut command = Command::new(std::env::current_exe()?);
        let word = if answer == Answer::CpusForAll { "cpus" } else { "nothing" };
        command.arg(ARGUMENT).arg(runtime.nri_socket()).arg(word);
        let plugin = Process::spawn(command, &folder.join("plugin.log"))?;
        poll_until(PATIENCE, async || match runtime.connected() {
            1 => Ok(()),
            _ => Err(format!("the plugin does not connect; its log: {}", plugin.output())),
        })
        .await?;
        Ok(Self { runtime, plugin, running: Vec::new(), made: 0, _machine: machine })
    }

    /// As [`super::scene::Scene::fill`].
    pub(super) async fn fill(&mut self, count: usize) -> Result<(), Fault> {
        while self.running.len() < count {
            self.made += 1;
            let level = level_of(self.running.len());
            let (sandbox, container) = create(&mut self.runtime, self.made, level, 1).await?;
            self.runtime.start_container(&container).await?;
            self.running.push((sandbox, container));
        }
        Ok(())
    }

    /// What the runtime waits for a pod, which is removed again.
    pub(super) async fn hooks(&mut self, level: &str, milli_cpu: u64) -> Result<Hooks, Fault> {
        self.made += 1;
        let (sandbox, took) = hooks_of(&mut self.runtime, self.made, level, milli_cpu).await?;
        self.runtime.remove_pod(&sandbox).await?;
        Ok(took)
    }

    /// Ends all of it.
    pub(super) async fn end(mut self) -> Result<(), Fault> {
        self.plugin.kill().await?;
        Ok(self.runtime.remove().await?)
    }
}
