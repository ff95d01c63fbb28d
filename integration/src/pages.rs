//! What a service's socket answers to HTTP: `/metrics`, `/readyz?verbose`.

use std::io;
use std::path::Path;
use std::time::Duration;

use oxalyst_mesh::socket_path;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// The whole answer of `service`, head and body.
///
/// # Errors
/// Nobody listens there, or nothing comes within 5 s.
pub async fn page(run_dir: &Path, service: &str, path: &str) -> io::Result<String> {
    let ask = async {
        let mut stream = UnixStream::connect(socket_path(run_dir, service)).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: mesh\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    };
    tokio::time::timeout(ANSWER, ask).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The sum of all series of `metric` whose labels contain `labels`, on a page of metrics; `None` where there is none.
pub fn total(page: &str, metric: &str, labels: &str) -> Option<f64> {
    let of_line = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, rest) = series.split_once('{').unwrap_or((series, ""));
        (name == metric && rest.contains(labels)).then(|| value.parse::<f64>().ok())?
    };
    page.lines().filter_map(of_line).reduce(|a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn series_are_added_up_by_name_and_label() {
        let page = "# TYPE a counter\na_total{r=\"x\",s=\"1\"} 2\na_total{r=\"x\",s=\"2\"} 3\na_total{r=\"y\"} 4\nb 5\n";
        assert_eq!(total(page, "a_total", "r=\"x\""), Some(5.0));
        assert_eq!(total(page, "a_total", ""), Some(9.0));
        assert_eq!(total(page, "b", ""), Some(5.0));
        assert_eq!(total(page, "c", ""), None);
    }
}
