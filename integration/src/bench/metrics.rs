//! The metrics-fetcher over the kernel's cgroups: a pass against bare reads of the same files, questions, memory.

use std::path::Path;
use std::time::{Duration, Instant};

use oxalyst_proto::metrics::v1::metrics_client::MetricsClient;
use oxalyst_proto::metrics::v1::{HistoryRequest, ListSourcesRequest, QueryRequest, Scope, SourceInfo};
use tonic::transport::Channel;

use super::bare_reads::BareReads;
use super::cgroups::Cgroups;
use super::memory::pss_mib;
use super::samples::Samples;
use super::scene::PATIENCE;
use super::{Fault, Row, beside};
use crate::imitation::{Imitation, Setup};
use crate::mesh::Mesh;
use crate::runtime::{ContainerSpec, PodSpec, Runtime, poll_until};

const PASSES: usize = 40;
const QUESTIONS: usize = 300;
/// As many points as ten minutes hold, whatever the period.
const POINTS: usize = 124;

pub(super) async fn measure(
    folder: &Path,
    containers: usize,
    note: &mut dyn FnMut(&str),
) -> Result<Vec<Row>, Fault> {
    std::fs::create_dir_all(folder)?;
    let machine = crate::remains::in_memory()?;
    let mut runtime = Imitation::start(machine.path(), Setup::default()).await?;
    let (cgroups, tree) = match Cgroups::create(containers) {
        Ok(cgroups) => (Some(cgroups), "the kernel's cgroups".to_owned()),
        Err(e) => (None, format!("an imitated tree, files and no cgroups ({e})")),
    };
    if cgroups.is_none() {
        for n in 0..containers {
            let sandbox = runtime.run_pod(&PodSpec::new(&format!("p{n}"), "shared_cores", 1)).await?;
            let container = runtime.create_container(&sandbox, &ContainerSpec::new("main", 100)).await?;
            runtime.start_container(&container).await?;
        }
    }
    let mut mesh = Mesh::new(folder, &runtime)?;
    let period = Duration::from_millis(if containers > 500 { 1000 } else { 250 });
    mesh.set("metrics-fetcher", &format!("period_ms={}", period.as_millis()));
    if let Some(Cgroups { root, .. }) = &cgroups {
        mesh.set("metrics-fetcher", "common.host_root=/");
        mesh.set("metrics-fetcher", &format!("cgroup_roots=[/{root}]"));
    }
    mesh.start("metrics-fetcher")?;
    mesh.ready("metrics-fetcher").await?;
    let outcome = rows(&mut mesh, (containers, period), &tree, cgroups.as_ref(), note).await;
    mesh.stop().await?;
    runtime.remove().await?;
    drop(cgroups);
    outcome
}

async fn rows(
    mesh: &mut Mesh,
    (containers, period): (usize, Duration),
    tree: &str,
    cgroups: Option<&Cgroups>,
    note: &mut dyn FnMut(&str),
) -> Result<Vec<Row>, Fault> {
    let pid = mesh.pid("metrics-fetcher").ok_or("metrics-fetcher does not run")?;
    let mut client = MetricsClient::new(mesh.channel("metrics-fetcher"));
    let mut rows = vec![pass(&client, pid, (containers, period), tree, cgroups).await?];
    if containers == 100 {
        match beside::measure(pid, containers, period).await {
            Ok(row) => rows.push(row),
            Err(reason) => note(&format!("metrics-beside-node-exporter is not measured: {reason}")),
        }
    }
    if containers == 500 {
        rows.extend(questions(&mut client, containers).await?);
        if let Some(id) = cgroups.and_then(|c| c.ids.first()) {
            rows.push(memory(&client, pid, id).await?);
        }
    }
    Ok(rows)
}

async fn pass(
    client: &MetricsClient<Channel>,
    pid: u32,
    (containers, period): (usize, Duration),
    tree: &str,
    cgroups: Option<&Cgroups>,
) -> Result<Row, Fault> {
    let mut last = poll_until(PATIENCE, async || {
        let source = cgroup_source(&mut client.clone()).await.map_err(|e| e.to_string())?;
        let seen = source.subjects as usize >= containers;
        if seen { Ok(source) } else { Err(format!("sees {} of {containers} containers", source.subjects)) }
    })
    .await?;
    let mut bare = BareReads::of(pid, cgroups)?;
    let (mut pass, mut floor) = (Samples::default(), Samples::default());
    while pass.len() < PASSES {
        let before = last.last_pass_unix_ms;
        last = poll_until(PATIENCE, async || {
            let source = cgroup_source(&mut client.clone()).await.map_err(|e| e.to_string())?;
            if source.last_pass_unix_ms > before { Ok(source) } else { Err("no pass".to_owned()) }
        })
        .await?;
        // CPU time: none of both waits for anything, and who else uses the machine is not what is measured.
        pass.push(Duration::from_micros(last.last_pass_cpu_us));
        // A pass finds the caches as half a period of others leaves them; so does the floor.
        tokio::time::sleep(period / 2).await;
        floor.push(bare.sample());
    }
    Ok(Row {
        id: format!("metrics-pass-{containers}"),
        what: format!(
            "CPU time of a pass of the metrics-fetcher over {} containers of {tree}, median of {PASSES} as it tells them, in turn \
             with that of the floor ({})",
            last.subjects,
            bare.told()
        ),
        value: pass.quantile_ms(0.5),
        unit: "ms",
        floor: Some(floor.quantile_ms(0.5)),
        budget: 1.3,
    })
}

async fn questions(client: &mut MetricsClient<Channel>, containers: usize) -> Result<Vec<Row>, Fault> {
    let top = ["cpu.usage.container", "mem.workingset.container", "cpu.throttled.time.container.rate"];
    let top = QueryRequest {
        metrics: top.map(str::to_owned).to_vec(),
        scopes: vec![Scope::Container as i32],
        ..QueryRequest::default()
    };
    let node = QueryRequest { scopes: vec![Scope::Node as i32], ..QueryRequest::default() };
    let mut rows = Vec::new();
    for (id, what, request, budget) in [
        ("metrics-query-node", "every metric of the node".to_owned(), node, 5.0),
        ("metrics-query-all", format!("three metrics of {containers} containers"), top, 20.0),
    ] {
        let mut samples = Samples::default();
        while samples.len() < QUESTIONS {
            let start = Instant::now();
            client.query(request.clone()).await?;
            samples.push(start.elapsed());
        }
        rows.push(Row {
            id: id.to_owned(),
            what: format!(
                "a question for {what} over the socket while passes go on, p99 of {QUESTIONS}; median {:.2} ms",
                samples.quantile_ms(0.5)
            ),
            value: samples.quantile_ms(0.99),
            unit: "ms",
            floor: None,
            budget,
        });
    }
    Ok(rows)
}

/// Once there are histories: a row has all its room from its first point on.
async fn memory(client: &MetricsClient<Channel>, pid: u32, container_id: &str) -> Result<Row, Fault> {
    let request = HistoryRequest {
        metric: "mem.usage.container".into(),
        container_id: container_id.into(),
        window_ms: None,
    };
    poll_until(PATIENCE, async || {
        let reply = client.clone().history(request.clone()).await.map_err(|e| e.to_string())?.into_inner();
        if reply.points >= 2 { Ok(()) } else { Err(format!("{} points", reply.points)) }
    })
    .await?;
    Ok(Row {
        id: "metrics-memory-500".to_owned(),
        what: format!(
            "PSS of the metrics-fetcher with 500 containers and room for histories of {POINTS} points: ten minutes"
        ),
        value: pss_mib(pid)?,
        unit: "MiB",
        floor: None,
        budget: 20.0,
    })
}

async fn cgroup_source(client: &mut MetricsClient<Channel>) -> Result<SourceInfo, Fault> {
    let sources = client.list_sources(ListSourcesRequest {}).await?.into_inner().sources;
    let found = sources.into_iter().find(|s| s.name.starts_with("cgroup"));
    found.ok_or_else(|| "the metrics-fetcher has no cgroup source".into())
}
