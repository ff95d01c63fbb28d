//! One pass of the metrics-fetcher over the kernel's cgroups against bare reads of the same files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oxalyst_proto::metrics::v1::metrics_client::MetricsClient;
use oxalyst_proto::metrics::v1::{ListSourcesRequest, SourceInfo};
use tonic::transport::Channel;

use super::samples::Samples;
use super::scene::PATIENCE;
use super::{Fault, Row};
use crate::imitation::{Imitation, Setup};
use crate::mesh::Mesh;
use crate::runtime::{ContainerSpec, PodSpec, Runtime, fresh_uid, poll_until};

const PASSES: usize = 40;

/// Cgroups of the kernel's, removed when dropped.
#[derive(Debug, Default)]
struct Cgroups(Vec<PathBuf>);

pub(super) async fn measure(folder: &Path, containers: usize) -> Result<Vec<Row>, Fault> {
    std::fs::create_dir_all(folder)?;
    let machine = crate::remains::in_memory()?;
    let mut runtime = Imitation::start(machine.path(), Setup::default()).await?;
    let cgroups = Cgroups::create(containers);
    let real = cgroups.is_ok();
    let tree = match &cgroups {
        Ok(_) => "the kernel's cgroups".to_owned(),
        Err(e) => format!("an imitated tree, files and no cgroups ({e})"),
    };
    if !real {
        for n in 0..containers {
            let sandbox = runtime.run_pod(&PodSpec::new(&format!("p{n}"), "shared_cores", 1)).await?;
            let container = runtime.create_container(&sandbox, &ContainerSpec::new("main", 100)).await?;
            runtime.start_container(&container).await?;
        }
    }
    let mut mesh = Mesh::new(folder, &runtime)?;
    mesh.set("metrics-fetcher", "period_ms=250");
    if real {
        mesh.set("metrics-fetcher", "common.host_root=/");
    }
    mesh.start("metrics-fetcher")?;
    mesh.ready("metrics-fetcher").await?;
    let outcome = passes(&mut mesh, containers, &tree).await;
    mesh.stop().await?;
    runtime.remove().await?;
    drop(cgroups);
    outcome
}

async fn passes(mesh: &mut Mesh, containers: usize, tree: &str) -> Result<Vec<Row>, Fault> {
    let pid = mesh.pid("metrics-fetcher").ok_or("metrics-fetcher does not run")?;
    let client = MetricsClient::new(mesh.channel("metrics-fetcher"));
    let mut last = poll_until(PATIENCE, async || {
        let source = cgroup_source(&mut client.clone()).await.map_err(|e| e.to_string())?;
        let seen = source.subjects as usize >= containers;
        if seen { Ok(source) } else { Err(format!("sees {} of {containers} containers", source.subjects)) }
    })
    .await?;
    let kept = kept_open(pid)?;
    let mut buffer = vec![0; 64 << 10];
    let (mut pass, mut floor) = (Samples::default(), Samples::default());
    while pass.len() < PASSES {
        let before = last.last_pass_unix_ms;
        last = poll_until(PATIENCE, async || {
            let source = cgroup_source(&mut client.clone()).await.map_err(|e| e.to_string())?;
            if source.last_pass_unix_ms > before { Ok(source) } else { Err("no pass".to_owned()) }
        })
        .await?;
        pass.push(Duration::from_micros(last.last_pass_us));
        let start = Instant::now();
        for file in &kept {
            // Gone meanwhile is a shorter floor, no fault.
            let _ = file.read_at(&mut buffer, 0);
        }
        floor.push(start.elapsed());
    }
    Ok(vec![Row {
        id: format!("metrics-pass-{containers}"),
        what: format!(
            "a pass of the metrics-fetcher over {} containers of {tree}, median of {PASSES} as it tells them, in turn with the \
             floor (one pread of each of the {} files that it keeps open)",
            last.subjects,
            kept.len()
        ),
        value: pass.quantile_ms(0.5),
        unit: "ms",
        floor: Some(floor.quantile_ms(0.5)),
        budget: 1.3,
    }])
}

async fn cgroup_source(client: &mut MetricsClient<Channel>) -> Result<SourceInfo, Fault> {
    let sources = client.list_sources(ListSourcesRequest {}).await?.into_inner().sources;
    let found = sources.into_iter().find(|s| s.name.starts_with("cgroup"));
    found.ok_or_else(|| "the metrics-fetcher has no cgroup source".into())
}

/// The same files as the process keeps open below `/sys` and `/proc` (of the host, or imitated), opened once more.
fn kept_open(pid: u32) -> Result<Vec<File>, Fault> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
        let path = target.to_string_lossy();
        // What a pass reads: cgroups, and the machine's own files in the same pass.
        let read =
            path.contains("/cgroup/") || path.contains("/proc/") || path.contains("/devices/system/node/");
        if read && target.is_file() {
            files.push(File::open(target)?);
        }
    }
    if files.is_empty() { Err("the metrics-fetcher keeps no cgroup file open".into()) } else { Ok(files) }
}

// === impl Cgroups ===

impl Cgroups {
    /// One pod each, as a kubelet names them, in each controller's tree.
    fn create(containers: usize) -> Result<Self, Fault> {
        let root = Path::new("/sys/fs/cgroup");
        let trees: Vec<PathBuf> = if root.join("cgroup.controllers").exists() {
            vec![root.to_owned()]
        } else {
            let named = ["cpu,cpuacct", "cpu", "cpuacct", "cpuset", "memory"];
            named.iter().map(|name| root.join(name)).filter(|p| p.is_dir() && !p.is_symlink()).collect()
        };
        let mut made = Self::default();
        for _ in 0..containers {
            let uid = fresh_uid();
            let id = format!("{0:016x}{0:016x}{0:016x}{0:016x}", fastrand::u64(..));
            for tree in &trees {
                let pod = tree.join(format!("kubepods/burstable/pod{uid}"));
                for dir in [pod.clone(), pod.join(&id)] {
                    std::fs::create_dir_all(&dir).map_err(|e| format!("make {}: {e}", dir.display()))?;
                    made.0.push(dir);
                }
            }
        }
        Ok(made)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for dir in self.0.iter().rev() {
            let _ = std::fs::remove_dir(dir);
        }
        // The folders above go too if nobody else uses them.
        for dir in &self.0 {
            for above in dir.ancestors().take_while(|a| a.to_string_lossy().contains("kubepods")) {
                let _ = std::fs::remove_dir(above);
            }
        }
    }
}
