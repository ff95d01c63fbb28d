//! The busiest pods or containers: a table to keep open.

use std::collections::{BTreeMap, BTreeSet};

use oxalyst_proto::metrics::v1::{Quality, QueryReply, QueryRequest, Sample, Scope};
use serde::Serialize;

use crate::duration;
use crate::table::Table;

const CPU: &str = "cpu.usage.container";
const MEMORY: &str = "mem.workingset.container";
const THROTTLED: &str = "cpu.throttled.time.container.rate";
const CPU_PRESSURE: &str = "cpu.psi.some.avg10.container";
const MEMORY_PRESSURE: &str = "mem.psi.some.avg10.container";

const NODE_CPUS: &str = "cpu.total.system";
const NODE_CPU: &str = "cpu.usage.system";
const NODE_MEMORY: &str = "mem.total.system";
const NODE_MEMORY_USED: &str = "mem.used.system";
const NODE_LOAD: &str = "cpu.load.1min.system";
const NODE_CPU_PRESSURE: &str = "cpu.psi.some.avg10.system";
const NODE_MEMORY_PRESSURE: &str = "mem.psi.some.avg10.system";
const NODE_IO_PRESSURE: &str = "io.psi.some.avg10.system";

/// What the table needs.
pub(crate) fn query() -> QueryRequest {
    let of_containers = [CPU, MEMORY, THROTTLED, CPU_PRESSURE, MEMORY_PRESSURE];
    let of_node = [
        NODE_CPUS,
        NODE_CPU,
        NODE_MEMORY,
        NODE_MEMORY_USED,
        NODE_LOAD,
        NODE_CPU_PRESSURE,
        NODE_MEMORY_PRESSURE,
        NODE_IO_PRESSURE,
    ];
    QueryRequest {
        metrics: of_containers.into_iter().chain(of_node).map(str::to_owned).collect(),
        scopes: vec![Scope::Container as i32, Scope::Node as i32],
        ..QueryRequest::default()
    }
}

/// The node, and a row each for those that are there, the one that uses most CPU first.
#[derive(Debug, Serialize)]
pub(crate) struct TopView {
    pub(crate) now_unix_ms: i64,
    pub(crate) node: NodeView,
    pub(crate) rows: Vec<RowView>,
    #[serde(skip)]
    by_container: bool,
}

/// The machine as a whole.
#[derive(Debug, Serialize, Default, PartialEq)]
pub(crate) struct NodeView {
    pub(crate) cpus: Option<f64>,
    pub(crate) cpu_cores: Option<f64>,
    pub(crate) memory_bytes: Option<f64>,
    pub(crate) memory_used_bytes: Option<f64>,
    pub(crate) load_1min: Option<f64>,
    pub(crate) cpu_pressure: Option<f64>,
    pub(crate) memory_pressure: Option<f64>,
    pub(crate) io_pressure: Option<f64>,
    /// Of the oldest of its values.
    pub(crate) age_ms: u64,
    /// Some of its values are older than they should be.
    pub(crate) stale: bool,
}

/// How many characters a terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) lines: usize,
    pub(crate) columns: usize,
}

#[derive(Debug, Serialize, Default)]
pub(crate) struct RowView {
    pub(crate) name: String,
    /// Containers, the pod's sandbox among them.
    pub(crate) containers: usize,
    pub(crate) cpu_cores: Value,
    pub(crate) working_set_bytes: Value,
    pub(crate) throttled_us_per_second: Value,
    pub(crate) cpu_pressure: Value,
    pub(crate) memory_pressure: Value,
    /// Of its values, joined by commas.
    pub(crate) source: String,
    /// Of the oldest of its values.
    pub(crate) age_ms: u64,
    /// Some of its values are older than they should be.
    pub(crate) stale: bool,
}

/// A number out of those of one or several containers.
#[derive(Debug, Serialize, Default, Clone, Copy, PartialEq)]
pub(crate) struct Value {
    /// `None`: none of them has one.
    pub(crate) value: Option<f64>,
    /// Containers without one: the sum of the others is a lower bound.
    pub(crate) missing: usize,
}

// === impl Value ===

impl Value {
    fn take(&mut self, value: Option<f64>, join: fn(f64, f64) -> f64) {
        match value {
            Some(value) => self.value = Some(self.value.map_or(value, |before| join(before, value))),
            None => self.missing += 1,
        }
    }

    fn told(self, text: impl Fn(f64) -> String) -> Option<String> {
        let bound = if self.missing > 0 { ">" } else { "" };
        self.value.map(|value| format!("{bound}{}", text(value)))
    }
}

// === impl Size ===

impl Size {
    /// Of the terminal behind standard output; `None` where there is none, or it does not say.
    pub(crate) fn of_terminal() -> Option<Self> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        let told = size.ws_row > 0 && size.ws_col > 0;
        told.then_some(Self { lines: size.ws_row.into(), columns: size.ws_col.into() })
    }

    /// No line longer, and no more lines, than there is room for; the last line is the cursor's.
    fn cut(self, text: &str) -> String {
        let all: Vec<&str> = text.lines().collect();
        let room = self.lines.saturating_sub(1).max(1);
        let shown = if all.len() > room { room.saturating_sub(1) } else { all.len() };
        let mut out = String::new();
        for line in all.iter().take(shown) {
            out.extend(line.chars().take(self.columns).chain(['\n']));
        }
        if all.len() > shown {
            let more = format!("… {} more", all.len() - shown);
            out.extend(more.chars().take(self.columns).chain(['\n']));
        }
        out
    }
}

// === impl NodeView ===

impl NodeView {
    fn take(&mut self, sample: &Sample) -> bool {
        let place = match sample.metric.as_str() {
            NODE_CPUS => &mut self.cpus,
            NODE_CPU => &mut self.cpu_cores,
            NODE_MEMORY => &mut self.memory_bytes,
            NODE_MEMORY_USED => &mut self.memory_used_bytes,
            NODE_LOAD => &mut self.load_1min,
            NODE_CPU_PRESSURE => &mut self.cpu_pressure,
            NODE_MEMORY_PRESSURE => &mut self.memory_pressure,
            NODE_IO_PRESSURE => &mut self.io_pressure,
            _ => return false,
        };
        *place = sample.value;
        if sample.value.is_some() {
            self.age_ms = self.age_ms.max(sample.age_ms);
            self.stale |= sample.quality() == Quality::Stale;
        }
        true
    }

    /// One line; what is not told is left out.
    fn line(&self) -> String {
        let of = |used: Option<f64>, all: Option<f64>, text: &dyn Fn(f64) -> String| {
            let all = all.map(|all| format!("/{}", text(all))).unwrap_or_default();
            used.map(|used| format!("{}{all}", text(used)))
        };
        let percent = |ratio: f64| format!("{:.1}%", ratio * 100.0);
        let parts = [
            (
                "CPU",
                of(self.cpu_cores, self.cpus, &|n| {
                    if n.fract() == 0.0 { format!("{n}") } else { format!("{n:.2}") }
                }),
            ),
            (
                "memory",
                of(self.memory_used_bytes, self.memory_bytes, &|n| format!("{:.1}Gi", n / 1_073_741_824.0)),
            ),
            ("load", self.load_1min.map(|n| format!("{n:.2}"))),
            ("CPU-PSI", self.cpu_pressure.map(percent)),
            ("MEM-PSI", self.memory_pressure.map(percent)),
            ("IO-PSI", self.io_pressure.map(percent)),
        ];
        let told: Vec<String> =
            parts.into_iter().filter_map(|(name, text)| Some(format!("{name} {}", text?))).collect();
        let stale =
            if self.stale { format!("  {} stale", duration::short(self.age_ms)) } else { String::new() };
        if told.is_empty() {
            "node: nothing is told".to_owned()
        } else {
            format!("node: {}{stale}", told.join("  "))
        }
    }
}

// === impl TopView ===

impl TopView {
    /// By pod, or by container.
    pub(crate) fn new(reply: QueryReply, by_container: bool) -> Self {
        let mut rows: BTreeMap<String, (RowView, BTreeSet<String>, BTreeSet<String>)> = BTreeMap::new();
        let mut node = NodeView::default();
        // Whoever is gone is not there any more, though its last value is still told.
        for sample in reply.samples.into_iter().filter(|sample| !sample.removed) {
            if node.take(&sample) {
                continue;
            }
            let pod = by_container || sample.pod_uid.is_empty();
            let key = if pod { sample.container_id.clone() } else { sample.pod_uid.clone() };
            let (row, containers, sources) = rows.entry(key).or_default();
            if row.name.is_empty() || !sample.pod.is_empty() {
                row.name = name(&sample, by_container);
            }
            if sample.value.is_some() {
                row.age_ms = row.age_ms.max(sample.age_ms);
                row.stale |= sample.quality() == Quality::Stale;
                sources.insert(sample.source.clone());
            }
            containers.insert(sample.container_id.clone());
            // Time waited by some task of one container and of another may be the same time: no sum.
            let sum = |a, b| a + b;
            match sample.metric.as_str() {
                CPU => row.cpu_cores.take(sample.value, sum),
                MEMORY => row.working_set_bytes.take(sample.value, sum),
                THROTTLED => row.throttled_us_per_second.take(sample.value, sum),
                CPU_PRESSURE => row.cpu_pressure.take(sample.value, f64::max),
                MEMORY_PRESSURE => row.memory_pressure.take(sample.value, f64::max),
                _ => {}
            }
        }
        let row = |(mut row, containers, sources): (RowView, BTreeSet<String>, BTreeSet<String>)| {
            row.containers = containers.len();
            row.source = sources.into_iter().collect::<Vec<_>>().join(",");
            row
        };
        let mut rows: Vec<RowView> = rows.into_values().map(row).collect();
        let used = |row: &RowView| row.cpu_cores.value.unwrap_or(-1.0);
        rows.sort_by(|a, b| used(b).total_cmp(&used(a)).then_with(|| a.name.cmp(&b.name)));
        Self { now_unix_ms: reply.now_unix_ms, node, rows, by_container }
    }

    /// Columns that nobody fills are left out. With a `size` it fits into that.
    pub(crate) fn render(&self, size: Option<Size>) -> String {
        let time = duration::rfc3339(self.now_unix_ms).unwrap_or_default();
        let head = format!("{time}  {}\n", self.node.line());
        let whole = format!("{head}{}", self.table(usize::MAX));
        let Some(size) = size else { return whole };
        let widest = whole.lines().skip(1).map(|line| line.chars().count()).max().unwrap_or(0);
        let longest = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        // Numbers are worth more than the ends of names.
        let name = longest.saturating_sub(widest.saturating_sub(size.columns)).max(SHORTEST_NAME);
        size.cut(&format!("{head}{}", self.table(name)))
    }

    fn table(&self, longest_name: usize) -> String {
        type Column = (&'static str, fn(&RowView) -> Option<String>);
        fn percent(value: Value, whole: f64) -> Option<String> {
            value.told(|v| format!("{:.1}%", v / whole * 100.0))
        }
        let columns: [Column; 5] = [
            ("CPU", |row| row.cpu_cores.told(|v| format!("{v:.3}"))),
            ("MEMORY", |row| row.working_set_bytes.told(|v| format!("{:.1}Mi", v / 1_048_576.0))),
            ("THROTTLED", |row| percent(row.throttled_us_per_second, 1e6)),
            ("CPU-PSI", |row| percent(row.cpu_pressure, 1.0)),
            ("MEM-PSI", |row| percent(row.memory_pressure, 1.0)),
        ];
        let filled = |(_, cell): &&Column| self.rows.iter().any(|row| cell(row).is_some());
        let columns: Vec<&Column> = columns.iter().filter(filled).collect();
        let first = if self.by_container { "CONTAINER" } else { "POD" };
        let names = columns.iter().map(|(name, _)| *name);
        let header: Vec<&str> = [first].into_iter().chain(names).chain(["SOURCE", "AGE"]).collect();
        let mut table = Table::new(&header);
        for row in &self.rows {
            let stale = if row.stale { " stale" } else { "" };
            let mut cells = vec![shortened(&row.name, longest_name)];
            cells.extend(columns.iter().map(|(_, cell)| cell(row).unwrap_or_default()));
            cells.push(row.source.clone());
            cells.push(format!("{}{stale}", duration::short(row.age_ms)));
            table.row(cells);
        }
        if table.is_empty() { "no containers\n".to_owned() } else { table.render() }
    }
}

/// A name is not cut to less.
const SHORTEST_NAME: usize = 12;

fn shortened(name: &str, longest: usize) -> String {
    match name.char_indices().nth(longest) {
        None => name.to_owned(),
        Some(_) => name.chars().take(longest.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// namespace/pod and, of a container, its name, as far as names are known, else the container's id or the pod's UID.
fn name(sample: &Sample, by_container: bool) -> String {
    match (sample.pod.is_empty(), by_container || sample.pod_uid.is_empty()) {
        (true, true) => sample.container_id.chars().take(13).collect(),
        (true, false) => sample.pod_uid.clone(),
        (false, true) => format!("{}/{}/{}", sample.namespace, sample.pod, sample.container),
        (false, false) => format!("{}/{}", sample.namespace, sample.pod),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(id: &str, metric: &str, value: Option<f64>, age_ms: u64) -> Sample {
        Sample {
            container_id: id.into(),
            metric: metric.into(),
            value,
            age_ms,
            source: "cgroup-v1".into(),
            ..Sample::default()
        }
    }

    #[test]
    fn the_busiest_comes_first_and_what_is_missing_is_no_zero() {
        let samples = vec![
            sample("idle", CPU, Some(0.01), 100),
            sample("idle", MEMORY, Some(1_048_576.0), 400),
            sample("busy", CPU, Some(1.5), 100),
            sample("busy", THROTTLED, Some(250_000.0), 100),
            sample("busy", CPU_PRESSURE, None, 0),
            sample("new", CPU, None, 0),
        ];
        let view = TopView::new(QueryReply { samples, now_unix_ms: 1 }, true);
        assert_eq!(
            view.render(None),
            "1970-01-01T00:00:00.001Z  node: nothing is told\n\
             CONTAINER  CPU    MEMORY  THROTTLED  SOURCE     AGE\n\
             busy       1.500  -       25.0%      cgroup-v1  100ms\n\
             idle       0.010  1.0Mi   -          cgroup-v1  400ms\n\
             new        -      -       -          -          0ms\n"
        );
    }

    #[test]
    fn m07_a_pod_is_the_sum_of_its_containers_in_cores_and_says_what_is_missing_or_old() {
        let of = |pod: &str, id: &str, metric: &str, value, age_ms| Sample {
            pod_uid: format!("uid-{pod}"),
            pod: pod.into(),
            namespace: "ns".into(),
            ..sample(id, metric, value, age_ms)
        };
        let samples = vec![
            of("web", "a", CPU, Some(1.5), 100),
            of("web", "b", CPU, Some(0.25), 2000),
            of("web", "a", CPU_PRESSURE, Some(0.25), 100),
            of("web", "b", CPU_PRESSURE, Some(0.5), 100),
            of("half", "c", CPU, Some(0.5), 100),
            of("half", "d", CPU, None, 0),
            Sample { quality: Quality::Stale.into(), ..of("half", "c", MEMORY, Some(2_097_152.0), 20_000) },
        ];
        let view = TopView::new(QueryReply { samples, now_unix_ms: 1 }, false);
        let text = view.render(None);
        assert_eq!(
            text.split_once('\n').unwrap().1,
            "POD      CPU     MEMORY  CPU-PSI  SOURCE     AGE\n\
             ns/web   1.750   -       50.0%    cgroup-v1  2s\n\
             ns/half  >0.500  2.0Mi   -        cgroup-v1  20s stale\n"
        );
    }

    #[test]
    fn the_node_is_one_line_and_whoever_is_gone_has_none() {
        let node = |metric: &str, value| Sample {
            quality: Quality::Fresh.into(),
            ..sample("", metric, Some(value), 100)
        };
        let samples = vec![
            node(NODE_CPU, 1.5),
            node(NODE_CPUS, 8.0),
            node(NODE_MEMORY_USED, 3_221_225_472.0),
            node(NODE_MEMORY, 8_589_934_592.0),
            node(NODE_CPU_PRESSURE, 0.125),
            Sample { quality: Quality::Stale.into(), ..sample("", NODE_LOAD, Some(0.5), 20_000) },
            sample("there", CPU, Some(1.0), 100),
            Sample { removed: true, ..sample("gone", CPU, Some(9.0), 100) },
        ];
        let view = TopView::new(QueryReply { samples, now_unix_ms: 1 }, true);
        assert_eq!(
            view.render(None),
            "1970-01-01T00:00:00.001Z  node: CPU 1.50/8  memory 3.0Gi/8.0Gi  load 0.50  CPU-PSI 12.5%  20s stale\n\
             CONTAINER  CPU    SOURCE     AGE\n\
             there      1.000  cgroup-v1  100ms\n"
        );
    }

    #[test]
    fn it_fits_into_the_terminal_and_says_how_many_are_not_shown() {
        let name = |n: usize| format!("a-container-with-a-name-that-is-long-{n:02}");
        let samples = (0..30).map(|n| Sample {
            pod: name(n),
            namespace: "namespace".into(),
            container: "app".into(),
            ..sample(&format!("c{n:02}"), CPU, Some(30.0 - n as f64), 100)
        });
        let view = TopView::new(QueryReply { samples: samples.collect(), now_unix_ms: 1 }, true);
        for (lines, columns) in [(24, 60), (10, 40), (3, 20), (1, 1)] {
            let text = view.render(Some(Size { lines, columns }));
            assert!(text.lines().count() < lines.max(2), "{lines} x {columns}:\n{text}");
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{lines} x {columns}:\n{text}");
        }
        let text = view.render(Some(Size { lines: 24, columns: 60 }));
        let first = text.lines().nth(2).unwrap();
        assert!(first.contains("…  30.000") && first.ends_with("100ms"), "{text}");
        assert_eq!(text.lines().last(), Some("… 10 more"));
        assert!(view.render(Some(Size { lines: 50, columns: 200 })).contains(&name(29)));
    }
}
