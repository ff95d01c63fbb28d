//! What is printed: pure. Each view is made of the services' replies, is a stable JSON object by serde, and draws tables.

pub(crate) mod catalogue;
pub(crate) mod decisions;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod metrics;
pub(crate) mod pods;
pub(crate) mod pools;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod topology;

/// A finished answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// For standard output, ends in a newline.
    pub(crate) text: String,
    /// Problems, a line each, for standard error.
    pub(crate) problems: Vec<String>,
    /// How much of it could be told.
    pub(crate) told: Told,
}

/// What the exit code says of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nothing is missing and all is ready.
    Well,
    /// Something is missing or not ready.
    InPart,
    /// Nobody answered.
    Nothing,
}

// === impl Told ===

impl Told {
    pub(crate) fn well_if(well: bool) -> Self {
        if well { Self::Well } else { Self::InPart }
    }
}

/// Tables and lines, with an empty line between them; empty ones are left out.
fn paragraphs(parts: &[String]) -> String {
    parts.iter().filter(|p| !p.is_empty()).map(String::as_str).collect::<Vec<_>>().join("\n")
}

/// `None` for the empty string, which stands for "not told" in the replies.
fn told(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn cell(text: Option<&String>) -> String {
    text.cloned().unwrap_or_default()
}
