//! A kubelet that tells pods, as far as the mesh reads it.

use std::sync::{Arc, Mutex};

use integration::runtime::PodSpec;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// What it tells.
#[derive(Clone, Default)]
pub(crate) struct Kubelet(Arc<Mutex<Vec<Value>>>);

/// A container as a spec has it.
pub(crate) fn container(name: &str, milli: u64, extended: &[(&str, u64)]) -> Value {
    let mut amounts = json!({"cpu": format!("{milli}m"), "memory": "64Mi"});
    for (resource, amount) in extended {
        amounts[*resource] = json!(amount.to_string());
    }
    json!({"name": name, "resources": {"requests": amounts, "limits": amounts}})
}

impl Kubelet {
    pub(crate) async fn serve(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let told = self.0.clone();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let body = json!({ "items": *told.lock().unwrap() }).to_string();
                let mut request = [0; 4096];
                // One question a connection; nothing of it matters.
                let _ = socket.read(&mut request).await;
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = socket.write_all(format!("{head}{body}").as_bytes()).await;
            }
        });
        endpoint
    }

    /// This pod, in place of what was told of it before.
    pub(crate) fn tells(&self, pod: &PodSpec, inits: &[Value], containers: &[Value]) {
        let mut told = self.0.lock().unwrap();
        told.retain(|known| known["metadata"]["uid"] != pod.uid.as_str());
        told.push(json!({
            "metadata": {
                "uid": pod.uid, "namespace": pod.namespace, "name": pod.name, "annotations": pod.annotations,
            },
            "spec": {"initContainers": inits, "containers": containers},
            "status": {"phase": "Running", "qosClass": "Guaranteed"},
        }));
    }
}
