//! Both ends against each other over a socket pair.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oxalyst_nri::api::*;
use oxalyst_nri::events::BASE_EVENTS;
use oxalyst_nri::plugin::{Happened, Plugin, PluginSession};
use oxalyst_nri::runtime::{EventStyle, RuntimeOptions, RuntimeService, RuntimeSession, SessionError};
use oxalyst_nri::sync_chunks::Inventory;
use oxalyst_nri::{CallError, Code, Status};
use tokio::net::UnixStream;
use tokio::sync::Notify;

const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Clone, Default)]
struct Recorder {
    log: Arc<Mutex<Vec<String>>>,
    updates: usize,
    hold: Option<Arc<Notify>>,
    mask: Option<i32>,
}

impl Recorder {
    fn note(&self, line: impl Into<String>) {
        self.log.lock().unwrap().push(line.into());
    }
    fn lines(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

impl Plugin for Recorder {
    async fn configure(&mut self, request: ConfigureRequest) -> Result<ConfigureResponse, Status> {
        self.note(format!("configure {} {}", request.runtime_name, request.request_timeout));
        Ok(ConfigureResponse { events: self.mask.unwrap_or(BASE_EVENTS) })
    }
    async fn synchronize(&mut self, list: Inventory) -> Result<Vec<ContainerUpdate>, Status> {
        self.note(format!("synchronize {} {}", list.pods.len(), list.containers.len()));
        Ok((0..self.updates).map(update).collect())
    }
    async fn create_container(
        &mut self,
        request: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, Status> {
        self.note("create");
        if let Some(hold) = &self.hold {
            hold.notified().await;
        }
        let container_id = request.container.unwrap().id;
        let update = vec![ContainerUpdate { container_id, ..Default::default() }];
        Ok(CreateContainerResponse { update, ..Default::default() })
    }
    async fn update_container(
        &mut self,
        _: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, Status> {
        self.note("update");
        Ok(UpdateContainerResponse::default())
    }
    async fn stop_container(&mut self, _: StopContainerRequest) -> Result<StopContainerResponse, Status> {
        self.note("stop");
        Ok(StopContainerResponse::default())
    }
    async fn happened(&mut self, it: Happened) -> Result<(), Status> {
        self.note(format!("{:?} {} {:?}", it.event, it.pod.id, it.container.map(|c| c.id)));
        if it.pod.id == "refuse" {
            return Err(Status::new(Code::Unknown, "asked 4 CPUs, free 1"));
        }
        Ok(())
    }
    async fn shutdown(&mut self) {
        self.note("shutdown");
    }
}

#[derive(Clone, Default)]
struct Runtime {
    seen: Arc<Mutex<Vec<ContainerUpdate>>>,
}

impl RuntimeService for Runtime {
    async fn update_containers(
        &mut self,
        updates: Vec<ContainerUpdate>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        self.seen.lock().unwrap().extend(updates.clone());
        Ok(updates.into_iter().filter(|u| u.container_id == "gone").collect())
    }
}

fn update(n: usize) -> ContainerUpdate {
    ContainerUpdate { container_id: format!("{n:0>1000}"), ..Default::default() }
}

fn pod(id: &str) -> PodSandbox {
    PodSandbox { id: id.into(), ..Default::default() }
}

fn container(id: &str) -> Container {
    Container { id: id.into(), ..Default::default() }
}

fn pair(plugin: Recorder, options: RuntimeOptions) -> (PluginSession, RuntimeSession, Runtime) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let runtime = Runtime::default();
    (PluginSession::start(ours, plugin), RuntimeSession::start(theirs, runtime.clone(), options), runtime)
}

async fn registered(plugin: &PluginSession, runtime: &mut RuntimeSession) {
    plugin.register("oxalyst", "90", DEADLINE).await.unwrap();
    let registration = runtime.registered().await.unwrap();
    assert_eq!((registration.plugin_name.as_str(), registration.plugin_idx.as_str()), ("oxalyst", "90"));
}

async fn every_event(style: EventStyle) -> Vec<String> {
    let recorder = Recorder::default();
    let options = RuntimeOptions { style, ..Default::default() };
    let (plugin, mut runtime, _) = pair(recorder.clone(), options);
    registered(&plugin, &mut runtime).await;
    assert_eq!(runtime.configure("containerd", "v2.1.9").await.unwrap(), BASE_EVENTS);
    runtime.synchronize(vec![pod("p")], vec![]).await.unwrap();
    runtime.tell(Event::RunPodSandbox, pod("s"), None).await.unwrap();
    let created = runtime.create_container(pod("s"), container("c")).await.unwrap();
    assert_eq!(created.update[0].container_id, "c");
    for event in [Event::PostCreateContainer, Event::StartContainer, Event::PostStartContainer] {
        runtime.tell(event, pod("s"), Some(container("c"))).await.unwrap();
    }
    runtime.update_container(UpdateContainerRequest::default()).await.unwrap();
    runtime.stop_container(pod("s"), container("c")).await.unwrap();
    runtime.tell(Event::RemoveContainer, pod("s"), Some(container("c"))).await.unwrap();
    runtime.tell(Event::StopPodSandbox, pod("s"), None).await.unwrap();
    runtime.tell(Event::RemovePodSandbox, pod("s"), None).await.unwrap();
    runtime.shutdown().await.unwrap();
    recorder.lines()
}

#[tokio::test]
async fn both_forms_of_events_arrive_as_one() {
    let state_change = every_event(EventStyle::StateChange).await;
    assert_eq!(state_change, every_event(EventStyle::OwnCalls).await);
    assert_eq!(state_change.len(), 13);
    assert_eq!(state_change[2], "RunPodSandbox s None");
    assert_eq!(state_change[6], "PostStartContainer s Some(\"c\")");
}

#[tokio::test]
async fn a_refusal_reaches_the_runtime_with_its_text() {
    for style in [EventStyle::StateChange, EventStyle::OwnCalls] {
        let (_plugin, runtime, _) = pair(Recorder::default(), RuntimeOptions { style, ..Default::default() });
        let refused = runtime.tell(Event::RunPodSandbox, pod("refuse"), None).await.unwrap_err();
        assert!(refused.to_string().contains("asked 4 CPUs, free 1"), "{refused}");
    }
}

#[tokio::test]
async fn a_list_of_6_mib_and_updates_of_6_mib_go_through_in_parts() {
    let recorder = Recorder { updates: 6_000, ..Default::default() };
    let (_plugin, runtime, _) = pair(recorder.clone(), RuntimeOptions::default());
    let containers =
        (0..3_000).map(|n| Container { env: vec!["x".repeat(2048)], ..container(&n.to_string()) }).collect();
    let updates = runtime.synchronize(vec![pod("p")], containers).await.unwrap();
    assert_eq!(updates, (0..6_000).map(update).collect::<Vec<_>>());
    assert_eq!(recorder.lines(), ["synchronize 1 3000"]);
}

#[tokio::test]
async fn updates_outside_of_a_call_come_back_with_those_that_failed() {
    let (plugin, _session, runtime) = pair(Recorder::default(), RuntimeOptions::default());
    let (_trunk, client) = plugin.split();
    let updates = ["a", "gone"].map(|id| ContainerUpdate { container_id: id.into(), ..Default::default() });
    let failed = client.update_containers(updates.to_vec(), DEADLINE).await.unwrap();
    assert_eq!(failed, updates[1..]);
    assert_eq!(runtime.seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_handler_that_hangs_blocks_nothing_but_its_connection() {
    let hold = Arc::new(Notify::new());
    let recorder = Recorder { hold: Some(hold.clone()), ..Default::default() };
    let (plugin, session, _) = pair(recorder.clone(), RuntimeOptions::default());
    let (_trunk, client) = plugin.split();
    let create = session.create_container(pod("s"), container("c"));
    let update = async {
        while recorder.lines().is_empty() {
            tokio::task::yield_now().await;
        }
        client.update_containers(vec![], DEADLINE).await.unwrap();
        hold.notify_one();
    };
    let (created, ()) = tokio::join!(create, update);
    created.unwrap();
}

/// This many events of pods with an annotation of `size` bytes at once, behind a call whose answer takes its time: all are
/// answered.
async fn burst(count: usize, size: usize) {
    let hold = Arc::new(Notify::new());
    let recorder = Recorder { hold: Some(hold.clone()), ..Default::default() };
    let options = RuntimeOptions { request_timeout: Duration::from_secs(60), ..Default::default() };
    let (_plugin, session, _) = pair(recorder.clone(), options);
    let session = Arc::new(session);
    let slow = tokio::spawn({
        let session = Arc::clone(&session);
        async move { session.create_container(pod("s"), container("c")).await.map(drop) }
    });
    while recorder.lines().is_empty() {
        tokio::task::yield_now().await;
    }
    let events: Vec<_> = (0..count)
        .map(|n| {
            let session = Arc::clone(&session);
            let mut pod = pod(&n.to_string());
            pod.annotations.insert("as-applied".into(), "x".repeat(size));
            tokio::spawn(async move { session.tell(Event::StopPodSandbox, pod, None).await })
        })
        .collect();
    // All are on their way, behind the one that is slow.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(recorder.lines().len(), 1);
    hold.notify_one();
    slow.await.unwrap().unwrap();
    for event in events {
        event.await.unwrap().unwrap();
    }
    assert!(session.end_reason().is_none());
    assert_eq!(recorder.lines().len(), count + 1);
}

#[tokio::test]
async fn a_thousand_calls_at_once_wait_for_a_slow_handler_and_the_connection_lives() {
    burst(1_000, 0).await;
}

#[tokio::test]
async fn what_does_not_fit_the_inbox_waits_in_the_socket_and_nothing_is_refused() {
    burst(1_000, 20_000).await;
    burst(oxalyst_nri::trunk::INBOX + 1_000, 0).await;
}

#[tokio::test(start_paused = true)]
async fn past_its_timeout_the_runtime_closes_and_the_plugin_hears_it() {
    let recorder = Recorder { hold: Some(Arc::default()), ..Default::default() };
    let (plugin, session, _) = pair(recorder, RuntimeOptions::default());
    let late = session.create_container(pod("s"), container("c")).await.unwrap_err();
    assert!(matches!(late, SessionError::Call(CallError::Deadline { .. })), "{late}");
    assert_eq!(plugin.ended().await.to_string(), "the peer closed the connection");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_never_answers_the_registration_is_an_error_that_says_so() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let plugin = PluginSession::start(ours, Recorder::default());
    let late = plugin.register("oxalyst", "90", DEADLINE).await.unwrap_err();
    assert_eq!(late.to_string(), "the peer did not answer RegisterPlugin in 5000 ms");
}

#[tokio::test]
async fn the_end_of_the_plugin_fails_the_runtimes_call() {
    let recorder = Recorder { hold: Some(Arc::default()), ..Default::default() };
    let (plugin, session, _) = pair(recorder.clone(), RuntimeOptions::default());
    let create = session.create_container(pod("s"), container("c"));
    let vanish = async {
        while recorder.lines().is_empty() {
            tokio::task::yield_now().await;
        }
        drop(plugin);
    };
    let (failed, ()) = tokio::join!(create, vanish);
    assert!(matches!(failed, Err(SessionError::Call(CallError::Ended { .. }))), "{failed:?}");
    let after = session.create_container(pod("s"), container("c")).await;
    assert!(matches!(after, Err(SessionError::Call(CallError::Ended { .. }))), "{after:?}");
}

#[tokio::test]
async fn a_mask_that_the_runtime_does_not_know_is_refused() {
    let recorder = Recorder { mask: Some(0xfff), ..Default::default() };
    let (_plugin, session, _) = pair(recorder.clone(), RuntimeOptions::default());
    let refused = session.configure("containerd", "v2.1.9").await.unwrap_err();
    assert!(matches!(refused, SessionError::InvalidEvents(12)), "{refused}");
    let newer = RuntimeOptions { last_event: Event::ValidateContainerAdjustment, ..Default::default() };
    let (_plugin, session, _) = pair(recorder, newer);
    assert_eq!(session.configure("containerd", "v2.3").await.unwrap(), 0xfff);
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented_and_an_unknown_event_is_passed_over() {
    let (_plugin, session, _) = pair(Recorder::default(), RuntimeOptions::default());
    let unknown = session.call::<Empty>("FlyToTheMoon", &Empty {}).await.unwrap_err();
    let SessionError::Call(CallError::Refused { status, .. }) = unknown else { panic!("{unknown}") };
    assert_eq!(status.code.wire(), 12);
    let change = StateChangeEvent { event: 20, ..Default::default() };
    session.call::<Empty>("StateChange", &change).await.unwrap();
    session.create_container(pod("s"), container("c")).await.unwrap();
}

#[tokio::test]
async fn a_request_that_is_too_large_is_not_sent_and_the_connection_lives() {
    let (_plugin, session, _) = pair(Recorder::default(), RuntimeOptions::default());
    let huge = Container { env: vec!["x".repeat(5 << 20)], ..container("c") };
    let refused = session.create_container(pod("s"), huge).await.unwrap_err();
    assert!(matches!(refused, SessionError::Call(CallError::TooLarge { .. })), "{refused}");
    session.create_container(pod("s"), container("c")).await.unwrap();
}
