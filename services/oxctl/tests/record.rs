//! `oxctl record` against an imitated orm, and what it wrote read back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::os::unix::net::UnixListener as Listener;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oxalyst_proto::orm::v1::decisions_server::{Decisions, DecisionsServer};
use oxalyst_proto::orm::v1::{
    ListDecisionsReply, ListDecisionsRequest, RecordRequest, RecordingEnd, RecordingFrame, RecordingHead,
    StateSnapshot, WhatIfReply, WhatIfRequest, recording_frame::Frame,
};
use tokio::net::UnixListener;
use tokio_stream::Stream;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// An orm that tells this at the end of a recording.
struct Orm {
    end: RecordingEnd,
    /// Whether it was asked for its decisions first, which it waits for.
    waited: Arc<AtomicBool>,
}

#[tonic::async_trait]
impl Decisions for Orm {
    async fn list_decisions(
        &self,
        _: Request<ListDecisionsRequest>,
    ) -> Result<Response<ListDecisionsReply>, Status> {
        self.waited.store(true, Ordering::SeqCst);
        Ok(Response::new(ListDecisionsReply::default()))
    }

    async fn what_if(&self, _: Request<WhatIfRequest>) -> Result<Response<WhatIfReply>, Status> {
        Err(Status::unimplemented(""))
    }

    type RecordStream = Pin<Box<dyn Stream<Item = Result<RecordingFrame, Status>> + Send>>;

    async fn record(&self, _: Request<RecordRequest>) -> Result<Response<Self::RecordStream>, Status> {
        assert!(self.waited.load(Ordering::SeqCst));
        let head = RecordingHead { version: 1, written_by: "orm 1".into() };
        let frames = [Frame::Head(head), Frame::Snapshot(StateSnapshot::default()), Frame::End(self.end)];
        let messages = frames.map(|frame| Ok(RecordingFrame { frame: Some(frame) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }
}

fn serve(run_dir: &Path, end: RecordingEnd) {
    let listener = Listener::bind(run_dir.join("orm.sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let incoming = UnixListenerStream::new(UnixListener::from_std(listener).unwrap());
            let orm = Orm { end, waited: Arc::default() };
            Server::builder()
                .add_service(DecisionsServer::new(orm))
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
    });
}

/// What `record` said of a recording that ends like this; the file is there.
fn recorded(end: RecordingEnd) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), end);
    let file = dir.path().join("recording");
    let Output { status, stderr, .. } = Command::new(env!("CARGO_BIN_EXE_oxctl"))
        .args(["record", file.to_str().unwrap()])
        .env("OXALYST_RUN_DIR", dir.path())
        .output()
        .unwrap();
    assert!(file.exists());
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn m6_a_whole_recording_is_well() {
    assert_eq!(recorded(RecordingEnd { frames: 1, lost: 0, waiting: 0 }), (Some(0), String::new()));
}

#[test]
fn m6_what_a_recording_lacks_is_told_and_is_exit_code_1() {
    let (code, told) = recorded(RecordingEnd { frames: 1, lost: 228, waiting: 17 });
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!((code, lines.len()), (Some(1), 2), "{told}");
    assert!(lines[0].starts_with("the recording lacks 228 decisions that orm could not keep"), "{told}");
    assert!(lines[1].starts_with("the recording lacks 17 decisions that are made and not written"), "{told}");
    let (code, told) = recorded(RecordingEnd { frames: 1, lost: 0, waiting: 17 });
    assert_eq!((code, told.lines().count()), (Some(1), 1), "{told}");
}
