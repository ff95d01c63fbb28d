//! Why it was decided so: kept, told, and planned again, by the real binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod host;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use host::{DEADLINE, Host, Orm, placed, refused, sandbox};
use oxalyst_planner::decision::{Recording, Replay, encode_frame, opening};
use oxalyst_proto::orm::v1::decisions_client::DecisionsClient;
use oxalyst_proto::orm::v1::{
    AdmitPodRequest, DecisionEntry, DecisionStep, ListDecisionsRequest, RecordRequest, ReleaseStep,
    SandboxStep, WhatIfRequest, decision_step::Step, recording_frame::Frame,
};
use tonic::Code;

struct Asker(DecisionsClient<tonic::transport::Channel>);

impl Asker {
    fn of(host: &Host) -> Self {
        Self(DecisionsClient::new(oxalyst_mesh::connect(&host.dir.path().join("run"), "orm")))
    }

    async fn list(&mut self, pod: &str, refused_only: bool) -> Vec<DecisionEntry> {
        let request = ListDecisionsRequest { pod: pod.into(), refused_only, limit: 0 };
        self.0.list_decisions(request).await.unwrap().into_inner().decisions
    }

    /// They are written behind: waits for as many as that.
    async fn wait_for(&mut self, pod: &str, count: usize) -> Vec<DecisionEntry> {
        let end = Instant::now() + DEADLINE;
        loop {
            let list = self.list(pod, false).await;
            if list.len() >= count {
                return list;
            }
            assert!(Instant::now() < end, "{} decisions of {count} about {pod:?}", list.len());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn record(&mut self) -> Recording {
        let mut stream = self.0.record(RecordRequest {}).await.unwrap().into_inner();
        let mut frames = Vec::new();
        while let Some(message) = stream.message().await.unwrap() {
            frames.push(message.frame.unwrap());
        }
        assert!(
            matches!(frames.first(), Some(Frame::Head(_))) && matches!(frames.last(), Some(Frame::End(_)))
        );
        let name: Vec<u8> =
            opening("").into_iter().take_while(|byte| *byte != b'\n').chain([b'\n']).collect();
        let bytes: Vec<u8> = name.into_iter().chain(frames.into_iter().flat_map(encode_frame)).collect();
        Recording::decode(&bytes).unwrap()
    }

    async fn replays(&mut self) -> Replay {
        let replay = Replay::of(&self.record().await).unwrap();
        assert_eq!(replay.differences, []);
        replay
    }
}

fn files(host: &Host) -> Vec<PathBuf> {
    let dir = host.dir.path().join("ledger/decisions");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn told(entry: &DecisionEntry) -> &oxalyst_proto::orm::v1::Decision {
    entry.decision.as_ref().unwrap()
}

async fn three_decisions(orm: &mut Orm) {
    placed(&orm.admit(&sandbox("shared", "shared_cores", Some(512))).await);
    placed(&orm.admit(&sandbox("own", "dedicated_cores", Some(2048))).await);
    refused(&orm.admit(&sandbox("large", "dedicated_cores", Some(8192))).await);
}

#[tokio::test]
async fn what_was_admitted_and_what_was_refused_is_explained() {
    let host = Host::with_machine(8, 2);
    let mut orm = host.start(&[]).await;
    let mut asker = Asker::of(&host);
    let request = AdmitPodRequest {
        sandbox: Some(sandbox("own", "dedicated_cores", Some(2048))),
        trace_id: "0af7651916cd43dd8448eb211c80319c".into(),
        ..AdmitPodRequest::default()
    };
    let reply = orm.client.admit_pod(request).await.unwrap().into_inner();
    let entries = asker.wait_for("default/own", 1).await;
    let decision = told(&entries[0]);
    assert_eq!((decision.kind.as_str(), decision.outcome.as_str()), ("admit", "placed"));
    assert_eq!(decision.chosen[0].cpus, placed(&reply).cpus);
    assert_eq!(decision.chosen[0].mems, placed(&reply).mems);
    let asked = decision.asked.as_ref().unwrap();
    assert_eq!((asked.milli_cpu, asked.source.as_str()), (Some(2000), "sandbox-resources"));
    let envelope = entries[0].envelope.as_ref().unwrap();
    assert_eq!(envelope.trace_id, "0af7651916cd43dd8448eb211c80319c");
    assert!(envelope.time_unix_ms > 0);

    let reply = orm.admit(&sandbox("large", "dedicated_cores", Some(8192))).await;
    asker.wait_for("large", 1).await;
    let refusals = asker.list("", true).await;
    assert_eq!(refusals.len(), 1);
    let decision = told(&refusals[0]);
    assert_eq!(decision.refused.as_ref().unwrap().message, refused(&reply).message);
    assert_eq!(decision.refused.as_ref().unwrap().reason, refused(&reply).reason);
    assert_eq!(decision.refused.as_ref().unwrap().rule, refused(&reply).rule);
    let free: u32 = decision.free.iter().map(|free| free.cpus).sum();
    assert_eq!(free, 6);
}

#[tokio::test]
async fn m6_what_has_just_been_decided_is_told_at_once() {
    let host = Host::with_machine(8, 2);
    let mut orm = host.start(&[]).await;
    let mut asker = Asker::of(&host);
    for uid in ["a", "b", "c"] {
        placed(&orm.admit(&sandbox(uid, "dedicated_cores", Some(1024))).await);
        let request = ListDecisionsRequest { pod: uid.into(), ..ListDecisionsRequest::default() };
        let reply = asker.0.list_decisions(request).await.unwrap().into_inner();
        assert!(reply.waiting > 0 || reply.decisions.len() == 1, "{reply:?}");
        assert!(reply.waiting > 0 || reply.oldest_unix_ms > 0, "{reply:?}");
    }
}

#[tokio::test]
async fn the_same_refusal_of_the_same_pod_again_is_counted() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    let mut asker = Asker::of(&host);
    for attempt in 0..5 {
        let mut again = sandbox("large", "dedicated_cores", Some(8192));
        again.sandbox_id = format!("large-{attempt}");
        refused(&orm.admit(&again).await);
        orm.release("large", &again.sandbox_id).await;
    }
    // What comes after all of them has been written when they have.
    placed(&orm.admit(&sandbox("last", "shared_cores", Some(512))).await);
    asker.wait_for("last", 1).await;
    let refusals = asker.list("large", true).await;
    assert_eq!(refusals.len(), 1);
    assert_eq!(refusals[0].times, 5);
    asker.replays().await;
}

#[tokio::test]
async fn what_if_answers_as_an_admission_would_and_commits_nothing() {
    let host = Host::with_machine(8, 2);
    let mut orm = host.start(&[]).await;
    let mut asker = Asker::of(&host);
    let before = orm.state().await;
    let step = |milli| DecisionStep {
        step: Some(Step::Admit(SandboxStep {
            sandbox_id: "x-1".into(),
            pod_uid: "x".into(),
            annotations: [("katalyst.kubewharf.io/qos_level".to_owned(), "dedicated_cores".to_owned())]
                .into(),
            class: "guaranteed".into(),
            milli_cpu: Some(milli),
            source: "sandbox-resources".into(),
            stage: "sandbox".into(),
            ..SandboxStep::default()
        })),
    };
    let ask = |milli| WhatIfRequest { step: Some(step(milli)) };
    let decision = asker.0.what_if(ask(2000)).await.unwrap().into_inner().decision.unwrap();
    assert_eq!(decision.outcome, "placed");
    let large = asker.0.what_if(ask(9000)).await.unwrap().into_inner().decision.unwrap();
    assert_eq!(large.refused.unwrap().reason, "insufficient");
    let after = orm.state().await;
    assert_eq!((before.generation, &before.pods), (after.generation, &after.pods));
    let reply = orm.admit(&sandbox("x", "dedicated_cores", Some(2048))).await;
    assert_eq!(placed(&reply).cpus, decision.chosen[0].cpus);
    // Neither question is remembered.
    let all = asker.wait_for("x", 1).await;
    assert_eq!(all.len(), 1);

    let release = Step::Release(ReleaseStep { pod_uid: "x".into(), sandbox_id: "x-1".into() });
    let request = WhatIfRequest { step: Some(DecisionStep { step: Some(release) }) };
    assert_eq!(asker.0.what_if(request).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn decisions_survive_a_restart_and_replay_byte_by_byte() {
    let host = Host::with_machine(8, 2);
    let mut orm = host.start(&[]).await;
    three_decisions(&mut orm).await;
    let mut asker = Asker::of(&host);
    asker.wait_for("large", 1).await;
    let before = asker.list("", false).await;
    let replay = asker.replays().await;
    assert!(replay.steps >= 3);
    assert!(replay.world.state.pods.contains_key("own"));
    drop(orm);
    let mut orm = host.start(&[]).await;
    let mut asker = Asker::of(&host);
    let after = asker.list("", false).await;
    assert_eq!(after[after.len() - before.len()..], before);
    orm.release("own", "own-1").await;
    placed(&orm.admit(&sandbox("next", "dedicated_cores", Some(2048))).await);
    asker.wait_for("next", 1).await;
    let replay = asker.replays().await;
    assert!(!replay.world.state.pods.contains_key("own") && replay.world.state.pods.contains_key("next"));
}

#[tokio::test]
async fn a_damaged_file_is_put_aside_and_what_is_sound_is_kept() {
    let host = Host::with_machine(8, 2);
    let mut orm = host.start(&[]).await;
    three_decisions(&mut orm).await;
    let mut asker = Asker::of(&host);
    asker.wait_for("large", 1).await;
    let count = asker.list("", false).await.len();
    drop(orm);
    let path = files(&host).pop().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 0xff;
    std::fs::write(&path, bytes).unwrap();
    let mut orm = host.start(&[]).await;
    assert!(files(&host).iter().any(|path| path.ends_with("damaged")));
    assert!(orm.status().await.unwrap().facts["decisions.fault"].contains("damaged"));
    let mut asker = Asker::of(&host);
    assert_eq!(asker.list("", false).await.len(), count - 1);
    asker.replays().await;
}

#[tokio::test]
async fn the_ring_stays_within_its_limits() {
    let host = Host::with_machine(8, 2);
    let mut orm =
        host.start(&["--set", "decisions_max_records=16", "--set", "decisions_max_bytes=65536"]).await;
    let mut asker = Asker::of(&host);
    for round in 0..40 {
        let uid = format!("p{round}");
        placed(&orm.admit(&sandbox(&uid, "dedicated_cores", Some(1024))).await);
        asker.wait_for(&uid, 1).await;
        assert!(orm.release(&uid, &format!("{uid}-1")).await);
    }
    let all = asker.list("", false).await;
    assert!(all.len() <= 16 && all.len() >= 8, "{}", all.len());
    let bytes: u64 = files(&host).iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(bytes <= 65536 + 1024, "{bytes} bytes");
    asker.replays().await;
}

#[tokio::test]
async fn without_its_folder_decisions_are_kept_in_memory_and_nothing_else_changes() {
    let host = Host::with_machine(8, 2);
    host.write("ledger/decisions", "in the way");
    let mut orm = host.start(&[]).await;
    three_decisions(&mut orm).await;
    let mut asker = Asker::of(&host);
    asker.wait_for("large", 1).await;
    assert!(orm.status().await.unwrap().facts["decisions.fault"].starts_with("kept in memory only"));
    asker.replays().await;
}
