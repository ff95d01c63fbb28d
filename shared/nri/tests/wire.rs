//! The plugin's end against hand-made bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::time::Duration;

use oxalyst_nri::api::*;
use oxalyst_nri::frame::{ConnId, MAX_FIRST_FRAME, frames_of};
use oxalyst_nri::message::{Kind, Request, encode};
use oxalyst_nri::plugin::{Happened, PLUGIN_SERVICE, Plugin, PluginSession};
use oxalyst_nri::sync_chunks::Inventory;
use oxalyst_nri::{Status, TrunkError};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

struct Fixed;

impl Plugin for Fixed {
    async fn configure(&mut self, _: ConfigureRequest) -> Result<ConfigureResponse, Status> {
        Ok(ConfigureResponse { events: 0x7ff })
    }
    async fn synchronize(&mut self, _: Inventory) -> Result<Vec<ContainerUpdate>, Status> {
        Ok(vec![])
    }
    async fn create_container(
        &mut self,
        request: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, Status> {
        let annotations = request.container.map(|c| c.annotations).unwrap_or_default();
        let adjust = ContainerAdjustment { annotations, ..Default::default() };
        Ok(CreateContainerResponse { adjust: Some(adjust), ..Default::default() })
    }
    async fn update_container(
        &mut self,
        _: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, Status> {
        Ok(UpdateContainerResponse::default())
    }
    async fn stop_container(&mut self, _: StopContainerRequest) -> Result<StopContainerResponse, Status> {
        Ok(StopContainerResponse::default())
    }
    async fn happened(&mut self, _: Happened) -> Result<(), Status> {
        Ok(())
    }
    async fn shutdown(&mut self) {}
}

fn request(stream: u32, method: &str, message: &impl Message) -> Vec<u8> {
    let request = Request {
        service: PLUGIN_SERVICE.into(),
        method: method.into(),
        payload: message.encode_to_vec(),
        timeout_nano: 0,
        metadata: vec![],
    };
    frames_of(ConnId::Plugin, &encode(Kind::Request, stream, &request))
}

#[tokio::test]
async fn the_registration_has_these_bytes() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let session = PluginSession::start(ours, Fixed);
    let mut expected: Vec<u8> = vec![
        0, 0, 0, 2, 0, 0, 0, 85, // mux: connection 2, 10 + 75 bytes
        0, 0, 0, 75, 0, 0, 0, 1, 1, 0, // ttrpc: 75 bytes, stream 1, request
    ];
    expected.extend(b"\x0a\x1cnri.pkg.api.v1alpha1.Runtime");
    expected.extend(b"\x12\x0eRegisterPlugin");
    expected.extend(b"\x1a\x15\x0a\x07oxalyst\x12\x0290\x1a\x060.12.0");
    expected.extend(b"\x20\x80\xe4\x97\xd0\x12"); // 5,000,000,000 ns
    let mut got = vec![0; expected.len()];
    let (_, read) = tokio::join!(session.register("oxalyst", "90", Duration::from_secs(5)), async {
        theirs.read_exact(&mut got).await.unwrap();
        // An empty response ends the call.
        theirs.write_all(&[0, 0, 0, 2, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0]).await
    });
    read.unwrap();
    assert_eq!(got, expected);
}

#[tokio::test]
async fn the_answer_to_configure_has_these_bytes() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let _session = PluginSession::start(ours, Fixed);
    theirs.write_all(&request(1, "Configure", &ConfigureRequest::default())).await.unwrap();
    let mut got = vec![0; 23];
    theirs.read_exact(&mut got).await.unwrap();
    // Response{payload: ConfigureResponse{2 events: 0x7ff}}
    let expected = [0, 0, 0, 1, 0, 0, 0, 15, 0, 0, 0, 5, 0, 0, 0, 1, 2, 0, 0x12, 3, 0x10, 0xff, 0x0f];
    assert_eq!(got, expected);
}

#[tokio::test]
async fn a_large_answer_comes_as_a_frame_of_4096_bytes_and_one_more() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let _session = PluginSession::start(ours, Fixed);
    let annotations = [("k".to_owned(), "v".repeat(100_000))].into();
    let container = Some(Container { annotations, ..Default::default() });
    let create = CreateContainerRequest { container, ..Default::default() };
    theirs.write_all(&request(1, "CreateContainer", &create)).await.unwrap();
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 100_000 {
        assert_eq!(theirs.read_u32().await.unwrap(), 1);
        let len = theirs.read_u32().await.unwrap() as usize;
        theirs.read_exact(&mut vec![0; len]).await.unwrap();
        sizes.push(len);
    }
    assert_eq!((sizes.len(), sizes[0]), (2, MAX_FIRST_FRAME));
}

#[tokio::test]
async fn a_message_cut_into_single_bytes_is_understood() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let _session = PluginSession::start(ours, Fixed);
    let whole = request(1, "Configure", &ConfigureRequest::default());
    for byte in &whole[8..] {
        theirs.write_all(&[0, 0, 0, 1, 0, 0, 0, 1, *byte]).await.unwrap();
    }
    let mut got = [0; 23];
    theirs.read_exact(&mut got).await.unwrap();
    assert_eq!(got[20..], [0x10, 0xff, 0x0f]);
}

async fn end_after(bytes: &[u8], close: bool) -> String {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let session = PluginSession::start(ours, Fixed);
    theirs.write_all(bytes).await.unwrap();
    if close {
        theirs.shutdown().await.unwrap();
    }
    session.ended().await.to_string()
}

#[tokio::test]
async fn bad_bytes_end_the_connection_with_their_reason() {
    let oversize = end_after(&[0, 0, 0, 1, 255, 255, 255, 255], false).await;
    assert!(oversize.contains("mux frame of 4294967295 bytes"), "{oversize}");
    let garbage = end_after(b"GET / HTTP/1.1\r\n", false).await;
    assert!(garbage.contains("only 1 (Plugin) and 2 (Runtime) exist"), "{garbage}");
    let huge = [0, 0, 0, 1, 0, 0, 0, 10, 255, 255, 255, 255, 0, 0, 0, 1, 1, 0];
    assert!(end_after(&huge, false).await.contains("ttrpc message of 4294967295 bytes"));
}

#[tokio::test]
async fn the_end_of_the_socket_is_told_apart_from_a_torn_message() {
    assert_eq!(end_after(&[], true).await, TrunkError::Closed.to_string());
    let torn = request(1, "Configure", &ConfigureRequest::default());
    assert_eq!(end_after(&torn[..30], true).await, TrunkError::Truncated.to_string());
}

#[tokio::test]
async fn a_payload_that_is_no_message_is_refused_and_the_connection_lives() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let _session = PluginSession::start(ours, Fixed);
    let mut bad =
        Request { service: PLUGIN_SERVICE.into(), method: "Configure".into(), ..Default::default() };
    bad.payload = vec![0xff; 4];
    theirs.write_all(&frames_of(ConnId::Plugin, &encode(Kind::Request, 1, &bad))).await.unwrap();
    theirs.write_all(&request(3, "Configure", &ConfigureRequest::default())).await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut head = [0; 18];
        theirs.read_exact(&mut head).await.unwrap();
        let mut body = vec![0; usize::from(head[11])];
        theirs.read_exact(&mut body).await.unwrap();
        streams.push((head[15], body[0]));
    }
    // Field 1 is an error status, field 2 a payload.
    assert_eq!(streams, [(1, 0x0a), (3, 0x12)]);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_floods_without_reading_is_cut_off() {
    let (ours, theirs) = tokio::io::duplex(256);
    let session = PluginSession::start(ours, Fixed);
    let (_reads_nothing, mut flood) = tokio::io::split(theirs);
    let call = request(1, "Nothing", &Empty {});
    let flooding = async { while flood.write_all(&call).await.is_ok() {} };
    let _ = tokio::time::timeout(Duration::from_secs(60), flooding).await;
    assert!(matches!(*session.ended().await, TrunkError::Stalled));
}
