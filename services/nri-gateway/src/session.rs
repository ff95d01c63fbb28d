//! The session with the container runtime: connects for ever, one session after another.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oxalyst_backoff::Backoff;
use oxalyst_mesh::{Condition, Facts};
use oxalyst_nri::plugin::{PluginSession, connect};
use oxalyst_nri::{CallError, TrunkError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::adjustment::Dialect;
use crate::hands::{Hands, Way};
use crate::hooks::{Hooks, HooksContext, NEWER};
use crate::mender::{Tools, mend};
use crate::updates::Updates;

/// For RegisterPlugin; the runtime's own limit.
const REGISTER_DEADLINE: Duration = Duration::from_secs(5);

/// From the registration to the end of Synchronize. A runtime that never configures is not waited for.
const SYNCHRONISE_DEADLINE: Duration = Duration::from_secs(15);

/// How often the socket file is looked at between two attempts: a runtime that came back is not kept waiting.
const SOCKET_LOOK: Duration = Duration::from_millis(50);

/// What a synchronisation was like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synchronised {
    /// Name and version of the runtime.
    pub runtime: String,
    /// Sandboxes and containers listed.
    pub listed: (usize, usize),
    /// Containers that the answer changed.
    pub pinned: usize,
    /// How the runtime is spoken to.
    pub dialect: Dialect,
    /// How what runs is changed outside of its calls.
    pub updates: Updates,
}

/// How far a session has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// The runtime has said nothing.
    #[default]
    Begun,
    /// It was told which events are asked for. It does not say whether it knows them all.
    Configured,
    /// It knows them, for it told what runs.
    Lists,
    /// It was answered that.
    Synchronised(Synchronised),
}

/// What all sessions share.
#[derive(Debug)]
pub struct SessionContext {
    /// For the hooks of each session.
    pub hooks: HooksContext,
    /// For the mender of each session.
    pub tools: Tools,
    /// Whether a session is synchronised.
    pub synchronised: watch::Sender<bool>,
    /// Whether anybody knows what runs.
    pub knows: watch::Sender<bool>,
    /// Whose turn it is.
    pub hands: Hands,
    /// Last heard name of the runtime.
    pub runtime: watch::Sender<String>,
    /// What an operator is told.
    pub facts: Facts,
}

/// Why a session ended, or could not begin.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(
        "cannot connect to {socket}: {source}: is the runtime running, and NRI enabled there (containerd: disable = false, \
         disable_connections = false)?"
    )]
    Connect { socket: String, source: std::io::Error },
    #[error(
        "another gateway holds {folder}, and two must never serve one runtime: stop it, or give both the same common.run_dir \
         so that it hands over"
    )]
    Owned { folder: String },
    #[error("registration failed: {0}")]
    Register(#[from] CallError),
    #[error(
        "the runtime did not configure and synchronise in {} s after the registration: its log tells why",
        SYNCHRONISE_DEADLINE.as_secs()
    )]
    NotSynchronised,
    #[error("{0}")]
    Ended(Arc<TrunkError>),
    #[error("the runtime ended the session at the answer to Configure: {0}")]
    Unwanted(Arc<TrunkError>),
}

/// Keeps a session for ever.
pub async fn run(context: SessionContext, condition: Condition) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    let socket = context.hooks.settings.nri_socket.clone();
    let mut sessions: u64 = 0;
    let mut last = String::new();
    let mut last_file = None;
    context.facts.set("reconnects", 0);
    loop {
        let file = identity(&socket);
        if std::mem::replace(&mut last_file, file) != file {
            // Another runtime, or another version of it.
            context.hooks.newer_events.store(NEWER.len(), Ordering::Relaxed);
        }
        let since = Instant::now();
        let end = match once(&context, &condition, &mut last, sessions).await {
            Ok(end) => end,
            Err(e) => e,
        };
        context.hands.others(match &end {
            SessionError::Owned { folder } => Some(folder.clone()),
            _ => None,
        });
        if context.hands.way() == Way::Nri {
            context.hands.go(Way::Nobody);
        }
        // What the files refuse is told by bypass mode from now on, or not known.
        context.tools.kernel_files.fulfilled();
        let was_synchronised = context.synchronised.send_replace(false);
        if was_synchronised {
            context.knows.send_replace(false);
            sessions += 1;
            context.hooks.metrics.connected.set(0);
            context.hooks.metrics.reconnects.inc();
            context.facts.set("reconnects", sessions);
        }
        if let SessionError::Unwanted(_) = end
            && let Ok(before) =
                context
                    .hooks
                    .newer_events
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |asked| asked.checked_sub(1))
        {
            let event = NEWER.get(before.saturating_sub(1));
            tracing::info!(
                ?event,
                "the runtime ended the session when it was asked for this event: it is not asked for again"
            );
        }
        let mut reason = end.to_string();
        let connects = match &end {
            SessionError::Connect { .. } => Some(false),
            SessionError::Owned { .. } => None,
            SessionError::Register(_)
            | SessionError::NotSynchronised
            | SessionError::Ended(_)
            | SessionError::Unwanted(_) => Some(true),
        };
        if let Some(why) = context.hooks.diagnosis.failed(&reason, connects).await {
            reason = format!("{reason}; {why}");
        }
        condition.pending(match context.hands.way() {
            Way::Bypass => format!("bypass mode is at work: {reason}"),
            Way::Nri | Way::Nobody => reason.clone(),
        });
        if reason != last {
            tracing::warn!(%reason, "no session with the container runtime");
            last = reason;
        }
        // An attempt that took long and failed is no reason to try again at once.
        if was_synchronised {
            backoff.succeeded_for(since.elapsed());
        }
        if wait(&socket, file, backoff.next_delay()).await {
            backoff.reset();
        }
    }
}

/// One session until its end.
async fn once(
    context: &SessionContext,
    condition: &Condition,
    last: &mut String,
    sessions: u64,
) -> Result<SessionError, SessionError> {
    let settings = &context.hooks.settings;
    let since = Instant::now();
    let _owner = own(&settings.nri_socket)?;
    context.hands.own().map_err(|folder| SessionError::Owned { folder })?;
    let socket = connect(&settings.nri_socket).await.map_err(|source| SessionError::Connect {
        socket: settings.nri_socket.display().to_string(),
        source,
    })?;
    let (tell, mut told) = watch::channel(Progress::default());
    let hooks = Hooks::new(context.hooks.clone(), context.hands.clone(), tell);
    let session = PluginSession::start(socket, hooks);
    session.register(&settings.plugin_name, &settings.plugin_index, REGISTER_DEADLINE).await?;
    let synchronised = told.wait_for(|progress| matches!(progress, Progress::Synchronised(_)));
    let ended = tokio::select! {
        _ = synchronised => None,
        reason = session.ended() => Some(reason),
        () = tokio::time::sleep(SYNCHRONISE_DEADLINE) => None,
    };
    let progress = told.borrow().clone();
    if let Some(reason) = ended {
        let is_at_configure = progress == Progress::Configured;
        return Err(if is_at_configure {
            SessionError::Unwanted(reason)
        } else {
            SessionError::Ended(reason)
        });
    }
    let Progress::Synchronised(sync) = progress else { return Err(SessionError::NotSynchronised) };
    let millis = since.elapsed().as_millis();
    tracing::info!(
        runtime = %sync.runtime,
        sandboxes = sync.listed.0,
        containers = sync.listed.1,
        pinned = sync.pinned,
        millis,
        reconnects = sessions,
        "synchronised with the container runtime"
    );
    last.clear();
    context.facts.set("runtime", &sync.runtime);
    context.facts.set("resync_ms", millis);
    context.facts.set("sync_pinned", sync.pinned);
    context.hooks.metrics.connected.set(1);
    context.runtime.send_replace(sync.runtime.clone());
    context.hands.go(Way::Nri);
    context.hooks.diagnosis.connected();
    context.synchronised.send_replace(true);
    context.knows.send_replace(true);
    condition.fulfilled();
    let (trunk, runtime) = session.split();
    let reason = tokio::select! {
        reason = trunk.ended() => reason,
        () = mend(runtime, context.tools.clone(), sync.dialect, sync.updates) => trunk.ended().await,
    };
    Ok(SessionError::Ended(reason))
}

/// The right to serve the runtime behind this socket, held as long as the file is: of two gateways, in whatever folders, one has
/// it. Where the folder cannot be opened or locked, the connection tells more than that would.
fn own(socket: &Path) -> Result<Option<File>, SessionError> {
    let Some(folder) = socket.parent() else { return Ok(None) };
    let Ok(file) = File::open(folder) else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(SessionError::Owned { folder: folder.display().to_string() }),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Waits for `delay`, or until the socket is another file than `before`; true for the latter.
async fn wait(socket: &Path, before: Option<(u64, u64, i64)>, delay: Duration) -> bool {
    let until = Instant::now() + delay;
    while Instant::now() < until {
        tokio::time::sleep(SOCKET_LOOK.min(until - Instant::now())).await;
        let now = identity(socket);
        if now.is_some() && now != before {
            return true;
        }
    }
    false
}

/// Device, inode and birth of the file, as far as they tell one socket from its successor.
fn identity(socket: &Path) -> Option<(u64, u64, i64)> {
    let file = std::fs::metadata(socket).ok()?;
    Some((file.dev(), file.ino(), file.ctime_nsec()))
}
