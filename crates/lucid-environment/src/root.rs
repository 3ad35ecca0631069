//! Paths of the patient, which may live in another root: a container's, or an unpacked image.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// As many symbolic links as Linux follows in one path.
const LINKS_FOLLOWED: usize = 40;

/// The patient's file system: `/`, `/proc/PID/root`, or a folder that holds an image.
///
/// Symbolic links are followed as the patient would follow them, so an absolute link in a container stays in the container.
#[derive(Clone, Debug)]
pub struct Root {
    host: PathBuf,
}

impl Root {
    /// The root at `host`. It is not canonicalized: `/proc/PID/root` is a link whose text says `/`.
    #[must_use]
    pub fn new(host: &Path) -> Root {
        let host = std::path::absolute(host).unwrap_or_else(|_| host.to_owned());
        Root { host }
    }

    /// Whether the patient's file system is this machine's own.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.host == Path::new("/")
    }

    /// The path as the patient says it: absolute, without the root, `.` and `..`.
    #[must_use]
    pub fn inside(&self, path: &Path) -> PathBuf {
        let relative = path.strip_prefix(&self.host).unwrap_or(path);
        let path = if self.is_host() && path.is_relative() {
            std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
        } else {
            Path::new("/").join(relative)
        };
        lexical(&path)
    }

    /// Where a path of the patient's lies on this machine, all symbolic links followed inside the root.
    ///
    /// # Errors
    ///
    /// More than 40 links, which is a loop, or a link that cannot be read. A path that does not exist is no error.
    pub fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let mut pending: VecDeque<PathBuf> = parts(&self.inside(path));
        let mut reached: Vec<PathBuf> = Vec::new();
        let mut links = 0;
        while let Some(part) = pending.pop_front() {
            if part == Path::new("..") {
                reached.pop();
                continue;
            }
            reached.push(part);
            let here = self.on_host(&reached);
            let Ok(metadata) = fs::symlink_metadata(&here) else { continue };
            if !metadata.file_type().is_symlink() {
                continue;
            }
            links += 1;
            if links > LINKS_FOLLOWED {
                return Err(io::Error::other(format!("{}: too many symbolic links", path.display())));
            }
            let target = fs::read_link(&here)?;
            reached.pop();
            if target.is_absolute() {
                reached.clear();
            }
            for part in parts(&target).into_iter().rev() {
                pending.push_front(part);
            }
        }
        Ok(self.on_host(&reached))
    }

    /// Whether the patient has a folder there.
    #[must_use]
    pub fn is_dir(&self, path: &Path) -> bool {
        self.resolve(path).is_ok_and(|path| path.is_dir())
    }

    /// Whether the patient has a regular file there.
    #[must_use]
    pub fn is_file(&self, path: &Path) -> bool {
        self.resolve(path).is_ok_and(|path| path.is_file())
    }

    /// Reads a regular file of the patient's, at most `limit` bytes of it; whether more was there is told by the length.
    ///
    /// # Errors
    ///
    /// It cannot be opened or read, or is no regular file (a pipe would block for ever).
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        read_regular(&self.resolve(path)?, limit)
    }

    /// As [`Root::read`], with bytes that are no UTF-8 replaced.
    ///
    /// # Errors
    ///
    /// As [`Root::read`].
    pub fn read_text(&self, path: &Path, limit: u64) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.read(path, limit)?).into_owned())
    }

    /// Names in a folder of the patient's, sorted; an unreadable or absent folder has none.
    #[must_use]
    pub fn names(&self, path: &Path) -> Vec<String> {
        let Ok(path) = self.resolve(path) else { return Vec::new() };
        let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    fn on_host(&self, reached: &[PathBuf]) -> PathBuf {
        let mut path = self.host.clone();
        path.extend(reached);
        path
    }
}

/// Reads at most `limit` bytes of a regular file on this machine.
pub(crate) fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    use std::io::Read;
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other(format!("{}: no regular file", path.display())));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A path without `.` and `..`, as text alone; `..` above the start is dropped.
pub(crate) fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

fn parts(path: &Path) -> VecDeque<PathBuf> {
    path.components()
        .filter(|component| matches!(component, Component::Normal(_) | Component::ParentDir))
        .map(|component| PathBuf::from(component.as_os_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_stay_in_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        fs::create_dir_all(folder.path().join("etc")).unwrap();
        fs::write(folder.path().join("etc/name"), "patient").unwrap();
        symlink("/etc/name", folder.path().join("absolute")).unwrap();
        symlink("../../../../../../etc/name", folder.path().join("escaping")).unwrap();
        for name in ["/absolute", "/escaping", "/etc/../etc/name"] {
            assert_eq!(root.read_text(Path::new(name), 100).unwrap(), "patient");
        }
    }

    #[test]
    fn a_loop_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        symlink("b", folder.path().join("a")).unwrap();
        symlink("a", folder.path().join("b")).unwrap();
        let error = Root::new(folder.path()).resolve(Path::new("/a")).unwrap_err();
        assert!(error.to_string().contains("too many symbolic links"), "{error}");
    }

    #[test]
    fn a_host_path_below_the_root_is_taken_too() {
        let root = Root::new(Path::new("/images/one"));
        assert_eq!(root.inside(Path::new("/images/one/opt/venv")), Path::new("/opt/venv"));
        assert_eq!(root.inside(Path::new("/opt/venv/../x")), Path::new("/opt/x"));
    }
}
