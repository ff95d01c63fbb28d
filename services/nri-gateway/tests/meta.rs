//! What the meta-server is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use std::sync::{Arc, Mutex};

use nri_gateway::settings::OnDeadline;
use oxalyst_nri::api;
use oxalyst_nri::runtime::RuntimeOptions;
use oxalyst_proto::meta::v1::meta_server::{Meta, MetaServer};
use oxalyst_proto::meta::v1::runtime_event::Event;
use oxalyst_proto::meta::v1::*;
use support::node::{Node, own_calls, pod, running};
use support::until;
use tokio::net::UnixListener;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// Remembers each stream's events as short texts.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<Vec<String>>>>);

impl Listener {
    fn serve(&self, node: &Node) {
        let incoming =
            UnixListenerStream::new(UnixListener::bind(node.run_dir().join("meta-server.sock")).unwrap());
        let server = tonic::transport::Server::builder().add_service(MetaServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(incoming));
    }

    async fn hears(&self, stream: usize, what: &str) {
        let heard = async || self.0.lock().unwrap().get(stream)?.iter().any(|e| e == what).then_some(());
        until(what, heard).await;
    }
}

#[tonic::async_trait]
impl Meta for Listener {
    type WatchPodsStream = ReceiverStream<Result<PodList, Status>>;

    async fn report_runtime(
        &self,
        request: Request<Streaming<RuntimeEvent>>,
    ) -> Result<Response<ReportRuntimeReply>, Status> {
        let mut events = request.into_inner();
        let stream = {
            let mut streams = self.0.lock().unwrap();
            streams.push(Vec::new());
            streams.len() - 1
        };
        while let Some(event) = events.message().await? {
            let text = match event.event.unwrap() {
                Event::Snapshot(all) => format!("snapshot {} {}", all.sandboxes.len(), all.containers.len()),
                Event::Sandbox(it) => match it.resources.and_then(|r| r.cpu_shares) {
                    None => format!("sandbox {}", it.sandbox_id),
                    Some(shares) => format!("sandbox {} {shares}", it.sandbox_id),
                },
                Event::Container(it) => format!("container {} {:?}", it.container_id, it.state()),
                Event::RemovedSandboxId(id) => format!("removed sandbox {id}"),
                Event::RemovedContainerId(id) => format!("removed container {id}"),
            };
            self.0.lock().unwrap()[stream].push(text);
        }
        Ok(Response::new(ReportRuntimeReply {}))
    }

    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Result<Response<PodList>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn watch_pods(
        &self,
        _: Request<WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn get_node(
        &self,
        _: Request<GetNodeRequest>,
    ) -> Result<Response<oxalyst_proto::meta::v1::Node>, Status> {
        Err(Status::unimplemented("not asked here"))
    }
}

#[actix::test]
async fn the_whole_list_comes_first_then_each_change_and_the_list_again_after_a_reconnection() {
    let mut node = Node::bare();
    node.start_orm();
    node.start_gateway(OnDeadline::Open);
    let (session, _) = node.session(vec![pod("a", "shared_cores")], vec![running("a", "a1")]).await;
    node.connected().await;
    let meta = Listener::default();
    meta.serve(&node);
    meta.hears(0, "snapshot 1 1").await;
    let other = pod("b", "shared_cores");
    node.run(&session, &other, "b1").await.unwrap();
    meta.hears(0, "container b1 Running").await;
    session.tell(api::Event::RemovePodSandbox, other, None).await.unwrap();
    meta.hears(0, "removed sandbox s-b").await;
    let told = meta.0.lock().unwrap()[0].clone();
    let at = |what: &str| told.iter().position(|e| e == what).unwrap_or_else(|| panic!("{what} in {told:?}"));
    assert_eq!(at("snapshot 1 1"), 0);
    assert!(at("sandbox s-b") < at("container b1 Running"));
    assert!(at("removed container b1") < at("removed sandbox s-b"));
    drop(session);
    let _session = node.session(vec![pod("a", "shared_cores")], vec![]).await;
    meta.hears(1, "snapshot 1 0").await;
}

#[actix::test]
async fn a_pod_that_is_to_have_other_resources_is_told_before_its_containers_are_updated() {
    let mut node = Node::bare();
    node.options = RuntimeOptions { last_event: api::Event::ValidateContainerAdjustment, ..own_calls() };
    let (node, session) = node.risen().await;
    let shared = pod("a", "shared_cores");
    node.run(&session, &shared, "a1").await.unwrap();
    let meta = Listener::default();
    meta.serve(&node);
    meta.hears(0, "snapshot 1 1").await;
    let cpu = api::LinuxCpu { shares: Some(api::OptionalUInt64 { value: 2_048 }), ..Default::default() };
    let request = api::UpdatePodSandboxRequest {
        pod: Some(shared),
        linux_resources: Some(api::LinuxResources { cpu: Some(cpu), ..Default::default() }),
        ..Default::default()
    };

    session.update_sandbox(request).await.unwrap();

    meta.hears(0, "sandbox s-a 2048").await;
}
