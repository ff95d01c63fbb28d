//! What the host's files say.

use std::collections::{BTreeSet, VecDeque};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use oxalyst_cgroups::{Controller, Hierarchy, Version, is_writable, pod_roots};
use oxalyst_nri::runtime_config::NriConfig;

/// Where containerd's configuration lies, as distributions ship it, and the socket of a containerd that was started with it. Docker
/// brings a file of its own, whatever the node's runtime is.
const CONTAINERD: [(&str, &str); 3] = [
    ("etc/containerd/config.toml", "run/containerd/containerd.sock"),
    ("var/lib/rancher/k3s/agent/etc/containerd/config.toml", "run/k3s/containerd/containerd.sock"),
    ("var/lib/rancher/rke2/agent/etc/containerd/config.toml", "run/k3s/containerd/containerd.sock"),
];

const CRIO_SOCKET: &str = "run/crio/crio.sock";
const CRIO: &str = "etc/crio/crio.conf";
const CRIO_FOLDER: &str = "etc/crio/crio.conf.d";
const KUBELET_CPUS: &str = "var/lib/kubelet/cpu_manager_state";

/// Files of one configuration that are read.
const FILES: usize = 64;

/// Longer files are no configuration.
const LONGEST: u64 = 1 << 20;

/// What was seen; `None` where it could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// What is where the socket should be.
    pub(crate) socket: Option<AtSocket>,
    /// Every configuration that was read.
    pub(crate) configs: Vec<Config>,
    /// Runtimes whose socket is there.
    pub(crate) alive: BTreeSet<Configured>,
    /// Policy of the kubelet's CPU manager; empty where its file names none.
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

/// A runtime's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Whose.
    pub(crate) whose: Configured,
    /// The files, as an operator names them.
    pub(crate) from: String,
    /// What they say.
    pub(crate) says: NriConfig,
    /// The socket of a runtime that was started with it is there.
    pub(crate) is_alive: bool,
}

/// Whose configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    let kubelet_cpus = read(&root.join(KUBELET_CPUS)).map(|text| policy(&text).unwrap_or_default());
    Seen {
        socket: Some(at_socket(socket)),
        unwritable,
        configs: CONTAINERD.iter().filter_map(|at| containerd(root, at)).chain(crio(root)).collect(),
        alive: alive(root),
        kubelet_cpus,
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

fn alive(root: &Path) -> BTreeSet<Configured> {
    let containerd = CONTAINERD.iter().map(|(_, socket)| (Configured::Containerd, *socket));
    let all = containerd.chain([(Configured::Crio, CRIO_SOCKET)]);
    all.filter(|(_, at)| is_socket(root, at)).map(|(whose, _)| whose).collect()
}

fn is_socket(root: &Path, at: &str) -> bool {
    at_socket(&root.join(at)) == AtSocket::Socket
}

/// The file and what it imports, and what that imports, each once, in containerd's order: a later one wins.
fn containerd(root: &Path, (at, socket): &(&str, &str)) -> Option<Config> {
    let mut says = NriConfig::default();
    let mut files = Vec::new();
    let mut known = BTreeSet::new();
    let mut pending = VecDeque::from([root.join(at)]);
    while let Some(file) = pending.pop_front() {
        if files.len() == FILES {
            break;
        }
        let is_new = fs::canonicalize(&file).is_ok_and(|same| known.insert(same));
        let Some(text) = read(&file).filter(|_| is_new) else { continue };
        says.read(&text);
        files.push(shown(root, &file));
        for import in std::mem::take(&mut says.imports) {
            pending.extend(matching(root, &import, &file));
            pending.truncate(FILES);
        }
    }
    let is_alive = is_socket(root, socket);
    (!files.is_empty()).then(|| Config {
        whose: Configured::Containerd,
        from: files.join(", "),
        says,
        is_alive,
    })
}

fn crio(root: &Path) -> Option<Config> {
    let folder = root.join(CRIO_FOLDER);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.sort();
    files.insert(0, root.join(CRIO));
    let mut says = NriConfig::default();
    let mut from = Vec::new();
    for file in files.into_iter().take(FILES) {
        if let Some(text) = read(&file) {
            says.read(&text);
            from.push(shown(root, &file));
        }
    }
    let is_alive = is_socket(root, CRIO_SOCKET);
    (!from.is_empty()).then(|| Config { whose: Configured::Crio, from: from.join(", "), says, is_alive })
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
    found.truncate(FILES);
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
        let [config] = &seen.configs[..] else { panic!("{seen:?}") };
        assert_eq!((config.whose, config.says.enabled), (Configured::Containerd, Some(false)));
        assert_eq!(config.from, "/etc/containerd/config.toml, /etc/containerd/conf.d/nri.toml");
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
        let seen = look(dir.path(), Path::new("/x"));
        let [config] = &seen.configs[..] else { panic!("{seen:?}") };
        assert_eq!((config.whose, config.says.enabled), (Configured::Crio, Some(true)));
        assert_eq!(look(&dir.path().join("absent"), Path::new("/x")).configs, []);
    }

    #[test]
    fn imports_of_imports_are_followed_and_a_circle_ends() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let section = "[plugins.'io.containerd.nri.v1.nri']\n";
        put(
            root,
            "etc/containerd/config.toml",
            &format!("imports = ['conf.d/a.toml']\n{section}disable = false\n"),
        );
        put(
            root,
            "etc/containerd/conf.d/a.toml",
            "imports = ['/etc/containerd/more/*.toml', '../config.toml']\n",
        );
        put(root, "etc/containerd/more/b.toml", &format!("imports = ['*.toml']\n{section}disable = true\n"));
        let seen = look(root, Path::new("/x"));
        let [config] = &seen.configs[..] else { panic!("{seen:?}") };
        assert_eq!(config.says.enabled, Some(false));
        let files = "/etc/containerd/config.toml, /etc/containerd/conf.d/a.toml, /etc/containerd/more/b.toml";
        assert_eq!(config.from, files);
    }

    #[test]
    fn every_runtimes_files_are_read_and_whose_socket_is_there_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        put(root, "etc/containerd/config.toml", "disabled_plugins = ['cri']\n");
        put(root, "etc/crio/crio.conf", "[crio]\n");
        let told = |seen: &Seen| seen.configs.iter().map(|c| (c.whose, c.is_alive)).collect::<Vec<_>>();
        let seen = look(root, Path::new("/x"));
        assert_eq!(told(&seen), [(Configured::Containerd, false), (Configured::Crio, false)]);
        fs::create_dir_all(root.join("run/crio")).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(root.join(CRIO_SOCKET)).unwrap();
        let seen = look(root, Path::new("/x"));
        assert_eq!(told(&seen), [(Configured::Containerd, false), (Configured::Crio, true)]);
        assert_eq!(seen.alive, BTreeSet::from([Configured::Crio]));
    }

    #[test]
    fn a_kubelets_state_without_a_policy_names_none() {
        let dir = tempfile::tempdir().unwrap();
        for text in [r#"{"policyName":"","x":1}"#, "rubbish"] {
            put(dir.path(), KUBELET_CPUS, text);
            assert_eq!(look(dir.path(), Path::new("/x")).kubelet_cpus.as_deref(), Some(""), "{text}");
        }
    }
}
