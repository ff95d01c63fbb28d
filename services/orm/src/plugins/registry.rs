//! Who the plugins are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::{Actor, AsyncContext as _, Context, Handler, Message, WrapFuture as _};
use arc_swap::ArcSwap;
use oxalyst_mesh::Facts;
use oxalyst_proto::resourceplugin::v1alpha1::ResourcePluginOptions;
use oxalyst_qos::KeptLabels;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Amends, Claims, Plugin, PluginError};

/// Plugins that may be known at once.
const PLUGINS: usize = 64;
/// How long a plugin may take to say what it is like.
const PATIENCE: Duration = Duration::from_secs(2);
const FACT: &str = "plugins";
const FACT_TWICE: &str = "plugins.twice";

/// The plugins by the resources that they give out: an immutable snapshot, replaced as a whole. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Plugins {
    /// `None`: was known before, and has not come back yet.
    known: Arc<ArcSwap<BTreeMap<String, Option<Arc<Plugin>>>>>,
    /// Who works for which pod.
    pub claims: Claims,
    /// Heard when a plugin has come, or a pod's spec: who waits for one of them can be served now.
    pub due: Arc<Notify>,
    /// What plugins may have understood wrongly.
    pub amends: Amends,
    /// How long an admission waits for all of them together.
    pub deadline: Duration,
    /// Which labels of pods they are told.
    pub labels: Arc<KeptLabels>,
    /// Resources that two sockets give out: the socket that is used, and the one that is not.
    twice: Arc<Mutex<BTreeMap<String, (PathBuf, PathBuf)>>>,
    facts: Facts,
}

/// Owns the list of plugins, and asks each of them every period how it is.
#[derive(Debug)]
pub struct Registry {
    plugins: Plugins,
    period: Duration,
}

/// A plugin has been found, or has come itself.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), String>")]
pub struct Found {
    /// The resource that it gives out.
    pub name: String,
    /// Its socket.
    pub socket: PathBuf,
    /// What it is like.
    pub options: ResourcePluginOptions,
}

/// Plugins answered, or did not.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Looked(Vec<(Arc<Plugin>, Result<ResourcePluginOptions, PluginError>)>);

// === impl Plugins ===

impl Plugins {
    /// None is known.
    pub fn new(deadline: Duration, labels: KeptLabels, facts: Facts) -> Self {
        facts.set(FACT, "none");
        facts.set(FACT_TWICE, "none");
        Self {
            known: Arc::default(),
            claims: Claims::default(),
            due: Arc::default(),
            amends: Amends::default(),
            deadline,
            labels: Arc::new(labels),
            twice: Arc::default(),
            facts,
        }
    }

    /// These were known before this process began: who asks for their resources has to wait for them.
    pub fn expect(&self, names: impl IntoIterator<Item = String>) {
        self.change(|known| {
            for name in names {
                known.entry(name).or_insert(None);
            }
        });
    }

    /// Whether somebody gives out this resource, or did.
    pub fn knows(&self, name: &str) -> bool {
        self.known.load().contains_key(name)
    }

    /// Whether nobody is known.
    pub fn is_empty(&self) -> bool {
        self.known.load().is_empty()
    }

    /// The plugin of this resource.
    ///
    /// # Errors
    /// It is not there.
    pub fn get(&self, name: &str) -> Result<Arc<Plugin>, PluginError> {
        let away = || PluginError::Away { plugin: name.to_owned() };
        self.known.load().get(name).cloned().flatten().filter(|plugin| plugin.answers()).ok_or_else(away)
    }

    /// All that have come, whether they answer now or not.
    pub fn come(&self) -> Vec<Arc<Plugin>> {
        self.known.load().values().flatten().cloned().collect()
    }

    /// Who listens at this socket is not there any more.
    pub fn gone(&self, socket: &Path) {
        self.twice(|twice| twice.retain(|_, (used, other)| used != socket && other != socket));
        for plugin in self.come().iter().filter(|plugin| plugin.socket == socket) {
            if plugin.is(false) {
                tracing::warn!(plugin = plugin.name, socket = %socket.display(), "the plugin has gone: its socket is no more");
            }
        }
        self.tell();
    }

    fn twice(&self, change: impl FnOnce(&mut BTreeMap<String, (PathBuf, PathBuf)>)) {
        let mut twice = self.twice.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut twice);
        let word = |(name, (used, other)): (&String, &(PathBuf, PathBuf))| {
            format!("{name}: {} is used, {} is not", used.display(), other.display())
        };
        let words: Vec<_> = twice.iter().map(word).collect();
        self.facts.set(FACT_TWICE, if words.is_empty() { "none".to_owned() } else { words.join(", ") });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Option<Arc<Plugin>>>)) {
        let mut known = BTreeMap::clone(&self.known.load());
        change(&mut known);
        self.known.store(Arc::new(known));
        self.tell();
    }

    fn tell(&self) {
        self.due.notify_one();
        let known = self.known.load();
        let word = |(name, plugin): (&String, &Option<Arc<Plugin>>)| match plugin {
            Some(plugin) if plugin.answers() => name.clone(),
            Some(_) => format!("{name} (away)"),
            None => format!("{name} (has not come back)"),
        };
        let words: Vec<_> = known.iter().map(word).collect();
        self.facts.set(FACT, if words.is_empty() { "none".to_owned() } else { words.join(", ") });
    }
}

// === impl Registry ===

impl Registry {
    /// Looks after these; asks them every `period` how they are.
    pub fn new(plugins: Plugins, period: Duration) -> Self {
        Self { plugins, period }
    }
}

impl Actor for Registry {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(self.period, |this, ctx| {
            let (plugins, registry) = (this.plugins.come(), ctx.address());
            if plugins.is_empty() {
                return;
            }
            let end = Instant::now() + PATIENCE;
            let look = async move {
                let asked = plugins.into_iter().map(async |plugin| {
                    let said = plugin.options(end).await;
                    (plugin, said)
                });
                registry.do_send(Looked(futures::future::join_all(asked).await));
            };
            ctx.spawn(look.into_actor(this));
        });
    }
}

impl Handler<Found> for Registry {
    type Result = Result<(), String>;

    fn handle(&mut self, Found { name, socket, options }: Found, _: &mut Self::Context) -> Self::Result {
        if name.is_empty() || name.len() > 253 {
            return Err(format!("{name:?} is no name of a resource"));
        }
        let known = self.plugins.known.load();
        let same = known.get(&name).and_then(Option::as_ref).filter(|plugin| plugin.socket == socket);
        if let Some(plugin) = same {
            plugin.learn(options);
            if plugin.is(true) {
                tracing::info!(plugin = name, socket = %socket.display(), "the plugin is back");
            }
            self.plugins.tell();
            return Ok(());
        }
        if known.len() >= PLUGINS && !known.contains_key(&name) {
            return Err(format!("{PLUGINS} plugins are known already"));
        }
        tracing::info!(plugin = name, socket = %socket.display(), hints = options.with_topology_alignment, "a plugin is registered");
        let former = known.get(&name).and_then(Option::as_ref);
        // A plugin that came again under another name has left its former socket.
        if let Some(former) = former.filter(|former| former.answers() && former.socket.exists()) {
            let other = former.socket.clone();
            tracing::warn!(
                plugin = name, used = %socket.display(), unused = %other.display(),
                "two sockets give out one resource: the one that came last is used; remove the other one"
            );
            self.plugins.twice(|twice| drop(twice.insert(name.clone(), (socket.clone(), other))));
        }
        let plugin = Arc::new(Plugin::new(name.clone(), socket, options));
        self.plugins.change(|known| drop(known.insert(name, Some(plugin))));
        Ok(())
    }
}

impl Handler<Looked> for Registry {
    type Result = ();

    fn handle(&mut self, Looked(looked): Looked, _: &mut Self::Context) {
        let mut news = BTreeSet::new();
        for (plugin, said) in looked {
            let is_news = plugin.is(said.is_ok());
            match said {
                Ok(options) => plugin.learn(options),
                Err(e) if is_news => {
                    tracing::warn!(plugin = plugin.name, error = %e, "the plugin does not answer");
                    news.insert(plugin.name.clone());
                    continue;
                }
                Err(_) => {}
            }
            if is_news {
                tracing::info!(plugin = plugin.name, "the plugin answers again");
                news.insert(plugin.name.clone());
            }
        }
        if !news.is_empty() {
            self.plugins.tell();
        }
    }
}
