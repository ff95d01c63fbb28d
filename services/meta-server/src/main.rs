//! The meta-server's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    oxalyst_mesh::run(meta_server::SERVICE, env!("CARGO_PKG_VERSION"), meta_server::run)
}
