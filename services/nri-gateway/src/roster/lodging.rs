//! One sandbox.

use oxalyst_proto::gateway::v1::RefusedPod;
use oxalyst_proto::runtime::v1::Sandbox;

/// How a sandbox came to be here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// The runtime listed it; who let it in is not known.
    Listed,
    /// The orm let it in.
    Admitted,
    /// It was let in without the orm.
    ByPolicy,
    /// It was found running, and nothing but its UID is known yet.
    Unknown,
    /// The orm refused its pod, with this message, and it runs all the same: its containers are refused.
    Refused(String),
}

/// A sandbox. It is kept exactly as long as the runtime keeps it.
#[derive(Debug)]
pub(super) struct Lodging {
    pub(super) sandbox: Sandbox,
    /// It was told to stop: its pod must not be taken in again by a reconciliation.
    pub(super) stopped: bool,
    /// It was there before the session: containerd 2.1 tells of its containers only, not of its own end.
    pub(super) listed: bool,
    /// No runtime told of it: it was found in the tree of cgroups.
    pub(super) found: bool,
    pub(super) entrance: Entrance,
}

// === impl Lodging ===

impl Lodging {
    /// As the runtime lists it; what was known of it `before` is kept.
    pub(super) fn listed(sandbox: Sandbox, before: Option<Self>) -> Self {
        let (stopped, entrance) = before.map_or((false, Entrance::Listed), |b| (b.stopped, b.entrance));
        Self { sandbox, stopped, listed: true, found: false, entrance }
    }

    /// As the tree of cgroups shows it; what was known of it `before` is kept.
    pub(super) fn found(sandbox: Sandbox, is_known: bool, before: Option<Self>) -> Self {
        let (stopped, listed, entrance) =
            before.map_or((false, false, Entrance::Unknown), |b| (b.stopped, b.listed, b.entrance));
        let entrance = match entrance {
            Entrance::Unknown if is_known => Entrance::Listed,
            entrance => entrance,
        };
        Self { sandbox, stopped, listed, found: true, entrance }
    }

    pub(super) fn refusal(&self) -> Option<&str> {
        match &self.entrance {
            Entrance::Refused(message) => Some(message),
            Entrance::Listed | Entrance::Admitted | Entrance::ByPolicy | Entrance::Unknown => None,
        }
    }

    /// One of its containers is created: its pod is not refused any more.
    pub(super) fn got_container(&mut self, by_policy: bool) {
        if self.refusal().is_some() {
            self.entrance = if by_policy { Entrance::ByPolicy } else { Entrance::Admitted };
        }
    }

    pub(super) fn refused(&self) -> Option<RefusedPod> {
        Some(RefusedPod {
            sandbox_id: self.sandbox.sandbox_id.clone(),
            pod_uid: self.sandbox.pod_uid.clone(),
            namespace: self.sandbox.namespace.clone(),
            name: self.sandbox.name.clone(),
            message: self.refusal()?.to_owned(),
        })
    }
}
