//! Memory traffic from resctrl's monitoring groups, where others have made some: none is made here, nothing is written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;

use super::fold::{Block, Fold};
use super::health::Health;
use crate::bandwidth::{Processor, Traffic, of_container, of_node};
use crate::catalogue::Scope;
use crate::clock::{Clock, Now};
use crate::machine::Caches;
use crate::sample::Ages;
use crate::store::{Id, Instance, Layer, PassReport, Snapshot, Source, Store};

/// Passes after which a group that is gone is forgotten.
const FORGET: u64 = 10;
/// So many groups are read at most: the hardware has fewer.
pub(super) const MOST: usize = 1024;
/// Folders of the root that are no groups.
const RESERVED: [&str; 3] = ["info", "mon_data", "mon_groups"];

/// What the reader is connected to.
#[derive(Debug)]
pub struct Resctrl {
    /// Where `/sys` is found.
    pub host_root: PathBuf,
    /// From the end of a pass to the beginning of the next, but for a tenth more or less.
    pub period: Duration,
    /// Ages that hold where a request names none.
    pub ages: Ages,
    /// Where values go, and where containers are known.
    pub store: Arc<Store>,
    /// The present moment.
    pub clock: Arc<dyn Clock>,
    /// Where its health is told.
    pub health: Health,
}

/// Bytes counted by the L3 caches of a group: all, and to local memory.
pub(super) type Counted = BTreeMap<u64, [Option<u64>; 2]>;

/// One reading of everything.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    pub(super) at: Now,
    /// By the group's path below the root, or by its name.
    pub(super) groups: BTreeMap<String, Counted>,
}

/// What is known of the machine whose caches are counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Silicon {
    caches: Caches,
    processor: Option<Processor>,
}

// === impl Silicon ===

impl Silicon {
    /// Looks for what is not known of the caches in `groups`.
    pub(super) fn know(&mut self, host_root: &Path, groups: &BTreeMap<String, Counted>) {
        self.caches.know(host_root, groups.values().flat_map(BTreeMap::keys).copied());
        self.processor.get_or_insert_with(|| {
            let text = oxalyst_cgroups::read_text(&host_root.join("proc/cpuinfo"));
            text.map_or(Processor::Unknown, |text| Processor::of_cpuinfo(&text))
        });
    }
}

/// Passes for ever; while there is no resctrl nothing is told. A pass that hangs leaves what was known, ageing.
pub async fn follow(mut resctrl: Resctrl) {
    let root = resctrl.host_root.join("sys/fs/resctrl");
    let (mut fold, mut silicon) = (Fold::new(Source::Resctrl, resctrl.ages.max_age), Silicon::default());
    let mut before = Reading::default();
    loop {
        let began = resctrl.clock.now();
        let outcome = read_apart(root.clone(), Arc::clone(&resctrl.clock), resctrl.period).await;
        let trouble = match outcome {
            // Not mounted, and nothing was told yet: the machine has none.
            Ok(now) if now.groups.is_empty() && fold.cycle() == 0 => {
                tokio::time::sleep(resctrl.period).await;
                continue;
            }
            Ok(now) if now.groups.is_empty() => Some(format!("{} has no groups any more", root.display())),
            Ok(now) => {
                fold.begin(now.at);
                silicon.know(&resctrl.host_root, &now.groups);
                take(&before, &now, &resctrl.store.load(), &silicon, &mut fold);
                before = now;
                None
            }
            Err(what) => Some(what),
        };
        let finished = resctrl.clock.now();
        resctrl.health.told(trouble.as_deref(), finished);
        resctrl.store.publish_layer(Layer {
            source: Source::Resctrl,
            period: resctrl.period,
            ages: resctrl.ages,
            subjects: fold.subjects(),
            pass: PassReport {
                number: fold.cycle(),
                finished: Some(finished),
                took: finished.since(began),
                trouble: trouble.map(Into::into),
                ..PassReport::default()
            },
            stale_total: fold.stale_total,
        });
        tokio::time::sleep(resctrl.period.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
    }
}

/// Reads on a thread of its own, detached: it may hang without keeping the process from ending.
async fn read_apart(root: PathBuf, clock: Arc<dyn Clock>, deadline: Duration) -> Result<Reading, String> {
    let (reply, answer) = oneshot::channel();
    let thread = std::thread::Builder::new().name("resctrl".to_owned());
    thread
        .spawn(move || reply.send(Reading { at: clock.now(), groups: groups(&root) }))
        .map_err(|e| format!("no thread is left to read {e}"))?;
    match tokio::time::timeout(deadline, answer).await {
        Ok(Ok(reading)) => Ok(reading),
        Ok(Err(_)) => Err("the thread that reads resctrl ended".to_owned()),
        Err(_) => Err(format!("resctrl did not answer within {} ms", deadline.as_millis())),
    }
}

/// Every group: of control and of monitoring.
fn groups(root: &Path) -> BTreeMap<String, Counted> {
    let mut found = BTreeMap::new();
    let mut controls = vec![String::new()];
    controls.extend(folders(root).filter(|name| !RESERVED.contains(&name.as_str())));
    for control in controls {
        let monitors = folders(&root.join(&control).join("mon_groups"));
        let monitors: Vec<String> = monitors.map(|name| format!("{control}/mon_groups/{name}")).collect();
        for group in std::iter::once(control).chain(monitors) {
            let counted = counted(&root.join(group.trim_start_matches('/')).join("mon_data"));
            if !counted.is_empty() && found.len() < MOST {
                found.insert(group, counted);
            }
        }
    }
    found
}

fn folders(dir: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .filter_map(|e| e.file_name().into_string().ok())
}

/// `mon_L3_00/mbm_total_bytes` and the like; "Unavailable" is no number.
fn counted(mon_data: &Path) -> Counted {
    let caches = folders(mon_data).filter_map(|name| {
        let cache = name.strip_prefix("mon_L3_")?.parse().ok()?;
        let count =
            |file| oxalyst_cgroups::read_text(&mon_data.join(&name).join(file)).ok()?.trim().parse().ok();
        Some((cache, ["mbm_total_bytes", "mbm_local_bytes"].map(count)))
    });
    caches.collect()
}

/// Bytes per second of each cache of a group; nothing of a counter that is new, or went down.
fn rates(before: &Reading, now: &Reading, group: &str) -> BTreeMap<u64, [Option<f64>; 2]> {
    let seconds = now.at.since(before.at).as_secs_f64();
    let (Some(old), Some(new)) = (before.groups.get(group), now.groups.get(group)) else {
        return BTreeMap::new();
    };
    let rate = |(old, new): (Option<u64>, Option<u64>)| {
        let grown = new?.checked_sub(old?)?;
        #[allow(clippy::cast_precision_loss)] // bytes of one interval
        (seconds > 0.0).then(|| grown as f64 / seconds)
    };
    let of = |(cache, [total, local]): (&u64, &[Option<u64>; 2])| {
        let [old_total, old_local] = *old.get(cache)?;
        Some((*cache, [rate((old_total, *total)), rate((old_local, *local))]))
    };
    new.iter().filter_map(of).collect()
}

/// Folds the traffic between two readings.
pub(super) fn take(before: &Reading, now: &Reading, snapshot: &Snapshot, silicon: &Silicon, fold: &mut Fold) {
    let processor = silicon.processor.unwrap_or_default();
    // A control group's counters include those of its monitoring groups, so the machine's traffic is that of these.
    let mut nodes: BTreeMap<u32, Vec<[Option<f64>; 2]>> = BTreeMap::new();
    for group in now.groups.keys().filter(|group| !group.contains("mon_groups")) {
        for (cache, rates) in rates(before, now, group) {
            if let Ok(node) = silicon.caches.node_of(cache) {
                nodes.entry(node).or_default().push(rates);
            }
        }
    }
    for (node, caches) in nodes {
        let total = match processor {
            // What has to be corrected by something that is not told is not known.
            Processor::Zen3 => None,
            Processor::Zen4 => known(&caches).map(|caches| of_node(&caches, processor).total),
            _ => sum(&caches, 0),
        };
        let value = json!({"total": total, "local": sum(&caches, 1)});
        let id = Id { instance: Instance::Number(node), ..Id::default() };
        fold.take(
            Scope::Numa,
            id,
            false,
            &[Block { name: "l3", value: &value, unix_ns: Some(now.at.unix_ns) }],
        );
    }
    for group in now.groups.keys().filter(|group| !group.is_empty()) {
        // Whoever makes a group for a container calls it after the container.
        let owner =
            snapshot.containers.iter().find(|s| s.removed.is_none() && group.contains(&s.id.container_id));
        let Some(owner) = owner else { continue };
        let caches: Vec<_> = rates(before, now, group).into_values().collect();
        let local = match processor {
            Processor::Zen4 => known(&caches).map(|caches| of_container(caches, processor).local),
            _ => sum(&caches, 1),
        };
        let value = json!({"total": sum(&caches, 0), "local": local});
        let block = Block { name: "mbm", value: &value, unix_ns: Some(now.at.unix_ns) };
        fold.take(Scope::Container, (*owner.id).clone(), false, &[block]);
    }
    fold.forget(FORGET);
}

/// The sum of one rate over caches; nothing where one of them does not tell it.
fn sum(caches: &[[Option<f64>; 2]], which: usize) -> Option<f64> {
    let rates = caches.iter().map(|rates| rates.get(which).copied().flatten());
    rates.sum::<Option<f64>>().filter(|_| !caches.is_empty())
}

/// Caches of which each tells both rates; nothing otherwise.
fn known(caches: &[[Option<f64>; 2]]) -> Option<Vec<Traffic>> {
    let traffic = |rates: &[Option<f64>; 2]| {
        let [total, local] = *rates;
        Some(Traffic { total: total?, local: local?, victim: None })
    };
    caches.iter().map(traffic).collect::<Option<Vec<_>>>().filter(|caches| !caches.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;
    use crate::store::Subject;

    fn write(root: &Path, group: &str, cache: u32, total: &str, local: &str) {
        let dir = root.join(group).join(format!("mon_data/mon_L3_{cache:02}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("mbm_total_bytes"), format!("{total}\n")).unwrap();
        fs::write(dir.join("mbm_local_bytes"), format!("{local}\n")).unwrap();
    }

    fn at(seconds: u64) -> Now {
        Now { monotonic_ns: seconds * 1_000_000_000, unix_ns: (1_000_000 + seconds as i64) * 1_000_000_000 }
    }

    /// Caches 0 and 1, each on the node of the same number.
    fn silicon(processor: Processor) -> Silicon {
        let sys = tempfile::tempdir().unwrap();
        for n in 0..2 {
            let [node, cache] = [format!("node/node{n}"), format!("cpu/cpu{n}/cache/index3")]
                .map(|folder| sys.path().join("sys/devices/system").join(folder));
            fs::create_dir_all(&node).unwrap();
            fs::create_dir_all(&cache).unwrap();
            fs::write(node.join("cpulist"), n.to_string()).unwrap();
            fs::write(cache.join("id"), n.to_string()).unwrap();
        }
        let caches = crate::machine::Machine::read(sys.path()).caches(sys.path());
        Silicon { caches, processor: Some(processor) }
    }

    fn value(fold: &Fold, metric: &str, instance: &Instance) -> Option<f64> {
        let (place, metric) = catalogue::find(metric).unwrap();
        let subjects = fold.subjects();
        let found = subjects.iter().find(|s| s.scope == metric.scope && s.id.instance == *instance)?;
        found.cells.get(place)?.last.map(|r| r.value)
    }

    #[test]
    fn existing_groups_are_read_and_none_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("info/L3_MON")).unwrap();
        let container = Id { container_id: "abc".into(), ..Id::default() };
        let subject = Arc::new(Subject::unknown(Scope::Container, container));
        let snapshot = Snapshot { containers: vec![subject], ..Snapshot::default() };
        let mut fold = Fold::new(Source::Resctrl, Duration::from_secs(15));
        let mut before = Reading::default();
        let silicon = silicon(Processor::Unknown);
        let mut pass = |seconds, counts: [u64; 3]| {
            let [root_group, control, container] = counts.map(|n| n.to_string());
            write(root, "", 0, &root_group, &root_group);
            write(root, "", 1, &root_group, "Unavailable");
            write(root, "batch", 0, &control, "0");
            write(root, "mon_groups/pod-abc", 0, &container, &container);
            let now = Reading { at: at(seconds), groups: groups(root) };
            fold.begin(now.at);
            take(&before, &now, &snapshot, &silicon, &mut fold);
            before = now;
            let node = |metric, n| value(&fold, metric, &Instance::Number(n));
            (
                node("mbm.total.ps.numa", 0),
                node("mbm.total.ps.numa", 1),
                node("mbm.local.ps.numa", 1),
                value(&fold, "mbm.total.ps.container", &Instance::Whole),
            )
        };
        assert_eq!(pass(10, [100, 1000, 10]), (None, None, None, None), "one reading is no rate");
        assert_eq!(pass(12, [300, 1400, 50]), (Some(300.0), Some(100.0), None, Some(20.0)));
        // A counter that went down gives no value; what was known stays, and ages.
        assert_eq!(pass(14, [100, 1600, 90]).3, Some(20.0));
        let names: Vec<_> = folders(&root.join("mon_groups")).collect();
        assert_eq!(names, ["pod-abc"]);
        assert!(groups(&root.join("nothing")).is_empty());
    }

    #[test]
    fn what_the_processor_counts_short_is_corrected_as_malachites_is_or_not_told() {
        let container = Id { container_id: "abc".into(), ..Id::default() };
        let subject = Arc::new(Subject::unknown(Scope::Container, container));
        let snapshot = Snapshot { containers: vec![subject], ..Snapshot::default() };
        let reading = |seconds, total, local| {
            let counted: Counted = [(0, [Some(total), Some(local)])].into();
            let groups = [(String::new(), counted.clone()), ("pod-abc".to_owned(), counted)].into();
            Reading { at: at(seconds), groups }
        };
        let told = |processor| {
            let mut fold = Fold::new(Source::Resctrl, Duration::from_secs(15));
            let (before, now) = (reading(10, 100, 100), reading(11, 125, 108));
            for (before, now) in [(&Reading::default(), &before), (&before, &now)] {
                fold.begin(now.at);
                take(before, now, &snapshot, &silicon(processor), &mut fold);
            }
            let node = |metric| value(&fold, metric, &Instance::Number(0));
            let container = |metric| value(&fold, metric, &Instance::Whole);
            let local = container("mbm.local.ps.container").map(|v| (v * 1000.0).round());
            (node("mbm.total.ps.numa"), node("mbm.local.ps.numa"), container("mbm.total.ps.container"), local)
        };
        assert_eq!(told(Processor::Unknown), (Some(50.0), Some(16.0), Some(25.0), Some(8000.0)));
        assert_eq!(told(Processor::Zen4), (Some(58.0), Some(16.0), Some(25.0), Some(13_333.0)));
        assert_eq!(
            told(Processor::Zen3),
            (None, Some(16.0), Some(25.0), Some(8000.0)),
            "evictions are not told"
        );
    }
}
