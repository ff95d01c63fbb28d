//! One at a time works for a pod: who asks plugins for it, or who tells them that it is gone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// The pods that somebody works for. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    uids: Mutex<BTreeSet<String>>,
    freed: Notify,
}

/// A pod is this one's to work for until this is dropped.
#[derive(Debug)]
pub struct Claim {
    shared: Arc<Shared>,
    uid: String,
}

// === impl Claims ===

impl Claims {
    /// Waits until nobody else works for the pod.
    pub async fn claim(&self, uid: &str) -> Claim {
        loop {
            // Before looking, so that what is freed in between is heard.
            let freed = self.shared.freed.notified();
            if let Some(claim) = self.try_claim(uid) {
                return claim;
            }
            freed.await;
        }
    }

    /// `None` where somebody works for it.
    pub fn try_claim(&self, uid: &str) -> Option<Claim> {
        let mut uids = self.shared.uids.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = uids.insert(uid.to_owned());
        mine.then(|| Claim { shared: Arc::clone(&self.shared), uid: uid.to_owned() })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shared.uids.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.uid);
        self.shared.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_next_one_waits_for_the_end_of_the_first() {
        let claims = Claims::default();
        let first = claims.claim("a").await;
        assert!(claims.try_claim("a").is_none() && claims.try_claim("b").is_some());
        let (next, ()) = tokio::join!(claims.claim("a"), async { drop(first) });
        assert_eq!(next.uid, "a");
    }
}
