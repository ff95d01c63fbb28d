//! Containers whose cgroups have names that nobody guesses: the kernel tells of each process where it lies.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use oxalyst_cgroups::{CgroupPath, Found, Hierarchy, read_text};

use super::{Kernel, KernelError};

/// Shorter ids may stand in a name by chance; those of every runtime are longer.
const SHORTEST: usize = 32;

/// Processes that are looked at.
const PROCESSES: usize = 65_536;

impl Kernel {
    /// Where the processes of these containers (id and pod's UID) lie, of those whose cgroup has the id anywhere in its name. One
    /// without a process is not found: it has ended.
    ///
    /// # Errors
    /// [`KernelError`] where nothing could be read.
    pub async fn elsewhere(
        &self,
        wanted: BTreeMap<String, String>,
        deadline: Duration,
    ) -> Result<Vec<Found>, KernelError> {
        if wanted.keys().all(|id| id.len() < SHORTEST) {
            return Ok(Vec::new());
        }
        self.work(deadline, move |hierarchy| match hierarchy.root().ancestors().nth(3) {
            Some(host) => search(hierarchy, &host.join("proc"), &wanted),
            None => Vec::new(),
        })
        .await
    }
}

fn search(hierarchy: &Hierarchy, proc: &Path, wanted: &BTreeMap<String, String>) -> Vec<Found> {
    let mut found: BTreeMap<&str, Found> = BTreeMap::new();
    let entries = fs::read_dir(proc).into_iter().flatten().filter_map(Result::ok);
    let of_process = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
    let processes = entries.filter(|entry| entry.file_name().to_str().is_some_and(of_process));
    for process in processes.take(PROCESSES) {
        if found.len() == wanted.len() {
            break;
        }
        let Ok(text) = read_text(&process.path().join("cgroup")) else { continue };
        let Some(path) = path_of(hierarchy, &text) else { continue };
        for (id, uid) in wanted.iter().filter(|(id, _)| id.len() >= SHORTEST) {
            let Some(at) = path.find(id.as_str()) else { continue };
            // The container's own cgroup is the first whose name has the id; a program may have made more within it.
            let end = path.get(at..).and_then(|rest| rest.find('/')).map_or(path.len(), |length| at + length);
            let own = path.get(..end).and_then(|own| CgroupPath::new(own).ok());
            if let Some(path) = own {
                let (pod_uid, container_id) = (uid.clone(), id.clone());
                found.entry(id).or_insert(Found { path, pod_uid, container_id });
            }
        }
    }
    found.into_values().collect()
}

/// The path in `/proc/PID/cgroup` of the tree that cpusets lie in; none that leaves what is seen here.
fn path_of<'a>(hierarchy: &Hierarchy, text: &'a str) -> Option<&'a str> {
    let of_tree = |controllers: &str| match hierarchy.is_unified() {
        true => controllers.is_empty(),
        false => controllers.split(',').any(|name| name == "cpuset"),
    };
    let path = text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        of_tree(controllers).then_some(path)
    })?;
    (!path.split('/').any(|part| part == "..")).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_cgroups::fixture::{Fixture, Layout};

    const DEADLINE: Duration = Duration::from_secs(5);

    fn id(letter: &str) -> String {
        letter.repeat(64)
    }

    #[tokio::test]
    async fn c13_a_container_of_an_unknown_name_is_found_by_its_processes() {
        for (layout, other, tree) in
            [(Layout::V1, "0::/not/this", "7:cpuset:"), (Layout::V2, "1:name=systemd:/not/this", "0::")]
        {
            let dir = tempfile::tempdir().unwrap();
            let fixture = Fixture::create(dir.path(), layout).unwrap();
            let process = |pid: u32, path: &str| {
                fixture.proc(&format!("{pid}/cgroup"), &format!("{other}\n{tree}{path}\n")).unwrap();
            };
            process(10, &format!("/odd/box_{}.x/inner", id("a")));
            process(11, &format!("/../leaves/{}", id("b")));
            process(12, "/system.slice");
            let wanted = [(id("a"), "u"), (id("b"), "v"), (id("c"), "w"), ("short".into(), "x")];
            let wanted = wanted.map(|(id, uid)| (id, uid.to_owned())).into();
            let found = Kernel::new(dir.path().into()).elsewhere(wanted, DEADLINE).await.unwrap();
            let expected = Found {
                path: CgroupPath::new(&format!("odd/box_{}.x", id("a"))).unwrap(),
                pod_uid: "u".into(),
                container_id: id("a"),
            };
            assert_eq!(found, [expected], "{layout:?}");
        }
    }
}
