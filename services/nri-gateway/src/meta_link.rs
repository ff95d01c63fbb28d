//! Tells the meta-server what the runtime runs: one whole list, then each change.
//!
//! The meta-server may be absent, and may read slowly: what does not fit is dropped, and the whole list is told anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::Addr;
use oxalyst_backoff::Backoff;
use oxalyst_proto::meta::v1::RuntimeEvent;
use oxalyst_proto::meta::v1::meta_client::MetaClient;
use oxalyst_proto::meta::v1::runtime_event::Event;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::roster::{Holds, Roster};

/// Changes that may wait for the meta-server.
const WAITING: usize = 1024;

/// How long an ended stream may take to be acknowledged.
const GOODBYE: Duration = Duration::from_millis(200);

/// The roster's end: takes changes, never waits.
#[derive(Clone, Debug)]
pub struct Feed {
    events: mpsc::Sender<Event>,
    stale: Arc<Stale>,
}

/// The other end.
#[derive(Debug)]
pub struct FeedOutlet {
    events: mpsc::Receiver<Event>,
    stale: Arc<Stale>,
}

#[derive(Debug, Default)]
struct Stale {
    /// Changes were lost, or the runtime told its whole list.
    flag: AtomicBool,
    wake: Notify,
}

/// Both ends.
pub fn feed() -> (Feed, FeedOutlet) {
    let (events, outlet) = mpsc::channel(WAITING);
    let stale = Arc::<Stale>::default();
    (Feed { events, stale: stale.clone() }, FeedOutlet { events: outlet, stale })
}

// === impl Feed ===

impl Feed {
    /// A change.
    pub fn tell(&self, event: Event) {
        if self.events.try_send(event).is_err() {
            self.resnapshot();
        }
    }

    /// Whatever was told is void: the whole list has to be told.
    pub fn resnapshot(&self) {
        self.stale.flag.store(true, Ordering::Release);
        self.stale.wake.notify_one();
    }
}

/// Tells the meta-server for ever. Nothing is told before the runtime told its list once.
pub async fn report(mut outlet: FeedOutlet, roster: Addr<Roster>, channel: Channel) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    let mut client = MetaClient::new(channel);
    let mut last = String::new();
    outlet.stale.wake.notified().await;
    loop {
        let since = Instant::now();
        match stream(&mut outlet, &roster, &mut client).await {
            Ended::Stale => continue,
            Ended::Lost(reason) => {
                if reason != last {
                    tracing::warn!(%reason, "the meta-server is not told what runs");
                    last = reason;
                }
            }
            Ended::Closing => return,
        }
        backoff.succeeded_for(since.elapsed());
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

enum Ended {
    /// The whole list has to be told anew.
    Stale,
    /// The meta-server went away.
    Lost(String),
    /// The roster went away.
    Closing,
}

async fn stream(outlet: &mut FeedOutlet, roster: &Addr<Roster>, client: &mut MetaClient<Channel>) -> Ended {
    // Whatever waits is older than the list that is asked for now.
    while outlet.events.try_recv().is_ok() {}
    outlet.stale.flag.store(false, Ordering::Release);
    let Ok(snapshot) = roster.send(Holds).await else { return Ended::Closing };
    let (tell, told) = mpsc::channel(WAITING);
    // The channel is new and holds more than one.
    let _ = tell.try_send(RuntimeEvent { event: Some(Event::Snapshot(snapshot)) });
    let call = client.report_runtime(ReceiverStream::new(told));
    tokio::pin!(call);
    let ended = loop {
        tokio::select! {
            outcome = &mut call => return Ended::Lost(match outcome {
                Ok(_) => "it ended the stream".to_owned(),
                Err(status) => status.message().to_owned(),
            }),
            () = outlet.stale.wake.notified() => {}
            event = outlet.events.recv() => match event {
                None => break Ended::Closing,
                // It reads too slowly for what happens here.
                Some(event) => if tell.try_send(RuntimeEvent { event: Some(event) }).is_err() {
                    break Ended::Stale;
                }
            },
        }
        if outlet.stale.flag.load(Ordering::Acquire) {
            break Ended::Stale;
        }
    };
    drop(tell);
    // Whether the goodbye is heard changes nothing: the next stream begins with the whole list.
    let _ = tokio::time::timeout(GOODBYE, call).await;
    ended
}
