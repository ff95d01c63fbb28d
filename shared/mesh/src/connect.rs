use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// The largest message that a service or its client takes, in bytes. gRPC's default of 4 MiB is passed by the whole list of
/// a large node; a peer on the same machine is trusted with more, but not without bound.
pub const MESSAGE_LIMIT: usize = 64 << 20;

/// The socket of `service` in `run_dir`.
pub fn socket_path(run_dir: &Path, service: &str) -> PathBuf {
    run_dir.join(format!("{service}.sock"))
}

/// A way to the peer `service`: connects when first used and again after each loss, so the peer may be absent now.
///
/// Give every call a deadline of its own: a peer that is stopped, not gone, answers nothing.
pub fn connect(run_dir: &Path, service: &str) -> Channel {
    connect_to(socket_path(run_dir, service))
}

/// The same to whoever serves at this socket.
pub fn connect_to(path: PathBuf) -> Channel {
    Endpoint::from_static("http://mesh.local")
        .connect_timeout(Duration::from_secs(1))
        .connect_with_connector_lazy(service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }))
}
