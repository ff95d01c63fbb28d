use tracing_subscriber::filter::{LevelFilter, Targets};

/// What everything else logs at where only targets are named.
const REST: LevelFilter = LevelFilter::INFO;

/// Which lines are written: a list of `LEVEL` (for everything else) and `TARGET=LEVEL`.
///
/// A word alone is always a level, never a target: a misspelt level must not silence a service. The error says what is wrong.
pub(crate) fn filter(text: &str) -> Result<Targets, String> {
    let mut rest = None;
    let mut targets = Vec::new();
    for part in text.split(',').map(str::trim) {
        match part.split_once('=').map(|(target, word)| (target.trim(), word.trim())) {
            None => {
                let level = level(part)?;
                if rest.replace(level).is_some() {
                    return Err(format!("{part:?} is a second level for everything else"));
                }
            }
            Some(("", _)) => return Err(format!("{part:?} names no target")),
            Some((target, word)) => targets.push((target.to_owned(), level(word)?)),
        }
    }
    Ok(Targets::new().with_default(rest.unwrap_or(REST)).with_targets(targets))
}

fn level(word: &str) -> Result<LevelFilter, String> {
    match word.to_ascii_lowercase().as_str() {
        "off" => Ok(LevelFilter::OFF),
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(format!("{word:?} is none of the levels off, error, warn, info, debug, trace")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn a_level_is_for_everything_and_a_target_has_its_own() {
        let filter = filter("warn, orm=debug").unwrap();
        let enabled = |target, level| filter.would_enable(target, &level);
        assert!(enabled("orm::plan", Level::DEBUG) && !enabled("orm", Level::TRACE));
        assert!(enabled("h2", Level::WARN) && !enabled("h2", Level::INFO));
    }

    #[test]
    fn naming_a_target_alone_does_not_silence_the_rest() {
        let filter = filter("orm=TRACE").unwrap();
        assert!(filter.would_enable("orm", &Level::TRACE) && filter.would_enable("mesh", &Level::INFO));
        assert!(!filter.would_enable("mesh", &Level::DEBUG));
    }

    #[test]
    fn what_is_no_level_is_refused_and_named() {
        for wrong in ["blah", "orm=loud", "", "info,", "infoo", "=info", "info,debug", "orm"] {
            let fault = filter(wrong).unwrap_err();
            assert!(!fault.is_empty() && !fault.contains('\n'), "{wrong}: {fault}");
        }
        assert!(filter("blah").unwrap_err().contains("\"blah\""));
    }
}
