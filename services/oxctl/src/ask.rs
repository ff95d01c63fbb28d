//! Each command: which services it asks, and which view their answers make.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oxalyst_mesh::NODE_SERVICES;
use oxalyst_proto::mesh::v1::Status;
use oxalyst_proto::metrics::v1::{QueryRequest, Scope as MetricScope};
use serde::Serialize;

use crate::args::{Cli, Command, MetricsAction, MetricsArgs, Output, Scope, Selection, TopArgs};
use crate::ids;
use crate::peers::{PeerError, Peers};
use crate::reasons::{self, ReasonError};
use crate::view::catalogue::{ListView, SourcesView};
use crate::view::doctor::DoctorView;
use crate::view::export;
use crate::view::metrics::MetricsView;
use crate::view::pods::PodsView;
use crate::view::pools::PoolsView;
use crate::view::status::StatusView;
use crate::view::top::{self, Size, TopView};
use crate::view::topology::TopologyView;
use crate::view::{Answer, Told};

/// Why nothing could be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// Every service asked gave an error, a line each.
    #[error("{}", .0.join("\n"))]
    Peers(Vec<String>),
    #[error("writing the answer as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Reason(#[from] ReasonError),
}

pub(crate) async fn ask(cli: &Cli) -> Result<Answer, AskError> {
    let peers = Peers::new(&cli.run_dir);
    match &cli.command {
        Command::Status => status(&peers, cli.output).await,
        Command::Doctor => doctor(&peers, cli.output).await,
        Command::Pods => pods(&peers, cli.output).await,
        Command::Pools => {
            let view = PoolsView::new(peers.state().await?);
            answer(&view, cli.output, |_| view.render(), Vec::new(), Told::Well)
        }
        Command::Topology => {
            let view = TopologyView::new(peers.topology().await?);
            answer(&view, cli.output, |wide| view.render(wide), Vec::new(), Told::Well)
        }
        Command::Metrics(args) => metrics(&peers, args, cli.output).await,
        Command::Explain(args) => reasons::explain(&peers, args, cli.output).await,
        Command::WhatIf(args) => reasons::what_if(&peers, args, cli.output).await,
        Command::Record { file } => reasons::record(&peers, file, cli.output).await,
        Command::Replay { file } => reasons::replay(file, cli.output),
    }
}

async fn metrics(peers: &Peers, args: &MetricsArgs, output: Output) -> Result<Answer, AskError> {
    match &args.action {
        None if args.list => list(peers, output).await,
        Some(MetricsAction::List) => list(peers, output).await,
        None => get(peers, &args.selection, output).await,
        Some(MetricsAction::Get(selection)) => get(peers, selection, output).await,
        Some(MetricsAction::Sources) => {
            let view = SourcesView::new(peers.list_sources().await?);
            answer(&view, output, |_| view.render(), Vec::new(), Told::well_if(view.well()))
        }
        Some(MetricsAction::Export { node }) => {
            let metrics = peers.list_metrics().await?.metrics;
            let reply = peers.metrics(export::query(&metrics)).await?;
            let request = export::request(&metrics, reply, &node_name(peers, node.as_deref()).await);
            let text = serde_json::to_string(&request)? + "\n";
            Ok(Answer { text, problems: Vec::new(), told: Told::Well })
        }
        Some(MetricsAction::Top(args)) => top(peers, args, output).await,
        Some(MetricsAction::Watch(selection)) => tokio::select! {
            watched = watch(peers, selection, output) => watched,
            () = interrupted() => Ok(enough()),
        },
    }
}

/// Tells what is new for as long as there is a reader and a service.
async fn watch(peers: &Peers, selection: &Selection, output: Output) -> Result<Answer, AskError> {
    let (query, _) = whole(peers, query(selection)).await?;
    let mut stream = peers.watch_metrics(query.clone()).await?;
    let mut heard = false;
    loop {
        let reply = match peers.next(&mut stream).await {
            Ok(Some(reply)) => reply,
            Ok(None) => return Ok(enough()),
            // The service lets go of whoever stood still; who goes on begins anew. One that tells nothing is not asked for ever.
            Err(_) if heard => {
                (stream, heard) = (peers.watch_metrics(query.clone()).await?, false);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        heard = true;
        let view = MetricsView::new(reply);
        let text = match output {
            // A line for each, so that a reader sees where one ends.
            Output::Json => serde_json::to_string(&view)? + "\n",
            Output::Table => view.render(false),
            Output::Wide => view.render(true),
        };
        // A reader that has seen enough ends the watch.
        if shown(text).await.is_err() {
            return Ok(enough());
        }
    }
}

/// A metric that every container has.
const WHO_IS_THERE: &str = "mem.usage.container";
/// Writes on a thread of its own: while a pager waits, pings of the service are answered and an operator can interrupt.
async fn shown(text: String) -> io::Result<()> {
    let write = move || {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    };
    tokio::task::spawn_blocking(write).await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

/// Nothing is left to be told.
fn enough() -> Answer {
    Answer { text: String::new(), problems: Vec::new(), told: Told::Well }
}

/// How often the table is shown anew on a terminal.
const REFRESH: Duration = Duration::from_secs(2);
/// Moves to the first line and clears what is below.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// Ends when the operator has seen enough.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

async fn list(peers: &Peers, output: Output) -> Result<Answer, AskError> {
    let view = ListView::new(peers.list_metrics().await?);
    answer(&view, output, |wide| view.render(wide), Vec::new(), Told::Well)
}

async fn top(peers: &Peers, args: &TopArgs, output: Output) -> Result<Answer, AskError> {
    let terminal = io::stdout().is_terminal();
    let every = args.every.or_else(|| (terminal && !args.once && output != Output::Json).then_some(REFRESH));
    let once = async || {
        let view = TopView::new(peers.metrics(top::query()).await?, args.containers);
        // Asked anew each time, for a window is made larger and smaller.
        let size = if terminal && every.is_some() { Size::of_terminal() } else { None };
        answer(&view, output, |_| view.render(size), Vec::new(), Told::Well)
    };
    let Some(every) = every else { return once().await };
    let drawn = async {
        loop {
            let text = match once().await {
                Ok(answer) => answer.text,
                // Whoever keeps it open wants to see when it is back.
                Err(error) => format!("{error}\n"),
            };
            let (before, after) = if terminal { (CLEAR, "") } else { ("", "\n") };
            // A reader that has seen enough ends it.
            if shown(format!("{before}{text}{after}")).await.is_err() {
                return;
            }
            tokio::time::sleep(every).await;
        }
    };
    tokio::select! {
        () = drawn => {}
        () = interrupted() => {}
    }
    Ok(enough())
}

/// The question with whole ids where it gives the start of one, as tables show it, and what to say of those that several have.
async fn whole(peers: &Peers, mut query: QueryRequest) -> Result<(QueryRequest, Vec<String>), AskError> {
    if query.ids.is_empty() {
        return Ok((query, Vec::new()));
    }
    let named = QueryRequest { metrics: vec![WHO_IS_THERE.to_owned()], ..QueryRequest::default() };
    let there = peers.metrics(named).await?.samples;
    let problems = ids::complete(&mut query.ids, &there);
    Ok((query, problems))
}

/// The node's name: as given, as the meta-server tells it, else the host's, as the kubelet writes it.
async fn node_name(peers: &Peers, given: Option<&str>) -> String {
    if let Some(given) = given {
        return given.to_owned();
    }
    match peers.node().await {
        Ok(node) if !node.name.is_empty() => node.name,
        _ => rustix::system::uname().nodename().to_string_lossy().to_lowercase(),
    }
}

async fn get(peers: &Peers, selection: &Selection, output: Output) -> Result<Answer, AskError> {
    let (query, mut problems) = whole(peers, query(selection)).await?;
    let ids = query.ids.clone();
    let view = MetricsView::new(peers.metrics(query).await?);
    problems.extend(view.without_samples(&ids));
    let told = Told::well_if(problems.is_empty());
    answer(&view, output, |wide| view.render(wide), problems, told)
}

async fn status(peers: &Peers, output: Output) -> Result<Answer, AskError> {
    let view = StatusView::new(statuses(peers).await, now_unix_ms());
    answer(&view, output, |_| view.render(), Vec::new(), view.told())
}

async fn doctor(peers: &Peers, output: Output) -> Result<Answer, AskError> {
    let (services, found) = tokio::join!(statuses(peers), peers.diagnose());
    let view = DoctorView::new(services, found);
    answer(&view, output, |wide| view.render(wide), Vec::new(), view.told())
}

/// At once: the whole takes one deadline, not one for each service.
async fn statuses(peers: &Peers) -> Vec<(&'static str, Result<Status, PeerError>)> {
    let [a, b, c, d, e] = NODE_SERVICES;
    let replies =
        tokio::join!(peers.status(a), peers.status(b), peers.status(c), peers.status(d), peers.status(e));
    vec![(a, replies.0), (b, replies.1), (c, replies.2), (d, replies.3), (e, replies.4)]
}

async fn pods(peers: &Peers, output: Output) -> Result<Answer, AskError> {
    let (state, running) = tokio::join!(peers.state(), peers.containers());
    let problems: Vec<String> = [state.as_ref().err(), running.as_ref().err()]
        .into_iter()
        .flatten()
        .map(PeerError::to_string)
        .collect();
    if problems.len() == 2 {
        return Err(AskError::Peers(problems));
    }
    let view = PodsView::new(state.ok(), running.ok(), problems.clone(), now_unix_ms());
    let told = Told::well_if(problems.is_empty());
    answer(&view, output, |wide| view.render(wide), problems, told)
}

fn query(args: &Selection) -> QueryRequest {
    let scopes = match args.scope {
        None => Vec::new(),
        Some(Scope::Node) => vec![MetricScope::Node as i32],
        Some(Scope::Container) => vec![MetricScope::Container as i32],
        Some(Scope::Numa) => vec![MetricScope::Numa as i32],
        Some(Scope::Cpu) => vec![MetricScope::Cpu as i32],
        Some(Scope::Device) => vec![MetricScope::Device as i32],
        Some(Scope::Network) => vec![MetricScope::Network as i32],
        Some(Scope::ContainerNuma) => vec![MetricScope::ContainerNuma as i32],
        Some(Scope::Volume) => vec![MetricScope::Volume as i32],
        Some(Scope::Cgroup) => vec![MetricScope::Cgroup as i32],
        Some(Scope::CgroupNuma) => vec![MetricScope::CgroupNuma as i32],
    };
    QueryRequest { metrics: args.metrics.clone(), scopes, ids: args.ids.clone(), max_age_ms: args.max_age_ms }
}

pub(crate) fn answer(
    view: &impl Serialize,
    output: Output,
    table: impl FnOnce(bool) -> String,
    problems: Vec<String>,
    told: Told,
) -> Result<Answer, AskError> {
    let text = match output {
        Output::Json => serde_json::to_string_pretty(view)? + "\n",
        Output::Table => table(false),
        Output::Wide => table(true),
    };
    Ok(Answer { text, problems, told })
}

pub(crate) fn now_unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_a_meta_server_the_node_has_the_hosts_name() {
        let nowhere = tempfile::tempdir().unwrap();
        let peers = Peers::new(nowhere.path());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(node_name(&peers, None).await, host.trim().to_lowercase());
        assert_eq!(node_name(&peers, Some("n1")).await, "n1");
    }
}
