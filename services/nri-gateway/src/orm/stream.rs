//! The stream of placements, connected for ever.

use std::time::Duration;

use oxalyst_backoff::Backoff;
use oxalyst_mesh::Condition;
use tokio::time::Instant;
use tonic::Request;

use super::{Orm, WatchPlacementsRequest};

/// The first message, the snapshot, has to come within this.
const SNAPSHOT_DEADLINE: Duration = Duration::from_secs(2);

/// Follows the stream for ever; `condition` tells whether it is up.
pub async fn follow(orm: Orm, condition: Condition) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let mut last = String::new();
    loop {
        let since = Instant::now();
        let end = once(&orm, &condition).await;
        if orm.streaming.send_replace(false) {
            // What was heard so far may be from another life of the orm.
            orm.placements.rcu(|placements| placements.after_loss());
        }
        condition.pending(format!("{end}: is the orm running, with the same common.run_dir?"));
        if end != last {
            tracing::warn!(reason = %end, "no stream of placements");
            last = end;
        }
        backoff.succeeded_for(since.elapsed());
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// One stream until its end; gives the reason.
async fn once(orm: &Orm, condition: &Condition) -> String {
    let mut client = orm.allocator.clone();
    let opened = async {
        let mut events = client.watch_placements(Request::new(WatchPlacementsRequest {})).await?.into_inner();
        let first = events.message().await?;
        Ok::<_, tonic::Status>((events, first))
    };
    let (mut events, mut next) = match tokio::time::timeout(SNAPSHOT_DEADLINE, opened).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(status)) => return format!("the orm is not there ({})", status.message()),
        Err(_) => return format!("the orm sent no snapshot in {} s", SNAPSHOT_DEADLINE.as_secs()),
    };
    while let Some(event) = next {
        let generation = event.generation;
        if !orm.placements.load().knows(&event) {
            orm.take_up(|placements| placements.with_event(event.clone()));
        }
        // Watchers are woken by the change alone: each of them tells the orm the whole list.
        if orm.streaming.send_if_modified(|up| !std::mem::replace(up, true)) {
            tracing::info!(generation, "the orm is heard");
            condition.fulfilled();
            orm.health.answered();
        }
        next = match events.message().await {
            Ok(next) => next,
            Err(status) => return format!("the orm's stream broke ({})", status.message()),
        };
    }
    "the orm ended its stream".to_owned()
}
