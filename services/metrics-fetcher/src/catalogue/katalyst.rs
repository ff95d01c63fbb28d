//! Where the table departs from Katalyst's names.

/// A name of Katalyst's that is not in the table.
#[derive(Clone, Copy, Debug)]
pub struct Otherwise {
    /// Katalyst's.
    pub name: &'static str,
    /// The row that tells it; `None` if none does.
    pub told: Option<&'static str>,
    /// Why not under that name.
    pub why: &'static str,
}

const DELTA: &str = "Katalyst's is the growth of one pass, the first all since boot";
const OWN_TIME: &str = "each sample has its own time";
const DECLARED: &str = "Katalyst declares it and never writes it";
const PASS: &str = "Katalyst's is the growth within one answer, not a second, and may be below 0";

const fn as_row(name: &'static str, told: &'static str, why: &'static str) -> Otherwise {
    Otherwise { name, told: Some(told), why }
}

const fn nowhere(name: &'static str, why: &'static str) -> Otherwise {
    Otherwise { name, told: None, why }
}

/// All of them.
pub static OTHERWISE: &[Otherwise] = &[
    as_row("mem.kswapdsteal.delta.system", "mem.kswapdsteal.rate.system", DELTA),
    as_row("mem.direct.pgsteal.delta.system", "mem.direct.pgsteal.rate.system", DELTA),
    as_row("mem.kswapd.pgscan.delta.system", "mem.kswapd.pgscan.rate.system", DELTA),
    as_row("mem.direct.pgscan.delta.system", "mem.direct.pgscan.rate.system", DELTA),
    as_row("net.tcp.recv.byte.cgroup", "net.tcp.recv.bps.cgroup", PASS),
    as_row("net.tcp.send.byte.cgroup", "net.tcp.send.bps.cgroup", PASS),
    as_row("mbm.total.numa", "mbm.total.ps.numa", DECLARED),
    as_row("mbm.local.numa", "mbm.local.ps.numa", DECLARED),
    as_row("mbm.victim.numa", "mbm.victim.ps.numa", DECLARED),
    as_row("mem.scalefactor.container", "mem.scale.factor.system", DECLARED),
    nowhere("cpu.icachemiss.container", DECLARED),
    nowhere("cpu.icachemiss.container.rate", DECLARED),
    nowhere("cpu.l2cachemiss.container", DECLARED),
    nowhere("cpu.l2cachemiss.container.rate", DECLARED),
    nowhere("net.updatetime", OWN_TIME),
    nowhere("cpu.updatetime.container", OWN_TIME),
    nowhere("mem.updatetime.container", OWN_TIME),
    nowhere("blkio.updatetime.container", OWN_TIME),
    nowhere("net.updatetime.container", OWN_TIME),
    nowhere("cpu.updatetime.cgroup", OWN_TIME),
];

/// What a row of a container is called where it is of a cgroup above the pods.
pub(super) fn of_cgroup(name: &str) -> String {
    match name {
        "cpu.nr.period.container" => "cpu.throttled.period.cgroup".to_owned(),
        "mem.usage.kern.container" => "mem.usage.sys.cgroup".to_owned(),
        name => name.replace(".container", ".cgroup"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::find;
    use super::*;

    /// Every name that Katalyst's fetcher writes or declares, scope by scope, each with its unit.
    const NAMES: &str = include_str!("katalyst_names.txt");

    #[test]
    fn every_name_of_katalysts_is_told_in_its_unit_or_said_to_be_told_otherwise() {
        let mut known = 0;
        for line in NAMES.lines() {
            let (name, unit) = line.split_once(' ').unwrap();
            let otherwise = OTHERWISE.iter().find(|o| o.name == name);
            let found = find(name).map(|(_, metric)| metric.unit.name());
            match otherwise {
                None => assert_eq!(found, Some(unit), "{name}"),
                Some(_) => assert_eq!((found, unit), (None, "-"), "{name} is told and said not to be"),
            }
            known += usize::from(otherwise.is_some());
        }
        assert_eq!(known, OTHERWISE.len(), "a name that is no name of Katalyst's");
        assert!(OTHERWISE.iter().filter_map(|o| o.told).all(|told| find(told).is_some()));
    }
}
