//! The kernel's cpuset files, on threads that may block, each look with a deadline.

mod attainable;
mod census;
mod elsewhere;
mod held;
mod others;
mod systemd;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oxalyst_cgroups::{
    CgroupPath, Controller, CpusetFile, CpusetFiles, Hierarchy, set_cpuset, write_verified,
};
use tokio::sync::Semaphore;

use crate::pinning::{Change, difference};
use crate::placements::Cpuset;
use crate::roster::{Check, Idle, Seen};

pub use census::Shown;
use held::Held;
use systemd::Systemd;

/// Looks at once. A file system that hangs costs this many threads and no more.
const THREADS: usize = 4;

/// Containers in a part of a pass: what is late is one part, not all that was read before.
pub(crate) const PART: usize = 256;

/// The files below one root. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kernel {
    host_root: PathBuf,
    hierarchy: Arc<Mutex<Option<Arc<Hierarchy>>>>,
    systemd: Systemd,
    threads: Arc<Semaphore>,
}

/// Why the kernel could not be asked at all.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No answer in time.
    #[error("the cgroup files under {root} did not answer in {} ms", after.as_millis(), root = root.display())]
    Late {
        /// Root of the host.
        root: PathBuf,
        /// How long it was waited for.
        after: Duration,
    },
    /// No cgroup tree.
    #[error(transparent)]
    Tree(#[from] Arc<oxalyst_cgroups::Error>),
}

/// What was seen, and what was corrected on the way.
#[derive(Debug, Default)]
pub struct Look {
    /// Each container's files.
    pub seen: Vec<(String, Seen)>,
    /// Containers whose files were written.
    pub wrote: Vec<String>,
    /// Containers that lack something else of what they are to have.
    pub unheld: Vec<String>,
    /// What of a container cannot be put into effect, and why.
    pub reports: Vec<(String, String)>,
    /// Containers for which there is nothing to write.
    pub whole: Vec<String>,
    /// The first file that refused, for the log.
    pub fault: Option<String>,
}

// === impl Look ===

impl Look {
    fn add(&mut self, other: Self) {
        let Self { seen, wrote, unheld, reports, whole, fault } = other;
        self.seen.extend(seen);
        self.wrote.extend(wrote);
        self.unheld.extend(unheld);
        self.reports.extend(reports);
        self.whole.extend(whole);
        self.fault = self.fault.take().or(fault);
    }
}

// === impl Kernel ===

impl Kernel {
    /// The files below `<host_root>/sys/fs/cgroup`.
    pub fn new(host_root: PathBuf) -> Self {
        let systemd = Systemd::new(&host_root);
        Self { host_root, hierarchy: Arc::default(), systemd, threads: Arc::new(Semaphore::new(THREADS)) }
    }

    /// Reads the files of each container.
    ///
    /// # Errors
    /// [`KernelError`] where nothing could be read.
    pub async fn read(&self, checks: Vec<Check>, deadline: Duration) -> Result<Look, KernelError> {
        self.look(checks, deadline, Correct::Nothing).await
    }

    /// As [`Kernel::read`], a part after the other, each with the deadline: what was read counts, however many there are. A part
    /// that is late ends it, as its fault.
    ///
    /// # Errors
    /// As [`Kernel::read`], of the first part.
    pub async fn read_in_parts(&self, checks: &[Check], deadline: Duration) -> Result<Look, KernelError> {
        let mut parts = checks.chunks(PART);
        let mut all = self.read(parts.next().unwrap_or_default().to_vec(), deadline).await?;
        for part in parts {
            match self.read(part.to_vec(), deadline).await {
                Ok(look) => all.add(look),
                Err(e) => {
                    all.fault.get_or_insert_with(|| e.to_string());
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Reads the files of each container and writes the CPUs that differ from what is wanted; of `whole`, which does not run
    /// yet, the memory nodes too.
    ///
    /// # Errors
    /// [`KernelError`] where nothing could be read.
    pub async fn correct(
        &self,
        checks: Vec<Check>,
        whole: Option<String>,
        deadline: Duration,
    ) -> Result<Look, KernelError> {
        self.look(checks, deadline, Correct::Cpus { whole }).await
    }

    /// Makes these changes, in this order, each of a container that is checked; whatever else those containers are to have, too.
    ///
    /// # Errors
    /// [`KernelError`] where nothing could be read.
    pub async fn change(
        &self,
        changes: Vec<(Check, Change)>,
        deadline: Duration,
    ) -> Result<Look, KernelError> {
        if changes.is_empty() {
            return Ok(Look::default());
        }
        let systemd = self.systemd.clone();
        let look = self.work(deadline, move |hierarchy| {
            changes.into_iter().fold(Look::default(), |look, (check, change)| {
                look.with(hierarchy, &systemd, &check, &Correct::This(change.cpuset))
            })
        });
        let look = look.await;
        self.systemd.tell_later();
        look
    }

    /// Whether the tree is v2; `None` where it cannot be told.
    pub async fn is_unified(&self, deadline: Duration) -> Option<bool> {
        self.work(deadline, |hierarchy| hierarchy.is_unified()).await.ok()
    }

    /// Those of these sandboxes whose pods' cgroups are not there any more.
    ///
    /// # Errors
    /// [`KernelError`] where nothing could be read.
    pub async fn ended(&self, idle: Vec<Idle>, deadline: Duration) -> Result<BTreeSet<String>, KernelError> {
        self.work(deadline, move |hierarchy| {
            let gone = |idle: &Idle| is_gone(hierarchy, &idle.cgroup_parent);
            idle.into_iter().filter(gone).map(|idle| idle.sandbox_id).collect()
        })
        .await
    }

    async fn look(
        &self,
        checks: Vec<Check>,
        deadline: Duration,
        correct: Correct,
    ) -> Result<Look, KernelError> {
        if checks.is_empty() {
            return Ok(Look::default());
        }
        let systemd = self.systemd.clone();
        let look = self.work(deadline, move |hierarchy| {
            checks.iter().fold(Look::default(), |look, check| look.with(hierarchy, &systemd, check, &correct))
        });
        let look = look.await;
        self.systemd.tell_later();
        look
    }

    /// Does this on a thread that may block.
    async fn work<T: Send + 'static>(
        &self,
        deadline: Duration,
        work: impl FnOnce(&Hierarchy) -> T + Send + 'static,
    ) -> Result<T, KernelError> {
        let late = || KernelError::Late { root: self.host_root.clone(), after: deadline };
        let this = self.clone();
        let done = async move {
            let permit = this.threads.clone().acquire_owned().await.ok();
            tokio::task::spawn_blocking(move || {
                let _permit = permit;
                Ok(work(&*this.hierarchy()?))
            })
            .await
        };
        match tokio::time::timeout(deadline, done).await {
            Ok(Ok(outcome)) => outcome,
            _ => Err(late()),
        }
    }

    /// Found once; found anew when the tree was mounted anew.
    fn hierarchy(&self) -> Result<Arc<Hierarchy>, KernelError> {
        let mut known = self.hierarchy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hierarchy) = &*known
            && hierarchy.is_current().unwrap_or(false)
        {
            return Ok(hierarchy.clone());
        }
        let found = Arc::new(Hierarchy::detect(&self.host_root).map_err(Arc::new)?);
        *known = Some(found.clone());
        Ok(found)
    }
}

/// Whether a cgroup is known not to be there: in none of the trees that every runtime uses.
fn is_gone(hierarchy: &Hierarchy, cgroup_parent: &str) -> bool {
    let (Ok((path, _driver)), Ok(root)) = (CgroupPath::of_parent(cgroup_parent), hierarchy.any_mount())
    else {
        return false;
    };
    path.under(root).try_exists().is_ok_and(|exists| !exists)
}

/// On v1 the pages of a container stay where they are unless this is set; on v2 the kernel always moves them.
fn migrate(dir: &std::path::Path) -> Result<(), oxalyst_cgroups::Error> {
    match write_verified(&dir.join("cpuset.memory_migrate"), "1", |now| now == "1") {
        Err(e) if e.is_gone() => Ok(()),
        outcome => outcome.map(drop),
    }
}

enum Correct {
    Nothing,
    /// CPUs that differ; of `whole` the memory nodes too.
    Cpus {
        whole: Option<String>,
    },
    /// What is named here.
    This(Cpuset),
}

// === impl Look ===

impl Look {
    fn with(mut self, hierarchy: &Hierarchy, systemd: &Systemd, check: &Check, correct: &Correct) -> Self {
        let id = &check.container_id;
        let wrote = self.wrote.len();
        let seen = match self.look_at(hierarchy, check, correct) {
            Ok(held) => Seen::Files(held),
            Err(e) if e.is_gone() => Seen::Gone,
            Err(e) => {
                self.fault.get_or_insert_with(|| e.to_string());
                // Nobody knows what it runs on: it is marked until its files can be read.
                self.reports.push((id.clone(), e.to_string()));
                Seen::Unreadable
            }
        };
        match &seen {
            Seen::Gone => systemd.forget(id),
            _ if hierarchy.is_unified() && self.wrote.len() > wrote => systemd.note(check),
            _ => systemd.forget_outdated(check),
        }
        self.reports.extend(systemd.why_untold(id).map(|why| (id.clone(), why)));
        self.seen.push((id.clone(), seen));
        self
    }

    fn look_at(
        &mut self,
        hierarchy: &Hierarchy,
        check: &Check,
        correct: &Correct,
    ) -> Result<Cpuset, oxalyst_cgroups::Error> {
        let (path, _driver) = CgroupPath::of_container(&check.cgroups_path)?;
        let files = CpusetFiles::open(hierarchy, &path)?;
        let Held { cpuset: held, lacks } = Held::of(hierarchy, &path, files.read()?, check.wanted.as_ref());
        self.reports.extend(lacks.into_iter().map(|lack| (check.container_id.clone(), lack)));
        let left = check.wanted.as_ref().map(|wanted| difference(Some(&held), wanted)).unwrap_or_default();
        let wanted = match correct {
            Correct::Nothing => Cpuset::default(),
            Correct::Cpus { whole } => match &check.wanted {
                None => Cpuset::default(),
                Some(wanted) => {
                    let mems = left.mems && whole.as_ref() == Some(&check.container_id);
                    let part =
                        |is_due: bool, list: &String| if is_due { list.clone() } else { String::new() };
                    Cpuset { cpus: part(left.cpus, &wanted.cpus), mems: part(mems, &wanted.mems) }
                }
            },
            Correct::This(cpuset) => cpuset.clone(),
        };
        let others_hold = self.others(hierarchy, &path, check, !matches!(correct, Correct::Nothing));
        if others_hold && !left.cpus && !left.mems {
            self.whole.push(check.container_id.clone());
        }
        if wanted == Cpuset::default() {
            return Ok(held);
        }
        let moves_pages = matches!(correct, Correct::This(_)) && !hierarchy.is_unified();
        let outcome = write_both(hierarchy, &path, &wanted, &held, moves_pages.then(|| files.dir()));
        if outcome.as_ref().is_ok_and(|written| *written == 0) {
            return Ok(held);
        }
        self.wrote.extend(outcome.is_ok().then(|| check.container_id.clone()));
        let now = Held::of(hierarchy, &path, files.read()?, check.wanted.as_ref()).cpuset;
        if let Err(e) = outcome {
            if e.is_gone() {
                return Err(e);
            }
            // What it has now is known, so that the next comparison tries again from there; until then it is marked.
            self.fault.get_or_insert_with(|| e.to_string());
            self.reports.push((check.container_id.clone(), e.to_string()));
        }
        Ok(now)
    }
}

/// Writes the parts that are not empty, memory nodes first; gives how many files were written. Where the second fails, the first
/// is put back: CPUs of one decision and memory of another are nobody's wish.
fn write_both(
    hierarchy: &Hierarchy,
    path: &CgroupPath,
    wanted: &Cpuset,
    before: &Cpuset,
    moves_pages: Option<&std::path::Path>,
) -> Result<usize, oxalyst_cgroups::Error> {
    let mut written = 0;
    if !wanted.mems.is_empty() {
        if let Some(dir) = moves_pages {
            migrate(dir)?;
        }
        written += set(hierarchy, path, CpusetFile::Mems, &wanted.mems)?;
    }
    if wanted.cpus.is_empty() {
        return Ok(written);
    }
    match set(hierarchy, path, CpusetFile::Cpus, &wanted.cpus) {
        Ok(cpus) => Ok(written + cpus),
        Err(e) => {
            if written > 0
                && let Err(left) = set(hierarchy, path, CpusetFile::Mems, &before.mems)
            {
                tracing::warn!(cgroup = %path, error = %left, "memory nodes cannot be put back");
            }
            Err(e)
        }
    }
}

/// Writes one list; gives how many files were written. A cgroup above that was too narrow is told.
fn set(
    hierarchy: &Hierarchy,
    path: &CgroupPath,
    file: CpusetFile,
    list: &str,
) -> Result<usize, oxalyst_cgroups::Error> {
    let own = hierarchy.mount(Controller::Cpuset)?;
    let own = path.under(own).join(file.name());
    let written = set_cpuset(hierarchy, path, file, list)?;
    for at in written.iter().filter(|at| own.parent().is_some_and(|own| !at.starts_with(own))) {
        tracing::info!(file = %at.display(), container = %path, list, "a cgroup above a container was too narrow for it: widened");
    }
    Ok(written.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adjustment::Wish;
    use oxalyst_cgroups::fixture::{Fixture, Layout};

    const DEADLINE: Duration = Duration::from_secs(5);

    fn machine(layout: Layout, cgroup: &str) -> (tempfile::TempDir, Kernel) {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::create(dir.path(), layout).unwrap();
        fixture.cgroup(&CgroupPath::of_container(cgroup).unwrap().0).unwrap();
        let kernel = Kernel::new(dir.path().into());
        (dir, kernel)
    }

    fn check(id: &str, path: &str, cpus: &str) -> Check {
        let wanted = Some(Cpuset { cpus: cpus.into(), mems: "0".into() });
        Check { container_id: id.into(), cgroups_path: path.into(), wanted, others: Wish::default() }
    }

    #[tokio::test]
    async fn a_container_is_corrected_on_both_versions_and_by_both_names() {
        for layout in [Layout::V1, Layout::V2] {
            for path in ["/kubepods/pod1/c", "kubepods-pod1.slice:cri-containerd:c"] {
                let (_dir, kernel) = machine(layout, path);
                let look =
                    kernel.correct(vec![check("c", path, "1")], Some("c".into()), DEADLINE).await.unwrap();
                assert_eq!(look.wrote, ["c"], "{layout:?} {path}");
                let Seen::Files(held) = &look.seen[0].1 else { panic!("{look:?}") };
                assert_eq!((held.cpus.as_str(), held.mems.as_str()), ("1", "0"));
                let again = kernel.correct(vec![check("c", path, "1")], None, DEADLINE).await.unwrap();
                assert!(again.wrote.is_empty());
            }
        }
    }

    #[tokio::test]
    async fn o16_before_it_runs_memory_nodes_are_put_back_where_its_cpus_are_refused() {
        let (dir, kernel) = machine(Layout::V1, "/kubepods/pod1/c");
        let fixture = Fixture::create(dir.path(), Layout::V1).unwrap();
        let path = CgroupPath::new("kubepods/pod1/c").unwrap();
        fixture.cgroup(&path).unwrap();
        fixture.set(Controller::Cpuset, &path, "cpuset.mems", "1\n").unwrap();
        fixture.set(Controller::Cpuset, &path, "cpuset.cpus", "0\n").unwrap();
        fixture.set(Controller::Cpuset, &CgroupPath::default(), "cpuset.cpus", "0\n").unwrap();

        let checks = vec![check("c", "/kubepods/pod1/c", "7")];
        let look = kernel.correct(checks.clone(), Some("c".into()), DEADLINE).await.unwrap();

        let Seen::Files(held) = &look.seen[0].1 else { panic!("{look:?}") };
        assert_eq!((held.cpus.as_str(), held.mems.as_str()), ("0", "1"), "as before");
        assert!(look.wrote.is_empty() && look.whole.is_empty());
        assert!(look.fault.is_some_and(|fault| fault.contains("cpuset.cpus")));
        assert_eq!(look.reports[0].0, "c");
        fixture.set(Controller::Cpuset, &CgroupPath::default(), "cpuset.cpus", "0-7\n").unwrap();
        let look = kernel.correct(checks.clone(), Some("c".into()), DEADLINE).await.unwrap();
        assert_eq!((look.wrote.len(), look.reports.len()), (1, 0));
        assert_eq!(kernel.read(checks, DEADLINE).await.unwrap().whole, ["c"]);
    }

    #[tokio::test]
    async fn reading_writes_nothing_and_a_missing_cgroup_is_gone() {
        let (_dir, kernel) = machine(Layout::V2, "/kubepods/pod1/c");
        let checks = vec![check("c", "/kubepods/pod1/c", "7"), check("d", "/kubepods/pod1/d", "7")];
        let look = kernel.read(checks, DEADLINE).await.unwrap();
        assert!(look.wrote.is_empty());
        assert_eq!(look.seen[1].1, Seen::Gone);
    }

    #[tokio::test]
    async fn a_pod_has_ended_when_its_cgroup_is_gone() {
        for (layout, there, gone) in [
            (Layout::V1, "/kubepods/pod1", "/kubepods/pod2"),
            (Layout::V2, "kubepods-pod1.slice", "kubepods-pod2.slice"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let fixture = Fixture::create(dir.path(), layout).unwrap();
            fixture.cgroup(&CgroupPath::of_parent(there).unwrap().0).unwrap();
            let idle = [there, gone, "-bad-.slice"]
                .map(|parent| Idle { sandbox_id: parent.into(), cgroup_parent: parent.into() });
            let ended = Kernel::new(dir.path().into()).ended(idle.into(), DEADLINE).await.unwrap();
            assert_eq!(ended.into_iter().collect::<Vec<_>>(), [gone], "{layout:?}");
        }
    }

    #[tokio::test]
    async fn no_tree_is_an_error_that_names_the_place() {
        let kernel = Kernel::new("/no/such/root".into());
        let e = kernel.read(vec![check("c", "/c", "0")], DEADLINE).await.unwrap_err();
        assert!(e.to_string().contains("/no/such/root"), "{e}");
    }
}
