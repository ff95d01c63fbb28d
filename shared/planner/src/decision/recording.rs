//! Recordings: snapshots, and the steps that were planned on them, frame by frame.
//!
//! A frame is the length of its message and the CRC-32C of it, both as four bytes, the lowest first, and the message. The file
//! begins with a line of text that names it.

use super::{SnapshotError, StepError};
use oxalyst_proto::orm::v1::{RecordingEnd, RecordingFrame, RecordingHead, recording_frame::Frame};
use prost::Message as _;

/// The version that is written. Older ones are read, newer ones are not.
pub const VERSION: u32 = 1;

/// The line that a recording begins with.
const NAME: &[u8] = b"oxalyst recording\n";
const HEAD: usize = 8;
/// A frame is never longer: a snapshot of thousands of pods is a hundredth of it.
const LONGEST: usize = 256 << 20;

/// A recording that is whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Who wrote it.
    pub written_by: String,
    /// Snapshots and steps, as they came.
    pub frames: Vec<Frame>,
}

/// A recording that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// Another file.
    #[error("this is no recording: it does not begin with the line \"oxalyst recording\"")]
    Foreign,
    /// Of a later version.
    #[error(
        "the recording has version {found} (written by {by}) and this program reads versions up to {VERSION}: use a newer program"
    )]
    Newer {
        /// Its version.
        found: u32,
        /// Who wrote it.
        by: String,
    },
    /// It ends too early.
    #[error("the recording is cut off after {offset} bytes ({frames} whole frames): copy or record it again")]
    Truncated {
        /// Where.
        offset: usize,
        /// Frames before.
        frames: usize,
    },
    /// Its bytes have changed.
    #[error("the recording is damaged at byte {offset} (frame {frame}): copy or record it again")]
    Damaged {
        /// Where.
        offset: usize,
        /// Which frame, counting from 0.
        frame: usize,
    },
    /// A step comes before any snapshot.
    #[error("step {0} of the recording has no state that it was planned on")]
    Nowhere(u64),
    /// No snapshot at all.
    #[error("the recording holds no state")]
    Empty,
    /// A snapshot that cannot be understood.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A step that cannot be understood.
    #[error("step {number}: {source}")]
    Step {
        /// Which.
        number: u64,
        /// What is wrong with it.
        source: StepError,
    },
}

/// A frame as bytes.
pub fn encode_frame(frame: Frame) -> Vec<u8> {
    let message = RecordingFrame { frame: Some(frame) }.encode_to_vec();
    let mut bytes = Vec::with_capacity(HEAD + message.len());
    bytes.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(crc32c::crc32c(&message).to_le_bytes());
    bytes.extend(message);
    bytes
}

/// How a recording begins.
pub fn opening(written_by: &str) -> Vec<u8> {
    let head = RecordingHead { version: VERSION, written_by: written_by.to_owned() };
    [NAME, &encode_frame(Frame::Head(head))].concat()
}

/// The sound frames from the beginning on, with where each ends, and what comes after them if that is no whole frame.
pub fn decode_frames(bytes: &[u8]) -> (Vec<(Frame, usize)>, Option<RecordingError>) {
    let Some(mut rest) = bytes.strip_prefix(NAME) else {
        let cut = !bytes.is_empty() && NAME.starts_with(bytes);
        let error = if cut {
            RecordingError::Truncated { offset: bytes.len(), frames: 0 }
        } else {
            RecordingError::Foreign
        };
        return (Vec::new(), Some(error));
    };
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let offset = bytes.len() - rest.len();
        let short = || RecordingError::Truncated { offset, frames: frames.len() };
        let damaged = || RecordingError::Damaged { offset, frame: frames.len() };
        let Some((length, after)) = rest.split_first_chunk::<4>() else {
            return (frames.clone(), Some(short()));
        };
        let Some((crc, after)) = after.split_first_chunk::<4>() else {
            return (frames.clone(), Some(short()));
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > LONGEST {
            let error = damaged();
            return (frames, Some(error));
        }
        let Some((message, after)) = after.split_at_checked(length) else {
            let error = short();
            return (frames, Some(error));
        };
        let frame = RecordingFrame::decode(message).ok().and_then(|frame| frame.frame);
        let (true, Some(frame)) = (crc32c::crc32c(message) == u32::from_le_bytes(*crc), frame) else {
            let error = damaged();
            return (frames, Some(error));
        };
        rest = after;
        frames.push((frame, bytes.len() - rest.len()));
    }
    (frames, None)
}

// === impl Recording ===

impl Recording {
    /// A recording of these frames, whole.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = opening(&self.written_by);
        for frame in &self.frames {
            bytes.extend(encode_frame(frame.clone()));
        }
        let frames = self.frames.len() as u64;
        bytes.extend(encode_frame(Frame::End(RecordingEnd { frames, ..RecordingEnd::default() })));
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote, or the same told frame by frame.
    ///
    /// # Errors
    /// It is no recording, of a later version, cut off, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordingError> {
        let (frames, fault) = decode_frames(bytes);
        let mut frames = frames.into_iter().map(|(frame, _)| frame);
        // A later version may have frames that cannot be understood: it is said that it is later.
        let written_by = match frames.next() {
            Some(Frame::Head(head)) if head.version > VERSION => {
                return Err(RecordingError::Newer { found: head.version, by: head.written_by });
            }
            Some(Frame::Head(head)) => head.written_by,
            Some(_) => return Err(RecordingError::Damaged { offset: NAME.len(), frame: 0 }),
            None => return Err(fault.unwrap_or(RecordingError::Truncated { offset: bytes.len(), frames: 0 })),
        };
        if let Some(fault) = fault {
            return Err(fault);
        }
        let mut frames: Vec<Frame> = frames.collect();
        let whole = frames.len().saturating_sub(1) as u64;
        match frames.pop() {
            Some(Frame::End(end)) if end.frames == whole => Ok(Self { written_by, frames }),
            _ => Err(RecordingError::Truncated { offset: bytes.len(), frames: frames.len() }),
        }
    }
}
