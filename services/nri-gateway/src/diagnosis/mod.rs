//! What stands between the mesh and the runtime, and what an operator can do about it: `oxctl doctor`, and the details of what
//! is not ready.

mod containers;
mod evidence;
mod findings;
mod runtimes;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oxalyst_mesh::Facts;
use oxalyst_nri::api::ConfigureRequest;
use oxalyst_proto::gateway::v1::Finding;

use crate::hands::{Hands, Way};
use crate::roster::Trouble;
use crate::settings::Settings;

/// For a look at files of the host.
const LOOK_DEADLINE: Duration = Duration::from_secs(1);

/// Collects what is heard, and looks at the host's files when asked. Cheap to clone; all clones hear the same.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    host_root: PathBuf,
    settings: Arc<Settings>,
    hands: Hands,
    facts: Facts,
    heard: Arc<Mutex<Heard>>,
}

/// What was heard since the process began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// Name and version of the runtime.
    pub(crate) runtime: Option<String>,
    /// How long a plugin may take to answer, as the runtime told.
    pub(crate) request_timeout_ms: Option<u64>,
    /// Why there is no session.
    pub(crate) fault: Option<String>,
    /// What another gateway holds, so that bypass mode writes nothing.
    pub(crate) others: Option<String>,
    /// Whether the runtime's socket took the last connection; `None` where none was tried.
    pub(crate) connects: Option<bool>,
    /// Adjustments of all plugins that the runtime told before it made a container.
    pub(crate) validated: u64,
    /// Requests of somebody else for other CPUs, and the last one.
    pub(crate) foreign: (u64, String),
    /// Adjustments of other plugins to a container's CPUs, and the last one.
    pub(crate) conflicts: (u64, String),
}

// === impl Diagnosis ===

impl Diagnosis {
    /// Nothing heard yet.
    pub fn new(host_root: PathBuf, settings: Arc<Settings>, hands: Hands, facts: Facts) -> Self {
        Self { host_root, settings, hands, facts, heard: Arc::default() }
    }

    /// The runtime said who it is and how long it waits.
    pub fn configured(&self, request: &ConfigureRequest) {
        let mut heard = self.lock();
        heard.runtime =
            Some(format!("{} {}", request.runtime_name, request.runtime_version).trim().to_owned());
        heard.request_timeout_ms = u64::try_from(request.request_timeout).ok().filter(|ms| *ms > 0);
    }

    /// A session is synchronised.
    pub fn connected(&self) {
        let mut heard = self.lock();
        heard.fault = None;
        heard.connects = Some(true);
    }

    /// The runtime told what all plugins together make of a container.
    pub fn validated(&self) {
        self.lock().validated += 1;
    }

    /// There is no session, for this reason; `connects`: whether the socket took the connection, if that was tried. Gives what the
    /// runtime's configuration has to do with it, if that can be told.
    pub async fn failed(&self, reason: &str, connects: Option<bool>) -> Option<String> {
        {
            let mut heard = self.lock();
            heard.fault = Some(reason.to_owned());
            heard.connects = connects.or(heard.connects);
        }
        let findings = self.findings(None).await;
        let of_runtime =
            |f: &&Finding| ["nri-enabled", "nri-connections", "nri-socket"].contains(&f.check.as_str());
        let fault = findings.iter().filter(of_runtime).find(|f| f.verdict == "fault")?;
        // A configuration that leaves it open whether NRI is on has the likelier remedy than the socket that is not there.
        let open = findings.iter().find(|f| f.check == "nri-enabled" && f.verdict == "warning");
        let finding = open.filter(|_| fault.check == "nri-socket").unwrap_or(fault);
        Some(format!("{}: {}", finding.detail, finding.remedy))
    }

    /// Somebody (a kubelet with a CPU manager of its own) asked for other CPUs than ours.
    pub fn foreign_cpuset(&self, container: &str, told: &str, ours: &str) {
        let mut heard = self.lock();
        heard.foreign.0 += 1;
        heard.foreign.1 = format!("CPUs {told} for container {container}, which runs on {ours}");
        self.facts.set("foreign_cpusets", heard.foreign.0);
    }

    /// Another plugin had the last word on a container's CPUs.
    pub fn conflict(&self, what: String) {
        let mut heard = self.lock();
        heard.conflicts = (heard.conflicts.0 + 1, what);
    }

    /// Everything that is found, in a fixed order; `told` is what is known of the containers.
    pub async fn findings(&self, told: Option<Vec<Trouble>>) -> Vec<Finding> {
        let (root, socket) = (self.host_root.clone(), self.settings.nri_socket.clone());
        let look = tokio::task::spawn_blocking(move || evidence::look(&root, &socket));
        let seen = match tokio::time::timeout(LOOK_DEADLINE, look).await {
            Ok(Ok(seen)) => seen,
            _ => evidence::Seen::default(),
        };
        let way = self.hands.way();
        let heard = Heard { others: self.hands.was_others(), ..self.lock().clone() };
        let mut findings = findings::of(&seen, &heard, &self.settings, way);
        findings.push(containers::containers(told.as_deref()));
        findings
    }

    /// The way now.
    pub fn way(&self) -> Way {
        self.hands.way()
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
