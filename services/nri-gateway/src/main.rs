//! The gateway's process.

use std::process::ExitCode;

use nri_gateway::{SERVICE, Settings, gateway};

fn main() -> ExitCode {
    oxalyst_mesh::run(SERVICE, env!("CARGO_PKG_VERSION"), |settings: Settings, mesh| gateway(settings, mesh))
}
