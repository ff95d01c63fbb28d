//! States of the tasks of a container on cgroup v1: the kernel tells them by CGROUPSTATS over generic netlink, and nowhere else
//! (`Documentation/accounting/cgroupstats.rst`). Of cgroup v2 it refuses them.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oxalyst_cgroups::{CgroupPath, Hierarchy};
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use serde_json::json;

use super::apart::{Probe, Told};
use crate::clock::Clock;
use crate::store::Id;

/// `GENL_ID_CTRL`: the family that knows the others' numbers.
const CONTROL: u16 = 16;
/// `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_NAME`, `CTRL_ATTR_FAMILY_ID`.
const GET_FAMILY: u8 = 3;
const FAMILY_NAME: u16 = 2;
const FAMILY_ID: u16 = 1;
/// `CGROUPSTATS_CMD_GET`, `CGROUPSTATS_CMD_ATTR_FD`, `CGROUPSTATS_TYPE_CGROUP_STATS`.
const GET: u8 = 4;
const FOLDER: u16 = 1;
const STATS: u16 = 1;
/// `NLMSG_ERROR`, `NLM_F_REQUEST`.
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
/// `EINVAL`.
const NO_CGROUP: i32 = 22;
/// Of `struct nlmsghdr`, of `struct genlmsghdr`, of `struct nlattr`.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
const ATTRIBUTE: usize = 4;
/// What the kernel may take for one answer: it answers within the call, or not at all.
const PATIENCE: Duration = Duration::from_secs(1);

/// `struct cgroupstats`, of which sleeping and stopped tasks are nobody's metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskStates {
    /// Runnable.
    pub running: u64,
    /// In uninterruptible sleep.
    pub uninterruptible: u64,
    /// Waiting for I/O, by the kernel's own mark.
    pub iowait: u64,
}

/// Why an answer tells nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The kernel refuses.
    #[error("the kernel refuses: {}", io::Error::from_raw_os_error(*.0))]
    Refused(i32),
    /// It is no such answer.
    #[error("an answer of {0} bytes is not what was asked for")]
    Foreign(usize),
}

/// Asks the kernel about one container after another.
#[derive(Debug)]
pub struct CgroupStats {
    host_root: PathBuf,
    socket: Option<(OwnedFd, u16)>,
    asked: u32,
    /// This kernel has none.
    absent: bool,
}

// === impl CgroupStats ===

impl CgroupStats {
    /// Asks about containers below `<host_root>/sys/fs/cgroup`.
    pub fn new(host_root: &Path) -> Self {
        Self { host_root: host_root.to_path_buf(), socket: None, asked: 0, absent: false }
    }

    fn open(&mut self) -> Result<(OwnedFd, u16), String> {
        let ask = || -> io::Result<OwnedFd> {
            let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
            let socket = socket_with(family, SocketType::RAW, flags, Some(GENERIC))?;
            bind(&socket, &SocketAddrNetlink::new(0, 0))?;
            set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
            Ok(socket)
        };
        let socket = ask().map_err(|e| format!("no generic netlink here ({e})"))?;
        let answer = self
            .exchange(&socket, CONTROL, GET_FAMILY, (FAMILY_NAME, b"TASKSTATS\0"))
            .map_err(|e| e.to_string())?;
        let family = match attribute(&answer, FAMILY_ID) {
            Ok([low, high]) => Ok(u16::from_ne_bytes([low, high])),
            Err(AnswerError::Refused(_)) => {
                self.absent = true;
                Err("this kernel was built without CONFIG_TASKSTATS: it tells no states of tasks".to_owned())
            }
            Err(e) => Err(e.to_string()),
        };
        family.map(|family| (socket, family))
    }

    fn exchange(
        &mut self,
        socket: &OwnedFd,
        family: u16,
        command: u8,
        (name, value): (u16, &[u8]),
    ) -> io::Result<Vec<u8>> {
        self.asked = self.asked.wrapping_add(1);
        send(socket, &message(family, command, self.asked, name, value), SendFlags::empty())?;
        let mut answer = vec![0u8; 4096];
        loop {
            let (length, _) = recv(socket, answer.as_mut_slice(), RecvFlags::empty())?;
            let told = answer.get(..length).unwrap_or_default();
            // An answer to a question that was given up comes before its turn.
            if field(told, 8).map(u32::from_ne_bytes) == Some(self.asked) {
                return Ok(told.to_vec());
            }
        }
    }

    /// `None`: the folder is none of a cgroup v1, as in an imitated tree.
    fn ask(&mut self, folder: &File) -> Result<Option<TaskStates>, String> {
        let (socket, family) = match self.socket.take() {
            Some(open) => open,
            None => self.open()?,
        };
        let fd = folder.as_raw_fd().to_ne_bytes();
        // A socket that failed is closed: the next question opens another.
        let answer = self.exchange(&socket, family, GET, (FOLDER, &fd)).map_err(|e| e.to_string())?;
        self.socket = Some((socket, family));
        match parse(&answer) {
            Err(AnswerError::Refused(NO_CGROUP)) => Ok(None),
            other => other.map(Some).map_err(|e| e.to_string()),
        }
    }
}

impl Probe for CgroupStats {
    fn read(&mut self, containers: &[Arc<Id>], clock: &dyn Clock) -> Result<Told, String> {
        let mut told = Told::default();
        let hierarchy = match Hierarchy::detect(&self.host_root) {
            Ok(hierarchy) if !hierarchy.is_unified() && !self.absent => hierarchy,
            // On v2 there is nothing to be asked, and a machine without cgroups is another source's trouble.
            _ => return Ok(told),
        };
        let mount = hierarchy.any_mount().map_err(|e| e.to_string())?;
        if self.socket.is_none() && !containers.is_empty() {
            self.socket = match self.open() {
                Err(why) if self.absent => {
                    tracing::info!("{why}");
                    return Ok(told);
                }
                opened => Some(opened?),
            };
        }
        for id in containers {
            let at = clock.now();
            let folder = CgroupPath::new(&id.cgroup)
                .map_err(|e| e.to_string())
                .and_then(|path| File::open(path.under(mount)).map_err(|e| e.to_string()));
            match folder.and_then(|folder| self.ask(&folder)) {
                Ok(None) => {}
                Ok(Some(TaskStates { running, uninterruptible, iowait })) => {
                    let values = json!({
                        "task_nr_runnable": running,
                        "task_nr_unint": uninterruptible,
                        "task_nr_iowait": iowait,
                    });
                    told.answers.push((Arc::clone(id), at, values));
                }
                Err(why) => {
                    told.failed += 1;
                    told.failure.get_or_insert_with(|| format!("{}: {why}", id.cgroup).into());
                }
            }
        }
        Ok(told)
    }
}

/// A request with one attribute.
fn message(family: u16, command: u8, number: u32, name: u16, value: &[u8]) -> Vec<u8> {
    let attribute = ATTRIBUTE + value.len();
    let length = HEADER + GENERIC_HEADER + attribute.next_multiple_of(4);
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend([command, 1, 0, 0]);
    bytes.extend(u16::try_from(attribute).unwrap_or(u16::MAX).to_ne_bytes());
    bytes.extend(name.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length, 0);
    bytes
}

/// Understands the kernel's answer about one cgroup.
///
/// # Errors
/// [`AnswerError`], whatever the bytes are.
pub fn parse(answer: &[u8]) -> Result<TaskStates, AnswerError> {
    let stats: [u8; 40] = attribute(answer, STATS)?;
    let number = |place: usize| field(&stats, place * 8).map_or(0, u64::from_ne_bytes);
    // Sleeping, running, stopped, uninterruptible, waiting for I/O.
    Ok(TaskStates { running: number(1), uninterruptible: number(3), iowait: number(4) })
}

/// The beginning of an attribute of an answer.
fn attribute<const N: usize>(answer: &[u8], name: u16) -> Result<[u8; N], AnswerError> {
    let foreign = AnswerError::Foreign(answer.len());
    if field(answer, 4).map(u16::from_ne_bytes) == Some(ERROR) {
        let code = field(answer, HEADER).map(i32::from_ne_bytes).ok_or(foreign)?;
        return Err(AnswerError::Refused(code.saturating_neg()));
    }
    let mut rest = answer.get(HEADER + GENERIC_HEADER..).unwrap_or_default();
    while let (Some(length), Some(found)) = (field(rest, 0), field(rest, 2)) {
        let length = usize::from(u16::from_ne_bytes(length));
        if u16::from_ne_bytes(found) == name && length >= ATTRIBUTE + N {
            return field(rest, ATTRIBUTE).ok_or(foreign);
        }
        // A length that moves nothing on would be looked at for ever.
        rest = rest.get(length.max(ATTRIBUTE).next_multiple_of(4)..).unwrap_or_default();
    }
    Err(foreign)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(numbers: [u64; 5]) -> Vec<u8> {
        let value: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
        message(31, 5, 7, STATS, &value)
    }

    #[test]
    fn the_states_of_tasks_are_in_their_places() {
        let states = parse(&answer([90, 1, 2, 3, 4]));
        assert_eq!(states, Ok(TaskStates { running: 1, uninterruptible: 3, iowait: 4 }));
    }

    #[test]
    fn a_refusal_is_told_by_its_number() {
        let mut refused = message(ERROR, 0, 7, 0, &[]);
        refused.splice(HEADER..HEADER + 4, (-22i32).to_ne_bytes());
        assert_eq!(parse(&refused), Err(AnswerError::Refused(22)));
        assert!(parse(&refused).unwrap_err().to_string().contains("Invalid argument"));
    }

    #[test]
    fn half_an_answer_is_none() {
        let whole = answer([1; 5]);
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_err(), "{length} bytes");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics_nor_goes_on_for_ever(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..256)) {
            let _ = parse(&bytes);
        }
    }
}
