//! What the operator typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

/// Shows what the Oxalyst mesh of this node decided, measured, and whether it is well.
///
/// Exit code: 0 all answered; 1 something is not ready or part of the answer is missing; 2 nothing could be told.
#[derive(Debug, Parser)]
#[command(name = "oxctl", version)]
pub(crate) struct Cli {
    /// Folder of the mesh's sockets.
    #[arg(
        long,
        global = true,
        env = "OXALYST_RUN_DIR",
        default_value = "/run/oxalyst",
        value_name = "FOLDER"
    )]
    pub(crate) run_dir: PathBuf,
    /// How to print.
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    /// What to show.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// The usual columns.
    Table,
    /// All columns.
    Wide,
    /// One JSON object with stable keys.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Every service: version, whether it is ready, what it waits for.
    Status,
    /// What stands in the way, and what to do: the services, the runtime's settings, other CPU managers, the tree of cgroups, marked
    /// containers; with -o wide nothing is cut.
    Doctor,
    /// Pods and containers: QoS level, CPUs, memory nodes, exclusive or shared, since when, by whom.
    Pods,
    /// The pools, the exclusive CPUs, and what is free.
    Pools,
    /// The machine: NUMA nodes, memory, distances; with -o wide also each CPU's core, socket and L3 cache.
    Topology,
    /// Measurements with unit, source, age and quality.
    Metrics(MetricsArgs),
    /// Why a pod runs where it runs, or why it was refused; without a pod the newest decisions, a line each.
    Explain(ExplainArgs),
    /// What would become of a pod: on this node, or on a recorded one. Nothing is changed.
    WhatIf(WhatIfArgs),
    /// Writes what is held, and the decisions that are kept with all that they followed from, into a file.
    Record {
        /// The file; it must not exist.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Decides everything of a recorded file anew. Exit code 1 and the differences where anything is decided otherwise now.
    Replay {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// NAMESPACE/NAME, uid, or a name that only one namespace has.
    #[arg(value_name = "POD")]
    pub(crate) pod: Option<String>,
    /// Refusals only.
    #[arg(long)]
    pub(crate) refused: bool,
    /// Every decision that is kept of the pod, and those of others that changed its CPUs, instead of the last one about it.
    #[arg(long, requires = "pod")]
    pub(crate) all: bool,
    /// At most so many decisions.
    #[arg(short = 'n', long, default_value_t = 20, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct WhatIfArgs {
    /// The pod's manifest, YAML or JSON; "-" for standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE", conflicts_with_all = ["qos", "cpu", "memory", "guaranteed"])]
    pub(crate) manifest: Option<PathBuf>,
    /// QoS level: dedicated, shared, reclaimed, system, each also with "_cores".
    #[arg(long, value_name = "LEVEL")]
    pub(crate) qos: Option<String>,
    /// CPUs requested: 2, 1500m. No limit is set, see --guaranteed.
    #[arg(long, value_name = "QUANTITY", allow_hyphen_values = true)]
    pub(crate) cpu: Option<String>,
    /// Memory requested: 4Gi. No limit is set, see --guaranteed.
    #[arg(long, value_name = "QUANTITY", allow_hyphen_values = true)]
    pub(crate) memory: Option<String>,
    /// Limits are what is requested: the class is Guaranteed and not Burstable, which decides where cpu_policy is native.
    #[arg(long, requires_all = ["cpu", "memory"])]
    pub(crate) guaranteed: bool,
    /// An annotation of the pod, besides those of its manifest; may be repeated.
    #[arg(long = "annotation", value_name = "KEY=VALUE")]
    pub(crate) annotations: Vec<String>,
    /// A label of the pod, besides those of its manifest; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<String>,
    /// On the node as it was when this file was recorded; no service is asked.
    #[arg(long, value_name = "FILE")]
    pub(crate) recorded: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(subcommand_precedence_over_arg = true)]
pub(crate) struct MetricsArgs {
    /// What to do; without it the measurements are shown once.
    #[command(subcommand)]
    pub(crate) action: Option<MetricsAction>,
    /// All that can be measured instead: unit, sources, and why a source never tells it.
    #[arg(long)]
    pub(crate) list: bool,
    #[command(flatten)]
    pub(crate) selection: Selection,
}

// === impl Cli ===

impl Cli {
    /// What was typed.
    ///
    /// # Errors
    /// What cannot be; also what selects measurements in front of a sub-command of `metrics`, which would not heed it.
    pub(crate) fn typed(
        args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let cli = Self::try_parse_from(args)?;
        match &cli.command {
            Command::Metrics(MetricsArgs { action: Some(_), list, selection })
                if *list || !selection.is_empty() =>
            {
                let says = "names of metrics, --list, --id, --scope and --max-age-ms do not go in front of a sub-command of metrics: \
                            leave it out, or write them behind `get` or `watch`";
                Err(Self::command().error(ErrorKind::ArgumentConflict, says))
            }
            _ => Ok(cli),
        }
    }
}

// === impl Selection ===

impl Selection {
    fn is_empty(&self) -> bool {
        let Self { metrics, ids, scope, max_age_ms } = self;
        metrics.is_empty() && ids.is_empty() && scope.is_none() && max_age_ms.is_none()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum MetricsAction {
    /// All that can be measured: unit, sources, and why a source never tells it; as --list.
    List,
    /// Every source: period, last pass, health.
    Sources,
    /// Measurements, once.
    Get(Selection),
    /// Measurements as they change, until interrupted.
    Watch(Selection),
    /// The node, and CPU, memory, throttling and pressure of every pod, the busiest first; on a terminal over and over until
    /// interrupted.
    Top(TopArgs),
    /// Current values as OpenTelemetry's JSON, under the names of its conventions, to be posted to a collector's /v1/metrics.
    Export {
        /// Name of the node, for k8s.node.name; without it as the meta-server tells it, and if that is away the host's name.
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// A row for each container instead of each pod.
    #[arg(long)]
    pub(crate) containers: bool,
    /// Shows it anew so often, at least 0.1; without it every 2 s on a terminal, once elsewhere.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) every: Option<Duration>,
    /// Shows it once, also on a terminal.
    #[arg(long, conflicts_with = "every")]
    pub(crate) once: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("it must be within 0.1 to 3600".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[derive(Debug, Args)]
pub(crate) struct Selection {
    /// Names of metrics; none: all.
    #[arg(value_name = "METRIC")]
    pub(crate) metrics: Vec<String>,
    /// Pod UIDs or container ids, or the start of one that no other has; none: all.
    #[arg(long = "id", value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Only measurements of this scope.
    #[arg(long, value_enum)]
    pub(crate) scope: Option<Scope>,
    /// Older values count as stale; without it, after three periods of their source.
    #[arg(long, value_name = "MILLISECONDS")]
    pub(crate) max_age_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scope {
    Node,
    Container,
    Numa,
    Cpu,
    Device,
    Network,
    ContainerNuma,
    Volume,
    Cgroup,
    CgroupNuma,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn l14_a_quantity_below_zero_is_read_as_a_quantity() {
        let cli = Cli::parse_from(["oxctl", "what-if", "--cpu", "-1", "--memory", "-1Gi"]);
        let Command::WhatIf(args) = cli.command else { panic!("{:?}", cli.command) };
        assert_eq!((args.cpu.as_deref(), args.memory.as_deref()), (Some("-1"), Some("-1Gi")));
        assert!(crate::quantity::cpu("-1").unwrap_err().to_string().contains("no quantity of CPU"));
        assert!(Cli::try_parse_from(["oxctl", "what-if", "--cpu", "1", "--guaranteed"]).is_err());
    }

    #[test]
    fn options_may_stand_before_and_behind_a_sub_command_of_metrics() {
        let parse = |line: &str| Cli::typed(line.split(' '));
        for line in [
            "oxctl metrics --run-dir /x -o json sources",
            "oxctl metrics sources --run-dir /x -o json",
            "oxctl metrics -o json --run-dir /x top --once",
            "oxctl --run-dir /x metrics -o json get cpu.usage.system --scope node",
        ] {
            let cli = parse(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            assert!(cli.run_dir == std::path::Path::new("/x") && cli.output == Output::Json, "{line}");
            let Command::Metrics(args) = cli.command else { panic!("{line}") };
            assert!(args.action.is_some() && args.selection.is_empty(), "{line}");
        }
        for line in ["oxctl metrics --scope node get", "oxctl metrics --list top", "oxctl metrics a.b top"] {
            let refused = parse(line).unwrap_err().to_string();
            assert!(refused.contains("in front of a sub-command"), "{line}: {refused}");
        }
        let cli = parse("oxctl metrics -o wide a.b c.d --id x").unwrap();
        let Command::Metrics(args) = cli.command else { panic!() };
        assert!(args.action.is_none() && args.selection.metrics == ["a.b", "c.d"], "{args:?}");
    }

    #[test]
    fn the_output_may_stand_behind_the_command() {
        let cli = Cli::parse_from(["oxctl", "pods", "-o", "wide"]);
        assert_eq!(cli.output, Output::Wide);
    }
}
