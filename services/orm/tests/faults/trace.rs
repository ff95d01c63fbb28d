//! What the kernel is asked for, and in which order.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::host::{DEADLINE, Host, placed, sandbox};
use crate::stopped;

#[tokio::test]
async fn an_allocation_is_synced_before_it_is_answered() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: strace is not installed");
        return;
    }
    let host = Host::new();
    let trace = host.dir.path().join("trace");
    let orm = host.command("run", &[]);
    let child = Command::new("strace")
        // -D: the traced process is this one's child, and ends when it is told to.
        .args([
            "-D",
            "-f",
            "-y",
            "-s",
            "4096",
            "-e",
            "trace=pwrite64,fdatasync,write,writev,sendto,sendmsg",
            "-o",
        ])
        .arg(&trace)
        .arg(orm.get_program())
        .args(orm.get_args())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut orm = host.attach(child);
    let end = Instant::now() + DEADLINE;
    while orm.status().await.is_err() {
        assert!(Instant::now() < end, "orm did not answer in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for uid in ["pod-traced-one", "pod-traced-two"] {
        let reply = match uid {
            "pod-traced-one" => orm.admit(&sandbox(uid, "dedicated_cores", Some(1024))).await,
            _ => orm.admit(&sandbox(uid, "shared_cores", Some(1024))).await,
        };
        assert_eq!(placed(&reply).pod_uid, uid);
    }
    stopped(orm).await;
    // strace writes its last lines after the process has ended.
    let end = Instant::now() + DEADLINE;
    let text = loop {
        let text = String::from_utf8_lossy(&std::fs::read(&trace).unwrap()).into_owned();
        if text.contains("+++ exited with") || Instant::now() > end {
            break text;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let calls: Vec<&str> = text.lines().collect();
    for uid in ["pod-traced-one", "pod-traced-two"] {
        let after = |from: usize, what: &dyn Fn(&str) -> bool| {
            calls[from..]
                .iter()
                .position(|call| what(call))
                .map(|at| from + at)
                .unwrap_or_else(|| panic!("{uid}\n{text}"))
        };
        let appended = after(0, &|c| c.contains("pwrite64(") && c.contains("/journal-") && c.contains(uid));
        let thread = calls[appended].split_whitespace().next().unwrap();
        let synced = after(appended, &|c| {
            c.starts_with(thread) && c.contains("fdatasync") && c.ends_with("= 0") && !c.contains("/sled/")
        });
        let answers = |c: &str| c.contains("<socket:[") && c.contains(uid);
        let answered = after(0, &answers);
        assert!(appended < synced && synced < answered, "{uid}: {appended} {synced} {answered}\n{text}");
    }
}
