use std::fmt;
use std::path::{Path, PathBuf};

/// A cgroup relative to the root of a hierarchy: `kubepods/burstable/pod1/abc`, never with a leading slash, never
/// with `.` or `..`. The root itself is the empty path.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupPath(String);

/// Who lays out the tree: the runtime itself, or systemd by slices and scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Driver {
    /// Plain directories.
    Cgroupfs,
    /// Nested slices; a container is a scope.
    Systemd,
}

/// A name that cannot be a cgroup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// A component would leave the hierarchy.
    #[error("cgroup path {given:?} leaves its hierarchy: `..` is not allowed")]
    Escapes {
        /// As it came.
        given: String,
    },
    /// Systemd notation that is not `slice:prefix:name`.
    #[error("cgroup path {given:?} is not of the form slice:prefix:name with a slice that ends in .slice")]
    Systemd {
        /// As it came.
        given: String,
    },
    /// A slice with an empty part, which systemd refuses too.
    #[error("slice {given:?} has an empty part or holds a slash")]
    Slice {
        /// As it came.
        given: String,
    },
    /// Nothing was told.
    #[error("empty cgroup path")]
    Empty,
}

// === impl CgroupPath ===

impl CgroupPath {
    /// A plain path, with or without a leading slash; doubled slashes and `.` vanish.
    ///
    /// # Errors
    /// [`PathError::Escapes`] for `..` or a NUL byte.
    pub fn new(given: &str) -> Result<Self, PathError> {
        let mut path = String::with_capacity(given.len());
        for part in given.split('/').filter(|p| !p.is_empty() && *p != ".") {
            if part == ".." || part.contains('\0') {
                return Err(PathError::Escapes { given: given.to_owned() });
            }
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(part);
        }
        Ok(Self(path))
    }

    /// Where a container lies, from `linux.cgroupsPath` of its OCI spec, and by which driver.
    ///
    /// `/kubepods/burstable/pod1/abc` is itself. `kubepods-burstable-pod1.slice:cri-containerd:abc` becomes
    /// `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-abc.scope`: every dash
    /// of a slice's name is a level, and an empty slice means `system.slice` (systemd.slice(5); runc's systemd driver).
    ///
    /// # Errors
    /// [`PathError`], if nothing was told or the name cannot be a cgroup.
    pub fn of_container(cgroups_path: &str) -> Result<(Self, Driver), PathError> {
        if cgroups_path.is_empty() {
            return Err(PathError::Empty);
        }
        let mut parts = cgroups_path.split(':');
        let (slice, prefix, name) = (parts.next(), parts.next(), parts.next());
        match (slice, prefix, name, parts.next()) {
            (Some(slice), Some(prefix), Some(name), None)
                if !name.is_empty() && !cgroups_path.starts_with('/') =>
            {
                let slice = if slice.is_empty() { "system.slice" } else { slice };
                if !slice.ends_with(".slice") || [prefix, name].iter().any(|p| p.contains('/')) {
                    return Err(PathError::Systemd { given: cgroups_path.to_owned() });
                }
                let unit = match (name.ends_with(".slice"), prefix) {
                    (true, _) => name.to_owned(),
                    (false, "") => format!("{name}.scope"),
                    (false, prefix) => format!("{prefix}-{name}.scope"),
                };
                Ok((Self::of_slice(slice)?.join(&unit)?, Driver::Systemd))
            }
            _ if cgroups_path.contains(':') && !cgroups_path.starts_with('/') => {
                Err(PathError::Systemd { given: cgroups_path.to_owned() })
            }
            _ => Ok((Self::new(cgroups_path)?, Driver::Cgroupfs)),
        }
    }

    /// Where a pod lies, from the cgroup parent that the kubelet tells the runtime: a path, or the name of a slice.
    ///
    /// # Errors
    /// [`PathError`], as [`CgroupPath::of_container`].
    pub fn of_parent(cgroup_parent: &str) -> Result<(Self, Driver), PathError> {
        let last = cgroup_parent.rsplit('/').find(|p| !p.is_empty()).ok_or(PathError::Empty)?;
        // A path that already spells the slices out is one that the kubelet gives to CRI-O.
        if last.ends_with(".slice") && !cgroup_parent.trim_start_matches('/').contains('/') {
            return Ok((Self::of_slice(last)?, Driver::Systemd));
        }
        let driver = if last.ends_with(".slice") { Driver::Systemd } else { Driver::Cgroupfs };
        Ok((Self::new(cgroup_parent)?, driver))
    }

    /// The nested path of a slice: `a-b.slice` is `a.slice/a-b.slice`; `-.slice` is the root.
    ///
    /// # Errors
    /// [`PathError::Slice`] for a name that systemd would not take.
    pub fn of_slice(name: &str) -> Result<Self, PathError> {
        let bad = || PathError::Slice { given: name.to_owned() };
        let stem = name.strip_suffix(".slice").ok_or_else(bad)?;
        if stem == "-" {
            return Ok(Self::default());
        }
        if stem.contains(['/', '\0']) || stem.split('-').any(str::is_empty) {
            return Err(bad());
        }
        let mut path = String::new();
        for (end, _) in stem.match_indices('-').chain([(stem.len(), "")]) {
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(stem.get(..end).unwrap_or(stem));
            path.push_str(".slice");
        }
        Ok(Self(path))
    }

    /// A cgroup below this one.
    ///
    /// # Errors
    /// [`PathError::Escapes`], as [`CgroupPath::new`].
    pub fn join(&self, below: &str) -> Result<Self, PathError> {
        Self::new(&format!("{}/{below}", self.0))
    }

    /// Where it lies below the root of a hierarchy.
    pub fn under(&self, root: &Path) -> PathBuf {
        if self.0.is_empty() { root.to_path_buf() } else { root.join(&self.0) }
    }

    /// Without a leading slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CgroupPath {
    /// With a leading slash, as the kernel writes it in `/proc/PID/cgroup`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_both_drivers_have_their_place() {
        let table = [
            ("/kubepods/burstable/pod1/abc", "kubepods/burstable/pod1/abc", Driver::Cgroupfs),
            ("kubepods//./pod1/abc/", "kubepods/pod1/abc", Driver::Cgroupfs),
            (
                "kubepods-burstable-pod12_34.slice:cri-containerd:abc",
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice/cri-containerd-abc.scope",
                Driver::Systemd,
            ),
            (
                "kubepods-pod1.slice:crio:abc",
                "kubepods.slice/kubepods-pod1.slice/crio-abc.scope",
                Driver::Systemd,
            ),
            (":docker:abc", "system.slice/docker-abc.scope", Driver::Systemd),
            ("-.slice::abc", "abc.scope", Driver::Systemd),
            ("a.slice:x:b.slice", "a.slice/b.slice", Driver::Systemd),
            ("/k8s.io/a:b:c", "k8s.io/a:b:c", Driver::Cgroupfs),
        ];
        for (given, path, driver) in table {
            let (found, by) = CgroupPath::of_container(given).unwrap();
            assert_eq!((found.as_str(), by), (path, driver), "{given}");
        }
    }

    #[test]
    fn names_that_are_no_cgroup_are_refused() {
        for given in [
            "",
            "/a/../b",
            "a:b",
            "a.slice:b:",
            "notaslice:b:c",
            "a--b.slice:x:y",
            "a.slice:x/..:y",
            "a:b:c:d",
        ] {
            assert!(CgroupPath::of_container(given).is_err(), "{given}");
        }
    }

    #[test]
    fn pods_of_both_drivers_have_their_place() {
        let table = [
            ("/kubepods/burstable/pod1", "kubepods/burstable/pod1"),
            ("kubepods-pod1.slice", "kubepods.slice/kubepods-pod1.slice"),
            ("/kubepods.slice/kubepods-pod1.slice", "kubepods.slice/kubepods-pod1.slice"),
        ];
        for (given, path) in table {
            assert_eq!(CgroupPath::of_parent(given).unwrap().0.as_str(), path, "{given}");
        }
        assert_eq!(CgroupPath::of_parent("/"), Err(PathError::Empty));
    }

    proptest::proptest! {
        #[test]
        fn no_name_leaves_the_hierarchy(given in "[a-z./:-]{0,40}(\\.slice)?(:[a-z/.]{0,8}:[a-z/.]{0,8})?") {
            for path in [CgroupPath::of_container(&given), CgroupPath::of_parent(&given)].into_iter().flatten() {
                let path = path.0;
                proptest::prop_assert!(!path.as_str().starts_with('/'));
                proptest::prop_assert!(path.as_str().split('/').all(|p| p != ".."));
            }
        }
    }
}
