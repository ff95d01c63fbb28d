//! The outcome of a call as ttrpc carries it (`google.rpc.Status`).

use std::fmt;

/// Status codes in use; the numbers are gRPC's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Done.
    Ok,
    /// A failure without a better name.
    Unknown,
    /// The request makes no sense.
    InvalidArgument,
    /// Too late.
    DeadlineExceeded,
    /// Too large, too many.
    ResourceExhausted,
    /// Refused in the present state.
    FailedPrecondition,
    /// No such method.
    Unimplemented,
    /// Our fault.
    Internal,
    /// Not now.
    Unavailable,
    /// A number without a name here.
    Other(i32),
}

/// Why a call failed, as its callee said it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Status {
    /// Kind of the failure.
    pub code: Code,
    /// One sentence for people.
    pub message: String,
}

// === impl Code ===

impl Code {
    /// The number on the wire.
    pub const fn wire(self) -> i32 {
        match self {
            Self::Ok => 0,
            Self::Unknown => 2,
            Self::InvalidArgument => 3,
            Self::DeadlineExceeded => 4,
            Self::ResourceExhausted => 8,
            Self::FailedPrecondition => 9,
            Self::Unimplemented => 12,
            Self::Internal => 13,
            Self::Unavailable => 14,
            Self::Other(n) => n,
        }
    }

    /// The code behind a number.
    pub const fn from_wire(n: i32) -> Self {
        match n {
            0 => Self::Ok,
            2 => Self::Unknown,
            3 => Self::InvalidArgument,
            4 => Self::DeadlineExceeded,
            8 => Self::ResourceExhausted,
            9 => Self::FailedPrecondition,
            12 => Self::Unimplemented,
            13 => Self::Internal,
            14 => Self::Unavailable,
            n => Self::Other(n),
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(n) => write!(f, "status {n}"),
            code => write!(f, "{code:?}"),
        }
    }
}

// === impl Status ===

impl Status {
    /// A failure with its sentence.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
