//! What a starting pod waits for the mesh.

use std::path::Path;
use std::time::Duration;

use oxalyst_nri::api::Event;
use rustix::process::Signal;

use super::bare_plugin::{Answer, Bare};
use super::floor::{Appends, RoundTrips};
use super::samples::Samples;
use super::scene::Scene;
use super::{Fault, Row, memory, resync};
use crate::process::send;

const SAMPLES: usize = 500;

/// Of pods with exclusive CPUs, after each of which the pools have to grow back first.
const EXCLUSIVE_SAMPLES: usize = 200;

/// The first few of a kind open connections and files, and are not counted.
pub(super) const WARM_UP: usize = 20;

/// hook-latency, and with the same services memory-110, hook-frozen and resync.
pub(super) async fn latency(folder: &Path) -> Result<Vec<Row>, Fault> {
    let mut scene = Scene::start(folder).await?;
    scene.fill(110).await?;
    let mut rows = memory::rows(&mut scene, "memory-110", "with 110 pods running")?;
    for (sandbox, _) in scene.running.split_off(100) {
        crate::runtime::Runtime::remove_pod(&mut scene.runtime, &sandbox).await?;
    }
    rows.extend(
        against_floor(&mut scene, None, ("shared_cores", 100), SAMPLES, "hook-latency", "a shared pod")
            .await?,
    );
    let mut bare = Bare::start(&folder.join("bare"), Answer::CpusForAll).await?;
    bare.fill(100).await?;
    rows.extend(
        against_floor(
            &mut scene,
            Some(&mut bare),
            ("dedicated_cores", 2000),
            EXCLUSIVE_SAMPLES,
            "hook-latency-dedicated",
            "a pod with two exclusive CPUs, whose reply carries the new cpusets of all others",
        )
        .await?,
    );
    bare.end().await?;
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
    mut bare: Option<&mut Bare>,
    (level, milli_cpu): (&str, u64),
    samples: usize,
    id: &str,
    whose: &str,
) -> Result<Vec<Row>, Fault> {
    let mut appends = Appends::create(&scene.folder)?;
    let mut trips = RoundTrips::new(scene.mesh.channel("meta-server"));
    let (mut hooks, mut first, mut floor) = (Samples::default(), Samples::default(), Samples::default());
    let mut known = Samples::default();
    for round in 0..samples + WARM_UP {
        let least = trips.sample().await? + appends.sample()?;
        let answered = match &mut bare {
            Some(bare) => bare.hooks(level, milli_cpu).await?.sum(),
            None => Duration::ZERO,
        };
        let took = scene.hooks(level, milli_cpu).await?;
        if round >= WARM_UP {
            floor.push(least);
            known.push(answered);
            hooks.push(took.sum());
            first.push(took.run_sandbox);
        }
    }
    let row = |name: &str, quantile: f64, budget: f64| {
        let beside = match bare {
            Some(_) => format!(
                "; the same two calls and the same reply of a plugin that knows it beforehand and asks nobody: {:.3} ms",
                known.quantile_ms(quantile)
            ),
            None => String::new(),
        };
        Row {
            id: format!("{id}-{name}"),
            what: format!(
                "what the runtime waits in RunPodSandbox + CreateContainer of {whose}, {} running pods, {} samples in turn with \
                 the floor (an empty gRPC round trip over a unix socket + an append of 400 bytes with fdatasync); the \
                 bare NRI round trips are included; RunPodSandbox alone {:.3} ms{beside}",
                scene.running.len(),
                hooks.len(),
                first.quantile_ms(quantile),
            ),
            value: hooks.quantile_ms(quantile),
            unit: "ms",
            floor: Some(floor.quantile_ms(quantile)),
            budget,
        }
    };
    Ok(vec![row("p50", 0.5, 3.0), row("p99", 0.99, 10.0)])
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
