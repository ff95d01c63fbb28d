//! The object as YAML in a file, replaced as a whole: a reader sees the old one or the new one, never a part.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use oxalyst_kube_types::CustomNodeResource;

use super::PublishError;

/// A file that holds the object.
#[derive(Debug, Clone)]
pub struct YamlFile {
    path: PathBuf,
}

// === impl YamlFile ===

impl YamlFile {
    /// Nothing is written yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the object unless the file holds it already.
    pub(crate) async fn write(&self, object: &CustomNodeResource) -> Result<bool, PublishError> {
        let text = self.text(object)?;
        let path = self.path.clone();
        blocking(&self.path, "write", move || {
            if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
                return Ok(false);
            }
            replace(&path, text.as_bytes()).map(|()| true)
        })
        .await
    }

    /// Whether the file holds just this object.
    pub(crate) async fn holds(&self, object: &CustomNodeResource) -> Result<bool, PublishError> {
        let text = self.text(object)?;
        let path = self.path.clone();
        // A file that cannot be read is one to be written again.
        blocking(&self.path, "read", move || Ok(std::fs::read_to_string(&path).is_ok_and(|old| old == text)))
            .await
    }

    fn text(&self, object: &CustomNodeResource) -> Result<String, PublishError> {
        serde_yaml_ng::to_string(object).map_err(|e| PublishError::File {
            doing: "write as YAML",
            path: self.path.clone(),
            what: e.to_string(),
        })
    }
}

/// Disks can hang; the one thread that serves must not.
async fn blocking<T: Send + 'static>(
    path: &Path,
    doing: &'static str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, PublishError> {
    let fault = |what: String| PublishError::File { doing, path: path.to_owned(), what };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|e| fault(e.to_string())),
        Err(e) => Err(fault(e.to_string())),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let written = (|| {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        std::fs::rename(&beside, path)
    })();
    if written.is_err() {
        // Best effort: the first fault is the one to tell.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use oxalyst_kube_types::CustomNodeResourceSpec;

    use super::*;

    fn object(name: &str) -> CustomNodeResource {
        CustomNodeResource::new(name, CustomNodeResourceSpec::default(), None)
    }

    #[tokio::test]
    async fn a_file_is_written_once_for_each_change_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = YamlFile::new(folder.path().join("kcnr.yaml"));
        assert!(!file.holds(&object("a")).await.unwrap());
        assert!(file.write(&object("a")).await.unwrap());
        assert!(!file.write(&object("a")).await.unwrap());
        assert!(file.holds(&object("a")).await.unwrap());
        assert!(file.write(&object("b")).await.unwrap());
        let read: CustomNodeResource =
            serde_yaml_ng::from_str(&std::fs::read_to_string(file.path()).unwrap()).unwrap();
        assert_eq!(read, object("b"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_replaced_is_named_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kcnr.yaml");
        std::fs::create_dir_all(path.join("in-the-way")).unwrap();
        let text = YamlFile::new(path.clone()).write(&object("a")).await.unwrap_err().to_string();
        assert!(text.contains("kcnr.yaml") && !text.contains('\n'), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
