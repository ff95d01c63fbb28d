//! Wishes as NRI's messages.

use std::collections::BTreeMap;

use oxalyst_nri::api;

use super::{Dialect, Field, Moment, Value, Way, Wish};

/// The adjustment of a container that is being created: what this runtime is told. `None` where that is nothing.
pub fn adjustment(wish: &Wish, to: Dialect) -> Option<api::ContainerAdjustment> {
    let Dialect { runtime, unified } = to;
    let told = wish.only(|row| row.way(Moment::Create, runtime, unified) == Way::Told);
    if told.is_empty() {
        return None;
    }
    let mut adjustment = api::ContainerAdjustment::default();
    let mut linux = api::LinuxContainerAdjustment { resources: Some(resources(&told)), ..Default::default() };
    for (row, value) in told.rows() {
        match (row.field, value) {
            (Field::OomScoreAdj, Value::Number(Some(score))) => {
                linux.oom_score_adj = Some(api::OptionalInt { value: *score });
            }
            (Field::Env, Value::Named(env)) => {
                adjustment.env =
                    env.iter().map(|(k, v)| api::KeyValue { key: k.clone(), value: v.clone() }).collect();
            }
            (Field::Annotations, Value::Named(annotations)) => {
                adjustment.annotations = annotations.clone().into_iter().collect();
            }
            _ => {}
        }
    }
    adjustment.linux = Some(linux);
    Some(adjustment)
}

/// An update of a container that exists: what this runtime applies of it. `None` where that is nothing.
pub fn update(
    container_id: &str,
    wish: &Wish,
    to: Dialect,
    ignore_failure: bool,
) -> Option<api::ContainerUpdate> {
    let Dialect { runtime, unified } = to;
    let told = wish.only(|row| row.way(Moment::Update, runtime, unified) == Way::Told);
    (!told.is_empty()).then(|| api::ContainerUpdate {
        container_id: container_id.to_owned(),
        linux: Some(api::LinuxContainerUpdate { resources: Some(resources(&told)) }),
        ignore_failure,
    })
}

fn resources(wish: &Wish) -> api::LinuxResources {
    let mut all = api::LinuxResources::default();
    let mut unified = BTreeMap::new();
    for (row, value) in wish.rows() {
        match (row.field, value) {
            (Field::CpuCpus, Value::Text(list)) => all.cpu.get_or_insert_default().cpus.clone_from(list),
            (Field::CpuMems, Value::Text(list)) => all.cpu.get_or_insert_default().mems.clone_from(list),
            (Field::CpuShares, Value::Number(Some(n))) => {
                all.cpu.get_or_insert_default().shares = Some(api::OptionalUInt64 { value: unsigned(*n) });
            }
            (Field::CpuQuota, Value::Number(n)) => {
                // As in bypass: the kernel takes no quota below a millisecond.
                let value = n.map_or(-1, |n| n.max(1_000));
                all.cpu.get_or_insert_default().quota = Some(api::OptionalInt64 { value });
            }
            (Field::CpuPeriod, Value::Number(Some(n))) => {
                all.cpu.get_or_insert_default().period = Some(api::OptionalUInt64 { value: unsigned(*n) });
            }
            (Field::MemoryLimit, Value::Number(n)) => {
                all.memory.get_or_insert_default().limit =
                    Some(api::OptionalInt64 { value: n.unwrap_or(-1) });
            }
            (Field::MemoryReservation, Value::Number(n)) => {
                all.memory.get_or_insert_default().reservation =
                    Some(api::OptionalInt64 { value: n.unwrap_or(-1) });
            }
            (Field::MemorySwap, Value::Number(n)) => {
                all.memory.get_or_insert_default().swap = Some(api::OptionalInt64 { value: n.unwrap_or(-1) });
            }
            (Field::HugepageLimits, Value::Named(sizes)) => {
                let limits = sizes.iter().filter_map(|(size, limit)| {
                    Some(api::HugepageLimit { page_size: size.clone(), limit: limit.trim().parse().ok()? })
                });
                all.hugepage_limits = limits.collect();
            }
            (Field::PidsLimit, Value::Number(n)) => {
                all.pids = Some(api::LinuxPids { limit: n.unwrap_or(-1) });
            }
            (Field::UnifiedKey(key), Value::Number(n)) => {
                let text = n.map_or_else(|| "max".to_owned(), |n| n.to_string());
                unified.insert(key.to_owned(), text);
            }
            (Field::Unified, Value::Named(keys)) => unified.extend(keys.clone()),
            _ => {}
        }
    }
    all.unified = unified.into_iter().collect();
    all
}

fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::Runtime;
    use super::*;
    use crate::placements::Cpuset;

    fn to(runtime: Runtime, unified: bool) -> Dialect {
        Dialect { runtime, unified }
    }

    fn whole() -> Wish {
        let (wish, unusable) = Wish::read([
            ("CpusetCpus", "0-1"),
            ("CpuBurst", "1000"),
            ("MemoryLowInBytes", "4096"),
            ("PidsLimit", "10"),
            ("OomScoreAdj", "-5"),
            ("Env/A", "b"),
            ("Annotations/x", "y"),
        ]);
        assert!(unusable.is_empty());
        wish
    }

    #[test]
    fn a_creation_carries_all_that_nri_has() {
        let adjust = adjustment(&whole(), to(Runtime::Crio, true)).unwrap();
        assert_eq!((adjust.env[0].key.as_str(), adjust.annotations["x"].as_str()), ("A", "y"));
        let linux = adjust.linux.unwrap();
        assert_eq!(linux.oom_score_adj.unwrap().value, -5);
        let resources = linux.resources.unwrap();
        assert_eq!(resources.cpu.unwrap().cpus, "0-1");
        assert_eq!(resources.unified["cpu.max.burst"], "1000");
        assert_eq!(resources.pids.unwrap().limit, 10);
        assert_eq!(resources.memory, None, "no runtime takes a reservation of it");
    }

    #[test]
    fn an_update_carries_only_what_this_runtime_applies() {
        let of = |runtime, unified| {
            update("c", &whole(), to(runtime, unified), true).unwrap().linux.unwrap().resources.unwrap()
        };
        let containerd = of(Runtime::Containerd, false);
        assert!(containerd.pids.is_none() && containerd.memory.is_none() && containerd.unified.is_empty());
        assert!(of(Runtime::Crio, false).pids.is_some());
        assert!(update("c", &Wish::of_cpuset(&Cpuset::default()), to(Runtime::Crio, true), true).is_none());
    }
}
