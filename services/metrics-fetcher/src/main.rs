//! The metrics-fetcher's process.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use actix::Actor as _;
use metrics_fetcher::clock::{Clock, SystemClock};
use metrics_fetcher::exposition::PassMetrics;
use metrics_fetcher::face::Face;
use metrics_fetcher::names::{self, Directory};
use metrics_fetcher::settings::Settings;
use metrics_fetcher::sources::apart::{self, Apart};
use metrics_fetcher::sources::cgroup::{Pass, Reader, Wiring, raise_file_limit};
use metrics_fetcher::sources::cgroupstats::CgroupStats;
use metrics_fetcher::sources::health::Health;
use metrics_fetcher::sources::perf::{Events, Perf};
use metrics_fetcher::sources::resctrl::{self, Resctrl};
use metrics_fetcher::sources::{Remote, follow};
use metrics_fetcher::store::{Source, Store};
use metrics_fetcher::watchers::Watchers;
use oxalyst_mesh::Mesh;
use tonic::service::Routes;

fn main() -> ExitCode {
    oxalyst_mesh::run(metrics_fetcher::SERVICE, env!("CARGO_PKG_VERSION"), run)
}

async fn run(settings: Settings, mesh: Mesh) -> Result<(), Box<dyn Error>> {
    settings.check()?;
    let bound = mesh.bind()?;
    raise_file_limit();
    let first_pass = mesh.readiness.condition("first-pass", "no pass over the cgroups has ended yet");
    let (store, names) = (Arc::new(Store::default()), Arc::new(Directory::default()));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let metrics = PassMetrics::register(&mesh.registry, &store, &clock, settings.ages());
    let pass = Pass::new(settings.pass()?, Arc::clone(&clock));
    actix_rt::spawn(names::follow(mesh.run_dir.clone(), Arc::clone(&names)));
    let health = |source, ages| {
        let required = settings.requires(source).then_some(&mesh.readiness);
        Health::new(source, ages, required)
    };
    let realtime = settings.malachite_realtime_period();
    for (source, asked, period) in [
        (Source::Malachite, &settings.malachite, Some(settings.malachite.period())),
        (Source::Realtime, &settings.malachite, realtime),
        (Source::Kubelet, &settings.kubelet, Some(settings.kubelet.period())),
    ] {
        if let (Some(client), Some(period)) = (asked.client()?, period) {
            actix_rt::spawn(follow(Remote {
                source,
                client,
                period,
                ages: settings.ages_at(period),
                host_root: mesh.host_root.clone(),
                store: Arc::clone(&store),
                names: Arc::clone(&names),
                clock: Arc::clone(&clock),
                health: health(source, settings.ages_at(period)),
            }));
        }
    }
    for (source, asked, period) in [
        (Source::Perf, settings.perf.enabled, settings.perf_period()),
        (Source::Tasks, settings.cgroupstats, settings.cgroupstats_period()),
    ] {
        let ages = settings.ages_at(period);
        let (store, clock) = (Arc::clone(&store), Arc::clone(&clock));
        let apart =
            || Apart { source, period, deadline: period, ages, store, clock, health: health(source, ages) };
        match source {
            _ if !asked => {}
            Source::Perf => {
                let perf = Perf::new(&mesh.host_root, Events::Hardware, settings.perf.max_containers);
                actix_rt::spawn(apart::follow(apart(), perf));
            }
            _ => drop(actix_rt::spawn(apart::follow(apart(), CgroupStats::new(&mesh.host_root)))),
        }
    }
    if let Some(period) = settings.resctrl_period() {
        actix_rt::spawn(resctrl::follow(Resctrl {
            host_root: mesh.host_root.clone(),
            period,
            ages: settings.ages_at(period),
            store: Arc::clone(&store),
            clock: Arc::clone(&clock),
            health: health(Source::Resctrl, settings.ages_at(period)),
        }));
    }
    let wiring = Wiring {
        store: Arc::clone(&store),
        names: Arc::clone(&names),
        clock: Arc::clone(&clock),
        metrics,
        facts: mesh.facts.clone(),
        first_pass: Some(first_pass),
    };
    Reader::new(pass, settings.schedule(), wiring)?.start();
    let (terms, schedule) = (settings.terms(), settings.schedule());
    let watchers = Watchers::new(settings.max_watchers);
    let face = Face { store, names, clock, terms, schedule, set_up: settings.set_up().into(), watchers };
    bound.serve(Routes::new(face.into_service())).await?;
    Ok(())
}
