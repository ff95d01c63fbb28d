//! The orm hangs or is gone, images take their time, pods come in a burst: no container starts unpinned unnoticed.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{CONVERGE, Running, World, without};
use crate::imitation::ListingKubelet;
use crate::lateness::Lateness;
use crate::mesh::MeshError;
use crate::pages::{page, total};
use crate::process::send;
use crate::runtime::{ContainerSpec, PodSpec, Runtime, poll_until};

/// Within this, every hook is answered, whatever the orm does; a bound of the gateway's histogram.
const HOOK: &str = "0.4";

/// Behind by more than this, a machine says nothing about a bound in milliseconds.
const LATE: Duration = Duration::from_millis(50);

/// Within this, everything is pinned once the orm is back.
const PINNED: Duration = Duration::from_secs(1);

// === impl World ===

impl<R: Runtime> World<R> {
    /// Starts the gateway anew with these settings; the worlds of other scenarios wait longer for the orm than is usual, as they
    /// share the machine with compilers.
    pub async fn gateway_with(&mut self, settings: &[&str]) {
        self.mesh.terminate("nri-gateway").await.unwrap();
        for setting in settings {
            self.mesh.set("nri-gateway", setting);
        }
        self.mesh.start("nri-gateway").unwrap();
        self.mesh.ready("nri-gateway").await.unwrap();
        self.connected(true).await;
    }

    /// The gateway's metrics.
    pub async fn gateway_page(&self) -> String {
        page(&self.mesh.run_dir(), "nri-gateway", "/metrics").await.unwrap()
    }

    /// Hooks that the gateway has answered, and of those the ones that took longer than 400 ms.
    async fn hooks(&self) -> (f64, f64) {
        let text = self.gateway_page().await;
        let count = total(&text, "oxalyst_hook_duration_seconds_count", "").unwrap_or(0.0);
        let in_time = total(&text, "oxalyst_hook_duration_seconds_bucket", &format!("le=\"{HOOK}\""));
        (count, count - in_time.unwrap_or(0.0))
    }

    async fn default_answers(&self) -> f64 {
        total(&self.gateway_page().await, "oxalyst_hook_default_answers_total", "").unwrap_or(0.0)
    }

    /// How often it was too slow for its runtime so far: hooks that the gateway answered without the orm, and sessions that ended.
    /// Only where this stays the same does a container's first instruction see what the orm decided.
    pub async fn too_slow(&self) -> f64 {
        let page = self.gateway_page().await;
        let names = ["oxalyst_hook_default_answers_total", "oxalyst_nri_reconnects_total"];
        names.iter().filter_map(|name| total(&page, name, "")).sum()
    }

    /// Whether the pod runs where the ledger says and nothing has been too slow since it was `slow`. A runtime that gave a hook up
    /// knows of it before the gateway does.
    pub async fn came_in_time(&mut self, pod: &Running, slow: f64) -> bool {
        let settled = poll_until(CONVERGE, async || {
            let now = self.allowed(&pod.container).await;
            let agrees = self.placement(&pod.pod).await.is_some_and(|placed| super::set(&placed.cpus) == now);
            if self.too_slow().await != slow {
                Ok(false)
            } else if agrees {
                Ok(true)
            } else {
                Err(())
            }
        });
        // What neither settles nor was late is for the caller to look at.
        settled.await.unwrap_or(true)
    }

    /// Waits until the pod has a set of its own, in the ledger and in the kernel.
    pub async fn knows_exclusive(&mut self, pod: &Running) {
        let carved = poll_until(CONVERGE, async || {
            let (cpus, placed) = (self.allowed(&pod.container).await, self.placement(&pod.pod).await);
            let agrees = placed.as_ref().is_some_and(|p| p.exclusive && super::set(&p.cpus) == cpus);
            if agrees { Ok(()) } else { Err((cpus, placed)) }
        });
        if let Err((cpus, placed)) = carved.await {
            let log = self.mesh.log("nri-gateway");
            panic!("{} is on {cpus}, and placed as {placed:?}; gateway:\n{log}", pod.pod.name);
        }
    }

    /// What the gateway says about a container.
    pub async fn marks(&self, pod: &Running) -> Result<Vec<String>, String> {
        let applied = self.mesh.applied().await.map_err(|e: MeshError| e.to_string())?;
        let ours = applied.containers.into_iter().find(|c| c.container_id == pod.container.0);
        ours.map(|c| c.marks).ok_or_else(|| format!("{} is not listed", pod.pod.name))
    }
}

/// The orm is stopped for `frozen` while pods start, a dedicated one among them: every hook is answered within 400 ms, the
/// session lives, each pod is marked and counted; within a second of the orm's return all are where they belong.
pub async fn n01_k4_a_frozen_orm_costs_a_deadline_and_no_pin<R: Runtime>(
    mut world: World<R>,
    frozen: Duration,
) -> World<R> {
    world.gateway_with(&["hook_deadline_ms=300"]).await;
    let earlier = world.run("web", "shared_cores", 100).await;
    let (gateway, orm) = (world.mesh.pid("nri-gateway"), world.mesh.pid("orm").unwrap());
    let (hooks, answers) = (world.hooks().await, world.default_answers().await);
    let lateness = Lateness::watch();
    send(orm, Signal::STOP);

    let end = Instant::now() + frozen;
    let mut late = vec![world.run("db", "dedicated_cores", 1000).await];
    for n in 0..3 {
        late.push(world.run(&format!("late-{n}"), "shared_cores", 20).await);
    }
    // Time passes, as it would; what matters is that it is long.
    tokio::time::sleep(end.saturating_duration_since(Instant::now())).await;
    late.push(world.run("last", "shared_cores", 20).await);

    for pod in &late {
        let marks = world.marks(pod).await.unwrap();
        assert!(marks.iter().any(|m| m == "answered-by-policy"), "{}: {marks:?}", pod.pod.name);
    }
    let facts = world.mesh.status("nri-gateway").await.unwrap().facts;
    assert_eq!(facts.get("reconnects").map(String::as_str), Some("0"), "the session lives: {facts:?}");
    let counted = world.default_answers().await - answers;
    assert!(counted >= 5.0, "{counted} answers by policy are counted");
    let (count, over) = world.hooks().await;
    println!("{} hooks while the orm was stopped, {} over 400 ms", count - hooks.0, over - hooks.1);
    assert!(over - hooks.1 == 0.0 || lateness.most() > LATE, "late, and the machine was not");

    let back = Instant::now();
    send(orm, Signal::CONT);
    for pod in &late {
        let taken_in = poll_until(CONVERGE, async || match world.marks(pod).await {
            Ok(marks) if marks.is_empty() => Ok(()),
            other => Err(other),
        });
        taken_in.await.unwrap_or_else(|marks| panic!("{}: {marks:?}", pod.pod.name));
    }
    world.knows_exclusive(&late[0]).await;
    let own = world.allowed(&late[0].container).await;
    let rest = without(world.online(), &own);
    for pod in late[1..].iter().chain([&earlier]) {
        world.converges(&pod.container, &rest).await;
    }
    let took = back.elapsed();
    println!(
        "all pinned {} ms after the orm's return; the machine was late by {:?}",
        took.as_millis(),
        lateness.most()
    );
    assert!(took <= PINNED || lateness.most() > LATE, "{took:?}");
    assert_eq!(world.mesh.pid("nri-gateway"), gateway);
    world
}

/// Under the policy `closed` and without an orm, an ordinary pod is refused, and the orm's own is not: its container is made
/// anew, as a kubelet does, and its pod as well. With the orm back, the ordinary pod runs.
pub async fn closed_lets_the_orms_own_container_start<R: Runtime>(mut world: World<R>) -> World<R> {
    world.gateway_with(&["hook_deadline_ms=300", "on_deadline=closed"]).await;
    let mut pod = PodSpec::new("orm", "shared_cores", 100);
    pod.labels.insert("app.kubernetes.io/part-of".to_owned(), "oxalyst".to_owned());
    let mut spec = ContainerSpec::new("main", 100);
    let sandbox = world.runtime.run_pod(&pod).await.unwrap();
    let container = world.runtime.create_container(&sandbox, &spec).await.unwrap();
    world.runtime.start_container(&container).await.unwrap();
    world.mesh.kill("orm").await.unwrap();

    world.runtime.remove_container(&container).await.unwrap();
    spec = spec.next_attempt();
    let again = world.runtime.create_container(&sandbox, &spec).await.unwrap();
    world.runtime.start_container(&again).await.unwrap();
    assert_eq!(world.allowed(&again).await, world.online());

    let other = PodSpec::new("web", "shared_cores", 100);
    let refused = match world.runtime.run_pod(&other).await {
        // A runtime that cannot bear a refusal there.
        Ok(sandbox) => {
            let refused = world.runtime.create_container(&sandbox, &ContainerSpec::new("main", 100)).await;
            world.runtime.remove_pod(&sandbox).await.unwrap();
            refused.map(drop)
        }
        Err(refused) => Err(refused),
    };
    // Runtimes give the gateway's error codes on in their own ways; the words are ours.
    let said = refused.expect_err("nobody has placed it");
    assert!(said.message().contains("on_deadline is closed"), "{said}");

    world.runtime.remove_pod(&sandbox).await.unwrap();
    let renewed = world.runtime.run_pod(&pod.next_attempt()).await.unwrap();
    let spec = spec.next_attempt();
    let renewed_container = world.runtime.create_container(&renewed, &spec).await.unwrap();
    world.runtime.start_container(&renewed_container).await.unwrap();

    world.mesh.start("orm").unwrap();
    world.mesh.ready("orm").await.unwrap();
    world.mesh.ready("nri-gateway").await.unwrap();
    world.knows(&pod, &renewed).await;
    let mut asked = other;
    let runs = poll_until(CONVERGE, async || {
        asked = asked.next_attempt();
        let sandbox = world.runtime.run_pod(&asked).await?;
        let created = world.runtime.create_container(&sandbox, &ContainerSpec::new("main", 100)).await;
        if created.is_err() {
            world.runtime.remove_pod(&sandbox).await?;
        }
        created
    });
    runs.await.unwrap();
    world
}

/// The image of a shared pod is pulled while a dedicated pod is admitted and runs: the shared one starts with the pool of now,
/// from its first instruction on. The same the other way round: a set that was given back meanwhile is there.
pub async fn a_pull_that_outlasts_an_admission_starts_with_todays_pool<R: Runtime>(
    mut world: World<R>,
) -> World<R> {
    let online = world.online();
    let [slow, slower] = ["slow", "slower"].map(|name| PodSpec::new(name, "shared_cores", 100));
    let slow_sandbox = world.runtime.run_pod(&slow).await.unwrap();
    let slower_sandbox = world.runtime.run_pod(&slower).await.unwrap();

    let dedicated = world.run("db", "dedicated_cores", 1000).await;
    let own = world.allowed(&dedicated.container).await;
    assert_eq!(own.len(), 1, "{own}");

    let pulled =
        world.runtime.create_container(&slow_sandbox, &ContainerSpec::new("main", 100)).await.unwrap();
    world.runtime.start_container(&pulled).await.unwrap();
    assert_eq!(world.first(&pulled).await, without(online.clone(), &own));

    world.runtime.remove_pod(&dedicated.sandbox).await.unwrap();
    world.converges(&pulled, &online).await;
    let last =
        world.runtime.create_container(&slower_sandbox, &ContainerSpec::new("main", 100)).await.unwrap();
    world.runtime.start_container(&last).await.unwrap();
    assert_eq!(world.first(&last).await, online);
    world
}

/// `pods` pods start, one each `pace` at the soonest, beside a kubelet that is asked for each that it has not told: at most one
/// list a second, and no hook above its deadline.
pub async fn k5_a_burst_of_pods_costs_one_list_a_second<R: Runtime>(
    mut world: World<R>,
    kubelet: &ListingKubelet,
    pods: usize,
    pace: Duration,
) -> World<R> {
    world.gateway_with(&["hook_deadline_ms=300"]).await;
    let hooks = world.hooks().await;
    let lateness = Lateness::watch();
    let (start, before) = (Instant::now(), kubelet.asked().len());
    let mut running = Vec::new();
    for n in 0..pods {
        let pod = world.run(&format!("burst-{n}"), "shared_cores", 5).await;
        kubelet.list(&pod.pod, 5, Some(&pod.container));
        running.push(pod);
        let next = start + pace * u32::try_from(n + 1).unwrap();
        tokio::time::sleep(next.saturating_duration_since(Instant::now())).await;
    }

    let (lists, took) = (kubelet.asked().len() - before, start.elapsed());
    let (count, over) = world.hooks().await;
    println!(
        "{pods} pods in {} ms: {lists} lists, {} hooks, {} over 400 ms",
        took.as_millis(),
        count - hooks.0,
        over - hooks.1
    );
    assert!(lists >= 1, "an unknown pod is asked for");
    assert!(u64::try_from(lists).unwrap() <= took.as_secs() + 1, "{lists} lists in {took:?}");
    assert!(over - hooks.1 == 0.0 || lateness.most() > LATE, "late, and the machine was not");
    for pod in &running {
        assert!(world.placement(&pod.pod).await.is_some(), "{} is known", pod.pod.name);
    }
    world
}

/// The annotation by which a pod asks the runtime to be refused where a plugin is not there.
const REQUIRED: &str = "required-plugins.noderesource.dev";

/// A pod requires the plugin, and the orm hangs: the runtime, which goes on without a plugin that is late, is answered in time,
/// so that the requirement is met; the container is marked, counted, and put right once the orm is back.
pub async fn n02_a_required_plugin_answers_marks_and_pins_later<R: Runtime>(mut world: World<R>) -> World<R> {
    world.gateway_with(&["hook_deadline_ms=300"]).await;
    let earlier = world.run("web", "shared_cores", 100).await;
    let (orm, answers) = (world.mesh.pid("orm").unwrap(), world.default_answers().await);
    send(orm, Signal::STOP);

    let pod = requiring("db");
    let sandbox = world.runtime.run_pod(&pod).await.unwrap();
    let container =
        world.runtime.create_container(&sandbox, &ContainerSpec::new("main", 1000)).await.unwrap();
    world.runtime.start_container(&container).await.unwrap();
    let required = Running { pod, sandbox, container };

    let marks = world.marks(&required).await.unwrap();
    assert!(marks.iter().any(|m| m == "answered-by-policy"), "{marks:?}");
    assert!(world.default_answers().await > answers, "it is counted");
    send(orm, Signal::CONT);
    let pinned = poll_until(CONVERGE, async || match world.marks(&required).await {
        Ok(marks) if marks.is_empty() => Ok(()),
        other => Err(other),
    });
    pinned.await.unwrap();
    let own = super::set(&world.placement(&required.pod).await.unwrap().cpus);
    assert_eq!(own.len(), 1, "{own}");
    world.converges(&required.container, &own).await;
    let rest = without(world.online(), &own);
    world.converges(&earlier.container, &rest).await;
    world
}

/// A dedicated pod that requires the plugin.
pub fn requiring(name: &str) -> PodSpec {
    let mut pod = PodSpec::new(name, "dedicated_cores", 1000);
    pod.annotations.insert(REQUIRED.to_owned(), "[ oxalyst ]".to_owned());
    pod
}
