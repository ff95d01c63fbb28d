//! Why it was decided so: a bounded ring of decisions and of the states that they were made on, in files beside the ledger, written
//! behind by a thread of its own. Nothing waits for it; where too many decisions come at once some are not kept, and counted.

mod face;
mod files;
#[cfg(test)]
mod flood;
mod kept;
mod recorder;
mod segment;

pub use face::Face;
pub use kept::{Decisions, Limits};
pub use recorder::{Noted, Recorder};
