//! CPU bandwidth: what the kernel takes, and in which order: pure.

/// The kernel refuses a smaller quota or period (`min_cfs_quota_period` of kernel/sched/core.c), microseconds.
pub const MIN_US: u64 = 1_000;

/// The kernel refuses a longer period (`max_cfs_quota_period`), microseconds.
pub const MAX_PERIOD_US: u64 = 1_000_000;

/// The period of a cgroup of which nobody set one, microseconds.
pub const DEFAULT_PERIOD_US: u64 = 100_000;

/// Quota, period and burst of one cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Microseconds of CPU time in each period; `None`: unlimited.
    pub quota_us: Option<u64>,
    /// Microseconds.
    pub period_us: u64,
    /// Microseconds that may be saved up, at most the quota. `None`: the kernel knows no burst, or it is not to be touched.
    pub burst_us: Option<u64>,
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `cpu.cfs_quota_us`; `None` is -1. v1.
    Quota(Option<u64>),
    /// `cpu.cfs_period_us`. v1.
    Period(u64),
    /// `cpu.max`: both. v2.
    Max(Option<u64>, u64),
    /// `cpu.cfs_burst_us` or `cpu.max.burst`.
    Burst(u64),
}

// === impl Bandwidth ===

impl Bandwidth {
    /// As the kernel takes it: a quota of less than a millisecond would be refused, and the container go on with its old one.
    #[must_use]
    pub fn clamped(self) -> Self {
        let quota_us = self.quota_us.map(|quota| quota.max(MIN_US));
        let burst_us = match (self.burst_us, quota_us) {
            (Some(burst), Some(quota)) => Some(burst.min(quota)),
            (burst, _) => burst,
        };
        Self { quota_us, period_us: self.period_us.clamp(MIN_US, MAX_PERIOD_US), burst_us }
    }

    /// The writes that lead from this to `wanted` (clamped), each of which the kernel takes: the burst is lowered before the
    /// quota and raised after it; on v1, where a child's share of its period may not pass its parent's, whatever lowers the
    /// share comes first.
    pub fn steps(self, wanted: Self, unified: bool) -> Vec<Step> {
        let wanted = wanted.clamped();
        let mut steps = Vec::new();
        let burst = wanted.burst_us.filter(|burst| self.burst_us.is_some_and(|now| now != *burst));
        let lower = burst.filter(|burst| self.burst_us.is_some_and(|now| *burst < now));
        steps.extend(lower.map(Step::Burst));
        let (quota, period) = (self.quota_us != wanted.quota_us, self.period_us != wanted.period_us);
        if unified {
            if quota || period {
                steps.push(Step::Max(wanted.quota_us, wanted.period_us));
            }
        } else {
            let quota = quota.then_some(Step::Quota(wanted.quota_us));
            let period_step = period.then_some(Step::Period(wanted.period_us));
            match wanted.period_us > self.period_us {
                true => steps.extend(period_step.into_iter().chain(quota)),
                false => steps.extend(quota.into_iter().chain(period_step)),
            }
        }
        steps.extend(burst.filter(|_| lower.is_none()).map(Step::Burst));
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn band(quota: i64, period: u64, burst: u64) -> Bandwidth {
        Bandwidth { quota_us: u64::try_from(quota).ok(), period_us: period, burst_us: Some(burst) }
    }

    #[test]
    fn c03_a_quota_below_a_millisecond_is_raised_to_one() {
        assert_eq!(band(500, 100_000, 0).clamped(), band(1_000, 100_000, 0));
        assert_eq!(
            band(-1, 100_000, 0).steps(band(500, 100_000, 0), false),
            [Step::Quota(Some(1_000))],
            "a limit of 5 milli-CPU"
        );
    }

    #[test]
    fn c05_the_burst_is_lowered_before_the_quota_and_raised_after_it() {
        let (low, high) = (band(100_000, 100_000, 100_000), band(200_000, 100_000, 200_000));
        for unified in [true, false] {
            assert_eq!(high.steps(low, unified)[0], Step::Burst(100_000));
            assert_eq!(low.steps(high, unified)[1], Step::Burst(200_000));
        }
        assert_eq!(
            high.steps(band(100_000, 100_000, 200_000), true)[0],
            Step::Burst(100_000),
            "cut to the quota"
        );
    }

    proptest! {
        #[test]
        fn c05_the_kernel_takes_every_step_and_the_end_is_what_was_wanted(
            now in (-1i64..5).prop_flat_map(|q| (Just(q), 1u64..5, 0u64..5)),
            wanted in (-1i64..5).prop_flat_map(|q| (Just(q), 1u64..5, 0u64..5)),
            unified: bool,
        ) {
            let of = |(q, p, b): (i64, u64, u64)| band(if q < 0 { -1 } else { q * 700 }, p * 1_000, b * 700).clamped();
            let (start, wanted) = (of(now), of(wanted));
            let mut at = start;
            for step in start.steps(wanted, unified) {
                match step {
                    Step::Quota(quota) => at.quota_us = quota,
                    Step::Period(period) => at.period_us = period,
                    Step::Max(quota, period) => (at.quota_us, at.period_us) = (quota, period),
                    Step::Burst(burst) => at.burst_us = Some(burst),
                }
                prop_assert_eq!(at, at.clamped(), "the kernel refuses {:?}", step);
            }
            prop_assert_eq!(at, wanted);
            prop_assert!(wanted.steps(wanted, unified).is_empty());
        }
    }
}
