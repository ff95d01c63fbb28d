//! The kernel's cpuset files, on threads that may block, each look with a deadline.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oxalyst_cgroups::{CgroupPath, CpusetFiles, CpusetState, Hierarchy};
use tokio::sync::Semaphore;

use crate::pinning::difference;
use crate::placements::Cpuset;
use crate::roster::{Check, Seen};

/// Looks at once. A file system that hangs costs this many threads and no more.
const THREADS: usize = 4;

/// The files below one root. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kernel {
    host_root: PathBuf,
    hierarchy: Arc<Mutex<Option<Arc<Hierarchy>>>>,
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
    /// The first file that refused, for the log.
    pub fault: Option<String>,
}

// === impl Kernel ===

impl Kernel {
    /// The files below `<host_root>/sys/fs/cgroup`.
    pub fn new(host_root: PathBuf) -> Self {
        Self { host_root, hierarchy: Arc::default(), threads: Arc::new(Semaphore::new(THREADS)) }
    }

    /// Reads the files of each container.
    ///
    /// # Errors
    /// [`KernelError`] where nothing could be read.
    pub async fn read(&self, checks: Vec<Check>, deadline: Duration) -> Result<Look, KernelError> {
        self.look(checks, deadline, Correct::Nothing).await
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

    async fn look(
        &self,
        checks: Vec<Check>,
        deadline: Duration,
        correct: Correct,
    ) -> Result<Look, KernelError> {
        if checks.is_empty() {
            return Ok(Look::default());
        }
        let late = || KernelError::Late { root: self.host_root.clone(), after: deadline };
        let this = self.clone();
        let work = async move {
            let permit = this.threads.clone().acquire_owned().await.ok();
            tokio::task::spawn_blocking(move || {
                let _permit = permit;
                let hierarchy = this.hierarchy()?;
                Ok(checks.iter().fold(Look::default(), |look, check| look.with(&hierarchy, check, &correct)))
            })
            .await
        };
        match tokio::time::timeout(deadline, work).await {
            Ok(Ok(look)) => look,
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

enum Correct {
    Nothing,
    Cpus { whole: Option<String> },
}

// === impl Look ===

impl Look {
    fn with(mut self, hierarchy: &Hierarchy, check: &Check, correct: &Correct) -> Self {
        let seen = match self.look_at(hierarchy, check, correct) {
            Ok(held) => Seen::Files(held),
            Err(e) if e.is_gone() => Seen::Gone,
            Err(e) => {
                self.fault.get_or_insert_with(|| e.to_string());
                Seen::Unreadable
            }
        };
        self.seen.push((check.container_id.clone(), seen));
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
        let held = held(files.read()?);
        let (Correct::Cpus { whole }, Some(wanted)) = (correct, &check.wanted) else { return Ok(held) };
        let left = difference(Some(&held), wanted);
        let mems = left.mems && whole.as_ref() == Some(&check.container_id);
        if !left.cpus && !mems {
            return Ok(held);
        }
        if mems {
            files.write_mems(&wanted.mems)?;
        }
        if left.cpus {
            files.write_cpus(&wanted.cpus)?;
        }
        self.wrote.push(check.container_id.clone());
        Ok(self::held(files.read()?))
    }
}

/// What a container holds: what was asked for, or, where nothing was (v2), what holds by its parent.
fn held(state: CpusetState) -> Cpuset {
    let or = |asked: String, effective: Option<String>| match asked.is_empty() {
        true => effective.unwrap_or_default(),
        false => asked,
    };
    Cpuset { cpus: or(state.cpus, state.effective_cpus), mems: or(state.mems, state.effective_mems) }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        Check { container_id: id.into(), cgroups_path: path.into(), wanted }
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
    async fn reading_writes_nothing_and_a_missing_cgroup_is_gone() {
        let (_dir, kernel) = machine(Layout::V2, "/kubepods/pod1/c");
        let checks = vec![check("c", "/kubepods/pod1/c", "7"), check("d", "/kubepods/pod1/d", "7")];
        let look = kernel.read(checks, DEADLINE).await.unwrap();
        assert!(look.wrote.is_empty());
        assert_eq!(look.seen[1].1, Seen::Gone);
    }

    #[tokio::test]
    async fn no_tree_is_an_error_that_names_the_place() {
        let kernel = Kernel::new("/no/such/root".into());
        let e = kernel.read(vec![check("c", "/c", "0")], DEADLINE).await.unwrap_err();
        assert!(e.to_string().contains("/no/such/root"), "{e}");
    }
}
