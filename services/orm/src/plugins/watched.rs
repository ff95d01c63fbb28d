//! The folder into which plugins put their sockets to be found.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use actix::Addr;
use oxalyst_mesh::Facts;
use oxalyst_proto::pluginregistration::v1::registration_client::RegistrationClient;
use oxalyst_proto::pluginregistration::v1::{InfoRequest, PluginInfo, RegistrationStatus};
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;

use super::{Found, Plugin, Plugins, Registry, VERSION};

/// How often the folder is looked at: one read of a small folder.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a plugin may take to introduce itself.
const PATIENCE: Duration = Duration::from_secs(2);
/// Sockets that are looked at. More than that many plugins no node has.
const SOCKETS: usize = 128;
/// What resource plugins call themselves. Others in the folder are somebody else's.
const KIND: &str = "ResourcePlugin";
const FACT: &str = "plugins.watched";

/// A socket that a plugin has made anew is another one under the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Made {
    inode: u64,
    at: (i64, i64),
}

/// What became of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// Registered, or somebody else's.
    Settled(Made),
    /// To be tried again; the reason was told.
    Failed(Made, String),
}

/// Looks for plugins in this folder for ever. One that is not there yet is waited for.
pub async fn watch(dir: PathBuf, registry: Addr<Registry>, plugins: Plugins, facts: Facts) {
    let mut seen: BTreeMap<PathBuf, Seen> = BTreeMap::new();
    let mut told = String::new();
    loop {
        let (found, fault) = match sockets(&dir) {
            Ok(found) => (found, "ok".to_owned()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => (BTreeMap::new(), "not there".to_owned()),
            Err(e) => (BTreeMap::new(), e.to_string()),
        };
        if fault != told {
            facts.set(FACT, format!("{}: {fault}", dir.display()));
            told = fault;
        }
        seen.retain(|path, _| {
            let stays = found.contains_key(path);
            if !stays {
                plugins.gone(path);
            }
            stays
        });
        let news = found.into_iter().filter(|(path, made)| seen.get(path) != Some(&Seen::Settled(*made)));
        let looked = news.map(async |(path, made)| {
            let outcome = introduce(&path, &registry).await;
            (path, made, outcome)
        });
        for (path, made, outcome) in futures::future::join_all(looked).await {
            let now = match outcome {
                Ok(()) => Seen::Settled(made),
                Err(reason) => Seen::Failed(made, reason),
            };
            if let Seen::Failed(_, reason) = &now
                && seen.get(&path) != Some(&now)
            {
                tracing::warn!(socket = %path.display(), reason, "no plugin could be registered from this socket");
            }
            seen.insert(path, now);
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn sockets(dir: &Path) -> io::Result<BTreeMap<PathBuf, Made>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir)?.take(SOCKETS) {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else { continue };
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if metadata.file_type().is_socket() && !hidden {
            let made = Made { inode: metadata.ino(), at: (metadata.ctime(), metadata.ctime_nsec()) };
            found.insert(entry.path(), made);
        }
    }
    Ok(found)
}

/// Asks who is there, registers a resource plugin, and tells it what came of that.
async fn introduce(path: &Path, registry: &Addr<Registry>) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    let mut client = RegistrationClient::new(oxalyst_mesh::connect_to(path.to_owned()));
    let info = match timeout_at(end, client.get_info(InfoRequest {})).await {
        Ok(Ok(info)) => info.into_inner(),
        Ok(Err(status)) => return Err(format!("GetInfo: {}", status.message())),
        Err(_) => return Err("GetInfo was not answered in time".to_owned()),
    };
    if info.r#type != KIND {
        return Ok(());
    }
    let outcome = register(path, &info, registry).await;
    notify(&mut client, &outcome).await;
    outcome
}

async fn register(path: &Path, info: &PluginInfo, registry: &Addr<Registry>) -> Result<(), String> {
    if !info.supported_versions.iter().any(|version| version == VERSION) {
        let told = info.supported_versions.join(", ");
        return Err(format!("versions [{told}] are not supported: supported versions are [{VERSION}]"));
    }
    // A path as the plugin sees it need not be one here; what it was found under is. It may serve at another socket, though.
    let told = Path::new(&info.endpoint);
    let elsewhere = told.is_absolute() && told.file_name() != path.file_name();
    let socket = if elsewhere { told.to_owned() } else { path.to_owned() };
    let plugin = Plugin::new(info.name.clone(), socket.clone(), Default::default());
    let options = plugin.options(Instant::now() + PATIENCE).await.map_err(|e| e.to_string())?;
    match registry.send(Found { name: info.name.clone(), socket, options }).await {
        Ok(outcome) => outcome,
        Err(_) => Err("the allocator is stopping".to_owned()),
    }
}

async fn notify(client: &mut RegistrationClient<Channel>, outcome: &Result<(), String>) {
    let status = RegistrationStatus {
        plugin_registered: outcome.is_ok(),
        error: outcome.as_ref().err().cloned().unwrap_or_default(),
    };
    // Whether it hears it is its own affair.
    let _ = timeout_at(Instant::now() + PATIENCE, client.notify_registration_status(status)).await;
}
