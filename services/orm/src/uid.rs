//! Which texts can be a pod's uid. What holds for one call holds for all: a pod that may not come in is not taken in otherwise.

/// Bytes of a uid at the most, as of any name in Kubernetes.
const LONGEST: usize = 253;
/// Characters that are shown of one that is none.
const SHOWN: usize = 64;

/// A text that can be no uid. Told without the text, which may be as long as a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUid {
    /// Too long.
    #[error("the pod's uid has {0} bytes, and no more than {LONGEST} are taken: give the pod a shorter one")]
    Long(usize),
    /// A character that cannot be seen.
    #[error(
        "the pod's uid has {0:?}, and neither blanks nor control characters are taken: give the pod another one"
    )]
    Character(char),
}

/// Whether this can be a pod's uid. A static pod's is whatever its manifest says, and that of a pod without one its sandbox's id.
///
/// # Errors
/// What is wrong with it.
pub fn check(uid: &str) -> Result<(), BadUid> {
    if uid.len() > LONGEST {
        return Err(BadUid::Long(uid.len()));
    }
    let unseen = |c: &char| c.is_whitespace() || c.is_control();
    uid.chars().find(unseen).map_or(Ok(()), |c| Err(BadUid::Character(c)))
}

/// As much of a text that can be no uid as a line of the log bears.
pub(crate) fn shown(text: &str) -> String {
    let first: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() { format!("{first}…") } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_gives_is_a_uid_and_what_fills_a_disk_or_a_log_is_none() {
        for uid in ["0b1ae5ad-3c4e-4d1c-9d6c-0f2c1f6f1f39", "4f53cda18c2baa0c0354bb5f9a3ecbe5", "a", "é"] {
            assert_eq!(check(uid), Ok(()), "{uid}");
        }
        assert_eq!(check(&"x".repeat(LONGEST)), Ok(()));
        assert_eq!(check(&"x".repeat(LONGEST + 1)), Err(BadUid::Long(254)));
        assert_eq!(check("a b"), Err(BadUid::Character(' ')));
        let told = check("a\nerror: all is lost").unwrap_err().to_string();
        assert_eq!(shown("a\nb"), "a\\nb");
        assert_eq!(shown(&"x".repeat(99)), format!("{}…", "x".repeat(SHOWN)));
        assert!(told.contains("'\\n'") && !told.contains('\n'), "{told}");
    }
}
