//! From the return of the runtime's socket until every container has been checked and put right.

use std::time::{Duration, Instant};

use super::samples::Samples;
use super::scene::{PATIENCE, Scene};
use super::{Fault, Row};
use crate::runtime::{Runtime, poll_until};

const ROUNDS: usize = 20;

/// How long the runtime is away; containerd needs about that long.
const AWAY: Duration = Duration::from_millis(300);

/// While the runtime is away, every container's cpuset is spoilt; the time until the last one is right again.
pub(super) async fn measure(scene: &mut Scene) -> Result<Row, Fault> {
    let mut times = Samples::default();
    for _ in 0..ROUNDS {
        let mut right = Vec::new();
        for (_, container) in &scene.running {
            right.push((container.clone(), scene.runtime.cpus_allowed(container).await?));
        }
        scene.runtime.stop().await?;
        tokio::time::sleep(AWAY).await;
        for (container, _) in &right {
            let cgroup = scene.runtime.cgroup_of(container).ok_or("a container has gone")?;
            let dir = scene.runtime.kernel().cpuset_dir(cgroup.trim_start_matches('/'));
            for file in ["cpuset.cpus", "cpuset.effective_cpus"] {
                std::fs::write(dir.join(file), "0\n")?;
            }
        }
        let start = Instant::now();
        scene.runtime.start().await?;
        for (container, cpus) in &right {
            poll_until(PATIENCE, async || match scene.runtime.cpus_allowed(container).await {
                Ok(now) if now == *cpus => Ok(()),
                Ok(now) => Err(format!("{} runs on {now}, not on {cpus}", container.0)),
                Err(e) => Err(e.to_string()),
            })
            .await?;
        }
        times.push(start.elapsed());
    }
    Ok(Row {
        id: "resync".to_owned(),
        what: format!(
            "runtime away for {} ms, every cpuset of {} containers spoilt meanwhile: from its socket's return until all are right \
             again, slowest of {} (median {:.0} ms)",
            AWAY.as_millis(),
            scene.running.len(),
            times.len(),
            times.quantile_ms(0.5)
        ),
        value: times.max_ms(),
        unit: "ms",
        floor: None,
        budget: 1000.0,
    })
}
