//! The least that durability and a second process cost on this machine.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::Fault;

/// Bytes of an append: about what one admission costs in the journal.
pub(super) const RECORD: usize = 400;

/// A file that grows by [`RECORD`] bytes, each made durable.
#[derive(Debug)]
pub(super) struct Appends(File);

/// An empty round trip to another process over a unix socket.
#[derive(Debug)]
pub(super) struct RoundTrips(HealthClient<Channel>);

// === impl Appends ===

impl Appends {
    /// In `folder`, which must be on the ledger's file system.
    pub(super) fn create(folder: &Path) -> Result<Self, Fault> {
        std::fs::create_dir_all(folder)?;
        Ok(Self(OpenOptions::new().create(true).append(true).open(folder.join("floor"))?))
    }

    /// One append with fdatasync.
    pub(super) fn sample(&mut self) -> Result<Duration, Fault> {
        let start = Instant::now();
        self.0.write_all(&[b'x'; RECORD])?;
        self.0.sync_data()?;
        Ok(start.elapsed())
    }
}

// === impl RoundTrips ===

impl RoundTrips {
    pub(super) fn new(channel: Channel) -> Self {
        Self(HealthClient::new(channel))
    }

    /// One health check.
    pub(super) async fn sample(&mut self) -> Result<Duration, Fault> {
        let request = HealthCheckRequest { service: String::new() };
        let start = Instant::now();
        self.0.check(request).await?;
        Ok(start.elapsed())
    }
}
