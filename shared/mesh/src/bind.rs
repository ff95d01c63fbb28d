use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::{Mesh, socket_path};

/// A socket that this process alone owns. The lock lives as long as this value.
#[derive(Debug)]
pub struct Bound {
    pub(crate) listener: UnixListener,
    pub(crate) mesh: Mesh,
    pub(crate) lock: File,
}

/// Why the socket could not be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process serves it.
    #[error("{socket} is already in use by another {service}: stop that one, or give this one its own common.run_dir", socket = socket.display())]
    InUse {
        /// The socket.
        socket: PathBuf,
        /// The service.
        service: &'static str,
    },
    /// The system refused.
    #[error("cannot {what} {path}: {source}: check common.run_dir and its permissions", path = path.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
}

impl Mesh {
    /// Takes `<run_dir>/<service>.sock`, replacing what a dead process left. Do it first: nothing else may happen twice.
    ///
    /// # Errors
    /// [`BindError::InUse`] if a living process holds it.
    pub fn bind(&self) -> Result<Bound, BindError> {
        std::fs::create_dir_all(&self.run_dir).map_err(fault("create the folder", &self.run_dir))?;
        let socket = socket_path(&self.run_dir, self.service);
        // The lock decides, not the socket file: a file outlives its process, a flock does not.
        let lock_path = socket.with_extension("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(fault("open the lock", &lock_path))?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(BindError::InUse { socket, service: self.service });
            }
            Err(e) => return Err(fault("lock", &lock_path)(e.into())),
        }
        match std::fs::remove_file(&socket) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(fault("remove the old socket", &socket)(e));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&socket).map_err(fault("listen on", &socket))?;
        Ok(Bound { listener, mesh: self.clone(), lock })
    }
}

fn fault(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BindError {
    let path = path.to_owned();
    move |source| BindError::Io { what, path, source }
}
