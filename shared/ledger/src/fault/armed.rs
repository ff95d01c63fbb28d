//! What ends the process, where the environment says so.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Signal, getpid, kill_process};

use super::Step;

/// Names the step and on which visit to it the process dies: `Appended:3`.
pub(super) const KILL_AT: &str = "LEDGER_TEST_KILL_AT";

static ARMED: OnceLock<Option<(String, u32)>> = OnceLock::new();
static VISITS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn reach(step: Step) {
    reach_with(step, || ());
}

pub(crate) fn reach_with(step: Step, part: impl FnOnce()) {
    let armed = ARMED.get_or_init(|| {
        let text = std::env::var(KILL_AT).ok()?;
        let (step, visit) = text.split_once(':').unwrap();
        Some((step.to_owned(), visit.parse().unwrap()))
    });
    let Some((name, visit)) = armed else { return };
    if *name == format!("{step:?}") && VISITS.fetch_add(1, Ordering::SeqCst) + 1 == *visit {
        part();
        kill_process(getpid(), Signal::KILL).unwrap();
        unreachable!("killed");
    }
}

thread_local! {
    /// How many more syncs of this thread fail.
    pub(super) static FAILING_SYNCS: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn sync_data(file: &File) -> io::Result<()> {
    match FAILING_SYNCS.get() {
        0 => file.sync_data(),
        left => {
            FAILING_SYNCS.set(left - 1);
            // EIO, as a disk that gives up on a sector says it.
            Err(io::Error::from_raw_os_error(5))
        }
    }
}
