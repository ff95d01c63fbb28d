//! An imitated container runtime: NRI on a unix socket as containerd serves it, a made-up machine, and a made-up kernel.
//!
//! It is faithful where a plugin can tell: one call at a time under a lock that the plugin's own calls wait for too; the
//! connection closed past the request timeout and never opened again; updates of containers that are not stored yet dropped
//! without a word, of created ones written to the spec alone, failures only logged; a created container goes on without a
//! plugin that failed. On top of that it misbehaves on demand ([`Faults`]) and remembers all it saw ([`Observed`]).

mod faults;
mod kernel;
mod kubelet;
mod lifecycle;
mod machine;
mod observed;
mod plugins;
mod pod_resize;
mod reference;
mod store;

pub use faults::Faults;
pub use kernel::{CgroupLayout, Kernel};
pub use kubelet::ListingKubelet;
pub use machine::MachineLayout;
pub use observed::{Call, Observed, Registration, Synchronization};
pub use oxalyst_nri::runtime::{EventStyle, RuntimeOptions};
pub use reference::Seen;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::runtime::{Runtime, RuntimeError};
use plugins::Plugins;

/// What is imitated.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// CPUs and memory nodes.
    pub machine: MachineLayout,
    /// Version of the cgroup tree.
    pub cgroups: CgroupLayout,
    /// How the runtime behaves on the wire.
    pub options: RuntimeOptions,
}

/// An imitated runtime with what it runs. Dropping it closes the socket; the folder belongs to the caller.
#[derive(Debug)]
pub struct Imitation {
    folder: PathBuf,
    plugins: Arc<Plugins>,
    serving: Option<JoinHandle<()>>,
    clock: JoinHandle<()>,
    /// The program that calls the plugins, if our own end does not.
    reference: Option<PathBuf>,
}

// === impl Imitation ===

impl Imitation {
    /// Makes a machine below `folder` (short: a unix socket lies there) and starts to serve.
    ///
    /// # Errors
    /// [`RuntimeError::Failed`] with the path that could not be written or bound.
    pub async fn start(folder: &Path, setup: Setup) -> Result<Self, RuntimeError> {
        Self::start_with(folder, setup, None).await
    }

    /// As [`Imitation::start`], with the plugins called by `program`, which is made of the reference library
    /// (`lab/reference-runtime.sh`). Of `setup`, options of the wire do not count then, nor do faults of it.
    ///
    /// # Errors
    /// As there, and where the program does not start.
    pub async fn start_reference(folder: &Path, setup: Setup, program: &Path) -> Result<Self, RuntimeError> {
        Self::start_with(folder, setup, Some(program.to_owned())).await
    }

    async fn start_with(
        folder: &Path,
        setup: Setup,
        reference: Option<PathBuf>,
    ) -> Result<Self, RuntimeError> {
        let host_root = folder.join("host");
        let kernel = Kernel::create(&host_root, &setup.machine, setup.cgroups)
            .map_err(|e| failed(&format!("make a machine in {}", host_root.display()), e))?;
        let plugins = Arc::new(Plugins::new(kernel, setup.options));
        let clock = tokio::spawn(tick(Arc::clone(&plugins)));
        let mut this = Self { folder: folder.to_owned(), plugins, serving: None, clock, reference };
        Runtime::start(&mut this).await?;
        Ok(this)
    }

    /// Switches of misbehaviour; take effect with the next call.
    pub fn faults<T>(&self, change: impl FnOnce(&mut Faults) -> T) -> T {
        change(&mut self.plugins.state().faults)
    }

    /// What was seen so far.
    pub fn observed<T>(&self, look: impl FnOnce(&Observed) -> T) -> T {
        look(&self.plugins.state().observed)
    }

    /// Forgets what was seen so far; the plugins stay.
    pub fn forget_observed(&self) {
        self.plugins.state().observed = Observed::default();
    }

    /// The made-up kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.plugins.kernel
    }

    /// Plugins that are registered, configured and synchronised now.
    pub fn connected(&self) -> usize {
        self.plugins.connected()
    }

    /// Closes every plugin's connection, as a runtime does past its timeout.
    pub fn drop_connections(&self) {
        self.plugins.close_all();
    }

    /// Tells `count` events that call for nothing, one after another; gives the time it took.
    pub async fn flood(&self, count: usize) -> Duration {
        self.plugins.flood(count).await
    }

    /// Tells that as many pods as `count` stop, which nobody has heard of, without waiting for one answer before the next call;
    /// gives how many were answered.
    pub async fn flood_at_once(&self, count: usize) -> usize {
        self.plugins.flood_at_once(count).await
    }

    /// Tells an event that no plugin can know and calls a method that none has; whether the plugins refused the method as not
    /// implemented and took the event.
    ///
    /// # Errors
    /// What a plugin answered instead.
    pub async fn speak_of_the_future(&self) -> Result<(), String> {
        self.plugins.speak_of_the_future().await
    }

    /// Tells `event` of a container's pod, and of the container.
    ///
    /// # Errors
    /// Where there is no such container, or a plugin refuses it.
    pub async fn tell(
        &mut self,
        event: oxalyst_nri::api::Event,
        container: &crate::runtime::ContainerId,
    ) -> Result<(), RuntimeError> {
        let doing = format!("tell {event:?} of {}", container.0);
        let (pod, message) = self.messages(&doing, container)?;
        self.plugins.tell(event, &pod, Some(&message)).await.map_err(|e| failed(&doing, e))
    }

    /// Where a container's cgroup lies, below the root of a controller's tree.
    pub fn cgroup_of(&self, container: &crate::runtime::ContainerId) -> Option<String> {
        self.plugins.state().store.containers.get(&container.0).map(|c| c.cgroup.clone())
    }

    /// Ends it with all that it runs.
    pub async fn remove(mut self) -> Result<(), RuntimeError> {
        Runtime::stop(&mut self).await
    }
}

impl Drop for Imitation {
    fn drop(&mut self) {
        self.clock.abort();
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
        self.plugins.close_all();
    }
}

/// Lets busy containers use CPU time, in the kernel's counters.
async fn tick(plugins: Arc<Plugins>) {
    const STEP: Duration = Duration::from_millis(100);
    let mut last = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(STEP).await;
        let now = tokio::time::Instant::now();
        let busy = plugins.state().store.busy_cgroups();
        // Nobody waits for the counters; a cgroup that goes meanwhile takes its counter with it.
        let _ = plugins.kernel.advance(now - last, &busy);
        last = now;
    }
}

fn failed(doing: &str, message: impl ToString) -> RuntimeError {
    RuntimeError::Failed { doing: doing.to_owned(), message: message.to_string() }
}
