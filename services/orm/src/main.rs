//! The allocator of a node: decides which CPUs and NUMA memory each pod gets, and remembers it.

use std::process::ExitCode;

use actix::{Actor as _, Arbiter};
use orm::allocations::Allocations;
use orm::allocator::Face;
use orm::settings::Settings;
use oxalyst_proto::orm::v1::allocator_server::AllocatorServer;
use tonic::service::Routes;

fn main() -> ExitCode {
    oxalyst_mesh::run("orm", env!("CARGO_PKG_VERSION"), |settings: Settings, mesh| async move {
        settings.check()?;
        let bound = mesh.bind()?;
        let allocations = Allocations::open(&settings, &mesh)?;
        let thread = Arbiter::new();
        let address = Allocations::start_in_arbiter(&thread.handle(), |_| allocations);
        let server =
            AllocatorServer::new(Face::new(address)).max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT);
        bound.serve(Routes::new(server)).await?;
        thread.stop();
        // Waits for the commit under way, then closes the ledger.
        thread.join().map_err(|_| "the allocator's thread panicked")?;
        Ok(())
    })
}
