//! The real binary killed, starved of room, and given damaged files: nothing acknowledged is lost or given twice.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    unreachable_pub,
    missing_docs
)]

#[path = "../host/mod.rs"]
mod host;

mod damage;
mod disk;
mod import;
mod kill;
mod restart;
mod trace;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use host::{DEADLINE, Orm};
use oxalyst_proto::orm::v1::{PodPlacement, State};
use oxalyst_topology::CpuSet;

/// xorshift: the same choices in each run.
#[derive(Clone)]
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}

/// What a client knows of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub sandbox_id: String,
    pub exclusive: bool,
    /// Of an exclusive set: a pool's CPUs change with the others.
    pub cpus: String,
}

impl Held {
    pub fn of(placed: &PodPlacement) -> Self {
        let cpus = if placed.exclusive { placed.cpus.clone() } else { String::new() };
        Self { sandbox_id: placed.sandbox_id.clone(), exclusive: placed.exclusive, cpus }
    }
}

pub fn held(state: &State) -> BTreeMap<String, Held> {
    state.pods.iter().map(|pod| (pod.pod_uid.clone(), Held::of(pod))).collect()
}

pub fn assert_disjoint(state: &State) {
    let mut taken = CpuSet::new();
    for pod in state.pods.iter().filter(|pod| pod.exclusive) {
        let cpus: CpuSet = pod.cpus.parse().unwrap();
        assert!(
            !cpus.is_empty() && taken.is_disjoint(&cpus),
            "{} of {} is given twice",
            pod.cpus,
            pod.pod_uid
        );
        taken |= &cpus;
    }
    for pod in state.pods.iter().filter(|pod| !pod.exclusive) {
        assert!(taken.is_disjoint(&pod.cpus.parse().unwrap()), "{} shares exclusive CPUs", pod.pod_uid);
    }
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Asks it to end, and waits for that.
pub async fn stopped(mut orm: Orm) {
    let pid = orm.child.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    let end = Instant::now() + DEADLINE;
    while orm.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
