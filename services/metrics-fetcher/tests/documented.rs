//! The documentation of the catalogue is made of the table in the code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::path::Path;

use metrics_fetcher::{catalogue, query};

const HOW: &str = "run this test with OXALYST_WRITE_DOCS=1 to write it anew";

fn document() -> String {
    let mut text = String::from(
        "# What can be measured\n\nMade of the table in `services/metrics-fetcher/src/catalogue`. A mark means that the source tells it; no mark that it never does\n\
         (`oxctl metrics --list -o wide` says why). H: ten minutes of history are kept. What is outside of a unit's range\n\
         is no reading ([what happens then](metrics-fetcher.md#when-a-source-is-not-to-be-believed)).\n\n\
         | metric | unit | v1 | v2 | proc | malachite v1 | malachite v2 | cgroupstats | perf | resctrl | kubelet | H | what | OpenTelemetry |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for metric in query::metrics() {
        let tells = |source: &str| metric.availability.iter().any(|a| a.source == source && a.available);
        let told = |source: &str| match source {
            // Its sensors are one answer whatever the version.
            "malachite-v1" | "malachite-v2" if tells("malachite-realtime") => "x",
            source if tells(source) => "x",
            _ => "",
        };
        let marks = [
            "cgroup-v1",
            "cgroup-v2",
            "proc",
            "malachite-v1",
            "malachite-v2",
            "cgroupstats",
            "perf",
            "resctrl",
            "kubelet",
        ]
        .map(told)
        .join(" | ");
        let history = if metric.history { "H" } else { "" };
        text.push_str(&format!(
            "| `{}` | {} | {marks} | {history} | {} | {} |\n",
            metric.name, metric.unit, metric.help, metric.otel_name
        ));
    }
    text.push_str(
        "\n## Katalyst's names that are told otherwise\n\nAll its other names are in the table, in its units.\n\n\
         | Katalyst's | here | why |\n| --- | --- | --- |\n",
    );
    for otherwise in catalogue::OTHERWISE {
        let told = otherwise.told.map_or_else(|| "nowhere".to_owned(), |told| format!("`{told}`"));
        text.push_str(&format!("| `{}` | {told} | {} |\n", otherwise.name, otherwise.why));
    }
    text
}

#[test]
fn the_documented_catalogue_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/services/metrics-catalogue.md");
    let document = document();
    if std::env::var_os("OXALYST_WRITE_DOCS").is_some() {
        std::fs::write(&path, &document).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == document, "{} is not what the code says: {HOW}", path.display());
}
