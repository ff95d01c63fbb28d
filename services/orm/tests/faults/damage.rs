//! Damage that no witness of the ledger can notice, and the runtime's list that puts it right.

use std::path::Path;
use std::time::{Duration, Instant};

use oxalyst_proto::orm::v1::{ReconcileRequest, State};
use oxalyst_proto::runtime::v1::{Container, ContainerState, Resources};
use oxalyst_topology::CpuSet;

use crate::host::{DEADLINE, Host, placed, refused, sandbox};
use crate::{Dice, Held, assert_disjoint, copy, held, stopped};

/// The runtime's list of what a state says.
fn runtimes_list(state: &State) -> ReconcileRequest {
    let mut list = ReconcileRequest::default();
    for pod in &state.pods {
        let mut one = sandbox(&pod.pod_uid, &pod.qos_level, Some(pod.requested_milli_cpu * 1024 / 1000));
        one.sandbox_id.clone_from(&pod.sandbox_id);
        list.sandboxes.push(one);
        let mut container = Container {
            sandbox_id: pod.sandbox_id.clone(),
            resources: Some(Resources { cpuset_cpus: Some(pod.cpus.clone()), ..Resources::default() }),
            ..Container::default()
        };
        container.set_state(ContainerState::Running);
        list.containers.push(container);
    }
    list
}

/// Damages every file of a store: none is left that could bear witness.
fn ruin(store: &Path, dice: &mut Dice) {
    for entry in std::fs::read_dir(store).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            ruin(&entry.path(), dice);
            continue;
        }
        let mut bytes = std::fs::read(entry.path()).unwrap();
        let used = bytes.iter().rposition(|b| *b != 0).map_or(1, |last| last + 1);
        match dice.roll(3) {
            0 => bytes.truncate(dice.roll(used)),
            1 => bytes[..used].iter_mut().for_each(|b| *b = dice.roll(256) as u8),
            _ => (0..20).for_each(|_| bytes[dice.roll(used)] ^= 1 << dice.roll(8)),
        }
        std::fs::write(entry.path(), bytes).unwrap();
    }
}

#[tokio::test]
async fn what_damage_of_all_witnesses_leaves_wrong_is_put_right_by_the_runtimes_list() {
    let host = Host::with_machine(16, 2);
    let ledger = host.dir.path().join("ledger");
    let aside = tempfile::tempdir().unwrap();
    let mut orm = host.start(&[]).await;
    for (uid, level, shares) in [
        ("a", "dedicated_cores", 2048),
        ("b", "dedicated_cores", 2048),
        ("c", "shared_cores", 512),
        ("stale", "dedicated_cores", 1024),
    ] {
        orm.admit(&sandbox(uid, level, Some(shares))).await;
    }
    stopped(orm).await;
    copy(&ledger, &aside.path().join("older"));
    let mut orm = host.start(&[]).await;
    assert!(orm.release("b", "b-1").await && orm.release("stale", "stale-1").await);
    for (uid, shares) in [("d", 3072), ("e", 1024)] {
        orm.admit(&sandbox(uid, "dedicated_cores", Some(shares))).await;
    }
    let truth = orm.state().await;
    let list = runtimes_list(&truth);
    stopped(orm).await;
    copy(&ledger, &aside.path().join("newest"));

    let mut dice = Dice(4242);
    for round in 0..9 {
        std::fs::remove_dir_all(&ledger).unwrap();
        // A whole folder of an earlier time is what no ledger can notice.
        let from = if round % 3 == 0 { "older" } else { "newest" };
        copy(&aside.path().join(from), &ledger);
        if round % 3 > 0 {
            ruin(&ledger.join("store"), &mut dice);
        }
        let mut orm = host.start(&[]).await;
        let damage = orm.status().await.unwrap().facts["ledger.damage"].clone();
        assert_eq!(damage == "none", round % 3 == 0, "{damage}");
        let wanted = held(&truth);
        // What an earlier state holds of pods that have ended since, or otherwise than they run.
        let known = held(&orm.state().await).into_iter().filter(|(uid, held)| wanted.get(uid) != Some(held));
        let against = known.fold(CpuSet::new(), |all, (_, held)| &all | &held.cpus.parse().unwrap());
        orm.client.reconcile(list.clone()).await.unwrap();
        let state = orm.state().await;
        assert_disjoint(&state);
        let now = held(&state);
        for (uid, want) in &wanted {
            let got = now.get(uid).unwrap_or_else(|| panic!("round {round}: {uid} is missing"));
            assert_eq!(
                (got.exclusive, &got.sandbox_id),
                (want.exclusive, &want.sandbox_id),
                "round {round}: {uid}"
            );
            let size = |held: &Held| held.cpus.parse::<CpuSet>().unwrap().len();
            assert_eq!(size(got), size(want), "round {round}: {uid}");
            if against.is_disjoint(&want.cpus.parse().unwrap()) {
                assert_eq!(
                    got, want,
                    "round {round}: nothing is known against it, so it stays where it runs"
                );
            }
        }
        let end = Instant::now() + DEADLINE;
        while held(&orm.state().await).keys().ne(wanted.keys()) {
            assert!(Instant::now() < end, "what does not run any more was not freed");
            orm.client.reconcile(list.clone()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        stopped(orm).await;
    }
}

/// What runs on a CPU is not known any more: nobody else is told that the CPU is his.
#[tokio::test]
async fn after_a_ledger_was_lost_sets_are_given_once_the_runtimes_list_has_come() {
    let host = Host::with_machine(16, 2);
    let mut orm = host.start(&[]).await;
    for uid in ["a", "b"] {
        orm.admit(&sandbox(uid, "dedicated_cores", Some(2048))).await;
    }
    let truth = orm.state().await;
    stopped(orm).await;
    std::fs::remove_dir_all(host.dir.path().join("ledger/store")).unwrap();

    let new = sandbox("new", "dedicated_cores", Some(2048));
    let mut orm = host.start(&[]).await;
    let reply = orm.admit(&new).await;
    let told = refused(&reply);
    assert_eq!((told.reason.as_str(), told.rule.as_str()), ("expired", "durable"));
    assert!(told.message.contains("once the runtime has listed what runs"), "{}", told.message);
    assert_eq!(placed(&orm.admit(&sandbox("s", "shared_cores", Some(512))).await).pool, "share");
    // A process that ends meanwhile leaves it to the next one, though that one finds no damage.
    stopped(orm).await;
    let mut orm = host.start(&[]).await;
    let status = orm.status().await.unwrap();
    assert!(
        status.ready && status.facts["ledger.list"].contains("once the runtime has listed"),
        "{status:?}"
    );
    refused(&orm.admit(&new).await);

    let mut list = runtimes_list(&truth);
    list.sandboxes.push(sandbox("s", "shared_cores", Some(512)));
    orm.client.reconcile(list.clone()).await.unwrap();
    let given = placed(&orm.admit(&new).await).clone();
    let state = orm.state().await;
    assert!(given.exclusive && held(&truth).iter().all(|(uid, was)| held(&state).get(uid) == Some(was)));
    assert_disjoint(&state);
    assert_eq!(orm.status().await.unwrap().facts["ledger.list"], "not awaited");
    stopped(orm).await;
    let mut orm = host.start(&[]).await;
    assert!(placed(&orm.admit(&sandbox("more", "dedicated_cores", Some(1024))).await).exclusive);
}
