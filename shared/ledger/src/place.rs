//! The folder may be removed or replaced under a running process, by a hand or by a clean-up job. What is written from then on would
//! be lost with the process; so before each commit the journal and the lock are compared with what is at their paths (two
//! `stat` calls), and if they are others the folder is built anew from what is in memory, which is the newest state there is.

use std::path::Path;

use crate::disk::{self, DiskError, at};
use crate::lock::Lock;
use crate::mark::Mark;
use crate::{Ledger, OpenError, open};

impl Ledger {
    /// How often the folder was found removed or replaced while it was in use, and was built anew.
    pub fn rebuilt(&self) -> u64 {
        self.rebuilt
    }

    /// # Errors
    /// The folder is another process's by now, or cannot be built. Nothing may be acknowledged then.
    pub(crate) fn stay_in_place(&mut self) -> Result<(), DiskError> {
        if self.journal.is_in_place() && self.lock.is_in_place() {
            return Ok(());
        }
        let root = self.dir.parent().unwrap_or(Path::new(".")).to_owned();
        std::fs::create_dir_all(&root).map_err(at("creating again the removed folder", &root))?;
        if !self.lock.is_in_place() {
            self.lock = match Lock::take(&root.join("lock")) {
                Ok(lock) => lock,
                Err(OpenError::Disk(e)) => return Err(e),
                Err(e) => return Err(at("taking back", &root)(std::io::Error::other(e.to_string()))),
            };
        }
        // First, so that whoever finds no store knows what it held.
        self.lock.establish(self.contents.end())?;
        let parts = open::build_anew(&root, &self.contents, &self.options)?;
        self.journal = parts.journal;
        self.store = parts.store;
        self.mark = Mark::new(&self.dir);
        self.rebuilt += 1;
        disk::sync_dir(&root)
    }
}
