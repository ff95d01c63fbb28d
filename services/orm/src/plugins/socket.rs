//! The socket on which plugins register themselves.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use actix::Addr;
use oxalyst_backoff::Backoff;
use oxalyst_mesh::Facts;
use oxalyst_proto::resourceplugin::v1alpha1::registration_server::{Registration, RegistrationServer};
use oxalyst_proto::resourceplugin::v1alpha1::{Empty, RegisterRequest};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::{Found, Plugin, Registry, VERSION};

/// The socket's name, which plugins expect.
const SOCKET: &str = "kubelet.sock";
/// How long a plugin may take to say what it is like, where it has not said so itself.
const PATIENCE: Duration = Duration::from_secs(2);
const WAITS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
const FACT: &str = "plugins.registry";

struct Face {
    dir: PathBuf,
    registry: Addr<Registry>,
}

/// Serves the registry socket in this folder for ever. A folder that cannot be used, or whose socket another process serves, is
/// tried again: plugins can still be found in the watched folder meanwhile.
pub async fn serve_registration(dir: PathBuf, registry: Addr<Registry>, facts: Facts) {
    let mut backoff = Backoff::new(WAITS.0, WAITS.1);
    let mut last = String::new();
    loop {
        let since = Instant::now();
        let end = match listen(&dir).await {
            Ok(listener) => {
                tracing::info!(dir = %dir.display(), "plugins may register");
                facts.set(FACT, dir.join(SOCKET).display());
                last.clear();
                let face = Face { dir: dir.clone(), registry: registry.clone() };
                let server = tonic::transport::Server::builder().add_service(RegistrationServer::new(face));
                match server.serve_with_incoming(UnixListenerStream::new(listener)).await {
                    Ok(()) => "it ended".to_owned(),
                    Err(e) => e.to_string(),
                }
            }
            Err(e) => e.to_string(),
        };
        if end != last {
            tracing::warn!(dir = %dir.display(), reason = end, "plugins cannot register themselves: see orm_plugin_registration_dir");
            facts.set(FACT, &end);
            last = end;
        }
        backoff.succeeded_for(since.elapsed());
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

async fn listen(dir: &Path) -> io::Result<UnixListener> {
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
    let path = dir.join(SOCKET);
    match std::fs::symlink_metadata(&path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::other(format!("{} is no socket", path.display())));
        }
        Ok(_) if UnixStream::connect(&path).await.is_ok() => {
            return Err(io::Error::other(format!("another process serves {}", path.display())));
        }
        Ok(_) => std::fs::remove_file(&path)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    UnixListener::bind(path)
}

#[tonic::async_trait]
impl Registration for Face {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let RegisterRequest { version, endpoint, resource_name, options } = request.into_inner();
        if version != VERSION {
            let message = format!("version {version:?} is not supported: supported versions are [{VERSION}]");
            tracing::warn!(plugin = resource_name, version, "a plugin is turned away: {message}");
            return Err(Status::invalid_argument(message));
        }
        let endpoint = Path::new(&endpoint);
        let socket = match endpoint.file_name() {
            Some(name) if Path::new(name) == endpoint => self.dir.join(name),
            _ => {
                return Err(Status::invalid_argument(
                    "the endpoint has to be a file name in this socket's folder",
                ));
            }
        };
        let options = match options {
            Some(options) => options,
            None => {
                let plugin = Plugin::new(resource_name.clone(), socket.clone(), Default::default());
                let said = plugin.options(Instant::now() + PATIENCE).await;
                said.map_err(|e| Status::unavailable(e.to_string()))?
            }
        };
        match self.registry.send(Found { name: resource_name, socket, options }).await {
            Ok(Ok(())) => Ok(Response::new(Empty {})),
            Ok(Err(why)) => Err(Status::resource_exhausted(why)),
            Err(_) => Err(Status::unavailable("the allocator is stopping")),
        }
    }
}
