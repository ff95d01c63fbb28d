//! Each command: which services it asks, and which view their answers make.

use std::time::{SystemTime, UNIX_EPOCH};

use oxalyst_mesh::NODE_SERVICES;
use oxalyst_proto::metrics::v1::{QueryRequest, Scope as MetricScope};
use serde::Serialize;

use crate::args::{Cli, Command, MetricsArgs, Output, Scope};
use crate::peers::{PeerError, Peers};
use crate::view::metrics::MetricsView;
use crate::view::pods::PodsView;
use crate::view::pools::PoolsView;
use crate::view::status::StatusView;
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
}

pub(crate) async fn ask(cli: &Cli) -> Result<Answer, AskError> {
    let peers = Peers::new(&cli.run_dir);
    match &cli.command {
        Command::Status => status(&peers, cli.output).await,
        Command::Pods => pods(&peers, cli.output).await,
        Command::Pools => {
            let view = PoolsView::new(peers.state().await?);
            answer(&view, cli.output, |_| view.render(), Vec::new(), Told::Well)
        }
        Command::Topology => {
            let view = TopologyView::new(peers.topology().await?);
            answer(&view, cli.output, |wide| view.render(wide), Vec::new(), Told::Well)
        }
        Command::Metrics(args) => {
            let view = MetricsView::new(peers.metrics(query(args)).await?);
            let problems = view.without_samples(&args.ids);
            let told = Told::well_if(problems.is_empty());
            answer(&view, cli.output, |wide| view.render(wide), problems, told)
        }
    }
}

async fn status(peers: &Peers, output: Output) -> Result<Answer, AskError> {
    let [a, b, c, d, e] = NODE_SERVICES;
    // At once: the whole takes one deadline, not one for each service.
    let replies =
        tokio::join!(peers.status(a), peers.status(b), peers.status(c), peers.status(d), peers.status(e));
    let replies = vec![(a, replies.0), (b, replies.1), (c, replies.2), (d, replies.3), (e, replies.4)];
    let view = StatusView::new(replies, now_unix_ms());
    answer(&view, output, |_| view.render(), Vec::new(), view.told())
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

fn query(args: &MetricsArgs) -> QueryRequest {
    let scopes = match args.scope {
        None => Vec::new(),
        Some(Scope::Node) => vec![MetricScope::Node as i32],
        Some(Scope::Container) => vec![MetricScope::Container as i32],
    };
    QueryRequest { metrics: args.metrics.clone(), scopes, ids: args.ids.clone(), max_age_ms: args.max_age_ms }
}

fn answer(
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

fn now_unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
