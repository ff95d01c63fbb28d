//! Which source is asked first for a metric, and which can tell it at all.

use serde::{Deserialize, Serialize};

use crate::catalogue::{self, Derived, Field, Kind, Metric, Origin, Remote, Scope};
use crate::store::Source;

/// Which source is the best where several tell one definition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ranking {
    /// The kernel's own files, then malachite, then the kubelet.
    #[default]
    KernelFirst,
    /// malachite, then the kernel's own files, then the kubelet.
    MalachiteFirst,
}

/// The sources that can tell a metric here, best first. What `unified` is while no tree was seen does not matter: then
/// nothing is known of containers.
pub fn ranked(
    metric: &Metric,
    (unified, hybrid): (Option<bool>, bool),
    ranking: Ranking,
) -> [Option<Source>; 7] {
    use Source::{Kernel, Kubelet, Malachite, Perf, Realtime, Resctrl, Tasks};
    let there = |source| match source {
        Kernel => tells_kernel(metric, unified, hybrid),
        source => tells(metric, source, unified == Some(true)),
    };
    let order = match ranking {
        Ranking::KernelFirst => [Kernel, Tasks, Perf, Resctrl, Malachite, Realtime, Kubelet],
        Ranking::MalachiteFirst => [Malachite, Realtime, Kernel, Tasks, Perf, Resctrl, Kubelet],
    };
    order.map(|source| there(source).is_ok().then_some(source))
}

/// Whether the kernel tells a metric; on a hybrid what either version tells, as the place of its controller may be.
pub fn tells_kernel(metric: &Metric, unified: Option<bool>, hybrid: bool) -> Result<(), &'static str> {
    let v1 = tells(metric, Source::Kernel, unified == Some(true));
    if hybrid && v1.is_err() { tells(metric, Source::Kernel, true) } else { v1 }
}

/// Whether a source tells a metric on a machine of that version, or why it never does.
pub fn tells(metric: &Metric, source: Source, unified: bool) -> Result<(), &'static str> {
    let inputs = || match metric.kind {
        Kind::Derived(Derived { inputs, .. }) => {
            inputs.iter().try_for_each(|name| match catalogue::find(name) {
                Some((_, input)) => tells(input, source, unified),
                None => Ok(()),
            })
        }
        _ => Ok(()),
    };
    let remote = |remote: Remote| match remote {
        Remote::At(_) => Ok(()),
        Remote::Inputs => inputs(),
        Remote::Never(why) => Err(why),
    };
    match source {
        Source::Kernel => match metric.origin(unified) {
            Origin::From(_) => Ok(()),
            Origin::Inputs => inputs(),
            Origin::Never(why) => Err(why),
        },
        Source::Perf | Source::Tasks if metric.scope != Scope::Container => {
            Err("the kernel is asked about containers only")
        }
        Source::Tasks if unified => Err("of cgroup v2 the kernel answers no CGROUPSTATS"),
        Source::Malachite | Source::Realtime | Source::Resctrl | Source::Perf | Source::Tasks => {
            let [v1, v2] = metric.malachite;
            match if unified { v2 } else { v1 } {
                Remote::At(field) => match source {
                    Source::Resctrl if !counted(field) => Err("resctrl counts memory traffic only"),
                    Source::Perf if !matches!(field.path, "Cpu/cycles" | "Cpu/instructions") => {
                        Err("cycles and instructions alone are counted")
                    }
                    Source::Tasks if !states(field) => Err("CGROUPSTATS tells states of tasks only"),
                    // Of groups, as resctrl's own; of caches in its other answers.
                    Source::Realtime if counted(field) => Ok(()),
                    Source::Malachite | Source::Realtime if teller(field) != source => {
                        Err("another source tells it")
                    }
                    _ => Ok(()),
                },
                other => remote(other),
            }
        }
        Source::Kubelet => remote(metric.kubelet),
    }
}

/// Which of malachite's answers holds a field.
fn teller(field: Field) -> Source {
    match field.document() {
        "power" | "freq" => Source::Realtime,
        _ => Source::Malachite,
    }
}

/// Whether the kernel's resctrl counts what a field holds.
fn counted(field: Field) -> bool {
    matches!(field.path, "l3/total" | "l3/local" | "mbm/total" | "mbm/local")
}

/// Whether CGROUPSTATS tells what a field holds.
fn states(field: Field) -> bool {
    matches!(field.path, "Cpu/task_nr_runnable" | "Cpu/task_nr_unint" | "Cpu/task_nr_iowait")
}

/// What each source says of a metric, by the source's name. Of cgroups and `/proc` all three names are in it.
pub fn available(metric: &Metric) -> Vec<(&'static str, Result<(), &'static str>)> {
    vec![
        ("cgroup-v2", tells(metric, Source::Kernel, true)),
        ("cgroup-v1", tells(metric, Source::Kernel, false)),
        ("proc", tells(metric, Source::Kernel, true)),
        ("malachite-v2", tells(metric, Source::Malachite, true)),
        ("malachite-v1", tells(metric, Source::Malachite, false)),
        ("malachite-realtime", tells(metric, Source::Realtime, true)),
        ("cgroupstats", tells(metric, Source::Tasks, false)),
        ("perf", tells(metric, Source::Perf, true)),
        ("resctrl", tells(metric, Source::Resctrl, true)),
        ("kubelet", tells(metric, Source::Kubelet, true)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked(name: &str, unified: bool, ranking: Ranking) -> Vec<Source> {
        let (_, metric) = catalogue::find(name).unwrap();
        super::ranked(metric, (Some(unified), false), ranking).into_iter().flatten().collect()
    }

    #[test]
    fn what_only_one_version_tells_is_never_told_on_the_other() {
        use Source::{Kernel, Kubelet, Malachite, Perf, Tasks};
        let first = Ranking::KernelFirst;
        assert_eq!(ranked("cpu.psi.some.avg10.container", true, first), [Kernel, Malachite]);
        assert_eq!(ranked("cpu.psi.some.avg10.container", false, first), []);
        assert_eq!(ranked("cpu.nr.runnable.container", false, first), [Tasks, Malachite]);
        assert_eq!(ranked("cpu.nr.runnable.container", true, first), [Malachite]);
        assert_eq!(ranked("cpu.usage.container", false, first), [Kernel, Malachite, Kubelet]);
        assert_eq!(
            ranked("cpu.usage.container", false, Ranking::MalachiteFirst),
            [Malachite, Kernel, Kubelet]
        );
        assert_eq!(ranked("cpu.cpi.container", true, first), [Perf, Malachite]);
        assert_eq!(ranked("mem.bandwidth.write.container", true, first), [Malachite]);
        assert_eq!(ranked("mem.usage.user.container", true, first), [Kernel, Malachite]);
    }

    #[test]
    fn each_never_has_a_reason() {
        for metric in catalogue::all() {
            for (source, told) in available(metric) {
                assert_ne!(told, Err(""), "{} {source}", metric.name);
            }
        }
    }
}
