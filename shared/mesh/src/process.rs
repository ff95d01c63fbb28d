use std::error::Error;
use std::future::Future;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use oxalyst_settings::{Cli, HasCommon};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Mesh;

/// What a service ends with when it cannot start or go on: one line on standard error, and exit code 2.
type Fault = Box<dyn Error>;

/// The whole `main` of a service: flags, settings, telemetry, and `body` on an actix system of one thread.
///
/// One thread serves because the mesh's calls are many and tiny: measured on a unix socket, the tail latency of a
/// current-thread runtime is less than half that of the multi-thread one, and so is its memory.
pub fn run<S, F>(
    service: &'static str,
    version: &'static str,
    body: impl FnOnce(S, Mesh) -> F + 'static,
) -> ExitCode
where
    S: HasCommon + Default + Serialize + DeserializeOwned + 'static,
    F: Future<Output = Result<(), Fault>>,
{
    let matches = command(service, version).get_matches();
    match Cli::from_arg_matches(&matches)
        .map_err(Fault::from)
        .and_then(|cli| started(service, version, &cli, body))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            // Standard error is the last resort: if it is closed, the exit code still speaks.
            let _ = writeln!(std::io::stderr(), "{service}: {}", one_line(fault.as_ref()));
            ExitCode::from(2)
        }
    }
}

/// The command line, whose `--help` says what the service is and how it is told anything.
fn command(service: &'static str, version: &'static str) -> clap::Command {
    let own = format!("OXALYST_{}", service.to_uppercase().replace('-', "_"));
    let settings = format!(
        "Settings come from defaults, --config, the environment and --set, in this order; --print-config lists them. \
         A variable is {own}_<KEY>, with two underscores between levels: {own}_COMMON__LOG=debug."
    );
    Cli::command().name(service).version(version).about(purpose(service)).after_help(settings)
}

/// What a service is for, in a sentence.
fn purpose(service: &str) -> &'static str {
    match service {
        "nri-gateway" => {
            "Sits between the container runtime (NRI) and the mesh: applies what the allocator decided to each container, reads it back, and mends what differs"
        }
        "orm" => {
            "Decides which CPUs and which NUMA memory each pod of this node gets, and remembers it durably"
        }
        "meta-server" => {
            "Knows the pods and the node: what the kubelet and the container runtime tell, merged"
        }
        "metrics-fetcher" => {
            "Measures the node and its containers, each number with its unit, source, age and quality"
        }
        "reporter" => "Tells the cluster what this node has and gives: keeps its CustomNodeResource",
        _ => "A service of the Oxalyst mesh",
    }
}

fn started<S, F>(
    service: &'static str,
    version: &'static str,
    cli: &Cli,
    body: impl FnOnce(S, Mesh) -> F + 'static,
) -> Result<(), Fault>
where
    S: HasCommon + Default + Serialize + DeserializeOwned + 'static,
    F: Future<Output = Result<(), Fault>>,
{
    let settings: S = oxalyst_settings::load(service, cli, std::env::vars())?;
    if cli.print_config {
        std::io::stdout().write_all(oxalyst_settings::print(service, &settings)?.as_bytes())?;
        return Ok(());
    }
    let mesh = Mesh::new(service, version, settings.common());
    actix_rt::System::new().block_on(async move {
        let _telemetry = oxalyst_telemetry::init(service, settings.common())?;
        body(settings, mesh).await
    })
}

/// The error and its causes on one line, each cause once.
fn one_line(fault: &dyn Error) -> String {
    let mut text = fault.to_string();
    let mut cause = fault.source();
    while let Some(e) = cause {
        let more = e.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = e.source();
    }
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_of_each_service_says_what_it_is_and_how_variables_are_named() {
        for service in crate::NODE_SERVICES {
            let help = command(service, "1").render_help().to_string();
            assert!(help.starts_with(purpose(service)) && purpose(service) != purpose("?"), "{help}");
            assert!(help.contains("_COMMON__LOG=debug"), "{help}");
        }
    }
}
