//! An imitated kubelet, as far as it is asked for its pods: it lists what it is told to, and counts who asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::runtime::{ContainerId, PodSpec, QOS_ANNOTATION};

/// A kubelet on loopback. Dropping it closes its port.
#[derive(Debug)]
pub struct ListingKubelet {
    endpoint: String,
    state: Arc<Mutex<State>>,
    serving: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    /// By UID.
    pods: BTreeMap<String, Value>,
    asked: Vec<Instant>,
}

// === impl ListingKubelet ===

impl ListingKubelet {
    /// One that knows no pod yet.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let state = Arc::new(Mutex::new(State::default()));
        let serving = tokio::spawn(serve(listener, Arc::clone(&state)));
        Ok(Self { endpoint, state, serving })
    }

    /// Where it is asked.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// When it was asked for its list, oldest first.
    pub fn asked(&self) -> Vec<Instant> {
        self.state().asked.clone()
    }

    /// It lists this pod from now on: one container "main" that asks for `milli_cpu`, with its id once it is known.
    pub fn list(&self, pod: &PodSpec, milli_cpu: u64, container: Option<&ContainerId>) {
        let cpu = json!({"cpu": format!("{milli_cpu}m"), "memory": "64Mi"});
        let dedicated = pod.annotations.get(QOS_ANNOTATION).is_some_and(|level| level == "dedicated_cores");
        let limits = if dedicated { cpu.clone() } else { json!({}) };
        let statuses: Vec<Value> = container
            .map(|id| json!({"name": "main", "containerID": format!("containerd://{}", id.0)}))
            .into_iter()
            .collect();
        let item = json!({
            "metadata": {
                "uid": pod.uid, "namespace": pod.namespace, "name": pod.name,
                "labels": pod.labels, "annotations": pod.annotations,
            },
            "spec": {"containers": [{"name": "main", "resources": {"requests": cpu, "limits": limits}}]},
            "status": {
                "phase": "Running",
                "qosClass": if dedicated { "Guaranteed" } else { "Burstable" },
                "containerStatuses": statuses,
            },
        });
        self.state().pods.insert(pod.uid.clone(), item);
    }

    /// It lists this pod no more.
    pub fn forget(&self, pod: &PodSpec) {
        self.state().pods.remove(&pod.uid);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Drop for ListingKubelet {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    while let Ok((socket, _)) = listener.accept().await {
        // One that breaks off has got its answer or wants none.
        tokio::spawn(answer(socket, Arc::clone(&state)));
    }
}

/// One question on each connection.
async fn answer(mut socket: TcpStream, state: Arc<Mutex<State>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if socket.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let body = {
        let mut state = state.lock().unwrap();
        state.asked.push(Instant::now());
        let items: Vec<&Value> = state.pods.values().collect();
        json!({"kind": "PodList", "apiVersion": "v1", "items": items}).to_string()
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).await?;
    socket.write_all(body.as_bytes()).await?;
    socket.shutdown().await
}
