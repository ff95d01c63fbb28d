//! Sources over HTTP that fail, lie, hang, or answer without end: ages grow and nothing is wiped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::convert::Infallible;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use metrics_fetcher::clock::{Clock, SystemClock};
use metrics_fetcher::names::{Directory, Known};
use metrics_fetcher::query::{self, Terms};
use metrics_fetcher::rank::Ranking;
use metrics_fetcher::sample::{Ages, Cell, Reading};
use metrics_fetcher::sources::http::{Client, Endpoint};
use metrics_fetcher::sources::{Remote, follow};
use metrics_fetcher::store::{Snapshot, Source, Store};
use oxalyst_proto::metrics::v1::{Quality, QueryRequest, Sample};

const DEADLINE: Duration = Duration::from_secs(20);
const AGES: Ages = Ages { max_age: Duration::from_secs(600), expiry: Duration::from_secs(900) };

const WELL: u8 = 0;
const FAULTS: [(u8, &str); 5] = [
    (1, "HTTP 500"),
    (2, "not what was asked for"),
    (3, "did not answer"),
    (4, "answered more than"),
    (5, "its status is"),
];

struct World {
    mood: Arc<AtomicU8>,
    tokens: Arc<Mutex<Vec<String>>>,
    endpoint: Endpoint,
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

async fn answer(mood: u8, path: &str) -> Response {
    match mood {
        1 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        2 => "{\"status\":0,\"data\":{\"update_ti".into_response(),
        3 => std::future::pending().await,
        4 => {
            // A gibibyte, made as it is read.
            let piece = Bytes::from(vec![b' '; 1 << 20]);
            let pieces = (0..1024).map(move |_| Ok::<_, Infallible>(piece.clone()));
            Body::from_stream(tokio_stream::iter(pieces)).into_response()
        }
        5 => "{\"status\":1}".into_response(),
        6 if !path.contains("realtime") => std::future::pending().await,
        _ if path.contains("realtime/power") => {
            let sensors = format!(r#"{{"total_power":300.5,"update_time":{}}}"#, now());
            format!("{{\"status\":0,\"data\":{{\"sensors\":{sensors}}}}}").into_response()
        }
        _ if path.contains("realtime/freq") => StatusCode::NOT_FOUND.into_response(),
        _ if path.contains("summary") => {
            let fs = r#"{"time":"2026-01-01T00:00:00Z","availableBytes":5}"#;
            format!("{{\"node\":{{\"fs\":{fs},\"new\":[]}}}}").into_response()
        }
        _ if path.contains("memory") => {
            format!("{{\"status\":0,\"data\":{{\"system\":{{\"mem_total\":4}},\"update_time\":{}}}}}", now())
                .into_response()
        }
        _ => format!("{{\"status\":0,\"data\":{{\"update_time\":{}}}}}", now()).into_response(),
    }
}

impl World {
    async fn start() -> Self {
        let (mood, tokens) = (Arc::new(AtomicU8::new(WELL)), Arc::new(Mutex::new(Vec::new())));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (present, heard) = (Arc::clone(&mood), Arc::clone(&tokens));
        let router = Router::new().fallback(move |uri: axum::http::Uri, headers: HeaderMap| {
            let mood = present.load(Ordering::Relaxed);
            let token = headers.get("authorization").map(|v| v.to_str().unwrap().to_owned());
            heard.lock().unwrap().extend(token);
            async move { answer(mood, uri.path()).await }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        let endpoint = Endpoint {
            endpoint: Some(endpoint),
            period_ms: 100,
            timeout_ms: 1500,
            max_body_bytes: 1 << 20,
            ..Endpoint::default()
        };
        Self { mood, tokens, endpoint, store: Arc::default(), clock: Arc::new(SystemClock::default()) }
    }

    fn remote(&self, source: Source) -> Remote {
        Remote {
            source,
            client: self.endpoint.client().unwrap().unwrap(),
            period: Duration::from_millis(20),
            ages: AGES,
            host_root: "/nowhere".into(),
            store: Arc::clone(&self.store),
            names: Arc::new(Directory::default()),
            clock: Arc::clone(&self.clock),
        }
    }

    fn sample(&self, metric: &str, ranking: Ranking) -> Sample {
        let request = QueryRequest { metrics: vec![metric.to_owned()], ..QueryRequest::default() };
        let terms = Terms { ages: AGES, ranking };
        query::samples(&self.store.view(), &Known::default(), &request, self.clock.now(), terms)
            .unwrap()
            .remove(0)
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(
                began.elapsed() < DEADLINE,
                "never {what}: {:?}",
                self.store.view().layers.first().map(|l| &l.pass)
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn trouble(&self) -> Option<String> {
        self.store.view().layers.first()?.pass.trouble.as_deref().map(str::to_owned)
    }
}

#[tokio::test]
async fn m11_whatever_malachite_does_what_it_told_stays_and_ages() {
    let world = World::start().await;
    let body = async {
        let total = |w: &World| w.sample("mem.total.system", Ranking::MalachiteFirst);
        world.until("well", |w| total(w).value == Some(4096.0)).await;
        assert_eq!((total(&world).quality(), total(&world).source.as_str()), (Quality::Fresh, "malachite"));
        for (mood, says) in FAULTS {
            world.mood.store(mood, Ordering::Relaxed);
            world.until(says, |w| w.trouble().is_some_and(|t| t.contains(says))).await;
            let kept = total(&world);
            assert_eq!(kept.value, Some(4096.0), "{says}");
            world.until("older", |w| total(w).age_ms > kept.age_ms).await;
            world.mood.store(WELL, Ordering::Relaxed);
            world.until("well again", |w| w.store.view().layers[0].pass.trouble.is_none()).await;
        }
    };
    tokio::select! { () = follow(world.remote(Source::Malachite)) => {}, () = body => {} }
}

#[tokio::test]
async fn sensors_have_a_period_of_their_own_whatever_the_rest_of_malachite_does() {
    let world = World::start().await;
    world.mood.store(6, Ordering::Relaxed);
    let body = async {
        let layer = |w: &World, source| w.store.view().layers.into_iter().find(|l| l.source == source);
        let pass = |w: &World| layer(w, Source::Realtime).map_or(0, |l| l.pass.number);
        // Everything but the sensors hangs, and one sensor is not there: the other is told again and again.
        world.until("read again and again", |w| pass(w) > 5).await;
        let power = world.sample("total.power.used.watts", Ranking::KernelFirst);
        assert_eq!((power.value, power.source.as_str()), (Some(300.5), "malachite-realtime"));
        assert_eq!(world.sample("scaling.cur.freq.khz", Ranking::KernelFirst).value, None);
        assert_eq!(layer(&world, Source::Realtime).unwrap().pass.trouble, None);
        assert!(layer(&world, Source::Malachite).is_none(), "its first pass still waits");
    };
    let both = async {
        tokio::join!(follow(world.remote(Source::Malachite)), follow(world.remote(Source::Realtime)))
    };
    tokio::select! { _ = both => {}, () = body => {} }
}

#[tokio::test]
async fn m02_the_kubelets_own_date_counts_not_that_of_the_answer() {
    let world = World::start().await;
    let body = async {
        let free = |w: &World| w.sample("available.fs.node", Ranking::KernelFirst);
        world.until("read", |w| !w.store.view().layers.is_empty()).await;
        let sample = free(&world);
        // The date lies far back: the value is expired, and its time is told.
        assert_eq!((sample.quality(), sample.value), (Quality::Missing, None));
        assert_eq!(sample.time_unix_ns, 1_767_225_600_000_000_000);
        assert!(world.store.view().layers[0].stale_total > 0);
    };
    tokio::select! { () = follow(world.remote(Source::Kubelet)) => {}, () = body => {} }
}

#[tokio::test]
async fn a_token_is_read_anew_for_every_question() {
    let mut world = World::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "first\n").unwrap();
    world.endpoint.token_file = Some(file.clone());
    let client: Client = world.endpoint.client().unwrap().unwrap();
    client.get("/stats/summary").await.unwrap();
    std::fs::write(&file, "second\n").unwrap();
    client.get("/stats/summary").await.unwrap();
    assert_eq!(*world.tokens.lock().unwrap(), ["Bearer first", "Bearer second"]);
    std::fs::remove_file(&file).unwrap();
    assert!(client.get("/stats/summary").await.unwrap_err().to_string().contains("token_file"));
}

#[tokio::test]
async fn m01_without_malachite_the_kernels_files_tell_it_and_say_that_they_stand_in() {
    let world = World::start().await;
    let mut snapshot = Snapshot::default();
    let (place, _) = metrics_fetcher::catalogue::find("mem.total.system").unwrap();
    let mut node = (*snapshot.node).clone();
    *node.cells.get_mut(place).unwrap() = Cell::default().after(Ok(Reading::level(8.0, world.clock.now())));
    snapshot.node = Arc::new(node);
    world.store.publish(snapshot);
    let sample = world.sample("mem.total.system", Ranking::MalachiteFirst);
    assert_eq!((sample.quality(), sample.value), (Quality::Fallback, Some(8.0)));
    assert_eq!(world.sample("mem.total.system", Ranking::KernelFirst).quality(), Quality::Fresh);
    let body = async {
        // The better one takes over as soon as it is there, by name.
        world
            .until("handed over", |w| {
                w.sample("mem.total.system", Ranking::MalachiteFirst).source == "malachite"
            })
            .await;
        assert_eq!(world.sample("mem.total.system", Ranking::KernelFirst).source, "proc");
    };
    tokio::select! { () = follow(world.remote(Source::Malachite)) => {}, () = body => {} }
}
