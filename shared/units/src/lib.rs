//! Quantities as types, so that cores, milli-CPUs and bytes cannot be mixed.

use std::fmt;

/// A CPU quantity in thousandths of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MilliCpu(pub u64);

/// A memory quantity in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// What the kubelet writes for a container that requests no CPU at all.
pub const MIN_CPU_SHARES: u64 = 2;

// === impl MilliCpu ===

impl MilliCpu {
    /// Whole CPUs.
    pub const fn cpus(n: u64) -> Self {
        Self(n * 1000)
    }

    /// The request behind `cpu.shares`, `None` where the shares say that nothing was requested.
    ///
    /// The kubelet computes shares as `floor(milli * 1024 / 1000)`, at least [`MIN_CPU_SHARES`]
    /// (`MilliCPUToShares`); rounding up undoes that exactly for every request of 2 milli-CPUs and more.
    pub const fn from_shares(shares: u64) -> Option<Self> {
        if shares <= MIN_CPU_SHARES {
            return None;
        }
        // In parts, so that no number of shares is too large: 1024 of them are a CPU.
        let (cpus, rest) = (shares / 1024, shares % 1024);
        Some(Self(cpus * 1000 + (rest * 1000).div_ceil(1024)))
    }

    /// The limit behind `cpu.cfs_quota_us` and its period; `None` is unlimited.
    pub const fn from_quota(quota_us: i64, period_us: u64) -> Option<Self> {
        if quota_us <= 0 || period_us == 0 {
            return None;
        }
        Some(Self(quota_us.unsigned_abs().saturating_mul(1000).div_ceil(period_us)))
    }

    /// The least number of whole CPUs that hold this quantity.
    pub const fn ceil_cpus(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Whether this is a whole number of CPUs.
    pub const fn is_whole(self) -> bool {
        self.0.is_multiple_of(1000)
    }
}

impl fmt::Display for MilliCpu {
    /// As Kubernetes writes it: `2` for whole CPUs, `1500m` otherwise.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_whole() { write!(f, "{}", self.0 / 1000) } else { write!(f, "{}m", self.0) }
    }
}

// === impl Bytes ===

impl fmt::Display for Bytes {
    /// In the largest binary unit that is exact, as Kubernetes writes it: `16Gi`, `1536Mi`, `1000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_give_back_every_request() {
        for milli in 3..400_000u64 {
            let shares = milli * 1024 / 1000;
            assert_eq!(MilliCpu::from_shares(shares), Some(MilliCpu(milli)), "shares {shares}");
        }
    }

    #[test]
    fn shares_beyond_any_machine_are_still_told_exactly() {
        assert_eq!(MilliCpu::from_shares(1 << 63), Some(MilliCpu((1 << 53) * 1000)));
        assert_eq!(MilliCpu::from_shares(u64::MAX), Some(MilliCpu((1 << 54) * 1000)));
    }

    #[test]
    fn shares_of_no_request_are_no_request() {
        assert_eq!(MilliCpu::from_shares(2), None);
        assert_eq!(MilliCpu::from_shares(0), None);
    }

    #[test]
    fn quota_minus_one_is_unlimited() {
        assert_eq!(MilliCpu::from_quota(-1, 100_000), None);
        assert_eq!(MilliCpu::from_quota(150_000, 100_000), Some(MilliCpu(1500)));
    }

    #[test]
    fn quantities_print_as_kubernetes_does() {
        assert_eq!(MilliCpu(2000).to_string(), "2");
        assert_eq!(MilliCpu(1500).to_string(), "1500m");
        assert_eq!(Bytes(16 << 30).to_string(), "16Gi");
        assert_eq!(Bytes(1000).to_string(), "1000");
        assert_eq!(Bytes(0).to_string(), "0");
    }
}
