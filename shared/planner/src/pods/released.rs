//! Sandboxes that have ended.

use std::collections::VecDeque;

/// Sandboxes that have ended, the newest last, so that a late admission cannot bring one back. Bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released(VecDeque<String>);

// === impl Released ===

impl Released {
    /// Sandboxes that are remembered: a node's churn within the time that any admission may take, many times over.
    pub const LIMIT: usize = 1024;

    /// Whether this sandbox has ended.
    pub fn contains(&self, sandbox_id: &str) -> bool {
        self.0.iter().any(|known| known == sandbox_id)
    }

    /// The sandboxes, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Remembers a sandbox that has ended, and forgets the oldest where there are too many.
    pub fn remember(&mut self, sandbox_id: &str) {
        if self.contains(sandbox_id) {
            return;
        }
        if self.0.len() == Self::LIMIT {
            self.0.pop_front();
        }
        self.0.push_back(sandbox_id.to_owned());
    }

    /// Forgets a sandbox that runs after all.
    pub fn forget(&mut self, sandbox_id: &str) {
        self.0.retain(|known| known != sandbox_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_ended_sandboxes_is_bounded_and_drops_the_oldest() {
        let mut released = Released::default();
        for id in 0..Released::LIMIT + 2 {
            released.remember(&id.to_string());
        }
        assert_eq!(released.iter().count(), Released::LIMIT);
        assert!(!released.contains("1") && released.contains("2"));
    }

    #[test]
    fn a_sandbox_is_remembered_once() {
        let mut released = Released::default();
        released.remember("a");
        released.remember("a");
        assert_eq!(released.iter().collect::<Vec<_>>(), ["a"]);
        released.forget("a");
        assert!(!released.contains("a"));
    }
}
