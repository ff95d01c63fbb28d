//! A process that is killed while several clients ask.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oxalyst_proto::orm::v1::admit_reply::Outcome;
use oxalyst_proto::orm::v1::allocator_client::AllocatorClient;
use oxalyst_proto::orm::v1::{AdmitPodRequest, ReleasePodRequest};
use tonic::transport::Channel;

use crate::host::{DEADLINE, Host, sandbox};
use crate::{Dice, Held, assert_disjoint, held};

/// What a client was told, pod by pod; `None`: the pod is gone. And the pod of which it has not heard.
#[derive(Clone, Debug, Default)]
struct Book {
    told: BTreeMap<String, Option<Held>>,
    in_doubt: Option<String>,
}

/// Admits, repeats and releases its own pods until the connection breaks.
async fn churn(
    mut client: AllocatorClient<Channel>,
    name: usize,
    mut book: Book,
    mut dice: Dice,
    acks: Arc<AtomicUsize>,
) -> Book {
    for nth in 0.. {
        let uid = format!("{name}-{}", dice.roll(5));
        let known = book.told.get(&uid).cloned().flatten();
        book.in_doubt = Some(uid.clone());
        let told = match known {
            Some(held) if dice.roll(4) > 0 => {
                let request = ReleasePodRequest { pod_uid: uid.clone(), sandbox_id: held.sandbox_id };
                let Ok(reply) = client.release_pod(request).await else { return book };
                assert!(reply.into_inner().released, "{uid}");
                None
            }
            known => {
                let level = if dice.roll(3) == 0 { "shared_cores" } else { "dedicated_cores" };
                let shares = 1024 * (1 + dice.roll(3)) as u64;
                let mut pod = sandbox(&uid, level, Some(shares));
                let fresh = format!("{uid}/{}/{nth}", acks.load(Ordering::SeqCst) + dice.roll(1 << 30));
                pod.sandbox_id = known.as_ref().map_or(fresh, |held| held.sandbox_id.clone());
                let request = AdmitPodRequest { sandbox: Some(pod), ..AdmitPodRequest::default() };
                let Ok(reply) = client.admit_pod(request).await else { return book };
                match reply.into_inner().outcome.unwrap() {
                    Outcome::Placed(placed) => {
                        let now = Held::of(&placed);
                        assert!(known.is_none_or(|before| before == now), "asked again, {uid} was moved");
                        Some(now)
                    }
                    Outcome::Refused(refusal) => {
                        assert_eq!((refusal.reason.as_str(), &known), ("insufficient", &None), "{uid}");
                        None
                    }
                }
            }
        };
        book.told.insert(uid, told);
        book.in_doubt = None;
        acks.fetch_add(1, Ordering::SeqCst);
    }
    book
}

#[tokio::test]
async fn r09_random_kill_9_loses_and_doubles_nothing_acknowledged() {
    let host = Host::with_machine(16, 2);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut books: Vec<Book> = vec![Book::default(); 3];
    let mut acknowledged = 0;
    const ROUNDS: usize = 50;
    for round in 0..ROUNDS {
        let mut orm = host.start(&[]).await;
        let state = orm.state().await;
        assert_disjoint(&state);
        let found = held(&state);
        for book in &mut books {
            let doubt = book.in_doubt.take();
            for (uid, told) in &mut book.told {
                if doubt.as_ref() == Some(uid) {
                    let now = found.get(uid).cloned();
                    // Done or not done, and if it was there before, not otherwise.
                    assert!(
                        told.is_none() || now.is_none() || *told == now,
                        "round {round}: {uid}: {told:?} {now:?}"
                    );
                    *told = now;
                }
                assert_eq!(found.get(uid), told.as_ref(), "round {round}: {uid}");
            }
            if let Some(uid) = doubt {
                book.told.insert(uid.clone(), found.get(&uid).cloned());
            }
        }
        let known: BTreeSet<&String> = books
            .iter()
            .flat_map(|b| &b.told)
            .filter(|(_, told)| told.is_some())
            .map(|(uid, _)| uid)
            .collect();
        assert_eq!(found.keys().collect::<BTreeSet<_>>(), known, "round {round}: a pod came back");

        let acks = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = books
            .iter()
            .enumerate()
            .map(|(name, book)| {
                let own = Dice(dice.0 ^ (name as u64 + 1) << 20);
                tokio::spawn(churn(orm.client.clone(), name, book.clone(), own, Arc::clone(&acks)))
            })
            .collect();
        let enough = 3 + dice.roll(120);
        let end = Instant::now() + DEADLINE;
        while acks.load(Ordering::SeqCst) < enough {
            assert!(Instant::now() < end, "the allocator stands still");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        orm.child.kill().unwrap();
        books.clear();
        for worker in workers {
            books.push(worker.await.unwrap());
        }
        acknowledged += acks.load(Ordering::SeqCst);
    }
    println!("{ROUNDS} rounds of kill -9, {acknowledged} answers: none lost, none given twice");
    assert!(acknowledged > 1000, "{acknowledged}");
}
