//! The plugins: taken in as they connect, called one after another in the order of their indices.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use oxalyst_nri::api::{
    Container, ContainerUpdate, CreateContainerResponse, Event, LinuxResources, PodSandbox, StateChangeEvent,
    UpdateContainerRequest, UpdatePodSandboxRequest,
};
use oxalyst_nri::client::CallError;
use oxalyst_nri::runtime::{RuntimeOptions, RuntimeService, RuntimeSession, SessionError};
use oxalyst_nri::status::{Code, Status};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::RwLock;
use tokio::task::JoinSet;

use super::faults::Faults;
use super::kernel::Kernel;
use super::observed::{Call, Observed, Registration, Synchronization};
use super::reference::Reference;
use super::store::{Store, overlay};
use crate::runtime::State as ContainerState;

/// The runtime's state and its plugins.
#[derive(Debug)]
pub(super) struct Plugins {
    pub(super) kernel: Kernel,
    options: RuntimeOptions,
    state: Mutex<State>,
    sessions: Mutex<Vec<Plugin>>,
    /// Held over each call of plugins and each of their updates: containerd's adaptation has one lock for both.
    turn: tokio::sync::Mutex<()>,
    /// Read by whoever changes a pod or a container, written while a plugin is told the whole list.
    pub(super) listing: RwLock<()>,
    calling: AtomicBool,
    /// Calls the plugins in place of our own end, if there is one. It has a lock of its own in place of `turn`.
    reference: Mutex<Option<Arc<Reference>>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) store: Store,
    pub(super) faults: Faults,
    pub(super) observed: Observed,
}

#[derive(Clone, Debug)]
struct Plugin {
    index: String,
    name: String,
    mask: i32,
    session: Arc<RuntimeSession>,
}

/// What plugins answered to CreateContainer, laid over each other.
#[derive(Debug, Default)]
pub(super) struct Adjusted {
    pub(super) resources: LinuxResources,
    pub(super) env: Vec<String>,
    pub(super) updates: Vec<ContainerUpdate>,
}

struct Updates(Arc<Plugins>);

// === impl Plugins ===

impl Plugins {
    pub(super) fn new(kernel: Kernel, options: RuntimeOptions) -> Self {
        Self {
            kernel,
            options,
            state: Mutex::default(),
            sessions: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            listing: RwLock::default(),
            calling: AtomicBool::new(false),
            reference: Mutex::default(),
        }
    }

    /// From now on `reference` calls the plugins; with None, our own end again.
    pub(super) fn hand_over(&self, reference: Option<Arc<Reference>>) {
        let former = std::mem::replace(&mut *self.reference.lock().unwrap(), reference);
        if let Some(former) = former {
            former.end();
        }
    }

    fn reference(&self) -> Option<Arc<Reference>> {
        self.reference.lock().unwrap().clone()
    }

    /// Not held across an await.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn connected(&self) -> usize {
        self.sessions.lock().unwrap().len()
    }

    pub(super) fn close_all(&self) {
        for plugin in self.sessions.lock().unwrap().drain(..) {
            plugin.session.close();
        }
    }

    /// Accepts plugins for ever.
    pub(super) async fn serve(self: Arc<Self>, listener: UnixListener) {
        let wait = self.state().faults.serve_after;
        tokio::time::sleep(wait).await;
        // Ends with this future, and the connections with it.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => {
                        connections.spawn(Arc::clone(&self).take_in(socket));
                    }
                    Err(e) => {
                        self.state().observed.ended.push(format!("accept: {e}"));
                        return;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    /// One connection, to its end.
    async fn take_in(self: Arc<Self>, socket: UnixStream) {
        let session = RuntimeSession::start(socket, Updates(Arc::clone(&self)), self.options);
        let ended = match self.introduce(session).await {
            Ok(session) => {
                let reason = session.ended().await;
                self.sessions.lock().unwrap().retain(|p| !Arc::ptr_eq(&p.session, &session));
                reason.to_string()
            }
            Err(e) => e.to_string(),
        };
        self.state().observed.ended.push(ended);
    }

    async fn introduce(&self, mut session: RuntimeSession) -> Result<Arc<RuntimeSession>, SessionError> {
        let plugin = session.registered().await?;
        let mask = session.configure("imitation", "v0").await?;
        let (name, index) = (plugin.plugin_name, plugin.plugin_idx);
        self.state().observed.registrations.push(Registration {
            at: Instant::now(),
            name: name.clone(),
            index: index.clone(),
            mask,
        });

        let _listing = self.listing.write().await;
        let (pods, containers) = self.state().store.list();
        let counts = (pods.len(), containers.len());
        let start = Instant::now();
        let updates = session.synchronize(pods, containers).await?;
        let took = start.elapsed();
        self.apply(&updates);
        let session = Arc::new(session);
        let mut sessions = self.sessions.lock().unwrap();
        sessions.push(Plugin { index, name, mask, session: Arc::clone(&session) });
        sessions.sort_by(|a, b| a.index.cmp(&b.index));
        let at_once = sessions.iter().filter(|plugin| plugin.session.end_reason().is_none()).count();
        drop(sessions);
        {
            let observed = &mut self.state().observed;
            observed.most_at_once = observed.most_at_once.max(at_once);
        }
        self.note_synchronization(took, counts, updates);
        Ok(session)
    }

    /// Notes a list of (sandboxes, containers) that was told, and what came back.
    pub(super) fn note_synchronization(
        &self,
        took: Duration,
        (pods, containers): (usize, usize),
        updates: Vec<ContainerUpdate>,
    ) {
        let synchronization = Synchronization { at: Instant::now(), took, pods, containers, updates };
        self.state().observed.synchronizations.push(synchronization);
    }

    /// Tells an event; the error of the first plugin that refuses it.
    pub(super) async fn tell(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), String> {
        if let Some(reference) = self.reference() {
            return self.timed(event, reference.tell(event, pod, container)).await;
        }
        let _turn = self.turn.lock().await;
        for plugin in self.called_for(event) {
            let call = plugin.session.tell(event, pod.clone(), container.cloned());
            self.call(event, &plugin, call).await?;
        }
        Ok(())
    }

    /// Tells that a container is about to be created.
    pub(super) async fn create_container(
        &self,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<Adjusted, String> {
        let mut adjusted = Adjusted::default();
        if let Some(reference) = self.reference() {
            let asked =
                || self.state().observed.seen.iter().filter(|s| s.method == "CreateContainer").count();
            let before = asked();
            let call = reference.create_container(pod, container);
            let answer = self.timed(Event::CreateContainer, call).await?;
            // Without a plugin the library adjusts by a message whose every field is empty.
            if asked() > before {
                self.note_creation(container, &answer);
            }
            adjusted.env = env_of(&answer);
            let linux = answer.adjust.and_then(|a| a.linux);
            adjusted.resources = linux.and_then(|l| l.resources).unwrap_or_default();
            adjusted.updates = answer.update;
            return Ok(adjusted);
        }
        let _turn = self.turn.lock().await;
        let mut owner: Option<String> = None;
        for plugin in self.called_for(Event::CreateContainer) {
            let call = plugin.session.create_container(pod.clone(), container.clone());
            let Some(answer) = self.call(Event::CreateContainer, &plugin, call).await? else { continue };
            self.note_creation(container, &answer);
            adjusted.env.extend(env_of(&answer));
            let linux = answer.adjust.and_then(|a| a.linux);
            if let Some(resources) = linux.and_then(|l| l.resources) {
                if resources.cpu.as_ref().is_some_and(|cpu| !cpu.cpus.is_empty())
                    && let Some(other) = owner.replace(plugin.name.clone())
                {
                    let name = &plugin.name;
                    return Err(format!("plugins {other:?} and {name:?} both tried to set CPU pinning"));
                }
                overlay(&mut adjusted.resources, &resources);
            }
            adjusted.updates.extend(answer.update);
        }
        Ok(adjusted)
    }

    /// Tells that a container stops.
    pub(super) async fn stop_container(&self, pod: &PodSandbox, container: &Container) -> Result<(), String> {
        if let Some(reference) = self.reference() {
            let call = reference.stop_container(pod, container);
            let answer = self.timed(Event::StopContainer, call).await?;
            self.apply(&answer.update);
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        let mut updates = Vec::new();
        for plugin in self.called_for(Event::StopContainer) {
            let call = plugin.session.stop_container(pod.clone(), container.clone());
            updates.extend(self.call(Event::StopContainer, &plugin, call).await?.unwrap_or_default().update);
        }
        self.apply(&updates);
        Ok(())
    }

    /// Tells that the kubelet wants other resources for a container; what the plugins made of them.
    pub(super) async fn update_container(
        &self,
        request: UpdateContainerRequest,
    ) -> Result<Vec<ContainerUpdate>, String> {
        if let Some(reference) = self.reference() {
            let call = reference.update_container(&request);
            return Ok(self.timed(Event::UpdateContainer, call).await?.update);
        }
        let _turn = self.turn.lock().await;
        let mut updates = Vec::new();
        for plugin in self.called_for(Event::UpdateContainer) {
            let call = plugin.session.update_container(request.clone());
            updates
                .extend(self.call(Event::UpdateContainer, &plugin, call).await?.unwrap_or_default().update);
        }
        Ok(updates)
    }

    /// Tells that the kubelet wants other resources for a pod.
    pub(super) async fn update_sandbox(&self, request: UpdatePodSandboxRequest) -> Result<(), String> {
        if let Some(reference) = self.reference() {
            let call = reference.update_sandbox(&request);
            return self.timed(Event::UpdatePodSandbox, call).await;
        }
        let _turn = self.turn.lock().await;
        for plugin in self.called_for(Event::UpdatePodSandbox) {
            let call = plugin.session.update_sandbox(request.clone());
            self.call(Event::UpdatePodSandbox, &plugin, call).await?;
        }
        Ok(())
    }

    /// Applies updates as containerd does; gives those that failed and were to fail the call.
    pub(super) fn apply(&self, updates: &[ContainerUpdate]) -> Vec<ContainerUpdate> {
        let mut state = self.state();
        let State { store, faults, observed } = &mut *state;
        let mut failed = Vec::new();
        for update in updates {
            observed.check_cpus(update);
            let Some(wanted) = update.linux.as_ref().and_then(|l| l.resources.as_ref()) else { continue };
            if faults.ignore_updates {
                continue;
            }
            let Some(container) = store.containers.get_mut(&update.container_id) else {
                observed.dropped.push(update.container_id.clone());
                continue;
            };
            match container.state {
                ContainerState::Created => overlay(&mut container.resources, wanted),
                ContainerState::Running => match self.kernel.set(&container.cgroup, wanted) {
                    Ok(()) => overlay(&mut container.resources, wanted),
                    Err(e) => {
                        observed.refused.push((update.container_id.clone(), e.to_string()));
                        if !update.ignore_failure {
                            failed.push(update.clone());
                        }
                    }
                },
                ContainerState::Exited(_) | ContainerState::Unknown => {}
            }
        }
        failed
    }

    /// See [`super::Imitation::flood`].
    pub(super) async fn flood(&self, count: usize) -> Duration {
        let subject = {
            let state = self.state();
            let held = state.store.containers.values().next();
            held.and_then(|c| Some((state.store.pods.get(&c.sandbox)?.message(), state.store.message(c)?)))
        };
        let (pod, container) = match subject {
            Some((pod, container)) => (pod, Some(container)),
            None => (PodSandbox { id: "flood".into(), uid: "flood".into(), ..Default::default() }, None),
        };
        let event = if container.is_some() { Event::PostUpdateContainer } else { Event::StopPodSandbox };
        let start = Instant::now();
        for _ in 0..count {
            // Refused or not, the next one comes.
            let _ = self.tell(event, &pod, container.as_ref()).await;
        }
        start.elapsed()
    }

    /// See [`super::Imitation::flood_at_once`].
    pub(super) async fn flood_at_once(&self, count: usize) -> usize {
        let _turn = self.turn.lock().await;
        let plugins = self.called_for(Event::StopPodSandbox);
        let mut calls = JoinSet::new();
        for plugin in plugins {
            for n in 0..count {
                let (id, session) = (format!("flood-{n}"), Arc::clone(&plugin.session));
                let pod = PodSandbox { id: id.clone(), uid: id, ..Default::default() };
                calls.spawn(async move { session.tell(Event::StopPodSandbox, pod, None).await.is_ok() });
            }
        }
        calls.join_all().await.into_iter().filter(|answered| *answered).count()
    }

    /// See [`super::Imitation::speak_of_the_future`].
    pub(super) async fn speak_of_the_future(&self) -> Result<(), String> {
        const UNBORN: i32 = 20;
        let _turn = self.turn.lock().await;
        let plugins = self.sessions.lock().unwrap().clone();
        for plugin in plugins {
            let change = StateChangeEvent {
                event: UNBORN,
                pod: Some(PodSandbox { id: "future".into(), ..Default::default() }),
                container: None,
            };
            let answer = plugin.session.call::<oxalyst_nri::api::Empty>("StateChange", &change).await;
            answer.map_err(|e| format!("event {UNBORN}: {e}"))?;
            match plugin.session.call::<oxalyst_nri::api::Empty>("HibernateContainer", &change).await {
                Err(SessionError::Call(CallError::Refused { status, .. }))
                    if status.code == Code::Unimplemented => {}
                other => return Err(format!("HibernateContainer: {other:?}")),
            }
        }
        Ok(())
    }

    fn called_for(&self, event: Event) -> Vec<Plugin> {
        let bit = oxalyst_nri::events::bit(event);
        self.sessions.lock().unwrap().iter().filter(|p| p.mask & bit != 0).cloned().collect()
    }

    /// One call. `Ok(None)`: the plugin failed and is out, the runtime goes on without it. An error: it refused.
    async fn call<A>(
        &self,
        event: Event,
        plugin: &Plugin,
        call: impl Future<Output = Result<A, SessionError>>,
    ) -> Result<Option<A>, String> {
        self.calling.store(true, Ordering::Relaxed);
        let start = Instant::now();
        let outcome = call.await;
        let took = start.elapsed();
        self.calling.store(false, Ordering::Relaxed);
        let error = outcome.as_ref().err().map(ToString::to_string);
        self.state().observed.calls.push(Call { event, took, error });
        match outcome {
            Ok(answer) => Ok(Some(answer)),
            Err(SessionError::Call(CallError::Refused { status, .. })) => Err(status.message),
            Err(_) => {
                plugin.session.close();
                self.sessions.lock().unwrap().retain(|p| !Arc::ptr_eq(&p.session, &plugin.session));
                Ok(None)
            }
        }
    }

    /// One call through the reference library.
    async fn timed<A>(
        &self,
        event: Event,
        call: impl Future<Output = Result<A, String>>,
    ) -> Result<A, String> {
        let start = Instant::now();
        let outcome = call.await;
        let (took, error) = (start.elapsed(), outcome.as_ref().err().cloned());
        self.state().observed.calls.push(Call { event, took, error });
        outcome
    }

    fn note_creation(&self, container: &Container, answer: &CreateContainerResponse) {
        let mut state = self.state();
        let cpu = answer.adjust.as_ref().and_then(|a| a.linux.as_ref()?.resources.as_ref()?.cpu.as_ref());
        if cpu.is_some_and(|cpu| cpu.cpus.trim().is_empty()) {
            state.observed.empty_cpus.push(container.id.clone());
        }
        state.observed.creations.push((container.clone(), answer.clone()));
    }
}

// === impl Updates ===

impl RuntimeService for Updates {
    async fn update_containers(
        &mut self,
        updates: Vec<ContainerUpdate>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        let stall = {
            let mut state = self.0.state();
            let overlaps = self.0.calling.load(Ordering::Relaxed);
            state.observed.overlapping_updates += u32::from(overlaps);
            state.observed.updates.push((Instant::now(), updates.clone()));
            state.faults.stall
        };
        tokio::time::sleep(stall).await;
        let _turn = self.0.turn.lock().await;
        Ok(self.0.apply(&updates))
    }
}

/// The environment that a plugin's answer adds.
fn env_of(answer: &CreateContainerResponse) -> Vec<String> {
    let env = answer.adjust.iter().flat_map(|adjust| &adjust.env);
    env.map(|entry| format!("{}={}", entry.key, entry.value)).collect()
}

/// Binds the runtime's socket anew.
pub(super) fn bind(socket: &Path) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => UnixListener::bind(socket),
    }
}
