//! Pods and containers come and go, each step told to the plugins at containerd's moment.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use oxalyst_nri::api::{Container, Event, PodSandbox, UpdateContainerRequest};

use super::reference::Reference;
use super::store::{Held, Pod, fresh_id, overlay, resources};
use super::{Imitation, failed, plugins};
use crate::runtime::{
    ContainerId, ContainerSpec, Listed, PodSpec, Resizes, Runtime, RuntimeError, SandboxId, State, Workload,
};

// === impl Imitation ===

impl Imitation {
    /// A container's first process ends by itself. The runtime tells StopContainer, as containerd does at each crash.
    ///
    /// # Errors
    /// [`RuntimeError::Failed`] where there is none.
    pub async fn crash(&mut self, container: &ContainerId, code: i32) -> Result<(), RuntimeError> {
        let _listing = self.plugins.listing.read().await;
        self.exit(container, code).await
    }

    async fn exit(&self, container: &ContainerId, code: i32) -> Result<(), RuntimeError> {
        let doing = format!("end container {}", container.0);
        {
            let mut state = self.plugins.state();
            let held = state.store.containers.get_mut(&container.0);
            let held = held.ok_or_else(|| failed(&doing, "no such container"))?;
            if matches!(held.state, State::Exited(_)) {
                return Ok(());
            }
            held.state = State::Exited(code);
        }
        let (pod, message) = self.messages(&doing, container)?;
        let cgroup = self.cgroup_of(container).unwrap_or_default();
        self.plugins.kernel.remove_cgroup(&cgroup).map_err(|e| failed(&doing, e))?;
        // A refusal stops nothing.
        let _ = self.plugins.stop_container(&pod, &message).await;
        Ok(())
    }

    pub(super) fn messages(
        &self,
        doing: &str,
        container: &ContainerId,
    ) -> Result<(PodSandbox, Container), RuntimeError> {
        let state = self.plugins.state();
        let found = state.store.containers.get(&container.0).and_then(|held| {
            let pod = state.store.pods.get(&held.sandbox)?;
            Some((pod.message(), held.message(pod)))
        });
        found.ok_or_else(|| failed(doing, "no such container"))
    }

    fn pod_message(&self, doing: &str, sandbox: &SandboxId) -> Result<PodSandbox, RuntimeError> {
        let state = self.plugins.state();
        let pod = state.store.pods.get(&sandbox.0).map(Pod::message);
        pod.ok_or_else(|| failed(doing, "no such sandbox"))
    }

    /// Stops a sandbox and its containers; false: there is none.
    async fn stop_sandbox(&self, sandbox: &SandboxId) -> Result<bool, RuntimeError> {
        let doing = format!("stop pod {}", sandbox.0);
        let Ok(pod) = self.pod_message(&doing, sandbox) else { return Ok(false) };
        let containers = self.plugins.state().store.of_sandbox(&sandbox.0);
        for id in containers {
            self.exit(&ContainerId(id), 137).await?;
        }
        let was_ready = {
            let mut state = self.plugins.state();
            let pod = state.store.pods.get_mut(&sandbox.0);
            pod.is_some_and(|pod| std::mem::replace(&mut pod.ready, false))
        };
        if was_ready {
            let _ = self.plugins.tell(Event::StopPodSandbox, &pod, None).await;
            let cgroup = pod.linux.map(|l| l.cgroups_path).unwrap_or_default();
            self.plugins.kernel.remove_cgroup(&cgroup).map_err(|e| failed(&doing, e))?;
        }
        Ok(true)
    }

    async fn forget_container(&self, container: &ContainerId) -> Result<(), RuntimeError> {
        let doing = format!("remove container {}", container.0);
        let Ok((pod, message)) = self.messages(&doing, container) else { return Ok(()) };
        let _ = self.plugins.tell(Event::RemoveContainer, &pod, Some(&message)).await;
        self.plugins.state().store.containers.remove(&container.0);
        Ok(())
    }

    /// The container's kernel list while it runs.
    fn running_cgroup(&self, container: &ContainerId) -> Result<String, RuntimeError> {
        let doing = format!("find the process of {}", container.0);
        let state = self.plugins.state();
        let held = state.store.containers.get(&container.0);
        match held.ok_or_else(|| failed(&doing, "no such container"))? {
            held if held.state == State::Running => Ok(held.cgroup.clone()),
            held => Err(failed(&doing, format!("it is {:?}", held.state))),
        }
    }
}

impl Resizes for Imitation {
    async fn update_shares(&mut self, container: &ContainerId, milli_cpu: u64) -> Result<(), RuntimeError> {
        let doing = format!("resize container {}", container.0);
        let _listing = self.plugins.listing.read().await;
        let (pod, message) = self.messages(&doing, container)?;
        let wanted = resources(milli_cpu, None);
        let request = UpdateContainerRequest {
            pod: Some(pod),
            container: Some(message),
            linux_resources: Some(wanted.clone()),
        };
        let answer = self.plugins.update_container(request).await;
        let updates = answer.map_err(|m| refused(&doing, m))?;
        let cgroup = {
            let mut state = self.plugins.state();
            let held = state.store.containers.get_mut(&container.0);
            let held = held.ok_or_else(|| failed(&doing, "no such container"))?;
            overlay(&mut held.resources, &wanted);
            (held.state == State::Running).then(|| held.cgroup.clone())
        };
        if let Some(cgroup) = cgroup {
            self.plugins.kernel.set(&cgroup, &wanted).map_err(|e| failed(&doing, e))?;
        }
        self.plugins.apply(&updates);
        Ok(())
    }
}

impl Runtime for Imitation {
    fn describe(&self) -> String {
        "imitation v0".to_owned()
    }

    fn nri_socket(&self) -> PathBuf {
        self.folder.join("nri.sock")
    }

    fn host_root(&self) -> PathBuf {
        self.plugins.kernel.host_root().to_owned()
    }

    fn online_cpus(&self) -> String {
        self.plugins.kernel.online().to_string()
    }

    fn is_real(&self) -> bool {
        false
    }

    async fn start(&mut self) -> Result<(), RuntimeError> {
        if self.serving.is_none() {
            let socket = self.nri_socket();
            if let Some(program) = &self.reference {
                let folder = self.folder.join("reference");
                let started = Reference::start(program, &socket, &folder, &self.plugins).await;
                let started = started.map_err(|e| failed(&format!("start {}", program.display()), e))?;
                self.plugins.hand_over(Some(started));
                // Nothing to serve here.
                self.serving = Some(tokio::spawn(async {}));
                return Ok(());
            }
            let listener =
                plugins::bind(&socket).map_err(|e| failed(&format!("bind {}", socket.display()), e))?;
            self.serving = Some(tokio::spawn(Arc::clone(&self.plugins).serve(listener)));
        }
        Ok(())
    }

    async fn stop(&mut self) -> Result<(), RuntimeError> {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            // Cancelled, as it was told to.
            let _ = serving.await;
            self.plugins.close_all();
            self.plugins.hand_over(None);
            let _ = std::fs::remove_file(self.nri_socket());
        }
        Ok(())
    }

    async fn run_pod(&mut self, spec: &PodSpec) -> Result<SandboxId, RuntimeError> {
        let doing = format!("run pod {}", spec.name);
        let pod = Pod { id: fresh_id(), spec: spec.clone(), ready: true };
        let _listing = self.plugins.listing.read().await;
        {
            let state = self.plugins.state();
            let name = |p: &PodSpec| (p.namespace.clone(), p.name.clone(), p.uid.clone(), p.attempt);
            if state.store.pods.values().any(|other| name(&other.spec) == name(spec)) {
                return Err(failed(&doing, "a sandbox of this name, UID and attempt is there already"));
            }
        }
        let cgroup = pod.cgroup();
        self.plugins.kernel.create_cgroup(&cgroup).map_err(|e| failed(&doing, e))?;
        if let Err(message) = self.plugins.tell(Event::RunPodSandbox, &pod.message(), None).await {
            // As containerd: the plugins hear no more of a sandbox that was refused.
            self.plugins.kernel.remove_cgroup(&spec.cgroup_parent()).map_err(|e| failed(&doing, e))?;
            return Err(refused(&doing, message));
        }
        let id = SandboxId(pod.id.clone());
        self.plugins.state().store.pods.insert(pod.id.clone(), pod);
        Ok(id)
    }

    async fn create_container(
        &mut self,
        sandbox: &SandboxId,
        spec: &ContainerSpec,
    ) -> Result<ContainerId, RuntimeError> {
        let doing = format!("create container {} in {}", spec.name, sandbox.0);
        let _listing = self.plugins.listing.read().await;
        let pod = {
            let state = self.plugins.state();
            let taken = state.store.containers.values().any(|c| {
                c.sandbox == sandbox.0 && c.spec.name == spec.name && c.spec.attempt == spec.attempt
            });
            match state.store.pods.get(&sandbox.0) {
                _ if taken => {
                    return Err(failed(&doing, "a container of this name and attempt is there already"));
                }
                Some(pod) if pod.ready => pod.clone(),
                _ => return Err(failed(&doing, "no such sandbox, or not ready")),
            }
        };
        let mut held = Held::new(fresh_id(), &pod, spec);
        let (pod, message) = (pod.message(), held.message(&pod));
        let adjusted = self.plugins.create_container(&pod, &message).await;
        let adjusted = adjusted.map_err(|m| refused(&doing, m))?;
        overlay(&mut held.resources, &adjusted.resources);
        held.env = adjusted.env;
        // Before this container is stored: an update of itself would be lost.
        self.plugins.apply(&adjusted.updates);

        let faults = self.plugins.state().faults.clone();
        if faults.fail_create || faults.fail_create_silently {
            if faults.fail_create {
                let _ = self.plugins.stop_container(&pod, &message).await;
                let _ = self.plugins.tell(Event::RemoveContainer, &pod, Some(&message)).await;
            }
            return Err(failed(&doing, "another plugin failed"));
        }
        let id = ContainerId(held.id.clone());
        self.plugins.state().store.containers.insert(held.id.clone(), held);
        let _ = self.plugins.tell(Event::PostCreateContainer, &pod, Some(&message)).await;
        Ok(id)
    }

    async fn start_container(&mut self, container: &ContainerId) -> Result<(), RuntimeError> {
        let doing = format!("start container {}", container.0);
        let _listing = self.plugins.listing.read().await;
        let (cgroup, spec, workload) = {
            let state = self.plugins.state();
            let held = state.store.containers.get(&container.0);
            let held = held.ok_or_else(|| failed(&doing, "no such container"))?;
            if held.state != State::Created {
                return Err(failed(&doing, format!("it is {:?}", held.state)));
            }
            (held.cgroup.clone(), held.resources.clone(), held.spec.run)
        };
        let kernel = &self.plugins.kernel;
        // As containerd: the cgroup is made from the spec, the plugins are told, and only then the program begins.
        let made = kernel.create_cgroup(&cgroup).and_then(|()| kernel.set(&cgroup, &spec));
        made.map_err(|e| failed(&doing, e))?;
        let (pod, message) = self.messages(&doing, container)?;
        if let Err(message) = self.plugins.tell(Event::StartContainer, &pod, Some(&message)).await {
            kernel.remove_cgroup(&cgroup).map_err(|e| failed(&doing, e))?;
            return Err(refused(&doing, message));
        }
        let first = kernel.cpus_of(&cgroup).map_err(|e| failed(&doing, e))?;
        if let Some(held) = self.plugins.state().store.containers.get_mut(&container.0) {
            held.first_cpus = Some(first.to_string());
            held.state = State::Running;
            held.started = Some(SystemTime::now());
        }
        let (pod, message) = self.messages(&doing, container)?;
        let _ = self.plugins.tell(Event::PostStartContainer, &pod, Some(&message)).await;
        if let Workload::Exit(code) = workload {
            self.exit(container, i32::from(code)).await?;
        }
        Ok(())
    }

    async fn stop_container(&mut self, container: &ContainerId) -> Result<(), RuntimeError> {
        let _listing = self.plugins.listing.read().await;
        if !self.plugins.state().store.containers.contains_key(&container.0) {
            return Ok(());
        }
        self.exit(container, 137).await
    }

    async fn remove_container(&mut self, container: &ContainerId) -> Result<(), RuntimeError> {
        self.stop_container(container).await?;
        let _listing = self.plugins.listing.read().await;
        self.forget_container(container).await
    }

    async fn stop_pod(&mut self, sandbox: &SandboxId) -> Result<(), RuntimeError> {
        let _listing = self.plugins.listing.read().await;
        self.stop_sandbox(sandbox).await.map(drop)
    }

    async fn remove_pod(&mut self, sandbox: &SandboxId) -> Result<(), RuntimeError> {
        let doing = format!("remove pod {}", sandbox.0);
        let _listing = self.plugins.listing.read().await;
        if !self.stop_sandbox(sandbox).await? {
            return Ok(());
        }
        let containers = self.plugins.state().store.of_sandbox(&sandbox.0);
        for id in containers {
            self.forget_container(&ContainerId(id)).await?;
        }
        let pod = self.pod_message(&doing, sandbox)?;
        let _ = self.plugins.tell(Event::RemovePodSandbox, &pod, None).await;
        let (removed, shared) = {
            let mut state = self.plugins.state();
            let removed = state.store.pods.remove(&sandbox.0);
            let shared = state.store.pods.values().any(|other| other.spec.uid == pod.uid);
            (removed, shared)
        };
        // The kubelet's part: the pod's cgroup goes with the pod, not with one of its sandboxes.
        match removed {
            Some(pod) if !shared => {
                self.plugins.kernel.remove_cgroup(&pod.spec.cgroup_parent()).map_err(|e| failed(&doing, e))
            }
            _ => Ok(()),
        }
    }

    async fn sandboxes(&mut self) -> Result<Vec<SandboxId>, RuntimeError> {
        Ok(self.plugins.state().store.pods.keys().cloned().map(SandboxId).collect())
    }

    async fn containers(&mut self) -> Result<Vec<Listed>, RuntimeError> {
        let state = self.plugins.state();
        let listed = state.store.containers.values().map(|c| Listed {
            id: ContainerId(c.id.clone()),
            sandbox: SandboxId(c.sandbox.clone()),
            name: c.spec.name.clone(),
            state: c.state,
        });
        Ok(listed.collect())
    }

    async fn state(&mut self, container: &ContainerId) -> Result<State, RuntimeError> {
        let state = self.plugins.state();
        let held = state.store.containers.get(&container.0);
        held.map(|c| c.state)
            .ok_or_else(|| failed(&format!("status of {}", container.0), "no such container"))
    }

    async fn cpus_allowed(&mut self, container: &ContainerId) -> Result<String, RuntimeError> {
        let cgroup = self.running_cgroup(container)?;
        let cpus = self.plugins.kernel.cpus_of(&cgroup);
        cpus.map(|c| c.to_string()).map_err(|e| failed(&format!("read the cpuset of {}", container.0), e))
    }

    async fn mems_allowed(&mut self, container: &ContainerId) -> Result<String, RuntimeError> {
        let cgroup = self.running_cgroup(container)?;
        let mems = self.plugins.kernel.mems_of(&cgroup);
        mems.map(|m| m.to_string()).map_err(|e| failed(&format!("read the cpuset of {}", container.0), e))
    }

    async fn first_cpus(&mut self, container: &ContainerId) -> Result<String, RuntimeError> {
        let state = self.plugins.state();
        let held = state.store.containers.get(&container.0);
        let first = held.and_then(|c| c.first_cpus.clone());
        first.ok_or_else(|| failed(&format!("first CPUs of {}", container.0), "it has not run"))
    }
}

fn refused(doing: &str, message: String) -> RuntimeError {
    RuntimeError::Refused { doing: doing.to_owned(), message }
}
