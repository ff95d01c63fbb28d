//! Recordings as files.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use oxalyst_planner::decision::{Recording, RecordingError};

/// A file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordedError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is there already: name another file, or remove it", .0.display())]
    Exists(PathBuf),
    #[error("writing {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Recording { path: PathBuf, source: RecordingError },
}

pub(crate) fn read(path: &Path) -> Result<Recording, RecordedError> {
    let bytes =
        std::fs::read(path).map_err(|source| RecordedError::Read { path: path.to_owned(), source })?;
    Recording::decode(&bytes).map_err(|source| wrong(path, source))
}

/// Writes a file that is not there yet: a recording is worth keeping.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), RecordedError> {
    let failed = |source| RecordedError::Write { path: path.to_owned(), source };
    let mut file =
        OpenOptions::new().write(true).create_new(true).open(path).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => RecordedError::Exists(path.to_owned()),
            _ => failed(source),
        })?;
    file.write_all(bytes).and_then(|()| file.sync_data()).map_err(failed)
}

pub(crate) fn wrong(path: &Path, source: RecordingError) -> RecordedError {
    RecordedError::Recording { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;
    use oxalyst_planner::decision::{
        Given, Replay, Step, decide, encode_frame, line, opening, page, snapshot,
    };
    use oxalyst_planner::pods::{Rules, State};
    use oxalyst_proto::orm::v1::{
        DecisionEntry, RecordedStep, RecordingEnd, RecordingFrame, StateSnapshot, recording_frame::Frame,
    };
    use oxalyst_topology::{Cpu, CpuSet, Machine};
    use proptest::prelude::*;
    use prost::Message as _;

    fn pod(name: &str, level: &str, cpu: &str) -> Step {
        let text = format!(
            "{{kind: Pod, metadata: {{name: {name}, annotations: {{katalyst.kubewharf.io/qos_level: {level},
            katalyst.kubewharf.io/memory_enhancement: '{{\"numa_binding\": \"true\"}}'}}}},
            spec: {{containers: [{{name: a, resources: {{requests: {{cpu: {cpu}, memory: 1Gi}}}}}}]}}}}"
        );
        let mut pod = Manifest::read(&text).unwrap().request(7).unwrap();
        pod.uid = name.to_owned();
        pod.sandbox_id = format!("{name}-1");
        Step::AdmitSpec(pod)
    }

    /// Of a node with eight CPUs to which pods came.
    fn sample() -> Vec<Frame> {
        let cpus = (0..8).map(|id| Cpu { id, core: id / 2 * 2, socket: 0, numa: id / 4, l3: None });
        let machine = Machine::from_rows(cpus.collect(), &[]).unwrap();
        let rules = Rules::default();
        let mut state = State::new(&machine, CpuSet::new());
        let mut frames = vec![Frame::Snapshot(snapshot(&state, &machine, &rules))];
        let steps = [
            pod("one", "dedicated_cores", "2"),
            pod("two", "shared_cores", "500m"),
            pod("three", "dedicated_cores", "3"),
            Step::Release { uid: "one".into(), sandbox_id: "one-1".into() },
            pod("four", "dedicated_cores", "9"),
            pod("five", "system_cores", "1"),
        ];
        for (number, step) in (1..).zip(steps) {
            let given = Given {
                state: &state,
                machine: &machine,
                rules: &rules,
                generation: number,
                overruled: None,
            };
            let decided = decide(given, &step);
            let (step, decision) = (Some(step.encode()), Some(decided.decision));
            frames.push(Frame::Step(RecordedStep {
                number,
                generation: number,
                step,
                decision,
                ..RecordedStep::default()
            }));
            state = decided.plan.map_or(state, |plan| plan.after);
        }
        frames.push(Frame::Snapshot(snapshot(&state, &machine, &rules)));
        frames
    }

    /// All that is done with a recording; gives whether it could be used.
    fn used(bytes: &[u8]) -> Result<Replay, RecordingError> {
        let replay = Replay::of(&Recording::decode(bytes)?)?;
        for asked in [pod("new", "dedicated_cores", "1"), pod("other", "shared_cores", "100")] {
            let given = Given {
                state: &replay.world.state,
                machine: &replay.world.machine,
                rules: &replay.world.rules,
                generation: replay.generation,
                overruled: None,
            };
            let decided = decide(given, &asked);
            let _ = line(&decided.decision);
            let entry = DecisionEntry { decision: Some(decided.decision), ..DecisionEntry::default() };
            let _ = page(&entry, &|_| String::new());
        }
        Ok(replay)
    }

    fn whole(frames: Vec<Frame>) -> Vec<u8> {
        Recording { written_by: "a hand".into(), frames }.encode()
    }

    /// A message of which bytes were changed, in a frame whose length and checksum are right; what no message is stays as it was.
    fn resealed(frame: &Frame, harm: impl FnOnce(&mut Vec<u8>)) -> Frame {
        let mut message = RecordingFrame { frame: Some(frame.clone()) }.encode_to_vec();
        harm(&mut message);
        let read = RecordingFrame::decode(&message[..]).ok().and_then(|read| read.frame);
        read.unwrap_or_else(|| frame.clone())
    }

    #[test]
    fn the_sample_is_sound() {
        let replay = used(&whole(sample())).unwrap();
        assert_eq!((replay.steps, replay.differences), (6, vec![]));
    }

    #[test]
    fn what_no_node_is_is_an_error() {
        let state = |change: fn(&mut StateSnapshot)| {
            let mut frames = sample();
            for frame in &mut frames {
                if let Frame::Snapshot(snapshot) = frame {
                    change(snapshot);
                }
            }
            used(&whole(frames)).unwrap_err().to_string()
        };
        for error in [
            state(|all| all.reserved = "0-4294967295".into()),
            state(|all| all.reserved = "3-1".into()),
            state(|all| all.machine = None),
            state(|all| all.rules = None),
            state(|all| all.records.values_mut().for_each(|record| *record = vec![0xff; 40])),
        ] {
            assert!(error.contains("snapshot"), "{error}");
        }
        let nowhere = sample().split_off(1);
        assert!(
            used(&whole(nowhere)).unwrap_err().to_string().contains("has no state that it was planned on")
        );
        assert!(used(&whole(Vec::new())).is_err());
        assert!(used(&opening("a hand")).is_err());
        let end = encode_frame(Frame::End(RecordingEnd { frames: u64::MAX, ..RecordingEnd::default() }));
        assert!(used(&[opening("a hand"), end].concat()).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]

        #[test]
        fn whatever_happens_to_its_bytes_it_is_used_whole_or_not_at_all(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
            tail in prop::collection::vec(any::<u8>(), 0..30),
        ) {
            let sound = whole(sample());
            let mut bytes = sound.clone();
            bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(sound.len())));
            bytes.extend(tail);
            for (at, value) in changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                }
            }
            prop_assert_eq!(used(&bytes).is_ok(), bytes == sound);
        }

        #[test]
        fn whatever_a_hand_has_made_of_it_it_is_used_or_an_error(
            changes in prop::collection::vec(
                (any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(0), Just(1), Just(0x7f), Just(0xff)]), 1..5,
            ),
        ) {
            let mut frames = sample();
            for (which, at, value) in changes {
                let which = which.index(frames.len());
                frames[which] = resealed(&frames[which], |message| {
                    let at = at.index(message.len());
                    message[at] = value;
                });
            }
            let _ = used(&whole(frames));
        }
    }
}
