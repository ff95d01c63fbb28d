//! The reporter's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    oxalyst_mesh::run(reporter::SERVICE, env!("CARGO_PKG_VERSION"), reporter::run)
}
