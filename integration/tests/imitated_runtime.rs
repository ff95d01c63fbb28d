//! The imitated runtime itself, against the plugin's end of the wire.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration::imitation::{EventStyle, Imitation, MachineLayout, RuntimeOptions, Setup};
use integration::runtime::{ContainerSpec, PodSpec, Runtime, RuntimeError, State, Workload, poll_until};
use oxalyst_nri::api::{
    ConfigureRequest, ConfigureResponse, ContainerAdjustment, ContainerUpdate, CreateContainerRequest,
    CreateContainerResponse, Event, LinuxContainerAdjustment, LinuxContainerUpdate, LinuxCpu, LinuxResources,
    StopContainerRequest, StopContainerResponse, UpdateContainerRequest, UpdateContainerResponse,
};
use oxalyst_nri::plugin::{Happened, Plugin, PluginSession, RuntimeClient};
use oxalyst_nri::status::{Code, Status};
use oxalyst_nri::sync_chunks::Inventory;
use oxalyst_nri::trunk::Trunk;

/// Does what it is told, and remembers what it heard.
#[derive(Clone, Default)]
struct Puppet(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    heard: Vec<(Event, String)>,
    lists: Vec<(usize, usize)>,
    /// CPUs that each created container is given.
    cpus: String,
    /// Updates in the next reply to CreateContainer.
    updates: Vec<ContainerUpdate>,
    refuse_pods: bool,
    answer_after: Duration,
}

// === impl Puppet ===

impl Puppet {
    fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        self.0.lock().unwrap()
    }

    fn events(&self) -> Vec<Event> {
        self.script().heard.iter().map(|(event, _)| *event).collect()
    }

    async fn connect(&self, runtime: &Imitation) -> (Trunk, RuntimeClient) {
        let socket = oxalyst_nri::plugin::connect(&runtime.nri_socket()).await.unwrap();
        let session = PluginSession::start(socket, self.clone());
        session.register("puppet", "10", Duration::from_secs(5)).await.unwrap();
        let ready =
            poll_until(
                Duration::from_secs(5),
                async || {
                    if runtime.connected() > 0 { Ok(()) } else { Err(()) }
                },
            );
        ready.await.expect("the runtime takes the plugin in");
        session.split()
    }
}

impl Plugin for Puppet {
    async fn configure(&mut self, request: ConfigureRequest) -> Result<ConfigureResponse, Status> {
        assert_eq!(request.runtime_name, "imitation");
        Ok(ConfigureResponse { events: oxalyst_nri::events::BASE_EVENTS })
    }

    async fn synchronize(&mut self, list: Inventory) -> Result<Vec<ContainerUpdate>, Status> {
        self.script().lists.push((list.pods.len(), list.containers.len()));
        Ok(Vec::new())
    }

    async fn create_container(
        &mut self,
        request: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, Status> {
        let id = request.container.unwrap().id;
        let mut script = self.script();
        script.heard.push((Event::CreateContainer, id));
        let adjust = (!script.cpus.is_empty()).then(|| ContainerAdjustment {
            linux: Some(LinuxContainerAdjustment {
                resources: Some(on_cpus(&script.cpus)),
                ..Default::default()
            }),
            ..Default::default()
        });
        Ok(CreateContainerResponse { adjust, update: std::mem::take(&mut script.updates), evict: vec![] })
    }

    async fn update_container(
        &mut self,
        _: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, Status> {
        Ok(UpdateContainerResponse::default())
    }

    async fn stop_container(
        &mut self,
        request: StopContainerRequest,
    ) -> Result<StopContainerResponse, Status> {
        self.script().heard.push((Event::StopContainer, request.container.unwrap().id));
        Ok(StopContainerResponse::default())
    }

    async fn happened(&mut self, happened: Happened) -> Result<(), Status> {
        let wait = self.script().answer_after;
        tokio::time::sleep(wait).await;
        let mut script = self.script();
        let subject = happened.container.map_or(happened.pod.id, |c| c.id);
        script.heard.push((happened.event, subject));
        if script.refuse_pods && happened.event == Event::RunPodSandbox {
            return Err(Status::new(Code::Unknown, "3 CPUs asked, 1 free"));
        }
        Ok(())
    }

    async fn shutdown(&mut self) {}
}

fn on_cpus(cpus: &str) -> LinuxResources {
    let cpu = LinuxCpu { cpus: cpus.to_owned(), ..Default::default() };
    LinuxResources { cpu: Some(cpu), ..Default::default() }
}

fn update(container: &str, cpus: &str) -> ContainerUpdate {
    ContainerUpdate {
        container_id: container.to_owned(),
        linux: Some(LinuxContainerUpdate { resources: Some(on_cpus(cpus)) }),
        ignore_failure: true,
    }
}

async fn start(setup: Setup) -> (tempfile::TempDir, Imitation) {
    let dir = tempfile::tempdir().unwrap();
    let runtime = Imitation::start(dir.path(), setup).await.unwrap();
    (dir, runtime)
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn both_event_styles_tell_the_same_life() {
    for style in [EventStyle::StateChange, EventStyle::OwnCalls] {
        let options = RuntimeOptions { style, ..RuntimeOptions::default() };
        let (_dir, mut runtime) = start(Setup { options, ..Setup::default() }).await;
        let puppet = Puppet::default();
        let _session = puppet.connect(&runtime).await;

        let pod = runtime.run_pod(&PodSpec::new("a", "shared_cores", 100)).await.unwrap();
        let container = runtime.create_container(&pod, &ContainerSpec::new("c", 100)).await.unwrap();
        runtime.start_container(&container).await.unwrap();
        runtime.remove_pod(&pod).await.unwrap();

        use Event::*;
        let life = [
            RunPodSandbox,
            CreateContainer,
            PostCreateContainer,
            StartContainer,
            PostStartContainer,
            StopContainer,
            StopPodSandbox,
            RemoveContainer,
            RemovePodSandbox,
        ];
        assert_eq!(puppet.events(), life, "{style:?}");
        let pods = std::fs::read_dir(runtime.kernel().cpuset_dir("kubepods/burstable")).unwrap();
        assert_eq!(pods.flatten().filter(|e| e.path().is_dir()).count(), 0, "cgroups are gone");
    }
}

#[tokio::test]
async fn a_container_starts_on_the_cpus_of_the_adjustment() {
    let machine = MachineLayout::two_sockets(2);
    let (_dir, mut runtime) = start(Setup { machine, ..Setup::default() }).await;
    let puppet = Puppet::default();
    puppet.script().cpus = "2,3".to_owned();
    let _session = puppet.connect(&runtime).await;
    let pod = runtime.run_pod(&PodSpec::new("a", "dedicated_cores", 2000)).await.unwrap();
    let container = runtime.create_container(&pod, &ContainerSpec::new("c", 2000)).await.unwrap();
    assert!(runtime.cpus_allowed(&container).await.is_err(), "nothing runs yet");
    runtime.start_container(&container).await.unwrap();
    assert_eq!(runtime.first_cpus(&container).await.unwrap(), "2-3");
    assert_eq!(runtime.cpus_allowed(&container).await.unwrap(), "2-3");
    assert_eq!(runtime.mems_allowed(&container).await.unwrap(), "0-3");
}

#[tokio::test]
async fn updates_are_lost_before_the_container_is_stored_and_only_change_the_spec_before_it_runs() {
    let (_dir, mut runtime) = start(Setup::default()).await;
    let puppet = Puppet::default();
    let (_trunk, client) = puppet.connect(&runtime).await;
    let pod = runtime.run_pod(&PodSpec::new("a", "shared_cores", 100)).await.unwrap();
    let shared = runtime.create_container(&pod, &ContainerSpec::new("shared", 100)).await.unwrap();

    puppet.script().updates = vec![update(&shared.0, "1"), update("no-such-container", "1")];
    let other = runtime.create_container(&pod, &ContainerSpec::new("other", 100)).await.unwrap();
    assert_eq!(runtime.observed(|o| o.dropped.clone()), ["no-such-container"]);
    let cgroup = runtime.cgroup_of(&shared).unwrap();
    assert!(!runtime.kernel().cpuset_dir(cgroup.trim_start_matches('/')).exists());
    runtime.start_container(&shared).await.unwrap();
    assert_eq!(runtime.first_cpus(&shared).await.unwrap(), "1");

    runtime.start_container(&other).await.unwrap();
    assert_eq!(runtime.cpus_allowed(&other).await.unwrap(), "0-1");
    let failed = client.update_containers(vec![update(&other.0, "0"), update("gone", "0")], SECOND).await;
    assert!(failed.unwrap().is_empty(), "success is answered for the unknown one too");
    assert_eq!(runtime.cpus_allowed(&other).await.unwrap(), "0");
}

#[tokio::test]
async fn the_kernel_refuses_cpus_that_are_not_there() {
    let (_dir, mut runtime) = start(Setup::default()).await;
    let puppet = Puppet::default();
    let (_trunk, client) = puppet.connect(&runtime).await;
    let pod = runtime.run_pod(&PodSpec::new("a", "shared_cores", 100)).await.unwrap();
    let container = runtime.create_container(&pod, &ContainerSpec::new("c", 100)).await.unwrap();
    runtime.start_container(&container).await.unwrap();
    let must_work = ContainerUpdate { ignore_failure: false, ..update(&container.0, "7") };
    let failed = client.update_containers(vec![must_work], SECOND).await.unwrap();
    assert_eq!(failed.len(), 1);
    assert_eq!(runtime.cpus_allowed(&container).await.unwrap(), "0-1");
}

#[tokio::test]
async fn a_refused_pod_is_not_there() {
    let (_dir, mut runtime) = start(Setup::default()).await;
    let puppet = Puppet::default();
    puppet.script().refuse_pods = true;
    let _session = puppet.connect(&runtime).await;
    let error = runtime.run_pod(&PodSpec::new("a", "dedicated_cores", 3000)).await.unwrap_err();
    assert!(matches!(&error, RuntimeError::Refused { .. }), "{error}");
    assert_eq!(error.message(), "3 CPUs asked, 1 free");
    assert!(runtime.sandboxes().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_late_answer_costs_the_connection_and_the_pod_runs_without_it() {
    let options = RuntimeOptions { request_timeout: Duration::from_millis(50), ..RuntimeOptions::default() };
    let (_dir, mut runtime) = start(Setup { options, ..Setup::default() }).await;
    let puppet = Puppet::default();
    let (trunk, _client) = puppet.connect(&runtime).await;
    puppet.script().answer_after = SECOND;
    runtime.run_pod(&PodSpec::new("a", "shared_cores", 100)).await.unwrap();
    assert_eq!(runtime.connected(), 0);
    trunk.ended().await;
    let call = runtime.observed(|o| o.calls[0].clone());
    assert!(call.error.unwrap().contains("did not answer"));
}

#[tokio::test]
async fn a_restart_closes_the_connection_and_tells_the_list_anew() {
    // Small parts: the list comes in several.
    let options = RuntimeOptions { sync_part: 600, ..RuntimeOptions::default() };
    let (_dir, mut runtime) = start(Setup { options, ..Setup::default() }).await;
    let puppet = Puppet::default();
    let (trunk, _client) = puppet.connect(&runtime).await;
    for n in 0..10 {
        let pod = runtime.run_pod(&PodSpec::new(&format!("p{n}"), "shared_cores", 100)).await.unwrap();
        let spec = ContainerSpec::new("c", 100);
        let spec = if n == 9 { spec.running(Workload::Exit(3)) } else { spec };
        let container = runtime.create_container(&pod, &spec).await.unwrap();
        runtime.start_container(&container).await.unwrap();
        if n == 9 {
            assert_eq!(runtime.state(&container).await.unwrap(), State::Exited(3));
        }
    }
    runtime.restart().await.unwrap();
    trunk.ended().await;
    let _session = puppet.connect(&runtime).await;
    assert_eq!(puppet.script().lists, [(0, 0), (10, 9)]);
    assert_eq!(runtime.observed(|o| o.registrations.len()), 2);
}

#[tokio::test]
async fn an_update_during_a_call_waits_for_its_answer_and_is_seen() {
    let (_dir, mut runtime) = start(Setup::default()).await;
    let puppet = Puppet::default();
    let (_trunk, client) = puppet.connect(&runtime).await;
    let pod = runtime.run_pod(&PodSpec::new("a", "shared_cores", 100)).await.unwrap();
    let container = runtime.create_container(&pod, &ContainerSpec::new("c", 100)).await.unwrap();
    puppet.script().answer_after = Duration::from_millis(200);
    let heard_before_the_update =
        tokio::join!(async { runtime.start_container(&container).await.unwrap() }, async {
            // The first poll of the call before this has set it on its way.
            tokio::task::yield_now().await;
            client.update_containers(vec![update("other", "0")], SECOND * 5).await.unwrap();
            puppet.events().last().copied()
        },);
    assert_eq!(heard_before_the_update.1, Some(Event::StartContainer), "the update waited for its answer");
    assert_eq!(runtime.observed(|o| o.overlapping_updates), 1);
}

#[tokio::test]
async fn faults_are_switched() {
    let (_dir, mut runtime) = start(Setup::default()).await;
    let puppet = Puppet::default();
    let (trunk, client) = puppet.connect(&runtime).await;
    runtime.speak_of_the_future().await.unwrap();
    let pod = runtime.run_pod(&PodSpec::new("a", "shared_cores", 100)).await.unwrap();

    runtime.faults(|f| f.fail_create = true);
    assert!(runtime.create_container(&pod, &ContainerSpec::new("c", 100)).await.is_err());
    assert_eq!(puppet.events()[1..], [Event::CreateContainer, Event::StopContainer, Event::RemoveContainer]);

    runtime.faults(|f| f.stall = SECOND);
    let stalled = client.update_containers(vec![update("x", "0")], Duration::from_millis(20)).await;
    assert!(stalled.unwrap_err().to_string().contains("did not answer"));

    runtime.flood(1000).await;
    assert!(puppet.events().len() >= 1000);
    runtime.drop_connections();
    trunk.ended().await;
}

#[tokio::test]
async fn updates_without_cpus_are_noted() {
    let (_dir, runtime) = start(Setup::default()).await;
    let puppet = Puppet::default();
    let (_trunk, client) = puppet.connect(&runtime).await;
    client.update_containers(vec![update("a", ""), update("b", "0")], SECOND).await.unwrap();
    assert_eq!(runtime.observed(|o| o.empty_cpus.clone()), ["a"]);
}

#[tokio::test]
async fn busy_containers_use_cpu_time_and_idle_ones_do_not() {
    let (_dir, mut runtime) = start(Setup::default()).await;
    let pod = runtime.run_pod(&PodSpec::new("a", "shared_cores", 100)).await.unwrap();
    let busy = ContainerSpec::new("busy", 100).running(Workload::Busy);
    let mut usage = Vec::new();
    for spec in [busy, ContainerSpec::new("idle", 100)] {
        let container = runtime.create_container(&pod, &spec).await.unwrap();
        runtime.start_container(&container).await.unwrap();
        let cgroup = runtime.cgroup_of(&container).unwrap();
        let tree = runtime.kernel().host_root().join("sys/fs/cgroup/cpuacct");
        usage.push(tree.join(cgroup.trim_start_matches('/')).join("cpuacct.usage"));
    }
    let read = |n: usize| std::fs::read_to_string(&usage[n]).unwrap().trim().parse::<u64>().unwrap();
    let worked = poll_until(SECOND * 5, async || if read(0) > 0 { Ok(()) } else { Err(()) });
    worked.await.expect("time passes");
    assert_eq!(read(1), 0);
}
