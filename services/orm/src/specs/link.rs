//! The way to the meta-server: one stream, a whole list and then what changes, connected for ever.

use std::time::Duration;

use oxalyst_backoff::Backoff;
use oxalyst_mesh::Facts;
use oxalyst_proto::meta::v1::WatchPodsRequest;
use oxalyst_proto::meta::v1::meta_client::MetaClient;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::{SpecChange, Specs};

/// The first list has to come within this.
const FIRST_LIST: Duration = Duration::from_secs(2);
/// Shortest and longest wait between attempts.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Fact that tells how many specs are known, or why there are none.
const FACT: &str = "specs";

/// Follows the meta-server's lists for ever: takes each up into `specs` and tells `changed` what is new in it.
///
/// While the meta-server is away the last list stays: a spec grows old slowly, and its pod's sandbox tells the totals anyway.
/// A reader that is slow gets the newest list next, so that nothing piles up.
pub async fn follow(
    channel: Channel,
    specs: Specs,
    facts: Facts,
    mut changed: impl AsyncFnMut(Vec<SpecChange>),
) {
    let mut client = MetaClient::new(channel).max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT);
    let mut backoff = Backoff::new(WAITS.0, WAITS.1);
    let mut last = String::new();
    loop {
        let since = Instant::now();
        let end = once(&mut client, &specs, &facts, &mut changed, &mut last).await;
        facts.set(FACT, format!("{}, growing old: {end}", specs.len()));
        if end != last {
            tracing::warn!(reason = %end, known = specs.len(), "no specs are told: pods are decided by their sandboxes");
            last = end;
        }
        backoff.succeeded_for(since.elapsed());
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// One stream until its end; gives the reason.
async fn once(
    client: &mut MetaClient<Channel>,
    specs: &Specs,
    facts: &Facts,
    changed: &mut impl AsyncFnMut(Vec<SpecChange>),
    last: &mut String,
) -> String {
    let opened = async {
        let mut lists = client.watch_pods(WatchPodsRequest { changes: true }).await?.into_inner();
        let first = lists.message().await?;
        Ok::<_, tonic::Status>((lists, first))
    };
    let (mut lists, mut next) = match tokio::time::timeout(FIRST_LIST, opened).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(status)) => return format!("the meta-server is not there ({})", status.message()),
        Err(_) => return format!("the meta-server sent no list in {} s", FIRST_LIST.as_secs()),
    };
    if !last.is_empty() {
        tracing::info!("the meta-server tells specs");
        last.clear();
    }
    while let Some(list) = next {
        let changes = specs.take_up(&list);
        facts.set(FACT, specs.len());
        if !changes.is_empty() {
            changed(changes).await;
        }
        next = match lists.message().await {
            Ok(next) => next,
            Err(status) => return format!("the meta-server's stream broke ({})", status.message()),
        };
    }
    "the meta-server ended its stream".to_owned()
}
