//! What the host's files say.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use oxalyst_cgroups::{Controller, Hierarchy, Version, is_writable, pod_roots};
use oxalyst_nri::runtime_config::NriConfig;

/// Where containerd's configuration lies, as distributions ship it. The first that is there counts.
const CONTAINERD: [&str; 3] = [
    "etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
];

const CRIO: &str = "etc/crio/crio.conf";
const CRIO_FOLDER: &str = "etc/crio/crio.conf.d";
const KUBELET_CPUS: &str = "var/lib/kubelet/cpu_manager_state";

/// Files that one may import.
const IMPORTS: usize = 64;

/// Longer files are no configuration.
const LONGEST: u64 = 1 << 20;

/// What was seen; `None` where it could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// What is where the socket should be.
    pub(crate) socket: Option<AtSocket>,
    /// Whose configuration was read, from where, and what it says.
    pub(crate) config: Option<(Configured, String, NriConfig)>,
    /// Policy of the kubelet's CPU manager.
    pub(crate) kubelet_cpus: Option<String>,
    /// Version of the cgroup tree and where pods lie, or why it cannot be read.
    pub(crate) tree: Option<Result<(Version, Vec<String>), String>>,
    /// Why nothing can be written to the tree of cgroups, and what an operator can do.
    pub(crate) unwritable: Option<(String, &'static str)>,
}

/// What is where the socket should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AtSocket {
    Nothing,
    Socket,
    /// Something else.
    Other(&'static str),
    /// It cannot be looked at.
    Unseen(String),
}

/// Whose configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Configured {
    Containerd,
    Crio,
}

pub(crate) fn look(root: &Path, socket: &Path) -> Seen {
    let hierarchy = Hierarchy::detect(root);
    let unwritable = hierarchy.as_ref().ok().and_then(unwritable);
    let tree = hierarchy.and_then(|hierarchy| {
        let roots = pod_roots(&hierarchy)?;
        Ok((hierarchy.version(), roots.iter().map(ToString::to_string).collect()))
    });
    Seen {
        socket: Some(at_socket(socket)),
        unwritable,
        config: containerd(root).or_else(|| crio(root)),
        kubelet_cpus: read(&root.join(KUBELET_CPUS)).as_deref().and_then(policy),
        tree: Some(tree.map_err(|e| e.to_string())),
    }
}

fn at_socket(path: &Path) -> AtSocket {
    match fs::metadata(path).map(|found| found.file_type()) {
        Ok(kind) if kind.is_socket() => AtSocket::Socket,
        Ok(kind) if kind.is_dir() => AtSocket::Other("a folder"),
        Ok(kind) if kind.is_file() => AtSocket::Other("a plain file"),
        Ok(_) => AtSocket::Other("no socket"),
        Err(e) if e.kind() == io::ErrorKind::NotFound => AtSocket::Nothing,
        Err(e) => AtSocket::Unseen(e.to_string()),
    }
}

/// Whether the cpusets cannot be written: no such controller, or a tree that takes nothing.
fn unwritable(hierarchy: &Hierarchy) -> Option<(String, &'static str)> {
    let mount = match hierarchy.mount(Controller::Cpuset) {
        Ok(mount) => mount,
        Err(e) => return Some((e.to_string(), "mount the controller cpuset")),
    };
    if hierarchy.is_unified()
        && let Ok(all) = fs::read_to_string(mount.join("cgroup.controllers"))
        && !all.split_whitespace().any(|name| name == "cpuset")
    {
        let detail = format!("{}/cgroup.controllers names no cpuset", mount.display());
        return Some((detail, "enable the controller cpuset in cgroup.subtree_control of the cgroup above"));
    }
    let refused = is_writable(mount).err()?;
    let remedy = "mount /sys/fs/cgroup below common.host_root writable, and run the gateway as root";
    Some((format!("{} cannot be written: {refused}", mount.display()), remedy))
}

fn containerd(root: &Path) -> Option<(Configured, String, NriConfig)> {
    let (at, text) = CONTAINERD.iter().find_map(|at| Some((*at, read(&root.join(at))?)))?;
    let mut config = NriConfig::default();
    config.read(&text);
    let mut files = vec![format!("/{at}")];
    for import in std::mem::take(&mut config.imports) {
        for file in matching(root, &import, &root.join(at)) {
            if let Some(text) = read(&file) {
                config.read(&text);
                files.push(shown(root, &file));
            }
        }
    }
    Some((Configured::Containerd, files.join(", "), config))
}

fn crio(root: &Path) -> Option<(Configured, String, NriConfig)> {
    let folder = root.join(CRIO_FOLDER);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.sort();
    files.insert(0, root.join(CRIO));
    let mut config = NriConfig::default();
    let mut from = Vec::new();
    for file in files.into_iter().take(IMPORTS) {
        if let Some(text) = read(&file) {
            config.read(&text);
            from.push(shown(root, &file));
        }
    }
    (!from.is_empty()).then(|| (Configured::Crio, from.join(", "), config))
}

/// Files of an import: a path, or one with a single `*` in its last part.
fn matching(root: &Path, import: &str, importer: &Path) -> Vec<PathBuf> {
    let path = match import.strip_prefix('/') {
        Some(absolute) => root.join(absolute),
        None => importer.parent().unwrap_or(root).join(import),
    };
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Some((before, after)) = name.split_once('*') else { return vec![path] };
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    found.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
    });
    found.sort();
    found.truncate(IMPORTS);
    found
}

fn read(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > LONGEST {
        return None;
    }
    fs::read_to_string(path).ok()
}

fn shown(root: &Path, file: &Path) -> String {
    format!("/{}", file.strip_prefix(root).unwrap_or(file).display())
}

/// `policyName` of the kubelet's checkpoint.
fn policy(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("\"policyName\"")?;
    let (_, rest) = rest.split_once(':')?;
    let (_, rest) = rest.split_once('"')?;
    Some(rest.split_once('"')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, at: &str, text: &str) {
        let path = root.join(at);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn n12_the_runtimes_files_are_found_with_what_they_import() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        put(root, "etc/containerd/config.toml", "imports = [\"/etc/containerd/conf.d/*.toml\"]\n");
        put(root, "etc/containerd/conf.d/nri.toml", "[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n");
        put(root, "var/lib/kubelet/cpu_manager_state", r#"{"policyName":"static","defaultCpuSet":"0"}"#);
        let seen = look(root, Path::new("/no/such.sock"));
        let (whose, from, config) = seen.config.unwrap();
        assert_eq!((whose, config.enabled), (Configured::Containerd, Some(false)));
        assert_eq!(from, "/etc/containerd/config.toml, /etc/containerd/conf.d/nri.toml");
        assert_eq!(seen.kubelet_cpus.as_deref(), Some("static"));
        assert_eq!(seen.socket, Some(AtSocket::Nothing));
        assert!(seen.tree.unwrap().is_err() && seen.unwritable.is_none());
    }

    #[test]
    fn what_is_where_the_socket_should_be_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| at_socket(&dir.path().join(name));
        put(dir.path(), "file", "");
        fs::create_dir(dir.path().join("folder")).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        assert_eq!(
            (at("file"), at("folder")),
            (AtSocket::Other("a plain file"), AtSocket::Other("a folder"))
        );
        assert_eq!((at("socket"), at("absent")), (AtSocket::Socket, AtSocket::Nothing));
        assert!(matches!(at("file/below"), AtSocket::Unseen(_)));
    }

    #[test]
    fn c07_a_tree_whose_cpusets_cannot_be_written_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n");
        assert_eq!(look(dir.path(), Path::new("/x")).unwritable, None);
        put(dir.path(), "sys/fs/cgroup/cgroup.controllers", "cpu\n");
        let (detail, remedy) = look(dir.path(), Path::new("/x")).unwritable.unwrap();
        assert!(detail.contains("names no cpuset") && remedy.contains("subtree_control"), "{detail}");
    }

    #[test]
    fn crios_later_files_win() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "etc/crio/crio.conf.d/99-x.conf", "[crio.nri]\nenable_nri = true\n");
        put(dir.path(), "etc/crio/crio.conf", "[crio.nri]\nenable_nri = false\n");
        let (whose, _, config) = look(dir.path(), Path::new("/x")).config.unwrap();
        assert_eq!((whose, config.enabled), (Configured::Crio, Some(true)));
        assert_eq!(look(&dir.path().join("absent"), Path::new("/x")).config, None);
    }
}
