//! The scripts of `lab/`, which find, fetch or build the peers that a suite meets.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a script of `lab/`; what it prints last is a path. The error is its last complaint, for a suite to skip by.
pub fn script(name: &str, arguments: &[&str]) -> Result<PathBuf, String> {
    let script = path(name);
    let output = Command::new(&script)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("run {}: {e}", script.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    match said.lines().last() {
        Some(path) if output.status.success() => Ok(PathBuf::from(path)),
        _ => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(errors.lines().last().map_or_else(|| format!("{name} said nothing"), str::to_owned))
        }
    }
}

/// Where a script of `lab/` is.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lab").join(name)
}
