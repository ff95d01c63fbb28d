//! Pods that come and go. Alone in its process: it counts the process's open files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use nri_gateway::settings::Mode;
use oxalyst_cgroups::CgroupPath;
use oxalyst_cgroups::fixture::Layout;
use support::bypass::{Plain, listed};
use support::until;

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[actix::test]
async fn c12_churn_leaves_no_open_file_and_no_memory_of_what_went() {
    const PODS: usize = 40;
    let mut node = Plain::new(Mode::Bypass);
    let fixture = node.tree(Layout::V2, &["kubepods"]);
    node.start();
    let mut before = None;
    for round in 0..6 {
        let uids: Vec<String> = (0..PODS).map(|n| format!("r{round}n{n}")).collect();
        node.meta.set(uids.iter().map(|uid| listed(uid, "shared_cores", &format!("c-{uid}"))).collect());
        for uid in &uids {
            node.make(&fixture, &format!("kubepods/pod{uid}/c-{uid}"));
        }
        until("all are placed", async || {
            let list = node.list().await?.containers;
            (list.len() == PODS && list.iter().all(|c| c.marks.is_empty())).then_some(())
        })
        .await;
        for uid in &uids {
            fixture.remove(&CgroupPath::new(&format!("kubepods/pod{uid}")).unwrap()).unwrap();
        }
        until("all are gone and released", async || {
            let gone = node.list().await?.containers.is_empty();
            (gone && uids.iter().all(|uid| node.orm.cpus(uid).is_none())).then_some(())
        })
        .await;
        if round == 1 {
            before = Some(open_files());
        }
    }
    let (before, after) = (before.unwrap(), open_files());
    assert!(after <= before + 8, "{before} open files became {after}");
}
