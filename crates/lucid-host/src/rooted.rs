//! Reads files of a root that isn't ours: a container's `/proc/PID/root`, an unpacked image, or `/`.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// As many links as Linux follows in one path before it gives up with ELOOP.
const MOST_LINKS: usize = 40;

/// A folder that stands for `/` of the patient. Symbolic links are followed inside it only: an absolute link of a container
/// points into the container, not into the host, and `..` never leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    path: PathBuf,
}

impl Root {
    /// The root at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Root {
        Root { path: path.into() }
    }

    /// Where it lies on this machine.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The real place of `inside` (a path as the patient sees it), with every link resolved inside the root.
    ///
    /// # Errors
    /// If a part does not exist or cannot be read, or if links loop.
    pub fn resolve(&self, inside: &Path) -> io::Result<PathBuf> {
        let mut todo: VecDeque<OsString> = parts(inside).collect();
        let mut done: Vec<OsString> = Vec::new();
        let mut links = 0;
        while let Some(part) = todo.pop_front() {
            if part == ".." {
                done.pop();
                continue;
            }
            let here = self.join(&done, Some(&part));
            let about = fs::symlink_metadata(&here)?;
            if !about.file_type().is_symlink() {
                done.push(part);
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(io::Error::other(format!("{}: too many symbolic links", inside.display())));
            }
            let target = fs::read_link(&here)?;
            if target.is_absolute() {
                done.clear();
            }
            for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                todo.push_front(part);
            }
        }
        Ok(self.join(&done, None))
    }

    /// The text of a regular file, at most `limit` bytes of it, other encodings replaced; and whether it was longer.
    ///
    /// # Errors
    /// If it cannot be read, or is no regular file: a pipe or device would block or never end.
    pub fn read_text(&self, inside: &Path, limit: u64) -> io::Result<(String, bool)> {
        let place = self.resolve(inside)?;
        let about = fs::metadata(&place)?;
        if !about.is_file() {
            return Err(io::Error::other(format!("{}: not a regular file", inside.display())));
        }
        let mut bytes = Vec::new();
        fs::File::open(&place)?.take(limit).read_to_end(&mut bytes)?;
        Ok((String::from_utf8_lossy(&bytes).into_owned(), about.len() > limit))
    }

    /// The names in a folder, sorted, at most `most`.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn list(&self, inside: &Path, most: usize) -> io::Result<Vec<OsString>> {
        let mut names: Vec<OsString> = fs::read_dir(self.resolve(inside)?)?
            .take(most)
            .filter_map(|entry| entry.ok().map(|entry| entry.file_name()))
            .collect();
        names.sort();
        Ok(names)
    }

    fn join(&self, done: &[OsString], last: Option<&OsStr>) -> PathBuf {
        let mut path = self.path.clone();
        path.extend(done);
        path.extend(last);
        path
    }
}

/// The named parts of a path; `/` and `.` are none.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_stay_inside() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("models/real")).unwrap();
        fs::write(root.join("models/real/config.json"), "inside").unwrap();
        fs::write(folder.path().join("config.json"), "outside").unwrap();
        symlink("/models/real", root.join("absolute")).unwrap();
        symlink("../../../../config.json", root.join("models/escape")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let root = Root::new(root);
        assert_eq!(root.read_text(Path::new("/absolute/config.json"), 100).unwrap().0, "inside");
        // `..` at the top stays at the top, as in a container: there is no config.json there.
        assert_eq!(root.resolve(Path::new("/models/escape")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(
            root.resolve(Path::new("/loop")).unwrap_err().to_string().contains("too many symbolic links")
        );
        assert_eq!(
            root.read_text(Path::new("models/real/config.json"), 3).unwrap(),
            ("ins".to_owned(), true)
        );
        assert!(root.read_text(Path::new("/models"), 100).is_err());
    }
}
