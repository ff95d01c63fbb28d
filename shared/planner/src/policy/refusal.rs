//! Why the policy does not serve a request.

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Not enough is free.
    Insufficient,
    /// Enough is free, but not as the topology policy wants it.
    Affinity,
    /// The request cannot be understood or contradicts itself.
    Invalid,
    /// The policy does not do this.
    Unsupported,
}

/// Why a request is not served. Nothing changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The kind.
    pub kind: Kind,
    /// One sentence with numbers, for people.
    pub message: String,
    /// Whether there would be room, and somebody else would be left without.
    pub starves_others: bool,
}

// === impl Kind ===

impl Kind {
    /// The kind in one word, as records and metric labels spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Insufficient => "insufficient",
            Self::Affinity => "affinity",
            Self::Invalid => "invalid",
            Self::Unsupported => "unsupported",
        }
    }
}

// === impl Refusal ===

impl Refusal {
    /// A refusal of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), starves_others: false }
    }

    pub(super) fn insufficient(message: impl Into<String>) -> Self {
        Self::new(Kind::Insufficient, message)
    }

    pub(super) fn starving(message: impl Into<String>) -> Self {
        Self { starves_others: true, ..Self::insufficient(message) }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }
}
