//! The operator's questions after the allocator's reasons, by the real command, of the real services, on an imitated runtime.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use integration::imitation::{CgroupLayout, Imitation, MachineLayout, RuntimeOptions, Setup};
use integration::mesh::Mesh;
use integration::runtime::{PodSpec, Runtime as _, poll_until};
use integration::scenarios::{World, refusal};
use oxalyst_planner::decision::{Recording, encode_frame, opening};
use oxalyst_proto::orm::v1::{RecordingHead, recording_frame::Frame};
use serde_json::Value;

const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: db
  namespace: prod
  annotations:
    katalyst.kubewharf.io/qos_level: dedicated_cores
    katalyst.kubewharf.io/memory_enhancement: '{\"numa_binding\": \"true\"}'
spec:
  containers:
  - name: server
    resources: {requests: {cpu: 2, memory: 1Gi}, limits: {cpu: 2, memory: 1Gi}}
";

/// `oxctl` with its exit code.
struct Said {
    code: i32,
    out: String,
    err: String,
}

fn oxctl(folder: &Path, arguments: &[&str]) -> Said {
    let program = Mesh::binaries().unwrap().join("oxctl");
    let mut command = Command::new(program);
    command.env("OXALYST_RUN_DIR", folder.join("run")).current_dir(folder).args(arguments);
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let said = oxctl(folder, &[arguments, &["-o", "json"]].concat());
    serde_json::from_str(&said.out)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}{}", said.out, said.err))
}

/// Decisions are written behind: asks until there is an answer that will do.
async fn told(folder: &Path, arguments: &[&str], will_do: impl Fn(&Said) -> bool) -> Said {
    let answer = poll_until(Duration::from_secs(20), async || {
        let said = oxctl(folder, arguments);
        if will_do(&said) { Ok(said) } else { Err(format!("{}: {}{}", said.code, said.out, said.err)) }
    });
    answer.await.unwrap_or_else(|last| panic!("{arguments:?}: {last}"))
}

fn setup() -> Setup {
    Setup {
        machine: MachineLayout::two_sockets(4),
        cgroups: CgroupLayout::V2,
        options: RuntimeOptions::default(),
    }
}

#[tokio::test]
async fn what_was_decided_is_explained_asked_again_recorded_and_replayed() {
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let folder = folder.path();
    let runtime = Imitation::start(folder, setup()).await.unwrap();
    let mut world = World::start(folder, runtime).await;
    world.refuses_at_sandboxes().await;
    world.run("web", "shared_cores", 200).await;
    let own = world.run("db", "dedicated_cores", 2000).await;
    let message = refusal(world.runtime.run_pod(&PodSpec::new("huge", "dedicated_cores", 99_000)).await);

    is_explained(folder, &world, &own.pod, &message).await;
    is_asked_again(folder, &world).await;
    is_recorded_and_replayed(folder, &mut world, &own.pod).await;
    what_cannot_be_told_is_said(folder, &mut world).await;

    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}

async fn is_explained(folder: &Path, world: &World<Imitation>, own: &PodSpec, message: &str) {
    let placed = world.placement(own).await.unwrap();
    let page = told(folder, &["explain", "default/db"], |said| said.code == 0).await.out;
    for part in [
        "pod default/db (uid ",
        "dedicated_cores",
        "2 CPUs (told by sandbox-resources)",
        "NUMA node 0: ",
        " took ",
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    assert!(page.contains(&format!("CPUs {} (its own)", placed.cpus)), "{}\n{page}", placed.cpus);
    assert!(page.contains("  others    default/web: CPUs "), "{page}");
    let told_json = json(folder, &["explain", &own.uid]);
    let decision = &told_json["decisions"][0]["decision"];
    assert_eq!(decision["chosen"][0]["cpus"], placed.cpus);
    assert_eq!(decision["chosen"][0]["mems"], placed.mems);

    let refused = told(folder, &["explain", "--refused"], |said| said.out.contains("default/huge")).await.out;
    assert!(refused.contains("insufficient") && refused.contains("cpu-room"), "{refused}");
    let refused = json(folder, &["explain", "default/huge"]);
    let told = refused["decisions"][0]["decision"]["refused"]["message"].as_str().unwrap();
    assert!(message.contains(told), "the runtime said {message}, and it is explained as {told}");
    let free = refused["decisions"][0]["decision"]["free"].as_array().unwrap();
    let free: u64 = free.iter().map(|node| node["count"].as_u64().unwrap()).sum();
    assert_eq!(free, world.online().len() as u64 - 2);

    let all = oxctl(folder, &["explain", "default/web", "--all"]).out;
    assert!(all.contains("pod default/web") && all.contains("pod default/db"), "{all}");
}

async fn is_asked_again(folder: &Path, world: &World<Imitation>) {
    let before = world.state().await;
    let fits = oxctl(folder, &["what-if", "--qos", "dedicated", "--cpu", "1", "--memory", "1Gi"]);
    assert_eq!(fits.code, 0, "{}{}", fits.out, fits.err);
    assert!(fits.out.contains("admit placed") && fits.out.contains("(its own)"), "{}", fits.out);
    let large = oxctl(folder, &["what-if", "--qos", "dedicated_cores", "--cpu", "99"]);
    assert_eq!(large.code, 1, "{}", large.out);
    assert!(
        large.out.contains("refused (insufficient)") && large.out.contains("NUMA node 0"),
        "{}",
        large.out
    );
    std::fs::write(folder.join("pod.yaml"), POD).unwrap();
    let pod = json(folder, &["what-if", "-f", "pod.yaml"]);
    let decision = &pod["decisions"][0]["decision"];
    assert_eq!(decision["outcome"], "placed");
    assert_eq!(decision["placed_by"], "dedicated-numa-bound");
    assert_eq!(decision["chosen"][0]["container"], "server");
    assert_eq!(decision["asked"]["class"], "guaranteed");
    assert_eq!(world.state().await, before, "generation, pods and pools are as they were");
}

async fn is_recorded_and_replayed(folder: &Path, world: &mut World<Imitation>, own: &PodSpec) {
    let said = oxctl(folder, &["record", "one.rec"]);
    assert_eq!(said.code, 0, "{}", said.err);
    let again = oxctl(folder, &["record", "one.rec"]);
    assert!(again.code == 2 && again.err.contains("is there already"), "{}", again.err);
    let same = oxctl(folder, &["replay", "one.rec"]);
    assert!(same.code == 0 && same.out.contains(" 0 differ"), "{}{}", same.out, same.err);
    let live = json(folder, &["what-if", "-f", "pod.yaml"]);

    world.mesh.kill("orm").await.unwrap();
    let offline = json(folder, &["what-if", "-f", "pod.yaml", "--recorded", "one.rec"]);
    let choice = |answer: &Value| answer["decisions"][0]["decision"]["chosen"].clone();
    assert_eq!(choice(&offline), choice(&live));
    let nobody = oxctl(folder, &["explain", "default/db"]);
    assert!(nobody.code == 2 && nobody.err.contains("orm does not listen"), "{}", nobody.err);
    world.mesh.start("orm").unwrap();
    world.mesh.ready("orm").await.unwrap();
    world.connected(true).await;

    let kept = json(folder, &["explain", &own.uid]);
    assert_eq!(kept["decisions"][0]["decision"]["outcome"], "placed", "{kept}");
    let late = world.run("late", "dedicated_cores", 1000).await;
    told(folder, &["explain", &late.pod.uid], |said| said.code == 0).await;
    assert_eq!(oxctl(folder, &["record", "two.rec"]).code, 0);
    let same = oxctl(folder, &["replay", "two.rec"]);
    assert!(same.code == 0 && same.out.contains(" 0 differ"), "{}{}", same.out, same.err);
}

async fn what_cannot_be_told_is_said(folder: &Path, world: &mut World<Imitation>) {
    let unknown = oxctl(folder, &["explain", "default/nobody"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("no decision about pod default/nobody is kept"), "{}", unknown.err);

    let bytes = std::fs::read(folder.join("one.rec")).unwrap();
    std::fs::write(folder.join("cut.rec"), &bytes[..bytes.len() - 20]).unwrap();
    let cut = oxctl(folder, &["replay", "cut.rec"]);
    assert!(cut.code == 2 && cut.err.contains("cut off"), "{}", cut.err);
    let name: Vec<u8> = opening("").into_iter().take_while(|byte| *byte != b'\n').chain([b'\n']).collect();
    let head = Frame::Head(RecordingHead { version: 9, written_by: "orm 9.0.0".into() });
    std::fs::write(folder.join("newer.rec"), [name, encode_frame(head)].concat()).unwrap();
    let newer = oxctl(folder, &["what-if", "--recorded", "newer.rec", "--cpu", "1"]);
    assert!(newer.code == 2 && newer.err.contains("version 9 (written by orm 9.0.0)"), "{}", newer.err);
    let foreign = oxctl(folder, &["replay", "pod.yaml"]);
    assert!(foreign.code == 2 && foreign.err.contains("no recording"), "{}", foreign.err);

    let mut other = Recording::decode(&bytes).unwrap();
    let step = other.frames.iter_mut().find_map(|frame| match frame {
        Frame::Step(step) if step.decision.as_ref().is_some_and(|told| !told.chosen.is_empty()) => Some(step),
        _ => None,
    });
    step.unwrap().decision.as_mut().unwrap().chosen[0].cpus = "0-99".into();
    std::fs::write(folder.join("other.rec"), other.encode()).unwrap();
    let differs = oxctl(folder, &["replay", "other.rec"]);
    assert_eq!(differs.code, 1, "{}", differs.out);
    assert!(differs.out.contains(" 1 differ") && differs.out.contains("CPUs 0-99"), "{}", differs.out);
    assert_eq!(json(folder, &["replay", "other.rec"])["differing"].as_array().unwrap().len(), 1);

    let wrong = oxctl(folder, &["what-if", "--cpu", "many"]);
    assert!(wrong.code == 2 && wrong.err.contains("no quantity of CPU"), "{}", wrong.err);
    world.state().await;
}
