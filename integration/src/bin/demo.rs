//! `make run`: the whole mesh on this machine with a few pods, until Ctrl-C (or for DEMO_SECONDS); leaves nothing behind.
//!
//! As root it starts a containerd of its own with NRI; elsewhere the imitated runtime takes its place, and it says so.
use std::error::Error;
use std::future::Future;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use integration::containerd::Containerd;
use integration::imitation::{Imitation, Setup};
use integration::mesh::Mesh;
use integration::remains::{self, Folder};
use integration::runtime::{
    ContainerId, ContainerSpec, PodSpec, Runtime, RuntimeError, Workload, poll_until,
};

/// As `println!`, but for a terminal that is gone: what is to be cleaned up is cleaned up all the same.
macro_rules! say {
    ($($text:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

const USAGE: &str = "Usage: demo [--help]

Runs the whole mesh on this machine with a few pods until Ctrl-C, and leaves nothing behind: as root with a containerd of its own,
elsewhere with an imitated runtime. DEMO_SECONDS=n in the environment ends it after n seconds.";

type Outcome = Result<(), Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if remains::keep() {
        return ExitCode::SUCCESS;
    }
    if let Some(ended) = told(std::env::args().skip(1)) {
        return ended;
    }
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say!("\nmake run: {e}");
            ExitCode::FAILURE
        }
    }
}

/// What the demo says instead of being run; `None`: it is to be run.
fn told(mut arguments: impl Iterator<Item = String>) -> Option<ExitCode> {
    let first = arguments.next()?;
    if ["-h", "--help"].contains(&first.as_str()) {
        say!("{USAGE}");
        return Some(ExitCode::SUCCESS);
    }
    let _ = writeln!(std::io::stderr(), "demo: {first:?} is not understood\n{USAGE}");
    Some(ExitCode::from(2))
}

async fn run() -> Outcome {
    let stop = remains::asked_to_stop()?;
    let folder = Folder::new()?;
    let outcome = match Containerd::try_start(folder.path()).await {
        Ok(mut runtime) => {
            say!("A containerd of our own in {}: {}", folder.path().display(), runtime.describe());
            let shown = show(&mut runtime, folder.path(), stop).await;
            let removed = runtime.remove().await;
            shown.and(removed.map_err(Into::into))
        }
        Err(reason) => {
            say!(
                "No real containerd here ({reason}): the runtime, its containers and the machine are IMITATED."
            );
            let mut runtime = Imitation::start(folder.path(), Setup::default()).await?;
            show(&mut runtime, folder.path(), stop).await
        }
    };
    folder.close()?;
    if outcome.is_ok() {
        say!("All pods, processes, mounts, cgroups and files of this run are gone.");
    }
    outcome
}

/// Services, pods, what they look like, until Ctrl-C or DEMO_SECONDS later; then the services are stopped.
async fn show<R: Runtime>(runtime: &mut R, folder: &Path, stop: impl Future<Output = ()>) -> Outcome {
    let mut mesh = Mesh::new(folder, runtime)?;
    let mut stop = std::pin::pin!(stop);
    let shown = tokio::select! {
        () = &mut stop => Ok(()),
        shown = async {
            story(runtime, &mut mesh).await?;
            linger().await;
            Ok(())
        } => shown,
    };
    say!("\nEnding.");
    for sandbox in runtime.sandboxes().await? {
        runtime.remove_pod(&sandbox).await?;
    }
    mesh.stop().await?;
    shown
}

async fn story<R: Runtime>(runtime: &mut R, mesh: &mut Mesh) -> Outcome {
    mesh.set("metrics-fetcher", "period_ms=1000");
    mesh.start_all().await?;
    say!("\n$ oxctl status\n{}", mesh.oxctl(&["status"])?);
    say!("$ oxctl topology\n{}", mesh.oxctl(&["topology"])?);

    let mut pods = Vec::new();
    for (name, level, milli_cpu, workload) in [
        ("web", "shared_cores", 500, Workload::Sleep),
        ("api", "shared_cores", 500, Workload::Busy),
        ("batch", "reclaimed_cores", 100, Workload::Sleep),
    ] {
        pods.push((name, level, start(runtime, name, level, milli_cpu, workload).await?));
    }
    say!("Two shared pods and a reclaimed one run. The kernel says:");
    kernel(runtime, &pods).await?;

    say!("\nA dedicated pod of one CPU starts; the others give that CPU up.");
    match start(runtime, "db", "dedicated_cores", 1000, Workload::Busy).await {
        Ok(id) => {
            pods.push(("db", "dedicated_cores", id.clone()));
            say!("Its first instruction ran on {}. The kernel says:", runtime.first_cpus(&id).await?);
        }
        Err(RuntimeError::Refused { message, .. }) => say!("It was refused: {message}\nThe kernel says:"),
        Err(other) => return Err(other.into()),
    }
    kernel(runtime, &pods).await?;

    say!("\n{}", too_large(runtime).await?);

    say!("\n$ oxctl pods -o wide\n{}", mesh.oxctl(&["pods", "-o", "wide"])?);
    say!("$ oxctl pools\n{}", mesh.oxctl(&["pools"])?);
    let metrics = ["metrics", "--scope", "container", "cpu.usage.container", "mem.usage.container"];
    // A rate needs two readings of a new container.
    let measured = poll_until(Duration::from_secs(15), async || match mesh.oxctl(&metrics) {
        Ok(table) if table.contains("main") && !table.contains("missing") => Ok(table),
        Ok(table) => Err(table),
        Err(e) => Err(e.to_string()),
    });
    say!("$ oxctl {}\n{}", metrics.join(" "), measured.await.unwrap_or_else(|last| last));
    say!("The node's object for the cluster: {}", mesh.report().display());
    say!("To look around:  export OXALYST_RUN_DIR={}", mesh.run_dir().display());
    say!("                 {} pods -o wide", Mesh::binaries()?.join("oxctl").display());
    say!("Ctrl-C ends it.");
    Ok(())
}

async fn start<R: Runtime>(
    runtime: &mut R,
    name: &str,
    level: &str,
    milli_cpu: u64,
    workload: Workload,
) -> Result<ContainerId, RuntimeError> {
    let sandbox = runtime.run_pod(&PodSpec::new(name, level, milli_cpu)).await?;
    let container = ContainerSpec::new("main", milli_cpu).running(workload);
    let container = runtime.create_container(&sandbox, &container).await?;
    runtime.start_container(&container).await?;
    Ok(container)
}

/// Asks for more than any machine has, and tells what came of it. Some versions of containerd cannot bear that a sandbox is
/// refused: there the pod's container is.
async fn too_large<R: Runtime>(runtime: &mut R) -> Result<String, RuntimeError> {
    let refused = |at: &str, message: &str| format!("A pod of 1000 CPUs is refused at its {at}: {message}");
    let sandbox = match runtime.run_pod(&PodSpec::new("huge", "dedicated_cores", 1_000_000)).await {
        Err(RuntimeError::Refused { message, .. }) => return Ok(refused("sandbox", &message)),
        sandbox => sandbox?,
    };
    match runtime.create_container(&sandbox, &ContainerSpec::new("main", 1_000_000)).await {
        Err(RuntimeError::Refused { message, .. }) => Ok(refused("container", &message)),
        Err(other) => Err(other),
        Ok(_) => Ok("A pod of 1000 CPUs was taken: this must be a large machine.".to_owned()),
    }
}

async fn kernel<R: Runtime>(runtime: &mut R, pods: &[(&str, &str, ContainerId)]) -> Outcome {
    for (name, level, container) in pods {
        say!("  {name:8} {level:16} Cpus_allowed_list: {}", runtime.cpus_allowed(container).await?);
    }
    Ok(())
}

/// For DEMO_SECONDS, or for ever.
async fn linger() {
    match std::env::var("DEMO_SECONDS").ok().and_then(|text| text.parse().ok()) {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l16_only_without_arguments_anything_is_started() {
        let told = |arguments: &[&str]| told(arguments.iter().map(|text| (*text).to_owned()));
        assert_eq!(told(&[]), None);
        assert_eq!(told(&["--help"]), Some(ExitCode::SUCCESS));
        assert_eq!(told(&["-h"]), Some(ExitCode::SUCCESS));
        assert_eq!(told(&["--hlep"]), Some(ExitCode::from(2)));
    }
}
