//! What a starting pod waits for the mesh.

use std::path::Path;

use oxalyst_nri::api::Event;
use rustix::process::Signal;

use super::floor::{Appends, RoundTrips};
use super::samples::Samples;
use super::scene::Scene;
use super::{Fault, Row, memory, resync};
use crate::process::send;

const SAMPLES: usize = 500;

/// Of pods with exclusive CPUs, after each of which the pools have to grow back first.
const EXCLUSIVE_SAMPLES: usize = 200;

/// hook-latency, and with the same services memory-110, hook-frozen and resync.
pub(super) async fn latency(folder: &Path) -> Result<Vec<Row>, Fault> {
    let mut scene = Scene::start(folder).await?;
    scene.fill(110).await?;
    let mut rows = memory::rows(&mut scene, "memory-110", "with 110 pods running")?;
    for (sandbox, _) in scene.running.split_off(100) {
        crate::runtime::Runtime::remove_pod(&mut scene.runtime, &sandbox).await?;
    }
    rows.extend(
        against_floor(&mut scene, ("shared_cores", 100), SAMPLES, "hook-latency", "a shared pod").await?,
    );
    rows.extend(
        against_floor(
            &mut scene,
            ("dedicated_cores", 2000),
            EXCLUSIVE_SAMPLES,
            "hook-latency-dedicated",
            "a pod with two exclusive CPUs, whose reply carries the new cpusets of all others",
        )
        .await?,
    );
    scene.fill(110).await?;
    rows.extend(memory::rows(
        &mut scene,
        "memory-110-later",
        &format!("with 110 pods running, after {} others came and went", SAMPLES + EXCLUSIVE_SAMPLES),
    )?);
    rows.push(resync::measure(&mut scene).await?);
    rows.push(frozen(&mut scene).await?);
    scene.end().await?;
    Ok(rows)
}

async fn against_floor(
    scene: &mut Scene,
    (level, milli_cpu): (&str, u64),
    samples: usize,
    id: &str,
    whose: &str,
) -> Result<Vec<Row>, Fault> {
    let mut appends = Appends::create(&scene.folder)?;
    let mut trips = RoundTrips::new(scene.mesh.channel("meta-server"));
    let (mut hooks, mut first, mut floor) = (Samples::default(), Samples::default(), Samples::default());
    for round in 0..samples + 20 {
        let least = trips.sample().await? + appends.sample()?;
        let took = scene.hooks(level, milli_cpu).await?;
        // The first few open connections and files.
        if round >= 20 {
            floor.push(least);
            hooks.push(took.sum());
            first.push(took.run_sandbox);
        }
    }
    let row = |name: &str, quantile: f64, budget: f64| Row {
        id: format!("{id}-{name}"),
        what: format!(
            "what the runtime waits in RunPodSandbox + CreateContainer of {whose}, {} running pods, {} samples in turn with the \
             floor (an empty gRPC round trip over a unix socket + an append of 400 bytes with fdatasync); the bare NRI round \
             trips are included; RunPodSandbox alone {:.3} ms",
            scene.running.len(),
            hooks.len(),
            first.quantile_ms(quantile),
        ),
        value: hooks.quantile_ms(quantile),
        unit: "ms",
        floor: Some(floor.quantile_ms(quantile)),
        budget,
    };
    Ok(vec![row("p50", 0.5, 3.0), row("p99", 0.99, 10.0)])
}

/// hook-growth: two meshes side by side, so that noise hits both.
pub(super) async fn growth(folder: &Path) -> Result<Vec<Row>, Fault> {
    let mut few = Scene::start(&folder.join("a")).await?;
    let mut many = Scene::start(&folder.join("b")).await?;
    few.fill(10).await?;
    many.fill(1000).await?;
    let mut rows = memory::rows(&mut many, "memory-1000", "with 1,000 pods running")?;
    let (mut of_few, mut of_many) = (Samples::default(), Samples::default());
    for round in 0..SAMPLES + 20 {
        let (a, b) = (few.hooks("shared_cores", 100).await?, many.hooks("shared_cores", 100).await?);
        if round >= 20 {
            of_few.push(a.sum());
            of_many.push(b.sum());
        }
    }
    few.end().await?;
    many.end().await?;
    let row = |name: &str, quantile: f64| Row {
        id: format!("hook-growth{name}"),
        what: format!(
            "the same of a shared pod with 1,000 running containers, against 10 (the floor here), {} samples each in turn",
            of_many.len()
        ),
        value: of_many.quantile_ms(quantile),
        unit: "ms",
        floor: Some(of_few.quantile_ms(quantile)),
        budget: 1.5,
    };
    rows.extend([row("", 0.99), row("-p50", 0.5)]);
    Ok(rows)
}

/// hook-frozen: the orm is stopped, pods start.
async fn frozen(scene: &mut Scene) -> Result<Row, Fault> {
    let orm = scene.mesh.pid("orm").ok_or("orm does not run")?;
    send(orm, Signal::STOP);
    let outcome = frozen_hooks(scene).await;
    send(orm, Signal::CONT);
    let hooks = outcome?;
    Ok(Row {
        id: "hook-frozen".to_owned(),
        what: format!(
            "slowest of {} hooks while the orm is stopped (SIGSTOP); the connection was kept",
            hooks.len()
        ),
        value: hooks.max_ms(),
        unit: "ms",
        floor: None,
        budget: 400.0,
    })
}

async fn frozen_hooks(scene: &mut Scene) -> Result<Samples, Fault> {
    scene.runtime.forget_observed();
    for _ in 0..10 {
        scene.create("shared_cores", 100).await?;
    }
    let mut hooks = Samples::default();
    scene.runtime.observed(|o| {
        for call in o.calls_of(Event::RunPodSandbox).chain(o.calls_of(Event::CreateContainer)) {
            hooks.push(call.took);
        }
        match o.ended.first() {
            Some(why) => Err(Fault::from(format!("the connection ended: {why}"))),
            None if hooks.len() == 20 && hooks.max_ms() > 0.0 => Ok(hooks),
            None => Err(Fault::from(format!("{} hooks were seen, 20 expected", hooks.len()))),
        }
    })
}
