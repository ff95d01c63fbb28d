//! The machine that cannot be read while the service runs, and CPUs that nobody is given.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod host;

use std::collections::BTreeSet;
use std::time::Instant;

use host::{DEADLINE, Host, Orm, placed, refused, sandbox};
use oxalyst_proto::orm::v1::State;
use oxalyst_proto::runtime::v1::Sandbox;
use oxalyst_topology::CpuSet;

/// The fact once it is as `wanted` says.
async fn fact(orm: &mut Orm, name: &str, wanted: impl Fn(&str) -> bool) -> String {
    let end = Instant::now() + DEADLINE;
    loop {
        let facts = orm.status().await.unwrap().facts;
        let told = facts.get(name).cloned().unwrap_or_default();
        if wanted(&told) {
            return told;
        }
        assert!(Instant::now() < end, "{name} stays {told:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_machine_that_cannot_be_read_is_a_fact_until_it_can_be() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    assert_eq!(fact(&mut orm, "machine", |told| !told.is_empty()).await, "ok");
    let (sys, aside) = (host.dir.path().join("sys"), host.dir.path().join("aside"));
    std::fs::rename(&sys, &aside).unwrap();
    let gone = fact(&mut orm, "machine", |told| told != "ok").await;
    let (since, rest) = gone.strip_prefix("unreadable since ").unwrap().split_once(',').unwrap();
    assert!(since.ends_with('Z') && rest.contains("sys/devices"), "{gone}");
    assert_eq!(placed(&orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await).cpus, "0");

    std::fs::rename(&aside, &sys).unwrap();
    assert_eq!(
        fact(&mut orm, "machine", |told| told == "ok").await,
        "ok",
        "the same signs as before clear it"
    );

    host.write("sys/devices/system/cpu/online", "certainly\n");
    let garbage = fact(&mut orm, "machine", |told| told != "ok").await;
    assert!(garbage.contains("cpu/online") && garbage.contains("certainly"), "{garbage}");
    assert_eq!(orm.state().await.online, "0-1", "what was read before counts");
    host.write("sys/devices/system/cpu/online", "0-1\n");
    fact(&mut orm, "machine", |told| told == "ok").await;
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// No pod and no pool but the one for interrupts has any of these.
fn kept(state: &State, interrupt: &CpuSet, except: &str) {
    for pool in state.pools.iter().filter(|pool| pool.name != "interrupt") {
        assert!(set(&pool.cpus).is_disjoint(interrupt), "pool {} has {}", pool.name, pool.cpus);
    }
    for pod in state.pods.iter().filter(|pod| pod.pod_uid != except) {
        let own = pod.containers.iter().map(|container| container.cpus.as_str()).chain([pod.cpus.as_str()]);
        for cpus in own {
            assert!(set(cpus).is_disjoint(interrupt), "pod {} has {cpus}", pod.pod_uid);
        }
    }
    for free in &state.free {
        assert!(set(&free.cpuset).is_disjoint(interrupt), "{} are free", free.cpuset);
    }
}

fn enhanced(uid: &str, level: &str, cpu: &str, shares: u64) -> Sandbox {
    let mut sandbox = sandbox(uid, level, Some(shares));
    sandbox.annotations.insert("katalyst.kubewharf.io/cpu_enhancement".into(), cpu.into());
    sandbox
}

#[tokio::test]
async fn cpus_for_interrupts_are_given_to_nobody_but_who_names_their_pool() {
    for more in [
        &["--set", "enable_reclaim=true"][..],
        &["--set", "overlap_reclaim=true", "--set", "enable_reclaim=true"],
    ] {
        let host = Host::with_machine(16, 2);
        let settings = [&["--set", "interrupt_cpus=3,8-9", "--set", "reserved_cpus=0"], more].concat();
        let mut orm = host.start(&settings).await;
        let interrupt = set("3,8-9");
        let pool = |state: &State| {
            let pool = state.pools.iter().find(|pool| pool.name == "interrupt").cloned().unwrap();
            (pool.cpus, pool.pods)
        };
        orm.admit(&sandbox("share", "shared_cores", Some(1024))).await;
        orm.admit(&sandbox("reclaimed", "reclaimed_cores", Some(1024))).await;
        orm.admit(&sandbox("system", "system_cores", Some(100))).await;
        orm.admit(&sandbox("agent", "shared_cores", None)).await;
        let whole = orm.admit(&sandbox("dedicated", "dedicated_cores", Some(4096))).await;
        assert_eq!(set(&placed(&whole).cpus).len(), 4);
        let named = orm.admit(&enhanced("irq", "system_cores", r#"{"cpuset_pool":"interrupt"}"#, 100)).await;
        assert_eq!((placed(&named).cpus.as_str(), placed(&named).pool.as_str()), ("3,8-9", "interrupt"));
        let shared = orm.admit(&enhanced("no", "shared_cores", r#"{"cpuset_pool":"interrupt"}"#, 100)).await;
        assert_eq!(
            (placed(&shared).pool.as_str(), &placed(&shared).flags[..]),
            ("share", &["pool-unknown".to_owned()][..])
        );
        let before = orm.state().await;
        kept(&before, &interrupt, "irq");
        assert_eq!(pool(&before), ("3,8-9".into(), 1));
        let uids: BTreeSet<&str> = before.pods.iter().map(|pod| pod.pod_uid.as_str()).collect();
        assert_eq!(uids.len(), 7);

        // One of them goes, and comes back.
        host.write("sys/devices/system/cpu/online", "0-8,10-15\n");
        fact(&mut orm, "online", |told| told == "0-8,10-15").await;
        let less = orm.state().await;
        kept(&less, &interrupt, "irq");
        assert_eq!(pool(&less), ("3,8".into(), 1));
        host.write("sys/devices/system/cpu/online", "0-15\n");
        fact(&mut orm, "online", |told| told == "0-15").await;
        assert_eq!(orm.state().await.pools, before.pools);

        drop(orm);
        let mut orm = host.start(&settings).await;
        let after = orm.state().await;
        assert_eq!((&after.pools, &after.pods), (&before.pools, &before.pods), "a restart moves nobody");
        let all = orm.admit(&sandbox("much", "dedicated_cores", Some(13 * 1024))).await;
        refused(&all);
    }
}

#[tokio::test]
async fn the_native_policy_gives_nobody_a_cpu_for_interrupts() {
    let host = Host::with_machine(8, 2);
    let mut orm = host.start(&["--set", "cpu_policy=native", "--set", "interrupt_cpus=0,5"]).await;
    let guaranteed = |uid: &str, shares| Sandbox {
        cgroup_parent: "/kubepods/pod1".into(),
        ..sandbox(uid, "shared_cores", Some(shares))
    };
    let own = orm.admit(&guaranteed("g", 3072)).await;
    assert_eq!((placed(&own).exclusive, set(&placed(&own).cpus).len()), (true, 3));
    let burstable = Sandbox { cgroup_parent: "/kubepods/burstable/pod2".into(), ..guaranteed("b", 512) };
    orm.admit(&burstable).await;
    let state = orm.state().await;
    kept(&state, &set("0,5"), "");
    assert!(
        state.pools.iter().any(|pool| pool.name == "interrupt" && pool.cpus == "0,5"),
        "{:?}",
        state.pools
    );
    refused(&orm.admit(&guaranteed("too-much", 4096)).await);
}

#[tokio::test]
async fn interrupt_cpus_that_cannot_be_end_the_start_by_name() {
    let host = Host::with_machine(4, 1);
    for (more, words) in [
        (&["--set", "interrupt_cpus=x"][..], "interrupt_cpus"),
        (&["--set", "interrupt_cpus=1-2", "--set", "reserved_cpus=2-3"], "both name CPUs 2"),
        (&["--set", "interrupt_cpus=0-3"], "leaves none of the online CPUs"),
    ] {
        let out = host.fails("bad", more).await;
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    }
}
