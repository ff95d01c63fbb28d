//! What containers can have of the CPUs at most, and whether they are paused, read when somebody asks.

use std::time::Duration;

use oxalyst_cgroups::{Attainable, CgroupPath, is_frozen};

use super::{Kernel, KernelError};

impl Kernel {
    /// Reads both of each of these cgroups, by the runtime's names for them; one that is not there tells nothing.
    ///
    /// # Errors
    /// [`KernelError`] where nothing could be read.
    pub async fn attainable(
        &self,
        cgroups_paths: Vec<String>,
        deadline: Duration,
    ) -> Result<Vec<(Attainable, Option<bool>)>, KernelError> {
        if cgroups_paths.is_empty() {
            return Ok(Vec::new());
        }
        self.work(deadline, move |hierarchy| {
            let path = |name: &String| CgroupPath::of_container(name).ok();
            let read = |name| {
                let (path, _driver) = path(name)?;
                Some((Attainable::read(hierarchy, &path), is_frozen(hierarchy, &path)))
            };
            cgroups_paths.iter().map(|name| read(name).unwrap_or_default()).collect()
        })
        .await
    }
}
