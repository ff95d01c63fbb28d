//! Ids in a log line, however many there are.

use std::fmt;

/// So many are named.
const NAMED: usize = 10;

/// Some of them, and how many there are beside.
pub struct Few<'a, T>(pub &'a [T]);

// === impl Few ===

impl<T: fmt::Display> fmt::Display for Few<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, id) in self.0.iter().take(NAMED).enumerate() {
            let between = if nth == 0 { "" } else { " " };
            write!(f, "{between}{id}")?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ids_are_one_short_line() {
        assert_eq!(Few::<u8>(&[]).to_string(), "");
        assert_eq!(Few(&["a", "b"]).to_string(), "a b");
        let many: Vec<u32> = (0..3000).collect();
        assert_eq!(Few(&many).to_string(), "0 1 2 3 4 5 6 7 8 9 and 2990 more");
    }
}
