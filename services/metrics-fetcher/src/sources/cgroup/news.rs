//! The kernel's own word that something came or went in a folder.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Room for some dozen events; what does not fit is read next.
const ROOM: usize = 4096;

/// One inotify instance for all folders. A folder that is removed is forgotten by the kernel itself.
#[derive(Debug)]
pub(super) struct News(Option<OwnedFd>);

// === impl News ===

impl News {
    /// Watches nothing yet. Where there is no instance left every [`News::watch`] says so.
    pub(super) fn new() -> Self {
        let instance = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        if let Err(error) = &instance {
            tracing::info!(%error, "no inotify: every folder is looked at in every pass (fs.inotify.max_user_instances)");
        }
        Self(instance.ok())
    }

    /// Watches a folder from now on; false if it cannot be watched. Watching one twice is once.
    pub(super) fn watch(&self, folder: &Path) -> bool {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        self.0.as_ref().is_some_and(|instance| inotify::add_watch(instance, folder, flags).is_ok())
    }

    /// Whether anything happened since it was asked last.
    pub(super) fn any(&self) -> bool {
        let Some(instance) = &self.0 else { return false };
        let mut room = [MaybeUninit::uninit(); ROOM];
        let mut reader = Reader::new(instance, &mut room);
        let mut happened = false;
        loop {
            match reader.next() {
                // Said of a folder whose removal was told already.
                Ok(event) if event.events() == ReadFlags::IGNORED => {}
                Ok(_) => happened = true,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return happened,
                // Whatever else it is: rather one walk too many.
                Err(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let news = News::new();
        assert!(news.watch(dir.path()) && !news.any());
        std::fs::create_dir(dir.path().join("pod")).unwrap();
        assert!(news.any());
        assert!(!news.any());
        std::fs::remove_dir(dir.path().join("pod")).unwrap();
        assert!(news.any());
        assert!(!news.watch(&dir.path().join("nothing")));
        assert!(!News(None).watch(dir.path()));
    }
}
