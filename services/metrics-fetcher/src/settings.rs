//! What the service can be told.

use std::time::Duration;

use oxalyst_cgroups::{CgroupPath, PathError};
use oxalyst_settings::{Common, HasCommon};
use serde::{Deserialize, Serialize};

use crate::query::Terms;
use crate::rank::Ranking;
use crate::sample::Ages;
use crate::sources::cgroup::{PassSettings, Schedule};
use crate::sources::http::Endpoint;
use crate::store::Source;

/// Settings of the metrics-fetcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What every service has.
    pub common: Common,
    /// From one pass to the next, milliseconds, 100..=600000.
    pub period_ms: u64,
    /// A value expires, and is told as stale with its age, once it is older than so many periods, at least 1, unless the asker
    /// names an age.
    pub stale_after_periods: u32,
    /// A stale value is told no more, and missing, once it is older than so many periods; at least `stale_after_periods`.
    pub withdraw_after_periods: u32,
    /// A removed container is forgotten after so many periods; at least `stale_after_periods`.
    pub forget_after_periods: u32,
    /// A pass that takes longer is reported, milliseconds, at least 1.
    pub pass_deadline_ms: u64,
    /// A read that takes longer is given up with its thread, at most four at a time, milliseconds, at least 10.
    pub read_deadline_ms: u64,
    /// So many may watch at once, 1..=1024; another is refused.
    pub max_watchers: usize,
    /// malachite, if it is to be asked.
    pub malachite: Endpoint,
    /// From one question for its sensors to the next, milliseconds, at least 100; 0: they are not asked for.
    pub malachite_realtime_period_ms: u64,
    /// The kubelet's statistics, if they are to be asked for. The token is good for nothing else.
    pub kubelet: Endpoint,
    /// Cycles and instructions of containers from the processor's own counters, if they are to be counted.
    pub perf: Perf,
    /// Whether the kernel is asked for the states of containers' tasks on cgroup v1.
    pub cgroupstats: bool,
    /// From one such question to the next, milliseconds, at least 100; without it `period_ms`.
    pub cgroupstats_period_ms: Option<u64>,
    /// From one look at resctrl's groups to the next, milliseconds, at least 100; without it `period_ms`; 0: they are not read.
    pub resctrl_period_ms: Option<u64>,
    /// Sources without which the process is not ready: "malachite", "malachite-realtime", "kubelet", "resctrl", "perf",
    /// "cgroupstats", of those that are set up. Cgroups always are.
    pub required_sources: Vec<String>,
    /// Which source is the best where several tell one definition: `kernel-first` or `malachite-first`.
    pub ranking: Ranking,
    /// Cgroups that are measured beside containers, where they exist; the kubelet's own three always are.
    pub cgroups: Vec<String>,
    /// Cgroups below which `kubepods` is looked for: `/`, and what the kubelet has as its cgroup root.
    pub cgroup_roots: Vec<String>,
}

/// The processor's own counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Perf {
    /// Whether they are used. It costs something at every switch from one container to another.
    pub enabled: bool,
    /// From one pass to the next, milliseconds, at least 100.
    pub period_ms: u64,
    /// So many containers are counted at most, 1..=1024; each takes two descriptors a CPU.
    pub max_containers: usize,
}

/// How a source beside cgroups and `/proc` is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetUp {
    /// Which.
    pub source: Source,
    /// From one pass to the next.
    pub period: Duration,
    /// What one question may take.
    pub deadline: Duration,
    /// The process is not ready without it.
    pub required: bool,
    /// It is shown even while it has told nothing.
    pub expected: bool,
}

/// A setting out of its range.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A number.
    #[error("{key} is {given}: it must be {must}")]
    Range {
        /// The key.
        key: &'static str,
        /// As given.
        given: u64,
        /// The range.
        must: &'static str,
    },
    /// A source that cannot be required.
    #[error("required_sources names {given:?}, which is not set up: it may name {known}")]
    Source {
        /// As given.
        given: String,
        /// Those that are set up.
        known: String,
    },
    /// A path of a cgroup.
    #[error("{key}: {source}")]
    Path {
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        source: PathError,
    },
}

// === impl Perf ===

impl Default for Perf {
    fn default() -> Self {
        Self { enabled: false, period_ms: 10_000, max_containers: 32 }
    }
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            common: Common::default(),
            period_ms: 5000,
            stale_after_periods: 3,
            withdraw_after_periods: 180,
            forget_after_periods: 20,
            pass_deadline_ms: 2000,
            read_deadline_ms: 1000,
            max_watchers: 64,
            malachite: Endpoint::default(),
            malachite_realtime_period_ms: 1000,
            kubelet: Endpoint { period_ms: 10_000, timeout_ms: 5000, ..Endpoint::default() },
            perf: Perf::default(),
            cgroupstats: true,
            cgroupstats_period_ms: None,
            resctrl_period_ms: None,
            required_sources: Vec::new(),
            ranking: Ranking::default(),
            cgroups: Vec::new(),
            cgroup_roots: vec!["/".to_owned()],
        }
    }
}

impl HasCommon for Settings {
    fn common(&self) -> &Common {
        &self.common
    }
}

impl Settings {
    /// Whether all are within their ranges.
    ///
    /// # Errors
    /// [`Fault`] names the first key that is not.
    pub fn check(&self) -> Result<(), Fault> {
        let range = |holds: bool, key, given: u64, must| {
            if holds { Ok(()) } else { Err(Fault::Range { key, given, must }) }
        };
        range((100..=600_000).contains(&self.period_ms), "period_ms", self.period_ms, "within 100..=600000")?;
        range(self.pass_deadline_ms > 0, "pass_deadline_ms", self.pass_deadline_ms, "at least 1")?;
        range(self.read_deadline_ms >= 10, "read_deadline_ms", self.read_deadline_ms, "at least 10")?;
        let watchers = u64::try_from(self.max_watchers).unwrap_or(u64::MAX);
        range((1..=1024).contains(&watchers), "max_watchers", watchers, "within 1..=1024")?;
        let (stale, withdraw, forget) =
            (self.stale_after_periods, self.withdraw_after_periods, self.forget_after_periods);
        range(stale > 0, "stale_after_periods", stale.into(), "at least 1")?;
        range(withdraw >= stale, "withdraw_after_periods", withdraw.into(), "at least stale_after_periods")?;
        range(forget >= stale, "forget_after_periods", forget.into(), "at least stale_after_periods")?;
        for (source, period, timeout, most) in [
            (&self.malachite, "malachite.period_ms", "malachite.timeout_ms", "malachite.max_body_bytes"),
            (&self.kubelet, "kubelet.period_ms", "kubelet.timeout_ms", "kubelet.max_body_bytes"),
        ] {
            range(source.period_ms >= 100, period, source.period_ms, "at least 100")?;
            range(source.timeout_ms > 0, timeout, source.timeout_ms, "at least 1")?;
            // No answer of either is smaller.
            let bytes = u64::try_from(source.max_body_bytes).unwrap_or(u64::MAX);
            range(bytes >= 1024, most, bytes, "at least 1024")?;
        }
        let realtime = self.malachite_realtime_period_ms;
        range(
            realtime == 0 || realtime >= 100,
            "malachite_realtime_period_ms",
            realtime,
            "0 or at least 100",
        )?;
        let resctrl = self.resctrl_period_ms.unwrap_or(0);
        range(resctrl == 0 || resctrl >= 100, "resctrl_period_ms", resctrl, "0 or at least 100")?;
        let tasks = self.cgroupstats_period_ms.unwrap_or(self.period_ms);
        range(tasks >= 100, "cgroupstats_period_ms", tasks, "at least 100")?;
        let Perf { period_ms, max_containers, .. } = self.perf;
        range(period_ms >= 100, "perf.period_ms", period_ms, "at least 100")?;
        let most = u64::try_from(max_containers).unwrap_or(u64::MAX);
        range((1..=1024).contains(&most), "perf.max_containers", most, "within 1..=1024")?;
        let known: Vec<_> = self.set_up().iter().map(|set_up| set_up.source.name()).collect();
        if let Some(given) = self.required_sources.iter().find(|given| !known.contains(&given.as_str())) {
            return Err(Fault::Source { given: given.clone(), known: known.join(", ") });
        }
        paths("cgroups", &self.cgroups)?;
        paths("cgroup_roots", &self.cgroup_roots).map(drop)
    }

    /// The sources beside cgroups and `/proc` that are asked.
    pub fn set_up(&self) -> Vec<SetUp> {
        let malachite = self.malachite.endpoint.is_some();
        let (realtime, resctrl) = (self.malachite_realtime_period(), self.resctrl_period());
        let timeout = |endpoint: &Endpoint| Duration::from_millis(endpoint.timeout_ms);
        let all = [
            (Source::Malachite, malachite, self.malachite.period(), timeout(&self.malachite)),
            (
                Source::Realtime,
                malachite && realtime.is_some(),
                realtime.unwrap_or_default(),
                timeout(&self.malachite),
            ),
            (Source::Kubelet, self.kubelet.endpoint.is_some(), self.kubelet.period(), timeout(&self.kubelet)),
            (Source::Resctrl, resctrl.is_some(), resctrl.unwrap_or_default(), resctrl.unwrap_or_default()),
            (Source::Perf, self.perf.enabled, self.perf_period(), self.perf_period()),
            (Source::Tasks, self.cgroupstats, self.cgroupstats_period(), self.cgroupstats_period()),
        ];
        let set_up = |(source, there, period, deadline): (_, bool, _, _)| {
            let required = self.requires(source);
            // What is looked for everywhere is no fault where there is none.
            let expected = required || !matches!(source, Source::Resctrl | Source::Tasks);
            there.then_some(SetUp { source, period, deadline, required, expected })
        };
        all.into_iter().filter_map(set_up).collect()
    }

    /// Whether the process is not ready without a source.
    pub fn requires(&self, source: Source) -> bool {
        self.required_sources.iter().any(|name| name == source.name())
    }

    /// From one pass over the processor's counters to the next.
    pub fn perf_period(&self) -> Duration {
        Duration::from_millis(self.perf.period_ms)
    }

    /// From one look at resctrl's groups to the next, if they are to be read.
    pub fn resctrl_period(&self) -> Option<Duration> {
        let ms = self.resctrl_period_ms.unwrap_or(self.period_ms);
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// From one question for the states of tasks to the next.
    pub fn cgroupstats_period(&self) -> Duration {
        Duration::from_millis(self.cgroupstats_period_ms.unwrap_or(self.period_ms))
    }

    /// From one question for malachite's sensors to the next, if they are to be asked for.
    pub fn malachite_realtime_period(&self) -> Option<Duration> {
        let ms = self.malachite_realtime_period_ms;
        (ms > 0).then(|| Duration::from_millis(ms))
    }

    /// From one pass to the next.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }

    /// The ages that separate fresh, stale and missing.
    pub fn ages(&self) -> Ages {
        self.ages_at(self.period())
    }

    /// The same for a source with another period.
    pub fn ages_at(&self, period: Duration) -> Ages {
        Ages { max_age: period * self.stale_after_periods, withdrawal: period * self.withdraw_after_periods }
    }

    /// What holds for every answer.
    pub fn terms(&self) -> Terms {
        Terms { ages: self.ages(), ranking: self.ranking }
    }

    /// When passes happen.
    pub fn schedule(&self) -> Schedule {
        Schedule {
            period: self.period(),
            deadline: Duration::from_millis(self.pass_deadline_ms),
            read_deadline: Duration::from_millis(self.read_deadline_ms),
        }
    }

    /// How passes are made.
    ///
    /// # Errors
    /// [`Fault::Path`], as [`Settings::check`].
    pub fn pass(&self) -> Result<PassSettings, Fault> {
        Ok(PassSettings {
            host_root: self.common.host_root.clone(),
            roots: paths("cgroup_roots", &self.cgroup_roots)?,
            forget: self.period() * self.forget_after_periods,
            cgroups: paths("cgroups", &self.cgroups)?,
        })
    }
}

fn paths(key: &'static str, given: &[String]) -> Result<Vec<CgroupPath>, Fault> {
    let path = |given: &String| CgroupPath::new(given).map_err(|source| Fault::Path { key, source });
    given.iter().map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_hold() {
        let settings = Settings::default();
        assert_eq!(settings.check(), Ok(()));
        assert_eq!(settings.ages().max_age, Duration::from_secs(15));
        assert_eq!(settings.ages().withdrawal, Duration::from_secs(900));
    }

    #[test]
    fn only_a_source_that_is_set_up_can_be_required() {
        let perf = Perf { enabled: true, ..Perf::default() };
        let settings = Settings { perf, required_sources: vec!["perf".to_owned()], ..Settings::default() };
        assert_eq!(settings.check(), Ok(()));
        assert!(settings.requires(Source::Perf) && !settings.requires(Source::Tasks));
    }

    #[test]
    fn a_path_that_cannot_be_is_told_under_its_own_key() {
        let outside = || vec!["../../etc".to_owned()];
        let cgroups = Settings { cgroups: outside(), ..Settings::default() }.check().unwrap_err();
        assert!(cgroups.to_string().starts_with("cgroups: "), "{cgroups}");
        let roots = Settings { cgroup_roots: outside(), ..Settings::default() }.check().unwrap_err();
        assert!(roots.to_string().starts_with("cgroup_roots: "), "{roots}");
    }

    #[test]
    fn sources_of_the_kernel_have_periods_of_their_own_and_can_be_left_out() {
        let of = |settings: &Settings, source| settings.set_up().into_iter().find(|s| s.source == source);
        let settings = Settings { period_ms: 700, ..Settings::default() };
        for source in [Source::Resctrl, Source::Tasks] {
            assert_eq!(of(&settings, source).unwrap().period, Duration::from_millis(700), "{source:?}");
        }
        let settings = Settings { resctrl_period_ms: Some(0), cgroupstats_period_ms: Some(3000), ..settings };
        assert_eq!(settings.check(), Ok(()));
        assert_eq!(of(&settings, Source::Resctrl), None);
        assert_eq!(of(&settings, Source::Tasks).unwrap().period, Duration::from_secs(3));
        let settings = Settings { cgroupstats: false, ..settings };
        assert_eq!(of(&settings, Source::Tasks), None);
        let required = Settings { required_sources: vec!["resctrl".to_owned()], ..settings };
        assert!(required.check().is_err(), "what is off cannot be required");
    }

    #[test]
    fn each_range_is_kept() {
        let faults = [
            Settings { period_ms: 99, ..Settings::default() },
            Settings { stale_after_periods: 0, ..Settings::default() },
            Settings { withdraw_after_periods: 2, ..Settings::default() },
            Settings { forget_after_periods: 2, ..Settings::default() },
            Settings { pass_deadline_ms: 0, ..Settings::default() },
            Settings { max_watchers: 0, ..Settings::default() },
            Settings { read_deadline_ms: 9, ..Settings::default() },
            Settings { malachite_realtime_period_ms: 9, ..Settings::default() },
            Settings { cgroup_roots: vec!["/a/../..".to_owned()], ..Settings::default() },
            Settings {
                malachite: Endpoint { max_body_bytes: 0, ..Endpoint::default() },
                ..Settings::default()
            },
            Settings { resctrl_period_ms: Some(99), ..Settings::default() },
            Settings { cgroupstats_period_ms: Some(99), ..Settings::default() },
            Settings { perf: Perf { period_ms: 9, ..Perf::default() }, ..Settings::default() },
            Settings { perf: Perf { max_containers: 0, ..Perf::default() }, ..Settings::default() },
            Settings { required_sources: vec!["perf".to_owned()], ..Settings::default() },
            Settings { required_sources: vec!["cgroup".to_owned()], ..Settings::default() },
        ];
        for settings in faults {
            assert!(settings.check().is_err(), "{settings:?}");
        }
    }
}
