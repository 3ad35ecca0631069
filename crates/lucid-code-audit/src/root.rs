//! A file tree that belongs to somebody else: paths in it are resolved as if it were `/`.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Links followed in one path before it counts as a loop, as in Linux.
const LINKS: usize = 40;

/// The root of the patient's file tree: `/`, `/proc/PID/root`, or the folder of an unpacked image.
#[derive(Clone, Debug)]
pub struct Root {
    path: PathBuf,
}

/// Why a path of the patient's could not be followed.
#[derive(Debug, thiserror::Error)]
pub enum Unresolved {
    /// More than 40 symbolic links.
    #[error("{0}: more than {LINKS} symbolic links, a loop")]
    Loop(PathBuf),
    /// The system said no.
    #[error("{path}: {error}")]
    Io {
        /// The path as the patient sees it.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl Root {
    /// The tree under `path`.
    #[must_use]
    pub fn new(path: &Path) -> Root {
        Root { path: path.to_path_buf() }
    }

    /// Where a path of the patient's (absolute in its own view) lies here, with every symbolic link followed *inside* the root:
    /// an absolute link of a container's does not lead to the host's file of that name, and `..` stops at the root.
    ///
    /// # Errors
    /// A loop of links, or a folder that can't be read. A missing last component is no error: the caller's open says so.
    pub fn resolve(&self, patient: &Path) -> Result<PathBuf, Unresolved> {
        let mut todo: Vec<PathComponent> = components(patient);
        todo.reverse();
        let mut done: Vec<std::ffi::OsString> = Vec::new();
        let mut links = 0;
        while let Some(component) = todo.pop() {
            let name = match component {
                PathComponent::Up => {
                    done.pop();
                    continue;
                }
                PathComponent::Name(name) => name,
            };
            done.push(name);
            let here = self.join(&done);
            let is_link = match here.symlink_metadata() {
                Ok(metadata) => metadata.file_type().is_symlink(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => false,
                Err(error) => return Err(Unresolved::Io { path: patient.to_path_buf(), error }),
            };
            if !is_link {
                continue;
            }
            links += 1;
            if links > LINKS {
                return Err(Unresolved::Loop(patient.to_path_buf()));
            }
            let target =
                here.read_link().map_err(|error| Unresolved::Io { path: patient.to_path_buf(), error })?;
            done.pop();
            if target.is_absolute() {
                done.clear();
            }
            let mut behind = components(&target);
            behind.reverse();
            todo.extend(behind);
        }
        Ok(self.join(&done))
    }

    /// The patient's own name of a path here.
    #[must_use]
    pub fn patient_path(&self, here: &Path) -> PathBuf {
        match here.strip_prefix(&self.path) {
            Ok(inside) => Path::new("/").join(inside),
            Err(_) => here.to_path_buf(),
        }
    }

    /// A path given by a person: the patient's own name, or one that already begins with the root.
    #[must_use]
    pub fn as_patient_path(&self, given: &Path) -> PathBuf {
        if self.path == Path::new("/") { given.to_path_buf() } else { self.patient_path(given) }
    }

    fn join(&self, names: &[std::ffi::OsString]) -> PathBuf {
        let mut path = self.path.clone();
        path.extend(names);
        path
    }
}

enum PathComponent {
    Name(std::ffi::OsString),
    Up,
}

fn components(path: &Path) -> Vec<PathComponent> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(PathComponent::Name(name.to_owned())),
            Component::ParentDir => Some(PathComponent::Up),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_never_leave_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("usr/lib")).unwrap();
        std::fs::write(root.join("usr/lib/real.py"), "x = 1").unwrap();
        symlink("/usr/lib/real.py", root.join("absolute.py")).unwrap();
        symlink("../../../../../../etc/passwd", root.join("usr/escape.py")).unwrap();
        symlink("loop_b", root.join("loop_a")).unwrap();
        symlink("loop_a", root.join("loop_b")).unwrap();
        let tree = Root::new(root);
        assert_eq!(tree.resolve(Path::new("/absolute.py")).unwrap(), root.join("usr/lib/real.py"));
        assert_eq!(tree.resolve(Path::new("/usr/escape.py")).unwrap(), root.join("etc/passwd"));
        assert!(matches!(tree.resolve(Path::new("/loop_a")), Err(Unresolved::Loop(_))));
        assert_eq!(tree.as_patient_path(&root.join("usr/lib")), Path::new("/usr/lib"));
        assert_eq!(tree.as_patient_path(Path::new("/usr/lib")), Path::new("/usr/lib"));
    }
}
