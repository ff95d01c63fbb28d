//! Everything but CPUs and memory nodes: compared with the kernel's files, and written directly.

use std::path::PathBuf;

use oxalyst_cgroups::{CgroupPath, Controller, Hierarchy, read_text, write_text};

use super::Look;
use crate::adjustment::{FileWrite, Target, writes};
use crate::roster::Check;

/// Processes of one container whose files are written.
const PROCESSES: usize = 4_096;

impl Look {
    /// Notes what the container lacks; writes it where `write`. Gives whether there was nothing to write.
    pub(super) fn others(
        &mut self,
        hierarchy: &Hierarchy,
        path: &CgroupPath,
        check: &Check,
        write: bool,
    ) -> bool {
        if check.others.is_empty() {
            return true;
        }
        let files = Files { hierarchy, path };
        let plan = writes(&check.others, hierarchy.is_unified(), &|target, file| files.read(target, file));
        let id = &check.container_id;
        self.reports.extend(plan.reports.into_iter().map(|report| (id.clone(), report)));
        if plan.writes.is_empty() {
            return true;
        }
        if !write {
            self.unheld.push(id.clone());
            return false;
        }
        let refused: Vec<_> = plan.writes.iter().filter_map(|write| files.write(write).err()).collect();
        let wrote = refused.len() < plan.writes.len();
        self.reports.extend(refused.into_iter().map(|e| (id.clone(), e.to_string())));
        if wrote {
            self.wrote.push(id.clone());
        }
        false
    }
}

/// The files of one container.
struct Files<'a> {
    hierarchy: &'a Hierarchy,
    path: &'a CgroupPath,
}

// === impl Files ===

impl Files<'_> {
    fn read(&self, target: Target, file: &str) -> Option<String> {
        match target {
            Target::Cgroup(controller) => {
                read_text(&self.hierarchy.dir(controller, self.path).ok()?.join(file)).ok()
            }
            // One that differs is what has to be seen; else the first one's.
            Target::Processes => {
                let mut texts: Vec<_> =
                    self.processes(file).iter().filter_map(|at| read_text(at).ok()).collect();
                texts.dedup();
                match texts.as_slice() {
                    [one] => Some(one.clone()),
                    [] => None,
                    _ => Some(String::new()),
                }
            }
        }
    }

    fn write(&self, write: &FileWrite) -> Result<(), oxalyst_cgroups::Error> {
        match write.target {
            Target::Cgroup(controller) => {
                write_text(&self.hierarchy.dir(controller, self.path)?.join(&write.file), &write.text)
            }
            Target::Processes => {
                for at in self.processes(&write.file) {
                    match write_text(&at, &write.text) {
                        // It has ended meanwhile.
                        Err(e) if e.is_gone() => {}
                        outcome => outcome?,
                    }
                }
                Ok(())
            }
        }
    }

    /// `/proc/PID/<file>` of each process.
    fn processes(&self, file: &str) -> Vec<PathBuf> {
        let Ok(dir) = self.hierarchy.dir(Controller::Memory, self.path) else { return Vec::new() };
        let Ok(pids) = read_text(&dir.join("cgroup.procs")) else { return Vec::new() };
        let Some(proc) = self.hierarchy.root().ancestors().nth(3).map(|host| host.join("proc")) else {
            return Vec::new();
        };
        pids.lines().take(PROCESSES).map(|pid| proc.join(pid.trim()).join(file)).collect()
    }
}
