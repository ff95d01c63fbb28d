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
use crate::catalogue::Scope;
use crate::clock::{Clock, Now};
use crate::machine::Machine;
use crate::sample::Ages;
use crate::store::{Id, Instance, Layer, PassReport, Snapshot, Source, Store};

/// Passes after which a group that is gone is forgotten.
const FORGET: u64 = 10;
/// So many groups are read at most: the hardware has fewer.
const MOST: usize = 1024;
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

/// Bytes counted by one L3 cache.
type Counted = BTreeMap<u64, [Option<u64>; 2]>;

/// One reading of everything.
#[derive(Clone, Debug, Default)]
struct Reading {
    at: Now,
    /// By the group's path below the root.
    groups: BTreeMap<String, Counted>,
}

/// Passes for ever; while there is no resctrl nothing is told. A pass that hangs leaves what was known, ageing.
pub async fn follow(mut resctrl: Resctrl) {
    let root = resctrl.host_root.join("sys/fs/resctrl");
    let mut fold = Fold::new(Source::Resctrl, resctrl.ages.max_age);
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
                let machine = Machine::read(&resctrl.host_root);
                let node_of = |cache| machine.node_of_l3(&resctrl.host_root, cache).ok();
                take(&before, &now, &resctrl.store.load(), node_of, &mut fold);
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

fn take(
    before: &Reading,
    now: &Reading,
    snapshot: &Snapshot,
    node_of: impl Fn(u64) -> Option<u32>,
    fold: &mut Fold,
) {
    let sum = |values: &[Option<f64>]| {
        let known: Vec<f64> = values.iter().copied().flatten().collect();
        (known.len() == values.len() && !known.is_empty()).then(|| known.iter().sum::<f64>())
    };
    // A control group's counters include those of its monitoring groups, so the machine's traffic is that of these.
    let mut nodes: BTreeMap<u32, [Vec<Option<f64>>; 2]> = BTreeMap::new();
    for group in now.groups.keys().filter(|group| !group.contains("mon_groups")) {
        for (cache, [total, local]) in rates(before, now, group) {
            let Some(node) = node_of(cache) else { continue };
            let [totals, locals] = nodes.entry(node).or_default();
            totals.push(total);
            locals.push(local);
        }
    }
    for (node, [totals, locals]) in nodes {
        let value = json!({"total": sum(&totals), "local": sum(&locals)});
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
        let of_caches: Vec<_> = rates(before, now, group).into_values().collect();
        let [totals, locals] =
            [0, 1].map(|n| of_caches.iter().filter_map(|r| r.get(n).copied()).collect::<Vec<_>>());
        let value = json!({"total": sum(&totals), "local": sum(&locals)});
        let block = Block { name: "mbm", value: &value, unix_ns: Some(now.at.unix_ns) };
        fold.take(Scope::Container, (*owner.id).clone(), false, &[block]);
    }
    fold.forget(FORGET);
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
        let mut pass = |seconds, counts: [u64; 3]| {
            let [root_group, control, container] = counts.map(|n| n.to_string());
            write(root, "", 0, &root_group, &root_group);
            write(root, "", 1, &root_group, "Unavailable");
            write(root, "batch", 0, &control, "0");
            write(root, "mon_groups/pod-abc", 0, &container, &container);
            let now = Reading { at: at(seconds), groups: groups(root) };
            fold.begin(now.at);
            take(&before, &now, &snapshot, |cache| u32::try_from(cache).ok(), &mut fold);
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
}
