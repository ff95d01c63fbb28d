use super::{ParseError, entries, first_line, number, single};

/// Nanoseconds of one microsecond.
const USEC: u64 = 1000;

/// `cpu.stat` of either version, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStat {
    /// CPU time used (v2 `usage_usec`; v1 tells it in `cpuacct.usage`).
    pub usage_ns: Option<u64>,
    /// Of it in user mode (v2).
    pub user_ns: Option<u64>,
    /// Of it in the kernel (v2).
    pub system_ns: Option<u64>,
    /// Enforcement periods in which the cgroup was runnable.
    pub nr_periods: Option<u64>,
    /// Of them those in which it was throttled.
    pub nr_throttled: Option<u64>,
    /// Time throttled, summed over CPUs (v1 `throttled_time`, v2 `throttled_usec`).
    pub throttled_ns: Option<u64>,
}

/// Parses `cpu.stat` of v1 or v2.
///
/// # Errors
/// [`ParseError`] for a known key without a number.
pub fn cpu_stat(bytes: &[u8]) -> Result<CpuStat, ParseError> {
    let mut stat = CpuStat::default();
    for entry in entries(bytes) {
        match entry.key {
            b"usage_usec" => stat.usage_ns = Some(entry.number()?.saturating_mul(USEC)),
            b"user_usec" => stat.user_ns = Some(entry.number()?.saturating_mul(USEC)),
            b"system_usec" => stat.system_ns = Some(entry.number()?.saturating_mul(USEC)),
            b"nr_periods" => stat.nr_periods = Some(entry.number()?),
            b"nr_throttled" => stat.nr_throttled = Some(entry.number()?),
            b"throttled_time" => stat.throttled_ns = Some(entry.number()?),
            b"throttled_usec" => stat.throttled_ns = Some(entry.number()?.saturating_mul(USEC)),
            _ => {}
        }
    }
    Ok(stat)
}

/// Parses `cpuacct.usage` (v1): nanoseconds of CPU time.
///
/// # Errors
/// [`ParseError`] if it is no number.
pub fn cpuacct_usage(bytes: &[u8]) -> Result<u64, ParseError> {
    single(bytes)
}

/// `cpu.max` of v2: quota and period in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuMax {
    /// `None` is "max".
    pub quota_us: Option<u64>,
    /// Never 0.
    pub period_us: u64,
}

/// Parses `cpu.max`.
///
/// # Errors
/// [`ParseError`] if it is not "quota period".
pub fn cpu_max(bytes: &[u8]) -> Result<CpuMax, ParseError> {
    let mut words = bytes.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
    let quota = match words.next() {
        Some(b"max") => Some(None),
        Some(word) => number(word).map(Some),
        None => None,
    };
    match (quota, words.next().and_then(number)) {
        (Some(quota_us), Some(period_us)) if period_us > 0 => Ok(CpuMax { quota_us, period_us }),
        _ => Err(first_line(bytes, "a quota or \"max\", and a period")),
    }
}

/// Parses `cpu.cfs_quota_us` (v1): `None` where it is -1, no limit.
///
/// # Errors
/// [`ParseError`] if it is no number.
pub fn cpu_quota(bytes: &[u8]) -> Result<Option<u64>, ParseError> {
    match bytes.trim_ascii() {
        b"-1" => Ok(None),
        _ => single(bytes).map(Some),
    }
}

/// Parses `cpuacct.usage_percpu` (v1): `each` gets the CPU's number and nanoseconds.
///
/// # Errors
/// [`ParseError`] if one of them is no number.
pub fn cpuacct_usage_percpu(bytes: &[u8], mut each: impl FnMut(usize, u64)) -> Result<(), ParseError> {
    let words = bytes.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
    for (cpu, word) in words.enumerate() {
        each(cpu, number(word).ok_or_else(|| first_line(bytes, "one number a CPU"))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_give_the_same_units() {
        let v1 = b"nr_periods 12\nnr_throttled 3\nthrottled_time 4500000\nnr_bursts 0\nburst_time 0\n";
        let v2 = b"usage_usec 2000123\nuser_usec 1500000\nsystem_usec 500123\ncore_sched.force_idle_usec 0\n\
                   nr_periods 12\nnr_throttled 3\nthrottled_usec 4500\nnr_bursts 0\nburst_usec 0\n";
        let (v1, v2) = (cpu_stat(v1).unwrap(), cpu_stat(v2).unwrap());
        assert_eq!(v1.throttled_ns, Some(4_500_000));
        assert_eq!(
            (v1.nr_periods, v1.nr_throttled, v1.throttled_ns),
            (v2.nr_periods, v2.nr_throttled, v2.throttled_ns)
        );
        assert_eq!((v1.usage_ns, v2.usage_ns), (None, Some(2_000_123_000)));
        assert_eq!((v2.user_ns, v2.system_ns), (Some(1_500_000_000), Some(500_123_000)));
    }

    #[test]
    fn the_root_without_quota_lines_has_no_throttling_rather_than_none_of_it() {
        let stat = cpu_stat(b"usage_usec 7\nuser_usec 3\nsystem_usec 4\n").unwrap();
        assert_eq!((stat.nr_periods, stat.nr_throttled, stat.throttled_ns), (None, None, None));
    }

    #[test]
    fn a_broken_known_key_names_its_line_and_an_unknown_one_does_not_matter() {
        let error = cpu_stat(b"nr_periods 1\nnr_throttled x9\n").unwrap_err();
        assert_eq!((error.line, error.text.as_str()), (2, "nr_throttled x9"));
        assert!(cpu_stat(b"new_key what ever\nlonely\nnr_periods 1\n").is_ok());
    }

    #[test]
    fn limits_of_both_versions() {
        assert_eq!(cpu_max(b"max 100000\n"), Ok(CpuMax { quota_us: None, period_us: 100_000 }));
        assert_eq!(cpu_max(b"150000 100000\n"), Ok(CpuMax { quota_us: Some(150_000), period_us: 100_000 }));
        for bad in ["", "max", "max 0", "x 1", "-1 100000"] {
            assert!(cpu_max(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert_eq!((cpu_quota(b"-1\n"), cpu_quota(b"50000\n")), (Ok(None), Ok(Some(50_000))));
        assert!(cpu_quota(b"-2\n").is_err());
    }

    #[test]
    fn every_cpu_has_its_own_time() {
        let mut seen = Vec::new();
        cpuacct_usage_percpu(b"12 0 34 \n", |cpu, ns| seen.push((cpu, ns))).unwrap();
        assert_eq!(seen, [(0, 12), (1, 0), (2, 34)]);
        assert!(cpuacct_usage_percpu(b"12 x\n", |_, _| {}).is_err());
    }
}
