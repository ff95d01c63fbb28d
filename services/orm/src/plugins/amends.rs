//! Containers of which a plugin may think something else than what is so.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Pod uids with containers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Amends(Arc<Mutex<BTreeSet<(String, String)>>>);

// === impl Amends ===

impl Amends {
    /// It is to be told until it is heard.
    pub fn note(&self, uid: String, container: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((uid, container));
    }

    /// It was heard.
    pub fn made(&self, uid: &str, container: &str) {
        let of = (uid.to_owned(), container.to_owned());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&of);
    }

    /// All that is to be told.
    pub fn due(&self) -> Vec<(String, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
