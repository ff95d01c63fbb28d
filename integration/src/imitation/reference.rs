//! The reference library's end of NRI, in a program of its own (`reference-runtime/`): it calls the plugins, the imitation
//! tells it what happens and applies what it hears.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oxalyst_nri::api::{
    Container, CreateContainerRequest, CreateContainerResponse, Empty, Event, PodSandbox, StateChangeEvent,
    StopContainerRequest, StopContainerResponse, SynchronizeRequest, SynchronizeResponse,
    UpdateContainerRequest, UpdateContainerResponse, UpdateContainersRequest, UpdateContainersResponse,
    UpdatePodSandboxRequest, UpdatePodSandboxResponse,
};
use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};

use super::plugins::Plugins;

/// How long the program may take for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// The program, while it runs. It ends with this value.
#[derive(Debug)]
pub(super) struct Reference {
    child: Mutex<Child>,
    stdin: tokio::sync::Mutex<ChildStdin>,
    last: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Answer>>,
    started: tokio::sync::watch::Sender<bool>,
    /// Steps of the list that is being told, for the task that holds the imitation's still.
    steps: Mutex<Option<mpsc::Sender<Step>>>,
}

/// Whoever waits for the program's answer.
type Answer = oneshot::Sender<Result<Vec<u8>, String>>;

/// A message of a plugin that the reference library has read.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its method.
    pub method: String,
    /// In what it differs from the library's own bytes, or which field of it is unknown there.
    pub differs: Option<String>,
}

#[derive(Debug)]
enum Step {
    Listed(u64, SynchronizeResponse),
    TakenIn(u64),
}

// === impl Reference ===

impl Reference {
    /// Starts `program`, which serves plugins at `socket`; `folder` is an empty one for plugins that it might start.
    pub(super) async fn start(
        program: &Path,
        socket: &Path,
        folder: &Path,
        plugins: &Arc<Plugins>,
    ) -> std::io::Result<Arc<Self>> {
        std::fs::create_dir_all(folder)?;
        let log = std::fs::File::options().create(true).append(true).open(folder.with_extension("log"))?;
        let mut child = Command::new(program)
            .arg(socket)
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let piped = || std::io::Error::other("no pipe");
        let (stdin, stdout) = (child.stdin.take().ok_or_else(piped)?, child.stdout.take().ok_or_else(piped)?);
        let this = Arc::new(Self {
            child: Mutex::new(child),
            stdin: tokio::sync::Mutex::new(stdin),
            last: AtomicU64::new(0),
            waiting: Mutex::default(),
            started: tokio::sync::watch::Sender::new(false),
            steps: Mutex::default(),
        });
        let mut started = this.started.subscribe();
        tokio::spawn(read(stdout, Arc::downgrade(&this), Arc::clone(plugins)));
        let up = tokio::time::timeout(LIMIT, started.wait_for(|&up| up)).await;
        match up {
            Ok(Ok(_)) => {}
            _ => return Err(std::io::Error::other("the reference runtime does not start")),
        }
        Ok(this)
    }

    /// Ends the program at once, whoever still waits for it.
    pub(super) fn end(&self) {
        // Fails only where it has ended already.
        let _ = self.child.lock().unwrap_or_else(PoisonError::into_inner).start_kill();
    }

    pub(super) async fn tell(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), String> {
        let change =
            StateChangeEvent { event: event.into(), pod: Some(pod.clone()), container: container.cloned() };
        self.call::<Empty>("StateChange", &change).await.map(drop)
    }

    pub(super) async fn create_container(
        &self,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<CreateContainerResponse, String> {
        let request = CreateContainerRequest { pod: Some(pod.clone()), container: Some(container.clone()) };
        self.call("CreateContainer", &request).await
    }

    pub(super) async fn stop_container(
        &self,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<StopContainerResponse, String> {
        let request = StopContainerRequest { pod: Some(pod.clone()), container: Some(container.clone()) };
        self.call("StopContainer", &request).await
    }

    pub(super) async fn update_container(
        &self,
        request: &UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, String> {
        self.call("UpdateContainer", request).await
    }

    pub(super) async fn update_sandbox(&self, request: &UpdatePodSandboxRequest) -> Result<(), String> {
        self.call::<UpdatePodSandboxResponse>("UpdatePodSandbox", request).await.map(drop)
    }

    async fn call<A: Message + Default>(&self, name: &str, body: &impl Message) -> Result<A, String> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, answer);
        self.write(&json!({"id": id, "call": name, "body": hex(&body.encode_to_vec())})).await;
        match tokio::time::timeout(LIMIT, answered).await {
            Ok(Ok(answer)) => A::decode(answer?.as_slice()).map_err(|e| e.to_string()),
            Ok(Err(_)) => Err(format!("{name}: the reference runtime has ended")),
            Err(_) => Err(format!("{name}: no answer within {LIMIT:?}")),
        }
    }

    async fn write(&self, line: &Value) {
        let mut stdin = self.stdin.lock().await;
        // A program that is gone is noticed by its reader.
        let _ = stdin.write_all(format!("{line}\n").as_bytes()).await;
    }

    async fn answer(&self, up: u64, body: &impl Message) {
        self.write(&json!({"up": up, "body": hex(&body.encode_to_vec())})).await;
    }

    fn steps(&self) -> std::sync::MutexGuard<'_, Option<mpsc::Sender<Step>>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the list, and holds it still until the plugin is taken in.
    async fn list(self: Arc<Self>, up: u64, plugins: Arc<Plugins>) {
        let _listing = plugins.listing.write().await;
        let (steps, mut stepped) = mpsc::channel(2);
        *self.steps() = Some(steps);
        let (pods, containers) = plugins.state().store.list();
        let start = Instant::now();
        let counts = (pods.len(), containers.len());
        self.answer(up, &SynchronizeRequest { pods, containers, more: false }).await;
        while let Ok(Some(step)) = tokio::time::timeout(LIMIT, stepped.recv()).await {
            match step {
                Step::Listed(up, answer) => {
                    plugins.apply(&answer.update);
                    plugins.note_synchronization(start.elapsed(), counts, answer.update);
                    self.answer(up, &Empty {}).await;
                }
                Step::TakenIn(up) => return self.answer(up, &Empty {}).await,
            }
        }
    }

    async fn called(self: Arc<Self>, up: u64, call: String, body: Vec<u8>, plugins: Arc<Plugins>) {
        let step = match call.as_str() {
            "list" => return self.list(up, plugins).await,
            "listed" => Step::Listed(up, SynchronizeResponse::decode(body.as_slice()).unwrap()),
            "taken in" => Step::TakenIn(up),
            "update" => {
                let updates = UpdateContainersRequest::decode(body.as_slice()).unwrap().update;
                plugins.state().observed.updates.push((Instant::now(), updates.clone()));
                let failed = plugins.apply(&updates);
                return self.answer(up, &UpdateContainersResponse { failed }).await;
            }
            other => panic!("the reference runtime calls {other:?}"),
        };
        let steps = self.steps().clone();
        if let Some(steps) = steps {
            let _ = steps.send(step).await;
        }
    }
}

/// Reads what the program says, to its end.
async fn read(stdout: ChildStdout, reference: std::sync::Weak<Reference>, plugins: Arc<Plugins>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(text)) = lines.next_line().await {
        let line: Value = serde_json::from_str(&text).unwrap();
        let Some(reference) = reference.upgrade() else { return };
        let text = |key: &str| line[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let body = text("body").map_or_else(Vec::new, |digits| unhex(&digits));
        if let Some(method) = text("seen") {
            if method == "started" {
                reference.started.send_replace(true);
            } else {
                plugins.state().observed.seen.push(Seen { method, differs: text("error") });
            }
        } else if let Some(up) = line["up"].as_u64() {
            // Not here: a list waits for calls whose answers are still to be read.
            let call = text("call").unwrap_or_default();
            tokio::spawn(Arc::clone(&reference).called(up, call, body, Arc::clone(&plugins)));
        } else if let Some(id) = line["id"].as_u64() {
            let answer = reference.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            if let Some(answer) = answer {
                let _ = answer.send(text("error").map_or(Ok(body), Err));
            }
        }
    }
    if let Some(reference) = reference.upgrade() {
        reference.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *reference.steps() = None;
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}
