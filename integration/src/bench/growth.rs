//! What a starting pod waits for the mesh as more and more containers run, beside a runtime without the mesh.

use std::path::Path;

use super::bare_plugin::{Answer, Bare};
use super::floor::{Appends, RoundTrips};
use super::hook::WARM_UP;
use super::samples::{Samples, median};
use super::scene::Scene;
use super::{Fault, Row, memory};

/// Running containers; the growth is from the first of these to the last.
const RUNNING: [usize; 4] = [10, 100, 500, 1000];

/// Of so many the 99.9th percentile is the slowest: more would take the whole bench past its few minutes.
const SAMPLES: usize = 600;

/// The growth's percentiles are those of blocks of so many samples, of which the median is taken: one slow sync of the disk, which
/// hits either side by chance, does not decide.
const BLOCK: usize = 100;

/// hook-10 to hook-1000, hook-growth and memory-1000.
pub(super) async fn measure(folder: &Path) -> Result<Vec<Row>, Fault> {
    let mut few = Scene::start(&folder.join("a")).await?;
    let mut many = Scene::start(&folder.join("b")).await?;
    let mut bare = Bare::start(&folder.join("c"), Answer::Nothing).await?;
    let mut rows = Vec::new();
    few.fill(RUNNING[0]).await?;
    for running in RUNNING {
        many.fill(running).await?;
        bare.fill(running).await?;
        let grown = running == RUNNING[RUNNING.len() - 1];
        if grown {
            rows.extend(memory::rows(&mut many, "memory-1000", "with 1,000 pods running")?);
        }
        let mut taken = Taken::default();
        let few = grown.then_some(&mut few);
        taken.take(&mut many, &mut bare, few).await?;
        rows.extend(taken.rows(running));
        if grown {
            rows.extend(taken.growth());
        }
    }
    few.end().await?;
    many.end().await?;
    bare.end().await?;
    Ok(rows)
}

/// Samples of one number of running containers, each taken in turn with the others.
#[derive(Debug, Default)]
struct Taken {
    mesh: Samples,
    floor: Samples,
    bare: Samples,
    few: Samples,
}

// === impl Taken ===

impl Taken {
    async fn take(
        &mut self,
        many: &mut Scene,
        bare: &mut Bare,
        mut few: Option<&mut Scene>,
    ) -> Result<(), Fault> {
        let pod = ("shared_cores", 100);
        let mut appends = Appends::create(&many.folder)?;
        let mut trips = RoundTrips::new(many.mesh.channel("meta-server"));
        for round in 0..SAMPLES + WARM_UP {
            let least = trips.sample().await? + appends.sample()?;
            let without = bare.hooks(pod.0, pod.1).await?.sum();
            let mut of_few = None;
            // Each follows the other as often as it precedes it.
            if let (Some(few), true) = (&mut few, round % 2 == 0) {
                of_few = Some(few.hooks(pod.0, pod.1).await?.sum());
            }
            let took = many.hooks(pod.0, pod.1).await?.sum();
            if let (Some(few), None) = (&mut few, of_few) {
                of_few = Some(few.hooks(pod.0, pod.1).await?.sum());
            }
            if round >= WARM_UP {
                self.floor.push(least);
                self.bare.push(without);
                self.mesh.push(took);
                if let Some(of_few) = of_few {
                    self.few.push(of_few);
                }
            }
        }
        Ok(())
    }

    fn rows(&self, running: usize) -> [Row; 3] {
        let row = |name: &str, quantile: f64, budget: f64| Row {
            id: format!("hook-{running}-{name}"),
            what: format!(
                "what the runtime waits in RunPodSandbox + CreateContainer of a shared pod with {running} running containers, \
                 {} samples in turn with the floor (an empty gRPC round trip over a unix socket + an append of 400 bytes with \
                 fdatasync); without the mesh, an empty plugin in its place, it waits {:.3} ms",
                self.mesh.len(),
                self.bare.quantile_ms(quantile),
            ),
            value: self.mesh.quantile_ms(quantile),
            unit: "ms",
            floor: Some(self.floor.quantile_ms(quantile)),
            budget,
        };
        [row("p50", 0.5, 3.0), row("p99", 0.99, 10.0), row("p99.9", 0.999, 10.0)]
    }

    fn growth(&self) -> [Row; 2] {
        let blocks = |samples: &Samples| median(samples.blocks(BLOCK).map(|block| block.quantile_ms(0.99)));
        let row = |id: &str, how: &str, value: f64, floor: f64| Row {
            id: id.to_owned(),
            what: format!(
                "the same with {} running containers against {} (the floor here), {} samples each in turn: {how}",
                RUNNING[RUNNING.len() - 1],
                RUNNING[0],
                self.mesh.len(),
            ),
            value,
            unit: "ms",
            floor: Some(floor),
            budget: 1.5,
        };
        let whole = |samples: &Samples| samples.quantile_ms(0.99);
        let how = format!(
            "99th percentiles, the median of those of {} blocks; of all samples {:.3} and {:.3} ms",
            self.mesh.len() / BLOCK,
            whole(&self.mesh),
            whole(&self.few)
        );
        [
            row("hook-growth", &how, blocks(&self.mesh), blocks(&self.few)),
            row("hook-growth-p50", "medians", self.mesh.quantile_ms(0.5), self.few.quantile_ms(0.5)),
        ]
    }
}
