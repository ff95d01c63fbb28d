//! The kubelet's secure port: its certificate is verified unless told not to, the token is read anew for each question.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use metrics_fetcher::sources::http::{Endpoint, FetchError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

const ANSWER: &str = r#"{"node":{}}"#;

/// Made for these tests, for 127.0.0.1 alone.
fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls")).join(name)
}

struct Kubelet {
    port: u16,
    /// What each request said of who asks.
    heard: Arc<Mutex<Vec<String>>>,
}

impl Kubelet {
    async fn start() -> Self {
        let certificate = CertificateDer::from_pem_file(file("kubelet.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(file("kubelet.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let (acceptor, heard) = (TlsAcceptor::from(Arc::new(config)), Arc::<Mutex<Vec<String>>>::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let hears = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, heard) = (acceptor.clone(), Arc::clone(&hears));
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        match stream.read_u8().await {
                            Ok(byte) => request.push(byte),
                            Err(_) => return,
                        }
                    }
                    let request = String::from_utf8(request).unwrap();
                    let line = |l: &&str| l.to_ascii_lowercase().starts_with("authorization:");
                    let token = request.lines().find(line).unwrap_or_default();
                    heard.lock().unwrap().push(token.split_once(' ').map_or("", |(_, t)| t).to_owned());
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{ANSWER}",
                        ANSWER.len()
                    );
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        Self { port, heard }
    }

    async fn ask(&self, host: &str, endpoint: Endpoint) -> Result<serde_json::Value, FetchError> {
        let endpoint = Endpoint { endpoint: Some(format!("https://{host}:{}", self.port)), ..endpoint };
        endpoint.client().unwrap().unwrap().get("/stats/summary").await
    }
}

fn trusting(authority: &str) -> Endpoint {
    Endpoint { ca_file: Some(file(authority)), ..Endpoint::default() }
}

#[tokio::test]
async fn a_certificate_is_verified_unless_told_not_to() {
    let kubelet = Kubelet::start().await;
    kubelet.ask("127.0.0.1", trusting("ca.pem")).await.unwrap();
    let refused = [
        ("another authority", "127.0.0.1", trusting("another-ca.pem")),
        ("the machine's own trust", "127.0.0.1", Endpoint::default()),
        ("another name", "localhost", trusting("ca.pem")),
    ];
    for (what, host, endpoint) in refused {
        let error = kubelet.ask(host, endpoint).await.unwrap_err();
        assert!(matches!(error, FetchError::Unreachable { .. }), "{what}: {error}");
        assert!(error.to_string().contains("certificate"), "{what}: {error}");
    }
    assert_eq!(kubelet.heard.lock().unwrap().len(), 1, "whoever was not trusted heard nothing");
    let lax = Endpoint { skip_tls_verify: true, ..Endpoint::default() };
    kubelet.ask("127.0.0.1", lax).await.unwrap();
}

#[tokio::test]
async fn a_token_is_read_anew_and_goes_to_nobody_who_is_not_trusted() {
    let (kubelet, dir) = (Kubelet::start().await, tempfile::tempdir().unwrap());
    let token = dir.path().join("token");
    let with_token = |authority| Endpoint { token_file: Some(token.clone()), ..trusting(authority) };
    for text in ["first\n", "second\n"] {
        std::fs::write(&token, text).unwrap();
        kubelet.ask("127.0.0.1", with_token("ca.pem")).await.unwrap();
        kubelet.ask("127.0.0.1", with_token("another-ca.pem")).await.unwrap_err();
    }
    assert_eq!(*kubelet.heard.lock().unwrap(), ["Bearer first", "Bearer second"]);
    std::fs::remove_file(&token).unwrap();
    let error = kubelet.ask("127.0.0.1", with_token("ca.pem")).await.unwrap_err();
    assert!(matches!(error, FetchError::Token { .. }), "{error}");
}
