//! The ring's files: a segment a file, named by its number.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use oxalyst_planner::decision::{RecordingError, VERSION, decode_frames, encode_frame, opening};
use oxalyst_proto::orm::v1::recording_frame::Frame;

use super::segment::Segment;

/// Where a damaged file is put, in place of the one before it.
const DAMAGED: &str = "damaged";

/// The folder.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
}

/// What was found in the folder.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Sound segments, the oldest first.
    pub(super) segments: Vec<Segment>,
    /// What was wrong with others, a line each.
    pub(super) faults: Vec<String>,
    /// Number of the newest file.
    pub(super) newest: u64,
}

// === impl Files ===

impl Files {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:010}"))
    }

    /// Reads all of it. A file that ends in the middle of a frame, as after a power cut, is cut to its whole frames; a damaged one
    /// is put aside and what is sound of it written anew; one of a later version is put aside.
    pub(super) fn read(&self) -> io::Result<Found> {
        fs::create_dir_all(&self.dir)?;
        let mut numbers: Vec<u64> = fs::read_dir(&self.dir)?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let mut found = Found { newest: numbers.last().copied().unwrap_or(0), ..Found::default() };
        for number in numbers {
            let path = self.path(number);
            match self.read_one(number, &path) {
                Ok((Some(segment), None)) if segment.steps == 0 => self.remove(number)?,
                Ok((segment, fault)) => {
                    found.segments.extend(segment.filter(|segment| segment.steps > 0));
                    found.faults.extend(fault.map(|fault| format!("{}: {fault}", path.display())));
                }
                Err(error) => found.faults.push(format!("{}: {error}", path.display())),
            }
        }
        Ok(found)
    }

    fn read_one(&self, number: u64, path: &Path) -> io::Result<(Option<Segment>, Option<RecordingError>)> {
        let bytes = fs::read(path)?;
        let (frames, fault) = decode_frames(&bytes);
        let mut sound = frames.into_iter();
        match sound.next() {
            Some((Frame::Head(head), _)) if head.version > VERSION => {
                self.put_aside(path)?;
                return Ok((None, Some(RecordingError::Newer { found: head.version, by: head.written_by })));
            }
            Some((Frame::Head(_), _)) => {}
            _ => {
                self.put_aside(path)?;
                return Ok((None, fault.or(Some(RecordingError::Empty))));
            }
        }
        let mut segment = Segment::new(number);
        for (frame, _) in sound {
            segment.push(frame);
        }
        match fault {
            None => Ok((Some(segment), None)),
            Some(RecordingError::Truncated { .. }) => {
                self.write_anew(&segment)?;
                Ok((Some(segment), None))
            }
            Some(fault) => {
                self.put_aside(path)?;
                self.write_anew(&segment)?;
                Ok((Some(segment), Some(fault)))
            }
        }
    }

    fn put_aside(&self, path: &Path) -> io::Result<()> {
        fs::rename(path, self.dir.join(DAMAGED))
    }

    fn write_anew(&self, segment: &Segment) -> io::Result<()> {
        let mut file = self.create(segment.number)?;
        segment.frames.iter().try_for_each(|frame| file.write_all(&encode_frame(frame.clone())))
    }

    /// An empty segment's file.
    pub(super) fn create(&self, number: u64) -> io::Result<File> {
        fs::create_dir_all(&self.dir)?;
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(self.path(number))?;
        file.write_all(&opening(concat!("orm ", env!("CARGO_PKG_VERSION"))))?;
        Ok(file)
    }

    pub(super) fn remove(&self, number: u64) -> io::Result<()> {
        match fs::remove_file(self.path(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
