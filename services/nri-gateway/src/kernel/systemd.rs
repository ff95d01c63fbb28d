//! systemd, told what was written to a unit's cpuset: once it was told another by anybody, it writes that back whenever the unit
//! is changed.

mod message;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oxalyst_cgroups::{CgroupPath, Driver};
use oxalyst_topology::CpuSet;
use tokio::sync::Semaphore;

use crate::placements::Cpuset;
use crate::roster::Check;

use message::{Call, Reply};

/// For each read and each write. systemd is on this machine.
const PATIENCE: Duration = Duration::from_millis(500);

/// Signals and such that may come before our answer.
const STRAY: usize = 64;

/// Longest answer that is read.
const LONGEST: usize = 1 << 20;

/// The way to systemd, and what it is still to be told. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Systemd {
    /// The system's bus, where a greeting is due.
    bus: PathBuf,
    /// systemd's own socket, where there is no bus.
    private: PathBuf,
    /// By container.
    untold: Arc<Mutex<BTreeMap<String, Untold>>>,
    /// Held by whoever tells: one at a time, so that a systemd that hangs costs one thread.
    telling: Arc<Semaphore>,
}

/// What was written to a unit and not told yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Untold {
    unit: String,
    cpuset: Cpuset,
    /// Why not, once it was tried.
    why: Option<String>,
}

/// Why systemd does not know.
#[derive(Debug, thiserror::Error)]
pub(super) enum SystemdError {
    /// The socket did not do its part.
    #[error("systemd cannot be told of {unit} over {socket}: {source}")]
    Io {
        /// The unit.
        unit: String,
        /// The socket.
        socket: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// It answered with an error.
    #[error(
        "systemd does not take {unit}'s CPUs and memory nodes: {said}; it may undo them when the unit is changed"
    )]
    Refused {
        /// The unit.
        unit: String,
        /// Its words.
        said: String,
    },
}

// === impl Systemd ===

impl Systemd {
    /// Below the root of the host.
    pub(super) fn new(host_root: &Path) -> Self {
        Self {
            bus: host_root.join("run/dbus/system_bus_socket"),
            private: host_root.join("run/systemd/private"),
            untold: Arc::default(),
            telling: Arc::new(Semaphore::new(1)),
        }
    }

    /// A container's files were written: if it is a unit, systemd is to be told.
    pub(super) fn note(&self, check: &Check) {
        let (Ok((path, Driver::Systemd)), Some(wanted)) =
            (CgroupPath::of_container(&check.cgroups_path).map(of_systemd), &check.wanted)
        else {
            return;
        };
        let unit = path.as_str().rsplit('/').next().unwrap_or_default().to_owned();
        tracing::debug!(%unit, cpus = %wanted.cpus, mems = %wanted.mems, "systemd is to be told");
        let untold = Untold { unit, cpuset: wanted.clone(), why: None };
        self.untold().insert(check.container_id.clone(), untold);
    }

    /// The container is gone, and its unit with it.
    pub(super) fn forget(&self, container_id: &str) {
        self.untold().remove(container_id);
    }

    /// What was noted is told only while it is what is wanted: otherwise somebody else has the word.
    pub(super) fn forget_outdated(&self, check: &Check) {
        let mut untold = self.untold();
        let wanted = check.wanted.clone().unwrap_or_default();
        let is_other = |told: &str, wanted: &str| !told.is_empty() && told != wanted;
        if untold.get(&check.container_id).is_some_and(|told| {
            is_other(&told.cpuset.cpus, &wanted.cpus) || is_other(&told.cpuset.mems, &wanted.mems)
        }) {
            tracing::debug!(container = %check.container_id, wanted = ?check.wanted, "what systemd was to be told is outdated");
            untold.remove(&check.container_id);
        }
    }

    /// Why systemd does not know yet what was written, if it was tried.
    pub(super) fn why_untold(&self, container_id: &str) -> Option<String> {
        self.untold().get(container_id)?.why.clone()
    }

    /// Tells what is due, on a thread that may block, and waits for nothing. What fails is due again.
    pub(super) fn tell_later(&self) {
        if self.untold().is_empty() {
            return;
        }
        let Ok(turn) = self.telling.clone().try_acquire_owned() else { return };
        let this = self.clone();
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let due = this.untold().clone();
            for (id, told) in due {
                let outcome = this.allow(&told.unit, &told.cpuset.cpus, &told.cpuset.mems);
                tracing::debug!(unit = %told.unit, cpus = %told.cpuset.cpus, mems = %told.cpuset.mems, ?outcome, "systemd was told");
                let mut untold = this.untold();
                // Something else may have been written meanwhile.
                if untold.get(&id) != Some(&told) {
                    continue;
                }
                match outcome {
                    Ok(()) => {
                        untold.remove(&id);
                    }
                    Err(e) => {
                        untold.insert(id, Untold { why: Some(e.to_string()), ..told });
                    }
                }
            }
        });
    }

    fn untold(&self) -> MutexGuard<'_, BTreeMap<String, Untold>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells it what this unit (a scope or a slice) may use, until the machine's next start. Where there is no systemd, nothing.
    ///
    /// # Errors
    /// [`SystemdError`]; the kernel's files stand as they were written.
    pub(super) fn allow(&self, unit: &str, cpus: &str, mems: &str) -> Result<(), SystemdError> {
        let (socket, greets) = match (self.bus.exists(), self.private.exists()) {
            (true, _) => (&self.bus, true),
            (false, true) => (&self.private, false),
            (false, false) => return Ok(()),
        };
        let mut properties = Vec::new();
        for (name, list) in [("AllowedCPUs", cpus), ("AllowedMemoryNodes", mems)] {
            if let Ok(set) = list.parse::<CpuSet>()
                && !set.is_empty()
            {
                properties.push((name, mask(&set)));
            }
        }
        if properties.is_empty() {
            return Ok(());
        }
        let told = tell(socket, greets, &Call::set_unit_properties(unit, &properties));
        match told {
            Ok(Reply::Done) => Ok(()),
            Ok(Reply::Refused(said)) => Err(SystemdError::Refused { unit: unit.to_owned(), said }),
            Err(source) => Err(SystemdError::Io { unit: unit.to_owned(), socket: socket.clone(), source }),
        }
    }
}

/// A path that was found in the tree tells its driver by its last name.
fn of_systemd((path, driver): (CgroupPath, Driver)) -> (CgroupPath, Driver) {
    let is_unit = [".scope", ".slice"].iter().any(|end| path.as_str().ends_with(end));
    let driver = if is_unit { Driver::Systemd } else { driver };
    (path, driver)
}

/// One connection, one call.
fn tell(socket: &Path, greets: bool, call: &Call) -> io::Result<Reply> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    // The kernel tells the other end who we are; the number only has to agree with it.
    let uid = std::fs::metadata("/proc/self")?.uid().to_string();
    let hex: String = uid.bytes().map(|b| format!("{b:02x}")).collect();
    writer.write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes())?;
    let mut line = String::new();
    reader.by_ref().take(1_024).read_line(&mut line)?;
    if !line.starts_with("OK") {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("it answers {:?}", line.trim())));
    }
    writer.write_all(b"BEGIN\r\n")?;
    if greets {
        writer.write_all(&Call::hello().encode(1))?;
        if let Reply::Refused(said) = answer(&mut reader, 1)? {
            return Ok(Reply::Refused(said));
        }
    }
    writer.write_all(&call.encode(2))?;
    answer(&mut reader, 2)
}

/// The answer to the call with this serial; anything else is passed over.
fn answer(reader: &mut impl Read, serial: u32) -> io::Result<Reply> {
    for _ in 0..STRAY {
        let mut head = [0u8; 16];
        reader.read_exact(&mut head)?;
        let rest = message::rest(&head).filter(|rest| *rest <= LONGEST);
        let rest = rest.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it speaks no D-Bus"))?;
        let mut body = vec![0u8; rest];
        reader.read_exact(&mut body)?;
        if let Some(reply) = message::reply(&head, &body, serial) {
            return Ok(reply);
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it does not come to the answer"))
}

/// A set as systemd takes it: a bit each, the lowest byte first.
fn mask(set: &CpuSet) -> Vec<u8> {
    let mut bytes: Vec<u8> = set.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::process::{Child, Command};
    use std::time::Instant;

    #[test]
    fn sets_are_bits_with_the_lowest_byte_first() {
        assert_eq!(mask(&"0,9".parse().unwrap()), [1, 2]);
        assert_eq!(mask(&"64".parse().unwrap()), [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn without_systemd_there_is_nothing_to_tell() {
        let dir = tempfile::tempdir().unwrap();
        Systemd::new(dir.path()).allow("a.scope", "0-1", "0").unwrap();
    }

    /// systemd's own socket: takes the authentication and one call, gives the call's bytes.
    fn imitation(dir: &Path) -> std::thread::JoinHandle<Vec<u8>> {
        let path = dir.join("run/systemd/private");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            assert!(line.starts_with("\0AUTH EXTERNAL 3"), "{line:?}");
            stream.write_all(b"OK 1234\r\n").unwrap();
            line.clear();
            reader.read_line(&mut line).unwrap();
            assert_eq!(line, "BEGIN\r\n");
            let mut head = [0u8; 16];
            reader.read_exact(&mut head).unwrap();
            let mut body = vec![0u8; message::rest(&head).unwrap()];
            reader.read_exact(&mut body).unwrap();
            stream.write_all(&message::tests::done(2)).unwrap();
            [head.to_vec(), body].concat()
        })
    }

    #[test]
    fn a_unit_is_allowed_its_cpus_and_memory_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let systemd = imitation(dir.path());
        Systemd::new(dir.path()).allow("cri-containerd-1.scope", "0,9", "0").unwrap();
        let call = systemd.join().unwrap();
        let has = |bytes: &[u8]| call.windows(bytes.len()).any(|window| window == bytes);
        assert!(has(b"SetUnitProperties\0") && has(b"cri-containerd-1.scope\0"));
        assert!(
            has(b"\x0b\0\0\0AllowedCPUs\0\x02ay\0\0\0\0\0\x02\0\0\0\x01\x02") || has(b"\x02\0\0\0\x01\x02")
        );
        assert!(has(b"AllowedMemoryNodes\0"));
    }

    /// A bus of our own, ended when this is dropped.
    struct Bus(Child);

    impl Drop for Bus {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_real_bus_takes_our_words_and_says_that_there_is_no_systemd() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("run/dbus/system_bus_socket");
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let config = dir.path().join("bus.conf");
        let text = format!(
            "<busconfig><type>session</type><listen>unix:path={}</listen><auth>EXTERNAL</auth>\
             <policy context=\"default\"><allow send_destination=\"*\" eavesdrop=\"true\"/><allow eavesdrop=\"true\"/><allow own=\"*\"/><allow user=\"*\"/></policy></busconfig>",
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        let command = Command::new("dbus-daemon").arg("--nofork").arg("--config-file").arg(&config).spawn();
        let Ok(daemon) = command else { return };
        let _bus = Bus(daemon);
        let until = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < until, "the bus does not listen");
            std::thread::yield_now();
        }
        let error = Systemd::new(dir.path()).allow("a.scope", "0-3", "0").unwrap_err();
        assert!(matches!(error, SystemdError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("org.freedesktop.systemd1"), "{error}");
    }
}
