//! Another agent of the node beside the metrics-fetcher, in the same run: the CPU time of both for one round of numbers.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::scene::PATIENCE;
use super::{Fault, Row};
use crate::lab;
use crate::runtime::poll_until;

const ROUNDS: u32 = 40;

/// Prometheus' node exporter, which tells of the node and of no container. What cAdvisor would cost is not known: Debian has no
/// package of it.
#[derive(Debug)]
struct NodeExporter {
    child: Child,
    address: String,
}

/// `pid` makes a pass over `containers` containers and the node each `period`; the other agent is asked as often.
///
/// # Errors
/// Why there is no other agent here, or what went wrong with it.
pub(super) async fn measure(pid: u32, containers: usize, period: Duration) -> Result<Row, Fault> {
    let program = lab::script("node-exporter.sh", &[])?;
    let other = NodeExporter::start(&program).await?;
    let bytes = other.ask().await?;
    let before = [cpu(pid)?, cpu(other.child.id())?];
    for _ in 0..ROUNDS {
        tokio::time::sleep(period).await;
        other.ask().await?;
    }
    let after = [cpu(pid)?, cpu(other.child.id())?];
    let [ours, theirs] =
        [0, 1].map(|n| after[n].saturating_sub(before[n]).as_secs_f64() * 1e3 / f64::from(ROUNDS));
    Ok(Row {
        id: "metrics-beside-node-exporter".to_owned(),
        what: format!(
            "CPU time of the whole metrics-fetcher for a pass over the node and {containers} containers, mean of {ROUNDS}, beside \
             that of Debian's prometheus-node-exporter for one scrape ({bytes} bytes) of the node alone"
        ),
        value: ours,
        unit: "ms",
        floor: Some(theirs),
        budget: 1.0,
    })
}

/// CPU time of all threads that a process has.
fn cpu(pid: u32) -> io::Result<Duration> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        sum += stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(sum))
}

// === impl NodeExporter ===

impl NodeExporter {
    async fn start(program: &Path) -> Result<Self, Fault> {
        // A port that was free a moment ago: it takes no socket.
        let address = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.to_string();
        let child = Command::new(program)
            .arg(format!("--web.listen-address={address}"))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let other = Self { child, address };
        poll_until(PATIENCE, async || other.ask().await.map_err(|e| e.to_string())).await?;
        Ok(other)
    }

    /// One scrape: the bytes of the answer.
    async fn ask(&self) -> io::Result<usize> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let question =
            format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(question.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        if answer.starts_with(b"HTTP/1.1 200") {
            Ok(answer.len())
        } else {
            Err(io::Error::other("the node exporter answered no numbers"))
        }
    }
}

impl Drop for NodeExporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
