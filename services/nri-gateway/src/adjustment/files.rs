//! Wishes as writes to the kernel's files, in an order that the kernel takes. CPUs and memory nodes are not among them: theirs
//! depends on the cgroups around ([`oxalyst_cgroups::set_cpuset`]).

use oxalyst_cgroups::Controller;
use oxalyst_cgroups::bandwidth::{Bandwidth, DEFAULT_PERIOD_US, MIN_US, Step};

use super::{Knob, Property, Row, Value, Wish};

/// Of which thing a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The container's cgroup, in this controller's tree.
    Cgroup(Controller),
    /// Each of its processes.
    Processes,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileWrite {
    /// Where the file lies.
    pub target: Target,
    /// Its name.
    pub file: String,
    /// What is written.
    pub text: String,
}

/// What has to be done to files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// In this order; only what differs.
    pub writes: Vec<FileWrite>,
    /// What cannot be done here, or not now, and why.
    pub reports: Vec<String>,
}

/// Limits of v1 are unlimited from here on.
const V1_UNLIMITED: i64 = 0x7fff_ffff_ffff_f000;

/// The kernel counts memory in pages.
const PAGE: i64 = 4096;

/// What has to be written for `wish`. `now` gives a file's text, `None` where there is no such file.
pub fn writes(wish: &Wish, unified: bool, now: &dyn Fn(Target, &str) -> Option<String>) -> Writes {
    let mut plan = Plan { unified, now, out: Writes::default() };
    let idle = wish.number(Property::CpuIdle).flatten();
    if idle == Some(0) {
        plan.number(Property::CpuIdle, "0".to_owned());
    }
    // An idle cgroup has no weight: the kernel refuses one.
    if let (Some(Some(shares)), false) = (wish.number(Property::CpuShares), idle == Some(1)) {
        plan.shares(shares);
    }
    plan.bandwidth(wish);
    if idle == Some(1) {
        plan.number(Property::CpuIdle, "1".to_owned());
    }
    plan.memory(wish);
    if let Some(limit) = wish.number(Property::Pids) {
        plan.number(Property::Pids, max_or(limit));
    }
    if let Some(Some(score)) = wish.number(Property::OomScoreAdj) {
        plan.number(Property::OomScoreAdj, score.to_string());
    }
    for (row, value) in wish.rows() {
        match (row.property, value) {
            (Property::Hugepages | Property::Unified, Value::Named(named)) => {
                for (name, text) in named {
                    plan.named(row, name, text.trim());
                }
            }
            (Property::Env | Property::Annotations, Value::Named(named)) => {
                let names: Vec<&str> = named.keys().map(String::as_str).collect();
                plan.out.reports.push(format!(
                    "{} {} can be set only when a container is created: it comes with the container's next creation",
                    row.name,
                    names.join(", ")
                ));
            }
            _ => {}
        }
    }
    plan.out
}

struct Plan<'a> {
    unified: bool,
    now: &'a dyn Fn(Target, &str) -> Option<String>,
    out: Writes,
}

// === impl Plan ===

impl Plan<'_> {
    fn knob(&mut self, property: Property) -> Option<(Target, &'static str)> {
        let row = Row::of(property)?;
        match row.knob(self.unified) {
            Some(Knob::Cgroup(controller, file)) => Some((Target::Cgroup(controller), file)),
            Some(Knob::Process(file)) => Some((Target::Processes, file)),
            None => {
                let version = if self.unified { "v2" } else { "v1" };
                self.out.reports.push(format!("{} has no file on cgroup {version}", row.name));
                None
            }
        }
    }

    /// Writes where the file's text does not mean the same.
    fn put(&mut self, target: Target, file: &str, text: String) {
        match (self.now)(target, file) {
            Some(now) if same(&now, &text) => {}
            Some(_) => self.out.writes.push(FileWrite { target, file: file.to_owned(), text }),
            None => self
                .out
                .reports
                .push(format!("there is no {file} here: the controller is off, or the kernel too old")),
        }
    }

    fn number(&mut self, property: Property, text: String) {
        if let Some((target, file)) = self.knob(property) {
            self.put(target, file, text);
        }
    }

    fn named(&mut self, row: &Row, name: &str, text: &str) {
        if let Some((target, file)) = self.knob(row.property) {
            self.put(target, &file.replace('*', name), text.to_owned());
        }
    }

    fn shares(&mut self, shares: i64) {
        let Some((target, file)) = self.knob(Property::CpuShares) else { return };
        if !self.unified {
            return self.put(target, file, shares.to_string());
        }
        let weights = [weight(shares), weight_of_newer_runtimes(shares)];
        let now = (self.now)(target, file).and_then(|now| now.parse::<i64>().ok());
        // A runtime that was told the shares may have converted them either way: both are right.
        if now.is_none_or(|now| weights.iter().all(|weight| weight.abs_diff(now) > 1)) {
            self.put(target, file, weight(shares).to_string());
        }
    }

    fn bandwidth(&mut self, wish: &Wish) {
        let wished = [Property::CpuQuota, Property::CpuPeriod, Property::CpuBurst].map(|p| wish.number(p));
        if wished.iter().all(Option::is_none) {
            return;
        }
        let Some((target, quota)) = self.knob(Property::CpuQuota) else { return };
        let (Some((_, period)), Some((_, burst))) =
            (self.knob(Property::CpuPeriod), self.knob(Property::CpuBurst))
        else {
            return;
        };
        let Some(now) = self.bandwidth_now(target, quota, period, burst) else {
            self.out.reports.push(format!("there is no {quota} here: the cpu controller is off"));
            return;
        };
        let [wished_quota, wished_period, wished_burst] = wished;
        let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
        let wanted = Bandwidth {
            quota_us: wished_quota.map_or(now.quota_us, |quota| quota.map(unsigned)),
            period_us: wished_period.flatten().map_or(now.period_us, unsigned),
            burst_us: wished_burst.flatten().map(unsigned).or(now.burst_us),
        };
        if wished_burst.is_some() && now.burst_us.is_none() {
            self.out.reports.push(format!("there is no {burst} here: the kernel knows no burst"));
        }
        if wanted.quota_us.is_some_and(|quota| quota < MIN_US) {
            self.out
                .reports
                .push(format!("CpuQuota is below {MIN_US} µs, which the kernel refuses: raised to it"));
        }
        for step in now.steps(wanted, self.unified) {
            let max = |limit: Option<u64>| limit.map_or("max".to_owned(), |l| l.to_string());
            let (file, text) = match step {
                Step::Quota(limit) => (quota, limit.map_or("-1".to_owned(), |l| l.to_string())),
                Step::Period(us) => (period, us.to_string()),
                Step::Max(limit, us) => (quota, format!("{} {us}", max(limit))),
                Step::Burst(us) => (burst, us.to_string()),
            };
            self.out.writes.push(FileWrite { target, file: file.to_owned(), text });
        }
    }

    fn bandwidth_now(&self, target: Target, quota: &str, period: &str, burst: &str) -> Option<Bandwidth> {
        let text = (self.now)(target, quota)?;
        let burst_us = (self.now)(target, burst).and_then(|b| b.parse().ok());
        let mut words = text.split_whitespace();
        let quota_us = words.next().and_then(|word| word.parse::<u64>().ok());
        let period_us = match self.unified {
            true => words.next().map(str::to_owned),
            false => (self.now)(target, period),
        };
        let period_us = period_us.and_then(|p| p.parse().ok()).unwrap_or(DEFAULT_PERIOD_US);
        Some(Bandwidth { quota_us, period_us, burst_us })
    }

    fn memory(&mut self, wish: &Wish) {
        for property in [Property::MemoryMin, Property::MemoryLow, Property::MemoryHigh] {
            if let Some(bytes) = wish.number(property) {
                self.bytes(property, bytes);
            }
        }
        let (limit, swap) = (wish.number(Property::MemoryLimit), wish.number(Property::MemorySwap));
        if let Some(Some(bytes)) = limit
            && self.used().is_some_and(|used| used > bytes)
        {
            self.out.reports.push(format!(
                "MemoryLimitInBytes {bytes} is below what is in use: it waits, for the kernel would kill for it"
            ));
            return;
        }
        // The total, of memory and swap, may not be less than the memory alone.
        let total = match (swap, limit) {
            (Some(Some(total)), Some(Some(memory))) if self.unified => Some(Some((total - memory).max(0))),
            (Some(None), _) => Some(None),
            (Some(Some(_)), _) if self.unified => {
                self.out
                    .reports
                    .push("MemorySwapLimitInBytes needs MemoryLimitInBytes on cgroup v2".to_owned());
                None
            }
            (swap, _) => swap,
        };
        let grows =
            limit.is_some_and(|limit| self.limit_now().is_some_and(|now| limit.is_none_or(|l| l > now)));
        let mut both = [(Property::MemoryLimit, limit), (Property::MemorySwap, total)];
        if grows && !self.unified {
            both.reverse();
        }
        for (property, bytes) in both {
            if let Some(bytes) = bytes {
                self.bytes(property, bytes);
            }
        }
    }

    fn bytes(&mut self, property: Property, bytes: Option<i64>) {
        let Some((target, file)) = self.knob(property) else { return };
        let now = (self.now)(target, file).and_then(|now| amount(&now));
        if now == Some(bytes.map(|b| b / PAGE * PAGE)) {
            return;
        }
        let unlimited = if self.unified { "max" } else { "-1" };
        self.put(target, file, bytes.map_or(unlimited.to_owned(), |b| b.to_string()));
    }

    fn used(&self) -> Option<i64> {
        let file = if self.unified { "memory.current" } else { "memory.usage_in_bytes" };
        (self.now)(Target::Cgroup(Controller::Memory), file)?.parse().ok()
    }

    fn limit_now(&self) -> Option<i64> {
        let file = if self.unified { "memory.max" } else { "memory.limit_in_bytes" };
        amount(&(self.now)(Target::Cgroup(Controller::Memory), file)?)?
    }
}

/// `cpu.weight` of `cpu.shares` (KEP-2254).
fn weight(shares: i64) -> i64 {
    1 + (shares - 2) * 9_999 / 262_142
}

/// As runtimes convert since they agreed on a curve that gives 1,024 shares a weight of 100.
fn weight_of_newer_runtimes(shares: i64) -> i64 {
    if shares <= 2 {
        return 1;
    }
    if shares >= 262_144 {
        return 10_000;
    }
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    {
        let l = (shares as f64).log2();
        10f64.powf((l * l + 125.0 * l) / 612.0 - 7.0 / 34.0).ceil() as i64
    }
}

/// A limit as a file tells it: the inner `None` is unlimited.
fn amount(text: &str) -> Option<Option<i64>> {
    match text.trim() {
        "max" => Some(None),
        text => text.parse::<i64>().ok().map(|n| Some(n).filter(|n| (0..V1_UNLIMITED).contains(n))),
    }
}

fn max_or(limit: Option<i64>) -> String {
    limit.map_or("max".to_owned(), |l| l.to_string())
}

/// The same text, but for blanks, or the same limit.
fn same(now: &str, wanted: &str) -> bool {
    now.split_whitespace().eq(wanted.split_whitespace())
        || matches!((amount(now), amount(wanted)), (Some(a), Some(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn wish(told: &[(&str, &str)]) -> Wish {
        let (wish, unusable) = Wish::read(told.iter().copied());
        assert!(unusable.is_empty(), "{unusable:?}");
        wish
    }

    fn of(
        told: &[(&str, &str)],
        unified: bool,
        files: &[(&str, &str)],
    ) -> (Vec<(String, String)>, Vec<String>) {
        let files: BTreeMap<&str, &str> = files.iter().copied().collect();
        let now = |_: Target, file: &str| files.get(file).map(|text| (*text).to_owned());
        let plan = writes(&wish(told), unified, &now);
        (plan.writes.into_iter().map(|w| (w.file, w.text)).collect(), plan.reports)
    }

    fn pair(file: &str, text: &str) -> (String, String) {
        (file.to_owned(), text.to_owned())
    }

    #[test]
    fn c05_a_burst_is_lowered_before_the_quota_on_both_versions() {
        let told = [("CpuQuota", "100000"), ("CpuBurst", "100000")];
        let v2 = [("cpu.max", "200000 100000"), ("cpu.max.burst", "200000")];
        assert_eq!(
            of(&told, true, &v2).0,
            [pair("cpu.max.burst", "100000"), pair("cpu.max", "100000 100000")]
        );
        let v1 =
            [("cpu.cfs_quota_us", "200000"), ("cpu.cfs_period_us", "100000"), ("cpu.cfs_burst_us", "200000")];
        assert_eq!(
            of(&told, false, &v1).0,
            [pair("cpu.cfs_burst_us", "100000"), pair("cpu.cfs_quota_us", "100000")]
        );
    }

    #[test]
    fn c03_a_quota_below_the_kernels_minimum_is_raised_and_said() {
        let (writes, reports) = of(&[("CpuQuota", "500")], true, &[("cpu.max", "max 100000")]);
        assert_eq!(writes, [pair("cpu.max", "1000 100000")]);
        assert!(reports[0].contains("raised"), "{reports:?}");
    }

    #[test]
    fn idle_comes_after_the_weight_and_its_end_before_it() {
        let v2 = [("cpu.weight", "100"), ("cpu.idle", "0")];
        assert_eq!(of(&[("CpuIdle", "1"), ("CpuShares", "1024")], true, &v2).0, [pair("cpu.idle", "1")]);
        let v2 = [("cpu.weight", "0"), ("cpu.idle", "1")];
        let back = of(&[("CpuIdle", "0"), ("CpuShares", "1024")], true, &v2).0;
        assert_eq!(back, [pair("cpu.idle", "0"), pair("cpu.weight", "39")]);
    }

    #[test]
    fn the_weights_of_both_conversions_count_as_the_shares() {
        for weight in ["39", "100"] {
            assert!(of(&[("CpuShares", "1024")], true, &[("cpu.weight", weight)]).0.is_empty(), "{weight}");
        }
    }

    #[test]
    fn memory_and_swap_are_ordered_on_v1_and_a_limit_below_the_use_waits() {
        let told = [("MemoryLimitInBytes", "8192"), ("MemorySwapLimitInBytes", "16384")];
        let files = |limit: &'static str, total: &'static str, used: &'static str| {
            [
                ("memory.limit_in_bytes", limit),
                ("memory.memsw.limit_in_bytes", total),
                ("memory.usage_in_bytes", used),
            ]
        };
        let (limit, total) =
            (pair("memory.limit_in_bytes", "8192"), pair("memory.memsw.limit_in_bytes", "16384"));
        assert_eq!(of(&told, false, &files("4096", "4096", "0")).0, [total.clone(), limit.clone()]);
        assert_eq!(
            of(&told, false, &files("9223372036854771712", "9223372036854771712", "0")).0,
            [limit, total]
        );
        let (writes, reports) = of(&told, false, &files("40960", "40960", "12288"));
        assert!(writes.is_empty() && reports[0].contains("waits"), "{reports:?}");
        let v2 = [("memory.max", "max"), ("memory.swap.max", "max"), ("memory.current", "0")];
        assert_eq!(of(&told, true, &v2).0, [pair("memory.max", "8192"), pair("memory.swap.max", "8192")]);
    }

    #[test]
    fn what_has_no_file_is_reported_and_what_is_so_already_is_not_written() {
        let told =
            [("MemoryMinInBytes", "4096"), ("Env/A", "b"), ("PidsLimit", "max"), ("HugepageLimits/1GB", "0")];
        let (writes, reports) = of(&told, false, &[("pids.max", "max\n")]);
        assert!(writes.is_empty(), "{writes:?}");
        let all = reports.join("; ");
        for part in
            ["MemoryMinInBytes has no file on cgroup v1", "Env A can be set only", "hugetlb.1GB.limit_in_bytes"]
        {
            assert!(all.contains(part), "{all}");
        }
    }
}
