//! What the kubelet reserves of the CPUs: read from its configuration when somebody wants to know.

use std::fmt;
use std::time::Duration;

use oxalyst_kube_types::ResourceList;
use oxalyst_proto::meta::v1::KubeletReservation;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Client, LEAST_SPACING};

/// A kubelet that is slow is not waited for longer than this: who asks has a deadline of its own.
const PATIENCE: Duration = Duration::from_millis(1500);

/// CPUs that a kubelet keeps from pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    /// By list (`reservedSystemCPUs`); empty: by amount.
    pub cpus: String,
    /// `kubeReserved` and `systemReserved` together, in thousandths of a CPU.
    pub milli_cpu: u64,
}

/// The last answer of a kubelet, asked again once it is a second old.
pub struct Reservation {
    client: Client,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    asked: Option<Instant>,
    told: Option<KubeletReservation>,
    error: String,
}

#[derive(Deserialize)]
struct Document {
    kubeletconfig: Configuration,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    #[serde(default, rename = "reservedSystemCPUs")]
    reserved_system_cpus: Option<String>,
    #[serde(default)]
    kube_reserved: Option<ResourceList>,
    #[serde(default)]
    system_reserved: Option<ResourceList>,
}

// === impl Reserved ===

impl Reserved {
    /// Reads the answer of `/configz`.
    ///
    /// # Errors
    /// It is no such document. What it does not say is not reserved.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let Document { kubeletconfig: config } = serde_json::from_str(text)?;
        let amounts = [config.kube_reserved, config.system_reserved];
        let cpu = |list: &ResourceList| list.get("cpu").and_then(oxalyst_kube_types::Quantity::to_milli);
        Ok(Self {
            cpus: config.reserved_system_cpus.unwrap_or_default().trim().to_owned(),
            milli_cpu: amounts.iter().flatten().filter_map(cpu).fold(0, u64::saturating_add),
        })
    }
}

// === impl Reservation ===

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("endpoint", &self.client.endpoint()).finish_non_exhaustive()
    }
}

impl Reservation {
    /// Nothing is asked yet.
    pub fn new(client: Client) -> Self {
        Self { client, last: Mutex::default() }
    }

    /// The last that was heard, and why that is not of now; of a kubelet that fails the last word stays.
    pub async fn told(&self) -> (Option<KubeletReservation>, String) {
        let mut last = self.last.lock().await;
        if last.asked.is_none_or(|asked| asked.elapsed() >= LEAST_SPACING) {
            let answer = match tokio::time::timeout(PATIENCE, self.client.reserved()).await {
                Ok(answer) => answer.map_err(|e| e.to_string()),
                Err(_) => Err(format!("the kubelet at {} is slow to answer", self.client.endpoint())),
            };
            match answer {
                Ok(Reserved { cpus, milli_cpu }) => {
                    let heard_unix_ms = crate::table::unix_ms();
                    last.told = Some(KubeletReservation { cpus, milli_cpu, heard_unix_ms });
                    last.error.clear();
                }
                Err(why) => last.error = why,
            }
            last.asked = Some(Instant::now());
        }
        (last.told.clone(), last.error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserved(config: &str) -> Reserved {
        Reserved::parse(&format!(r#"{{"kubeletconfig":{config}}}"#)).unwrap()
    }

    #[test]
    fn both_amounts_count_together_and_a_list_stands_beside() {
        let told = reserved(r#"{"kubeReserved":{"cpu":"500m","memory":"1Gi"},"systemReserved":{"cpu":"1"}}"#);
        assert_eq!(told, Reserved { cpus: String::new(), milli_cpu: 1500 });
        assert_eq!(reserved(r#"{"reservedSystemCPUs":"0-1,8","kubeReserved":null}"#).cpus, "0-1,8");
    }

    #[test]
    fn what_is_not_said_is_not_reserved_and_another_document_is_an_error() {
        assert_eq!(reserved("{}"), Reserved::default());
        assert!(Reserved::parse(r#"{"items":[]}"#).is_err());
        assert!(Reserved::parse("404 page not found").is_err());
    }
}
