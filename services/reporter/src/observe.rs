//! Asks the allocator and the meta-server whenever one of them says that something changed, and has the object built.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use oxalyst_backoff::Backoff;
use oxalyst_mesh::{Condition, MESSAGE_LIMIT, Mesh, connect};
use oxalyst_proto::meta::v1::meta_client::MetaClient;
use oxalyst_proto::meta::v1::{GetNodeRequest, Node, PodList, WatchPodsRequest};
use oxalyst_proto::orm::v1::allocator_client::AllocatorClient;
use oxalyst_proto::orm::v1::{GetStateRequest, GetTopologyRequest, State, Topology, WatchPlacementsRequest};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use crate::Settings;
use crate::kcnr::{self, MemoryRequests};
use crate::publisher::{Desired, Publisher};

/// How long a peer of the mesh may take to answer.
const DEADLINE: Duration = Duration::from_secs(2);
/// What changes within this time is asked for together. The next question waits for as long as the next publication has to: until
/// then its answer would only grow old.
const COALESCE: Duration = Duration::from_millis(20);
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// What is known of the node, kept over a peer's absence.
struct Observer {
    orm: AllocatorClient<Channel>,
    meta: MetaClient<Channel>,
    node_name: Option<String>,
    node: Option<Node>,
    /// `None`: the meta-server has not told any pods yet.
    memory: watch::Receiver<Option<MemoryRequests>>,
    orm_answers: Peer,
    meta_answers: Peer,
    builds: Peer,
}

/// Whether something works, told once for each change.
struct Peer {
    name: &'static str,
    works: Option<bool>,
    condition: Condition,
}

/// Follows both peers for the life of the process.
pub(crate) async fn run(mesh: Mesh, settings: Settings, publisher: Addr<Publisher>) {
    let orm = AllocatorClient::new(connect(&mesh.run_dir, "orm")).max_decoding_message_size(MESSAGE_LIMIT);
    let meta =
        MetaClient::new(connect(&mesh.run_dir, "meta-server")).max_decoding_message_size(MESSAGE_LIMIT);
    let changed = Arc::new(Notify::new());
    let (placements, again) = (orm.clone(), changed.clone());
    actix::spawn(follow(
        changed.clone(),
        move || {
            let mut orm = placements.clone();
            async move { orm.watch_placements(WatchPlacementsRequest {}).await }
        },
        move |_| again.notify_one(),
    ));
    let (pods, again) = (meta.clone(), changed.clone());
    let (tell, memory) = watch::channel(None);
    actix::spawn(follow(
        changed.clone(),
        move || {
            let mut meta = pods.clone();
            async move { meta.watch_pods(WatchPodsRequest { changes: true }).await }
        },
        move |list: PodList| {
            let new = tell.send_if_modified(|memory: &mut Option<MemoryRequests>| {
                let first = memory.is_none();
                kcnr::take_up_memory(memory.get_or_insert_default(), &list) || first
            });
            if new {
                again.notify_one();
            }
        },
    ));

    let peer =
        |name, detail: &str| Peer { name, works: None, condition: mesh.readiness.condition(name, detail) };
    let mut observer = Observer {
        orm,
        meta,
        node_name: settings.node_name.clone(),
        node: None,
        memory,
        orm_answers: peer("orm", "the allocator has not answered yet"),
        meta_answers: peer("meta-server", "the meta-server has not answered yet"),
        builds: peer("object", "no object is built yet"),
    };
    let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
    loop {
        let started = Instant::now();
        let desired = observer.look().await;
        let whole = observer.orm_answers.works == Some(true) && observer.meta_answers.works == Some(true);
        if let Some(desired) = desired
            && publisher.send(desired).await.is_err()
        {
            return;
        }
        let next = if whole {
            backoff.reset();
            settings.refresh_period()
        } else {
            backoff.next_delay()
        };
        // A peer that streams changes without answering must not make this a busy loop.
        let rest = if whole { COALESCE.max(settings.spacing()) } else { COALESCE };
        tokio::time::sleep_until(started + rest).await;
        let _ = tokio::time::timeout(next, changed.notified()).await;
        tokio::time::sleep(COALESCE).await;
    }
}

/// Calls `open` again whenever the stream ends, and hands each message on. Says `changed` when it has ended.
async fn follow<T, F>(changed: Arc<Notify>, open: impl Fn() -> F, mut heard: impl FnMut(T))
where
    F: Future<Output = Result<Response<Streaming<T>>, Status>>,
{
    let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
    loop {
        if let Ok(Ok(answer)) = tokio::time::timeout(DEADLINE, open()).await {
            let opened = Instant::now();
            let mut stream = answer.into_inner();
            while let Ok(Some(message)) = stream.message().await {
                heard(message);
            }
            backoff.succeeded_for(opened.elapsed());
        }
        // That the peer is away is found, and told, by the question that this provokes.
        changed.notify_one();
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// The answer, within the deadline.
async fn ask<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, String> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(format!("{}: {}", status.code(), status.message()).replace('\n', " ")),
        Err(_) => Err(format!("no answer within {} s", DEADLINE.as_secs())),
    }
}

// === impl Observer ===

impl Observer {
    /// Asks all, and builds the object if it can be built.
    async fn look(&mut self) -> Option<Desired> {
        self.ask_meta().await;
        let (topology, state) = match self.ask_orm().await {
            Ok(answers) => answers,
            Err(e) => {
                self.orm_answers.fails(&format!("{e}: is orm up? what was published stays"));
                return None;
            }
        };
        self.orm_answers.works();
        let mut node = self.node.clone().unwrap_or_default();
        if let Some(name) = &self.node_name {
            node.name.clone_from(name);
        }
        let memory = self.memory.borrow_and_update().clone().unwrap_or_default();
        match kcnr::build(&node, &topology, &state, &memory) {
            Ok(object) => {
                self.builds.works();
                Some(Desired { generation: state.generation, object: Arc::new(object) })
            }
            Err(e) => {
                self.builds.fails(&e.to_string());
                None
            }
        }
    }

    async fn ask_orm(&mut self) -> Result<(Topology, State), String> {
        let topology = ask(self.orm.get_topology(GetTopologyRequest {})).await?;
        let state = ask(self.orm.get_state(GetStateRequest { exclusive_only: true })).await?;
        Ok((topology, state))
    }

    /// What the meta-server tells is kept while it is away: the node does not change, and an old figure of a pod's memory
    /// ends with the pod's placement.
    async fn ask_meta(&mut self) {
        match ask(self.meta.get_node(GetNodeRequest::default())).await {
            Ok(node) => {
                self.node = Some(node);
                // Without the first list the object would tell of memory that is not there.
                let pods = tokio::time::timeout(DEADLINE, self.memory.wait_for(Option::is_some)).await;
                match pods.is_ok_and(|heard| heard.is_ok()) {
                    true => self.meta_answers.works(),
                    false => {
                        self.meta_answers.fails("it has told no pods: what was published stays as to memory")
                    }
                }
            }
            Err(e) => self.meta_answers.fails(&format!("{e}: is meta-server up?")),
        }
    }
}

// === impl Peer ===

impl Peer {
    fn works(&mut self) {
        if self.works == Some(false) {
            tracing::info!(peer = self.name, "works again");
        }
        self.works = Some(true);
        self.condition.fulfilled();
    }

    fn fails(&mut self, why: &str) {
        if self.works != Some(false) {
            tracing::warn!(peer = self.name, why, "does not work");
        }
        self.works = Some(false);
        self.condition.pending(why);
    }
}
