//! Sources over HTTP that fail, lie, hang, or answer without end: ages grow and nothing is wiped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::convert::Infallible;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use metrics_fetcher::clock::{Clock, Now, SystemClock};
use metrics_fetcher::names::{Directory, Known};
use metrics_fetcher::query::{self, Terms};
use metrics_fetcher::rank::Ranking;
use metrics_fetcher::sample::{Ages, Cell, Reading};
use metrics_fetcher::sources::health::Health;
use metrics_fetcher::sources::http::{Client, Endpoint};
use metrics_fetcher::sources::{Remote, follow};
use metrics_fetcher::store::{Snapshot, Source, Store};
use oxalyst_proto::metrics::v1::{Quality, QueryRequest, Sample};

const DEADLINE: Duration = Duration::from_secs(20);
const AGES: Ages = Ages { max_age: Duration::from_secs(600), withdrawal: Duration::from_secs(900) };

const WELL: u8 = 0;
/// Each answers, and what it answers is not to be believed.
const NONSENSE: u8 = 7;
const AHEAD: u8 = 8;
const BACK: u8 = 9;
const FAULTS: [(u8, &str); 6] = [
    (1, "HTTP 500"),
    (2, "not what was asked for"),
    (3, "did not answer"),
    (4, "answered more than"),
    (5, "says that it failed: its status is 1, not 0"),
    (10, "hold nothing of what is asked for"),
];

struct World {
    mood: Arc<AtomicU8>,
    tokens: Arc<Mutex<Vec<String>>>,
    endpoint: Endpoint,
    store: Arc<Store>,
    clock: Arc<SetClock>,
}

/// The machine's clocks, the date of which can be set.
#[derive(Debug, Default)]
struct SetClock {
    clock: SystemClock,
    set_by_seconds: AtomicI64,
}

impl Clock for SetClock {
    fn now(&self) -> Now {
        let now = self.clock.now();
        Now { unix_ns: now.unix_ns + self.set_by_seconds.load(Ordering::Relaxed) * 1_000_000_000, ..now }
    }
}

/// Lines that are logged in this test's thread.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("metrics_fetcher") && *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

impl Lines {
    fn with(&self, text: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }
}

/// The most that this process had in memory, bytes.
fn most_resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

async fn answer(mood: u8, path: &str, now: i64) -> Response {
    let now = match mood {
        AHEAD => 4_000_000_000,
        BACK => now - 3600,
        _ => now,
    };
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
        10 if path.contains("summary") => "{}".into_response(),
        10 => "{\"status\":0,\"data\":{}}".into_response(),
        6 if !path.contains("realtime") => std::future::pending().await,
        _ if path.contains("realtime/power") => {
            let sensors = format!(r#"{{"total_power":300.5,"update_time":{}}}"#, now);
            format!("{{\"status\":0,\"data\":{{\"sensors\":{sensors}}}}}").into_response()
        }
        _ if path.contains("realtime/freq") => StatusCode::NOT_FOUND.into_response(),
        _ if path.contains("summary") => {
            let fs = r#"{"time":"2026-01-01T00:00:00Z","availableBytes":5}"#;
            format!("{{\"node\":{{\"fs\":{fs},\"new\":[]}}}}").into_response()
        }
        _ if path.contains("memory") => {
            let total = if mood == NONSENSE { "1e308" } else { "4" };
            format!(
                "{{\"status\":0,\"data\":{{\"system\":{{\"mem_total\":{total}}},\"update_time\":{}}}}}",
                now
            )
            .into_response()
        }
        _ => format!("{{\"status\":0,\"data\":{{\"update_time\":{}}}}}", now).into_response(),
    }
}

impl World {
    async fn start() -> Self {
        let (mood, tokens) = (Arc::new(AtomicU8::new(WELL)), Arc::new(Mutex::new(Vec::new())));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (present, heard) = (Arc::clone(&mood), Arc::clone(&tokens));
        // One date for the whole machine.
        let clock = Arc::new(SetClock::default());
        let dates = Arc::clone(&clock);
        let router = Router::new().fallback(move |uri: axum::http::Uri, headers: HeaderMap| {
            let mood = present.load(Ordering::Relaxed);
            let token = headers.get("authorization").map(|v| v.to_str().unwrap().to_owned());
            heard.lock().unwrap().extend(token);
            let now = dates.now().unix_ns / 1_000_000_000;
            async move { answer(mood, uri.path(), now).await }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        let endpoint = Endpoint {
            endpoint: Some(endpoint),
            period_ms: 100,
            timeout_ms: 1500,
            max_body_bytes: 1 << 20,
            ..Endpoint::default()
        };
        Self { mood, tokens, endpoint, store: Arc::default(), clock }
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
            clock: Arc::<SetClock>::clone(&self.clock),
            health: Health::new(source, AGES, None),
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
async fn m11_whatever_malachite_does_what_it_told_stays_and_ages_and_one_line_tells_each_change() {
    let (world, lines) = (World::start().await, Lines::default());
    let _logged = tracing::subscriber::set_default(lines.clone());
    let passes = |w: &World| w.store.view().layers.first().map_or(0, |l| l.pass.number);
    let body = async {
        let total = |w: &World| w.sample("mem.total.system", Ranking::MalachiteFirst);
        world.until("well", |w| total(w).value == Some(4096.0)).await;
        assert_eq!((total(&world).quality(), total(&world).source.as_str()), (Quality::Fresh, "malachite"));
        let before = most_resident();
        for (failures, (mood, says)) in (1..).zip(FAULTS) {
            world.mood.store(mood, Ordering::Relaxed);
            world.until(says, |w| w.trouble().is_some_and(|t| t.contains(says))).await;
            let kept = total(&world);
            assert_eq!(kept.value, Some(4096.0), "{says}");
            // It goes on failing, and that is no news.
            let failed = passes(&world);
            world.until("failing on and on", |w| passes(w) >= failed + 2).await;
            assert!(total(&world).age_ms > kept.age_ms && total(&world).value == Some(4096.0), "{says}");
            assert_eq!(lines.with("it cannot be read; what it told ages"), failures, "{says}");
            world.mood.store(WELL, Ordering::Relaxed);
            world.until("well again", |w| w.store.view().layers[0].pass.trouble.is_none()).await;
            assert_eq!(lines.with("it is read"), failures + 1, "{says}");
        }
        let grown = most_resident().saturating_sub(before);
        assert!(grown < 128 << 20, "a gibibyte was offered, {grown} bytes were taken");
    };
    tokio::select! { () = follow(world.remote(Source::Malachite)) => {}, () = body => {} }
}

#[tokio::test]
async fn m02_what_cannot_be_believed_is_said_once_and_what_was_told_before_ages() {
    let (world, lines) = (World::start().await, Lines::default());
    let _logged = tracing::subscriber::set_default(lines.clone());
    let pass = |w: &World| w.store.view().layers.first().map_or(0, |l| l.pass.number);
    let failure = |w: &World| w.store.view().layers.first()?.pass.failure.as_deref().map(str::to_owned);
    let moods = [
        (
            NONSENSE,
            "mem.total.system is said to be 1",
            "values that cannot be",
            "all its values can be again",
        ),
        (BACK, "an earlier time", "an earlier time", "its time goes on again"),
        (AHEAD, "s ahead", "its clock is ahead", "its clock agrees"),
    ];
    let body = async {
        let total = |w: &World| w.sample("mem.total.system", Ranking::MalachiteFirst);
        world.until("well", |w| total(w).value == Some(4096.0) && failure(w).is_none()).await;
        for (mood, shown, says, over) in moods {
            world.mood.store(mood, Ordering::Relaxed);
            world.until(shown, |w| failure(w).is_some_and(|f| f.contains(shown))).await;
            // The next pass has it from all of the answers.
            let seen = pass(&world);
            world.until("all of it", |w| pass(w) > seen + 1).await;
            let (before, first) = (pass(&world), total(&world));
            world.until("on and on", |w| pass(w) > before + 3 && total(w).age_ms > first.age_ms + 50).await;
            let later = total(&world);
            assert_eq!((later.value, later.time_unix_ns), (Some(4096.0), first.time_unix_ns), "{says}");
            assert!(later.time_unix_ns <= world.clock.now().unix_ns, "{says}: it lies in the future");
            assert_eq!((lines.with(says), lines.with(over)), (1, 0), "{says}");
            world.mood.store(WELL, Ordering::Relaxed);
            world.until("well again", |w| failure(w).is_none()).await;
            world.until("news", |w| total(w).time_unix_ns > first.time_unix_ns).await;
            assert_eq!((lines.with(says), lines.with(over)), (1, 1), "{says}");
        }
    };
    tokio::select! { () = follow(world.remote(Source::Malachite)) => {}, () = body => {} }
}

#[tokio::test]
async fn a_date_that_is_set_makes_nothing_older_nor_younger_and_wipes_nothing() {
    let world = World::start().await;
    let body = async {
        let total = |w: &World| w.sample("mem.total.system", Ranking::MalachiteFirst);
        let pass = |w: &World| w.store.view().layers.first().map_or(0, |l| l.pass.number);
        world.until("well", |w| total(w).value == Some(4096.0)).await;
        for set_by in [3600, -7200, 0] {
            let before = pass(&world);
            world.clock.set_by_seconds.store(set_by, Ordering::Relaxed);
            let at_once = total(&world);
            assert_eq!(
                (at_once.value, at_once.quality()),
                (Some(4096.0), Quality::Fresh),
                "{set_by}: {at_once:?}"
            );
            world.until("read again", |w| pass(w) > before + 2).await;
            let after = total(&world);
            assert_eq!((after.value, after.quality()), (Some(4096.0), Quality::Fresh), "{set_by}: {after:?}");
            // The source's dates are whole seconds.
            assert!(after.age_ms < 60_000, "{set_by}: {after:?}");
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
        // The date lies far back: the value is withdrawn, and its time is told.
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
