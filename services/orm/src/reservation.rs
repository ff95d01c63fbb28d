//! What the kubelet reserves of the CPUs, where `reserved_cpus` is `kubelet`: asked of the meta-server for ever.

use std::sync::Arc;
use std::time::Duration;

use oxalyst_mesh::Facts;
use oxalyst_proto::meta::v1::meta_client::MetaClient;
use oxalyst_proto::meta::v1::{GetNodeRequest, KubeletReservation};
use tokio::sync::watch;
use tonic::transport::Channel;

/// An answer has to come within this.
const DEADLINE: Duration = Duration::from_secs(2);
/// Time between questions as long as nothing is known.
const WHILE_UNKNOWN: Duration = Duration::from_millis(500);
/// How many watch periods lie between questions once something is known.
const PERIODS: u32 = 6;
/// Fact that tells what it is, or why it is not known.
const FACT: &str = "reserved.kubelet";

/// The newest word, as `reserved_cpus` would have it: a list (`0-1`) or an amount (`750m`). Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Reservation {
    told: Arc<watch::Sender<Option<String>>>,
}

// === impl Reservation ===

impl Reservation {
    /// What was told last; `None`: nothing yet.
    pub fn told(&self) -> Option<String> {
        self.told.borrow().clone()
    }

    /// Waits until something is told, at most for so long.
    pub async fn wait(&self, limit: Duration) {
        let mut told = self.told.subscribe();
        let _ = tokio::time::timeout(limit, told.wait_for(Option::is_some)).await;
    }

    /// Gives every new word to `take`, the newest again and again until it is taken.
    pub async fn give(&self, retry: Duration, mut take: impl AsyncFnMut(String) -> bool) {
        let mut told = self.told.subscribe();
        told.mark_changed();
        while told.changed().await.is_ok() {
            let Some(newest) = told.borrow_and_update().clone() else { continue };
            while !take(newest.clone()).await && !told.has_changed().unwrap_or(true) {
                tokio::time::sleep(retry).await;
            }
        }
    }

    /// Asks the meta-server for ever, more often as long as nothing is known. What was told stays while nobody answers.
    pub async fn follow(self, channel: Channel, period: Duration, facts: Facts) {
        let mut client = MetaClient::new(channel);
        let mut last = String::new();
        loop {
            let fault = match ask(&mut client).await {
                Ok((told, fault)) => {
                    self.told.send_if_modified(|known| known.replace(told.clone()) != Some(told));
                    fault
                }
                Err(fault) => fault,
            };
            let known = self.told();
            facts.set(
                FACT,
                match (&known, fault.as_str()) {
                    (Some(known), "") => known.clone(),
                    (Some(known), fault) => format!("{known}, growing old: {fault}"),
                    (None, fault) => format!("not told: {fault}"),
                },
            );
            if fault != last {
                if fault.is_empty() {
                    tracing::info!("what the kubelet reserves is told");
                } else {
                    tracing::warn!(
                        reason = fault,
                        known = known.as_deref(),
                        "what the kubelet reserves is not told"
                    );
                }
                last = fault;
            }
            tokio::time::sleep(if known.is_some() { period * PERIODS } else { WHILE_UNKNOWN }).await;
        }
    }
}

/// What is reserved, with what is wrong with that; or why it is not known.
async fn ask(client: &mut MetaClient<Channel>) -> Result<(String, String), String> {
    let asked = client.get_node(GetNodeRequest { kubelet_reservation: true });
    let node = match tokio::time::timeout(DEADLINE, asked).await {
        Ok(Ok(reply)) => reply.into_inner(),
        Ok(Err(status)) => return Err(format!("the meta-server is not there ({})", status.message())),
        Err(_) => return Err(format!("the meta-server did not answer in {} s", DEADLINE.as_secs())),
    };
    match node.kubelet_reservation {
        Some(reservation) => Ok((as_setting(&reservation), node.kubelet_reservation_error)),
        None if node.kubelet_reservation_error.is_empty() => {
            Err("the meta-server is of a version that does not tell it".to_owned())
        }
        None => Err(node.kubelet_reservation_error),
    }
}

/// As the setting would have it: the list comes first, as for the kubelet.
fn as_setting(told: &KubeletReservation) -> String {
    if told.cpus.is_empty() { format!("{}m", told.milli_cpu) } else { told.cpus.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_before_an_amount() {
        let told = |cpus: &str, milli_cpu| {
            as_setting(&KubeletReservation { cpus: cpus.into(), milli_cpu, heard_unix_ms: 1 })
        };
        assert_eq!([told("0-1", 500), told("", 750), told("", 0)], ["0-1", "750m", "0m"]);
    }
}
