//! A one-layer OCI archive with a static busybox, written here so that a machine with nothing but Rust can run containers
//! without a registry. The same bytes come out each time.

use std::path::Path;

use ring::digest::{SHA256, digest};
use serde_json::json;

/// Reference of the image that sandboxes run.
pub const PAUSE: &str = "localhost/pause:1";
/// Reference of the image that containers run.
pub const BUSYBOX: &str = "localhost/busybox:1";

const APPLETS: [&str; 8] = ["sh", "sleep", "grep", "cat", "true", "false", "echo", "taskset"];

/// An image archive for `ctr images import`: `reference` with `busybox` (the bytes of a static one), whose entry point
/// sleeps.
pub fn archive(reference: &str, busybox: &[u8]) -> Vec<u8> {
    let layer = layer(busybox);
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture, "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sleep", "1000000"]},
        "rootfs": {"type": "layers", "diff_ids": [sha256(&layer)]},
        "history": [{"created_by": "oxalyst integration suites"}],
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha256(&config), "size": config.len()},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": sha256(&layer), "size": layer.len()}],
    });
    let manifest = manifest.to_string().into_bytes();
    let tag = reference.rsplit(':').next().unwrap_or("latest");
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": sha256(&manifest), "size": manifest.len(),
            "platform": {"architecture": architecture, "os": "linux"},
            "annotations": {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": tag},
        }],
    });

    let mut tar = Tar::default();
    tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
    tar.file("index.json", 0o644, index.to_string().as_bytes());
    for blob in [&layer, &config, &manifest] {
        tar.file(&format!("blobs/sha256/{}", hex(blob)), 0o644, blob);
    }
    tar.finish()
}

/// The machine's busybox, if it has a static one.
pub fn find_busybox() -> std::io::Result<Vec<u8>> {
    ["/bin/busybox", "/usr/bin/busybox"]
        .iter()
        .map(Path::new)
        .find(|path| path.exists())
        .map_or_else(|| Err(std::io::ErrorKind::NotFound.into()), std::fs::read)
}

fn layer(busybox: &[u8]) -> Vec<u8> {
    let mut tar = Tar::default();
    for dir in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
        tar.entry(dir, b'5', 0o755, "", &[]);
    }
    tar.file("bin/busybox", 0o755, busybox);
    for applet in APPLETS {
        tar.entry(&format!("bin/{applet}"), b'2', 0o777, "busybox", &[]);
    }
    tar.finish()
}

fn hex(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

/// A ustar writer: names below 100 bytes, root's files, time 0.
#[derive(Default)]
struct Tar {
    bytes: Vec<u8>,
}

// === impl Tar ===

impl Tar {
    fn file(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entry(name, b'0', mode, "", data);
    }

    /// `kind` as in the format: '0' a file, '2' a symbolic link to `link`, '5' a folder.
    fn entry(&mut self, name: &str, kind: u8, mode: u32, link: &str, data: &[u8]) {
        assert!(name.len() < 100 && link.len() < 100, "{name} -> {link} does not fit a ustar header");
        let mut header = [0u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{:011o}", data.len()).as_bytes());
        put(136, b"00000000000");
        put(148, b"        ");
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_tar_reads_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.tar");
        std::fs::write(&path, archive(BUSYBOX, b"not really busybox")).unwrap();

        let listed = std::process::Command::new("tar").arg("-tf").arg(&path).output().unwrap();

        assert!(listed.status.success(), "{listed:?}");
        let names = String::from_utf8(listed.stdout).unwrap();
        assert_eq!(names.lines().count(), 5, "{names}");
        assert!(names.contains("index.json"));
    }

    #[test]
    fn every_blob_lies_under_its_own_digest() {
        let tar = archive(PAUSE, b"x");
        let mut at = 0;
        let mut blobs = 0;
        while tar[at] != 0 {
            let name = String::from_utf8(tar[at..at + 100].to_vec()).unwrap();
            let name = name.trim_end_matches('\0');
            let size = std::str::from_utf8(&tar[at + 124..at + 135]).unwrap();
            let size = usize::from_str_radix(size, 8).unwrap();
            if let Some(sum) = name.strip_prefix("blobs/sha256/") {
                assert_eq!(hex(&tar[at + 512..at + 512 + size]), sum);
                blobs += 1;
            }
            at += 512 + size.next_multiple_of(512);
        }
        assert_eq!(blobs, 3);
    }
}
