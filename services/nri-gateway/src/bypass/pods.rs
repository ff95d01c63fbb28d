//! What the meta-server knows of pods, followed as long as bypass mode is at work.

use std::sync::Arc;
use std::time::Duration;

use oxalyst_backoff::Backoff;
use oxalyst_proto::meta::v1::meta_client::MetaClient;
use oxalyst_proto::meta::v1::{PodList, WatchPodsRequest};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::Channel;

/// Follows for ever. What was told stays when the meta-server goes: pods do not end with it.
pub(super) async fn follow(channel: Channel, tell: watch::Sender<Option<Arc<PodList>>>) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    let client = MetaClient::new(channel).max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT);
    let mut last = String::new();
    loop {
        let since = Instant::now();
        let reason = match client.clone().watch_pods(WatchPodsRequest::default()).await {
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(list)) => {
                            tell.send_replace(Some(Arc::new(list)));
                            last.clear();
                        }
                        Ok(None) => break "it ended the stream".to_owned(),
                        Err(status) => break status.message().to_owned(),
                    }
                }
            }
            Err(status) => status.message().to_owned(),
        };
        if reason != last {
            tracing::warn!(%reason, "the meta-server does not tell pods");
            last = reason;
        }
        backoff.succeeded_for(since.elapsed());
        tokio::time::sleep(backoff.next_delay()).await;
    }
}
