//! What can be measured: one table, from which come collection, the answers of the gRPC face, the documentation and
//! the node's gauges.
//!
//! Names, units and formulas are Katalyst's where it has one; where it is known to be wrong the help says what is told
//! instead. For each metric the table says where each version of cgroups, malachite and the kubelet tell it, or that
//! they never do, and why.

mod container;
mod katalyst;
mod node;
mod parts;
mod range;
mod take;

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

pub use container::{CONTAINER, CONTAINER_NUMA};
pub use katalyst::{OTHERWISE, Otherwise};
pub use node::NODE;
pub use parts::{CPU, DEVICE, NETWORK, NUMA, VOLUME};

pub(crate) use range::COUNTER_END;

use crate::contents::{Contents, File};
use crate::sources::proc::USER_HZ;

/// Whom a metric is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The machine.
    Node,
    /// A NUMA node.
    Numa,
    /// A logical CPU.
    Cpu,
    /// A block device.
    Device,
    /// A network interface.
    Network,
    /// A cgroup above the pods.
    Cgroup,
    /// Such a cgroup on one NUMA node.
    CgroupNuma,
    /// One container (or a pod's sandbox).
    Container,
    /// A container on one NUMA node.
    ContainerNuma,
    /// A volume of a pod.
    Volume,
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// CPUs' worth of time: 1 is one CPU fully used.
    Cores,
    /// Bytes.
    Bytes,
    /// 0..=1 in most cases.
    Ratio,
    /// 0..=100.
    Percent,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
    /// Milliseconds.
    Milliseconds,
    /// A number of things.
    Count,
    /// Pages of memory.
    Pages,
    /// Things per second.
    PerSecond,
    /// Bytes per second.
    BytesPerSecond,
    /// 2^20 bytes per second.
    MibPerSecond,
    /// 2^30 bytes per second.
    GibPerSecond,
    /// Microseconds per second.
    MicrosecondsPerSecond,
    /// Watts.
    Watts,
    /// Kilohertz.
    Kilohertz,
}

/// How a value comes out of what a source tells.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// As told.
    Level,
    /// The growth per second between two readings.
    Rate,
    /// The growth per second of a counter of clock ticks: its resolution is coarse, so its interval is long.
    Ticks,
    /// Computed from other metrics of the same subject and the same source.
    Derived(Derived),
}

/// A formula over other rows of the same scope.
#[derive(Clone, Copy, Debug)]
pub struct Derived {
    /// Names of its inputs.
    pub inputs: &'static [&'static str],
    /// The formula; it gets a value for each input, and is not asked if one is missing.
    pub by: fn(&[f64]) -> Told,
}

/// Whether a version of cgroups tells it.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// In this file.
    From(File),
    /// In the rows that it is derived from.
    Inputs,
    /// Never, and why.
    Never(&'static str),
}

/// Whether malachite or the kubelet tell it.
#[derive(Clone, Copy, Debug)]
pub enum Remote {
    /// In this field.
    At(Field),
    /// In the rows that it is derived from.
    Inputs,
    /// Never, and why.
    Never(&'static str),
}

/// A field of a JSON document.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The document or block, a slash, and the path within it.
    pub path: &'static str,
    /// What makes the metric's unit of the field's.
    pub scale: f64,
    /// Level or rate.
    pub kind: Kind,
}

/// What a source says of one metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Told {
    /// This, in the metric's unit (of a rate: the counter, in the unit times seconds).
    Value(f64),
    /// This, after it was brought into its range: the inputs contradicted each other.
    Clamped(f64),
    /// That there is no bound.
    Unlimited,
    /// Nothing.
    Nothing,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Stable name.
    pub name: &'static str,
    /// Name in the exposition, behind `oxalyst_`; only of the node (a container is no label).
    pub exposed: Option<&'static str>,
    /// Whom it is about.
    pub scope: Scope,
    /// Unit.
    pub unit: Unit,
    /// How its value is made of what cgroups and `/proc` tell.
    pub kind: Kind,
    /// On cgroup v1, or in `/proc` and sysfs.
    pub v1: Origin,
    /// On cgroup v2, or in `/proc` and sysfs.
    pub v2: Origin,
    /// Takes it out of the file.
    pub take: fn(&Contents) -> Told,
    /// From malachite on a machine with cgroup v1, and with v2.
    pub malachite: [Remote; 2],
    /// From the kubelet.
    pub kubelet: Remote,
    /// Whether "no limit" is among its values: elsewhere a number that stands for it is none that can be.
    pub limit: bool,
    /// Whether a short history is kept of it.
    pub history: bool,
    /// For people.
    pub help: &'static str,
}

/// Two readings of a tick counter closer than this give no rate: 10 ms of error are half a percent of it.
pub const TICK_INTERVAL: Duration = Duration::from_secs(2);

const NOT_MALACHITE: &str = "malachite does not tell it";
const NOT_KUBELET: &str = "the kubelet does not tell it";

/// The metrics of a scope; a subject's cells are in this order.
pub fn of(scope: Scope) -> &'static [Metric] {
    static CGROUP: LazyLock<Vec<Metric>> = LazyLock::new(|| renamed(CONTAINER, Scope::Cgroup));
    static CGROUP_NUMA: LazyLock<Vec<Metric>> = LazyLock::new(|| renamed(CONTAINER_NUMA, Scope::CgroupNuma));
    match scope {
        Scope::Node => NODE,
        Scope::Numa => NUMA,
        Scope::Cpu => CPU,
        Scope::Device => DEVICE,
        Scope::Network => NETWORK,
        Scope::Cgroup => &CGROUP,
        Scope::CgroupNuma => &CGROUP_NUMA,
        Scope::Container => CONTAINER,
        Scope::ContainerNuma => CONTAINER_NUMA,
        Scope::Volume => VOLUME,
    }
}

/// The same rows for a cgroup above the pods: the kernel tells the same of each cgroup. Made once in a process.
fn renamed(rows: &'static [Metric], scope: Scope) -> Vec<Metric> {
    let rename = |m: &Metric| Metric {
        name: katalyst::of_cgroup(m.name).leak(),
        scope,
        kubelet: Remote::Never(NOT_KUBELET),
        history: false,
        ..*m
    };
    // What only the kubelet tells it tells of containers; those rows stand last, so that all places stay the same.
    let told = |m: &Metric| {
        !matches!(
            (m.v1, m.v2, m.malachite),
            (Origin::Never(_), Origin::Never(_), [Remote::Never(_), Remote::Never(_)])
        )
    };
    rows.iter().map(rename).filter(told).collect()
}

/// Every row, scope by scope.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    Scope::ALL.into_iter().flat_map(of)
}

/// The row of a name, and its place within its scope.
pub fn find(name: &str) -> Option<(usize, &'static Metric)> {
    static NAMES: LazyLock<BTreeMap<&str, (usize, &Metric)>> = LazyLock::new(|| {
        Scope::ALL.into_iter().flat_map(|s| of(s).iter().enumerate()).map(|(i, m)| (m.name, (i, m))).collect()
    });
    NAMES.get(name).copied()
}

/// The derived rows of a scope in an order in which inputs come first: place of each, places of its inputs, formula.
pub fn derived(scope: Scope) -> &'static [(usize, Vec<usize>, Derived)] {
    type Rows = Vec<(usize, Vec<usize>, Derived)>;
    static ROWS: LazyLock<BTreeMap<Scope, Rows>> = LazyLock::new(|| {
        let rows = |scope: Scope| {
            // A renamed row still says its inputs under the container's names; the places are the same.
            let place = |name: &&str| of(scope.original()).iter().position(|m| m.name == *name);
            let row = |(at, metric): (usize, &Metric)| match metric.kind {
                Kind::Derived(d) => Some((at, d.inputs.iter().filter_map(place).collect(), d)),
                _ => None,
            };
            (scope, of(scope).iter().enumerate().filter_map(row).collect())
        };
        Scope::ALL.into_iter().map(rows).collect()
    });
    ROWS.get(&scope).map(Vec::as_slice).unwrap_or_default()
}

// === impl Scope ===

impl Scope {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Node,
        Self::Numa,
        Self::Cpu,
        Self::Device,
        Self::Network,
        Self::Cgroup,
        Self::CgroupNuma,
        Self::Container,
        Self::ContainerNuma,
        Self::Volume,
    ];

    /// The scope whose rows this one has under other names, or itself.
    const fn original(self) -> Self {
        match self {
            Self::Cgroup => Self::Container,
            Self::CgroupNuma => Self::ContainerNuma,
            other => other,
        }
    }
}

// === impl Field ===

impl Field {
    /// The document or block that it stands in.
    pub fn document(&self) -> &'static str {
        self.path.split_once('/').map_or(self.path, |(document, _)| document)
    }
}

// === impl Kind ===

impl Kind {
    /// Whether it is a growth, and so needs an earlier reading.
    pub const fn is_rate(self) -> bool {
        matches!(self, Self::Rate | Self::Ticks)
    }

    /// The shortest interval over which a rate is taken.
    pub fn least_interval(self) -> Duration {
        if matches!(self, Self::Ticks) { TICK_INTERVAL } else { crate::rate::MIN_INTERVAL }
    }
}

// === impl Metric ===

impl Metric {
    /// Where a version tells it.
    pub fn origin(&self, unified: bool) -> Origin {
        if unified { self.v2 } else { self.v1 }
    }

    /// The smallest difference that the source can show over `interval`, in the metric's unit; only of tick counters.
    pub fn resolution(&self, interval: Duration) -> Option<f64> {
        let known = matches!(self.kind, Kind::Ticks) && !interval.is_zero();
        known.then(|| 1.0 / (USER_HZ * interval.as_secs_f64()))
    }

    const fn row(name: &'static str, scope: Scope, unit: Unit, kind: Kind, help: &'static str) -> Self {
        Self {
            name,
            exposed: None,
            scope,
            unit,
            kind,
            v1: Origin::Never("neither cgroups nor /proc tell it"),
            v2: Origin::Never("neither cgroups nor /proc tell it"),
            take: take::nothing,
            malachite: [Remote::Never(NOT_MALACHITE); 2],
            kubelet: Remote::Never(NOT_KUBELET),
            limit: false,
            history: false,
            help,
        }
    }

    const fn file(self, v1: Origin, v2: Origin, take: fn(&Contents) -> Told) -> Self {
        Self { v1, v2, take, ..self }
    }

    const fn derived(self, inputs: &'static [&'static str], by: fn(&[f64]) -> Told) -> Self {
        Self {
            kind: Kind::Derived(Derived { inputs, by }),
            v1: Origin::Inputs,
            v2: Origin::Inputs,
            malachite: [Remote::Inputs; 2],
            kubelet: Remote::Inputs,
            ..self
        }
    }

    /// The same field in both forms of malachite's answer.
    const fn malachite(self, path: &'static str, scale: f64, kind: Kind) -> Self {
        let at = Remote::At(Field { path, scale, kind });
        Self { malachite: [at, at], ..self }
    }

    const fn malachite_v1(self, path: &'static str, scale: f64, kind: Kind) -> Self {
        let [_, v2] = self.malachite;
        Self { malachite: [Remote::At(Field { path, scale, kind }), v2], ..self }
    }

    const fn malachite_v2(self, path: &'static str, scale: f64, kind: Kind) -> Self {
        let [v1, _] = self.malachite;
        Self { malachite: [v1, Remote::At(Field { path, scale, kind })], ..self }
    }

    const fn kubelet(self, path: &'static str, scale: f64, kind: Kind) -> Self {
        Self { kubelet: Remote::At(Field { path, scale, kind }), ..self }
    }

    const fn exposed(self, name: &'static str) -> Self {
        Self { exposed: Some(name), ..self }
    }

    const fn limit(self) -> Self {
        Self { limit: true, ..self }
    }

    const fn history(self) -> Self {
        Self { history: true, ..self }
    }
}

// === impl Unit ===

impl Unit {
    /// As the gRPC face says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Bytes => "bytes",
            Self::Ratio => "ratio",
            Self::Percent => "percent",
            Self::Microseconds => "us",
            Self::Nanoseconds => "ns",
            Self::Milliseconds => "ms",
            Self::Count => "count",
            Self::Pages => "pages",
            Self::PerSecond => "per-second",
            Self::BytesPerSecond => "bytes-per-second",
            Self::MibPerSecond => "MiB-per-second",
            Self::GibPerSecond => "GiB-per-second",
            Self::MicrosecondsPerSecond => "us-per-second",
            Self::Watts => "watts",
            Self::Kilohertz => "kHz",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_only_the_node_is_exposed() {
        let mut seen = BTreeSet::new();
        for metric in all() {
            assert!(seen.insert(metric.name), "{} twice", metric.name);
            assert!(metric.exposed.is_none() || metric.scope == Scope::Node, "{}", metric.name);
        }
    }

    #[test]
    fn each_origin_is_a_file_that_the_version_has() {
        for metric in all() {
            for unified in [false, true] {
                let Origin::From(file) = metric.origin(unified) else { continue };
                let there = match metric.scope {
                    Scope::Container | Scope::ContainerNuma | Scope::Cgroup | Scope::CgroupNuma => {
                        file.of_container(unified).is_some()
                    }
                    Scope::Numa => file.of_node().is_some() || File::NUMA.iter().any(|(f, _)| *f == file),
                    _ => file.of_node().is_some(),
                };
                assert!(there, "{} unified {unified}", metric.name);
            }
        }
    }

    #[test]
    fn inputs_of_derived_rows_stand_above_them() {
        for scope in Scope::ALL {
            for (at, inputs, derived) in derived(scope) {
                let name = of(scope)[*at].name;
                assert_eq!(inputs.len(), derived.inputs.len(), "{name}: an input is not in the table");
                assert!(inputs.iter().all(|i| i < at), "{name}: an input stands below it");
            }
        }
    }

    #[test]
    fn every_row_has_a_source_and_each_never_has_a_reason() {
        for metric in all() {
            let local = [metric.v1, metric.v2].map(|o| !matches!(o, Origin::Never(_)));
            let remote =
                metric.malachite.iter().chain([&metric.kubelet]).any(|r| !matches!(r, Remote::Never(_)));
            assert!(local.contains(&true) || remote, "{} has no source", metric.name);
            for origin in [metric.v1, metric.v2] {
                assert!(!matches!(origin, Origin::Never("")), "{}", metric.name);
            }
        }
    }

    #[test]
    fn a_renamed_row_stands_where_its_original_does() {
        for (scope, original) in [(Scope::Cgroup, CONTAINER), (Scope::CgroupNuma, CONTAINER_NUMA)] {
            for (renamed, original) in of(scope).iter().zip(original) {
                assert_eq!(renamed.name, katalyst::of_cgroup(original.name));
            }
        }
    }

    #[test]
    fn histories_are_few() {
        assert!((1..=8).contains(&CONTAINER.iter().filter(|m| m.history).count()));
    }
}
