//! A real containerd with a setting that stands in the way: the gateway's readiness and `oxctl doctor` name it, and what to do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration::lab;
use integration::mesh::Mesh;
use integration::process::Process;
use integration::runtime::poll_until;

const LIMIT: Duration = Duration::from_secs(60);
const SECTION: &str = "[plugins.'io.containerd.nri.v1.nri']\n";

/// Lines of NRI's section (None: no section at all), what follows it, and what has to be said: by the readiness of `nri-session`
/// where there is no session, else by the doctor.
struct Case {
    name: &'static str,
    section: Option<&'static str>,
    after: &'static str,
    connects: bool,
    said: [&'static str; 2],
}

const CASES: [Case; 5] = [
    Case {
        name: "n12_disabled",
        section: Some("disable = true"),
        after: "",
        connects: false,
        said: [
            "/etc/containerd/config.toml disables NRI",
            "set disable = false in [plugins.'io.containerd.nri.v1.nri']",
        ],
    },
    Case {
        name: "n12_connections",
        section: Some("disable = false\ndisable_connections = true"),
        after: "",
        connects: false,
        said: ["/etc/containerd/config.toml lets no plugin connect", "set disable_connections = false"],
    },
    Case {
        name: "n12_socket",
        section: Some("disable = false\nsocket_path = 'FOLDER/other.sock'"),
        after: "",
        connects: false,
        said: ["other.sock, the gateway looks for", "set nri_socket to the runtime's path"],
    },
    Case {
        name: "n22_timeout",
        section: Some("disable = false\nplugin_request_timeout = '200ms'"),
        after: "",
        connects: true,
        said: ["the runtime gives up after 200 ms", "raise plugin_request_timeout"],
    },
    Case {
        name: "n22_misplaced",
        section: Some("disable = false"),
        after: "[plugins.'io.containerd.grpc.v1.cri']\nplugin_request_timeout = '10s'\n",
        connects: true,
        said: [
            "[plugins.io.containerd.grpc.v1.cri] plugin_request_timeout",
            "move it into the section of NRI",
        ],
    },
];

async fn on_line(line: &str) {
    let binaries = match lab::script("containerd.sh", &[line]) {
        Ok(binaries) => binaries,
        Err(reason) => return println!("skipped: no containerd {line} here: {reason}"),
    };
    for case in &CASES {
        check(&binaries, line, case).await;
    }
}

#[tokio::test]
async fn n12_n22_containerd_2_s_setting_is_named() {
    on_line("2.1").await;
}

/// It has NRI off where nothing is said.
#[tokio::test]
async fn n12_n22_containerd_1_7_s_setting_is_named() {
    on_line("1.7").await;
    let Ok(binaries) = lab::script("containerd.sh", &["1.7"]) else { return };
    let case = Case {
        name: "n12_nothing_said",
        section: None,
        after: "",
        connects: false,
        said: ["containerd 1.7 has NRI off", "set disable = false"],
    };
    check(&binaries, "1.7", &case).await;
}

async fn check(binaries: &Path, line: &str, case: &Case) {
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let at = folder.path();
    let host = at.join("host");
    let config = host.join("etc/containerd/config.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    std::fs::write(&config, text(at, line, case)).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(binaries.join("containerd"));
    command.arg("--config").arg(&config).env("PATH", format!("{}:{path}", binaries.display()));
    let mut containerd = Process::spawn(command, &at.join("containerd.log")).unwrap();
    let serves = poll_until(LIMIT, async || {
        assert!(containerd.ended().is_none(), "{}", containerd.output());
        tokio::net::UnixStream::connect(at.join("containerd.sock")).await.map_err(|e| e.to_string())
    });
    serves.await.unwrap();
    let mut mesh = Mesh::on(at, &host, &at.join("nri.sock")).unwrap();
    mesh.set("nri-gateway", "mode=nri");
    mesh.start("nri-gateway").unwrap();

    let named = poll_until(LIMIT, async || {
        let status = mesh.status("nri-gateway").await.map_err(|e| e.to_string())?;
        let session = status.pending.iter().find(|p| p.name == "nri-session").map(|p| p.detail.clone());
        let detail = match (case.connects, session) {
            (false, Some(detail)) => detail,
            (true, None) => doctor(&mesh),
            (_, other) => return Err(format!("{other:?}")),
        };
        if case.said.iter().all(|part| detail.contains(part)) { Ok(()) } else { Err(detail) }
    });
    let outcome = named.await;
    outcome.unwrap_or_else(|said| panic!("{line} {}: {:?} is not in {said}", case.name, case.said));
    if !case.connects {
        let told = doctor(&mesh);
        assert!(case.said.iter().all(|part| told.contains(part)), "{line} {}: {told}", case.name);
    }
    mesh.stop().await.unwrap();
    containerd.terminate(LIMIT).await.unwrap();
}

/// Everything that the doctor says, uncut; it fails where there is a fault.
fn doctor(mesh: &Mesh) -> String {
    mesh.oxctl(&["doctor", "-o", "json"]).unwrap_or_else(|e| e.to_string())
}

fn text(at: &Path, line: &str, case: &Case) -> String {
    let version = if line == "1.7" { 2 } else { 3 };
    let at = at.display();
    let mut text = format!(
        "version = {version}\nroot = '{at}/root'\nstate = '{at}/state'\n[grpc]\naddress = '{at}/containerd.sock'\n\
         [plugins.'io.containerd.internal.v1.opt']\npath = '{at}/opt'\n"
    );
    if let Some(section) = case.section {
        let socket = if section.contains("socket_path") {
            String::new()
        } else {
            format!("socket_path = '{at}/nri.sock'\n")
        };
        text += &format!(
            "{SECTION}{}\n{socket}plugin_path = '{at}/nri/plugins'\nplugin_config_path = '{at}/nri/conf.d'\n",
            section.replace("FOLDER", &at.to_string())
        );
    }
    text + case.after
}
