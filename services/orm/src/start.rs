//! A start that waits out what can pass: a full or failing disk is no reason to end, and the process says what it waits for. For
//! another owner of the ledger, which may be about to end, it waits a moment only.

use std::time::{Duration, Instant};

use oxalyst_backoff::Backoff;
use oxalyst_mesh::Mesh;

use crate::allocations::{Allocations, OpenError};
use crate::decisions::Decisions;
use crate::reservation::Reservation;
use crate::settings::Settings;

/// Shortest and longest wait between attempts.
const WAITS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// How long another owner of the ledger may take to end, and how often to look.
const OTHER_OWNER: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(50));

/// How long the first word of what the kubelet reserves may take before what was recorded counts.
const RESERVATION: Duration = Duration::from_secs(3);

/// Opens the allocator, after another owner of its ledger has ended if that is soon.
///
/// # Errors
/// [`OpenError`]; for one that [can pass](OpenError::can_pass) there is [`keep_opening`].
pub async fn open(
    settings: &Settings,
    mesh: &Mesh,
    decisions: &Decisions,
    reservation: Option<&Reservation>,
) -> Result<Allocations, OpenError> {
    if let Some(reservation) = reservation {
        reservation.wait(RESERVATION).await;
    }
    let end = Instant::now() + OTHER_OWNER.0;
    loop {
        match Allocations::open(settings, mesh, decisions, reservation) {
            Err(OpenError::Ledger(oxalyst_ledger::OpenError::Locked { .. })) if Instant::now() < end => {
                tokio::time::sleep(OTHER_OWNER.1).await;
            }
            opened => return opened,
        }
    }
}

/// Opens the allocator again and again after `first` kept it from opening. Meanwhile a readiness condition is pending: `ledger`, or `reservation` where what the kubelet reserves is waited for.
///
/// # Errors
/// What [cannot pass](OpenError::can_pass).
pub async fn keep_opening(
    first: OpenError,
    settings: &Settings,
    mesh: &Mesh,
    decisions: &Decisions,
    reservation: Option<&Reservation>,
) -> Result<Allocations, OpenError> {
    let mut backoff = Backoff::new(WAITS.0, WAITS.1);
    let mut told = words(&first);
    // What it waits for: the disk, or the kubelet's word.
    let waits_for = |e: &OpenError| if matches!(e, OpenError::Unreserved) { "reservation" } else { "ledger" };
    let condition = mesh.readiness.condition(waits_for(&first), &told);
    if waits_for(&first) == "ledger" {
        mesh.facts.set("ledger.fault", &told);
    }
    tracing::error!("not ready: {told}");
    loop {
        tokio::time::sleep(backoff.next_delay()).await;
        let (settings, own, decisions) = (settings.clone(), mesh.clone(), decisions.clone());
        let reservation = reservation.cloned();
        let attempt = tokio::task::spawn_blocking(move || {
            Allocations::open(&settings, &own, &decisions, reservation.as_ref())
        });
        match attempt.await {
            Ok(Ok(allocations)) => {
                tracing::info!("the ledger could be opened");
                return Ok(allocations);
            }
            Ok(Err(e)) if e.can_pass() => {
                let text = words(&e);
                if text != told {
                    tracing::error!("not ready: {text}");
                    condition.pending(&text);
                    mesh.facts.set("ledger.fault", &text);
                    told = text;
                }
            }
            Ok(Err(e)) => return Err(e),
            Err(e) => tracing::error!(error = %e, "an attempt to open the ledger did not come to an end"),
        }
    }
}

fn words(e: &OpenError) -> String {
    if matches!(e, OpenError::Unreserved) {
        return e.to_string();
    }
    format!("{e}: make room or look at the disk, trying again by itself")
}
