//! systemd, told what was written to a unit's cpuset: whatever it has not been told, it undoes at its next reload.

mod message;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oxalyst_topology::CpuSet;

use message::{Call, Reply};

/// For each read and each write. systemd is on this machine.
const PATIENCE: Duration = Duration::from_millis(500);

/// Signals and such that may come before our answer.
const STRAY: usize = 64;

/// Longest answer that is read.
const LONGEST: usize = 1 << 20;

/// The way to systemd.
#[derive(Clone, Debug)]
pub(super) struct Systemd {
    /// The system's bus, where a greeting is due.
    bus: PathBuf,
    /// systemd's own socket, where there is no bus.
    private: PathBuf,
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
    #[error("systemd does not take {unit}'s CPUs and memory nodes: {said}; a daemon-reload may undo them")]
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
        }
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
