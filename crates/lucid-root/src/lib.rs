//! A file system that belongs to somebody else: a container's, an unpacked image, a mounted disk, or this machine's own.
//!
//! Paths and symbolic links are followed as the patient would follow them, and never out of its root; reads are bounded.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// As many links as Linux follows in one path before it says ELOOP.
const LINKS: usize = 40;
/// Names taken of a folder at the most: ten times the fullest kernel cache that was met.
const NAMES: usize = 1_000_000;

/// The patient's `/`: this machine's own, `/proc/PID/root`, or the folder that holds an image.
///
/// An absolute link of a container's leads into the container, not to this machine's file of that name, and `..` stops at the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    host: PathBuf,
}

impl Root {
    /// The root at `host`. It is not canonicalized: `/proc/PID/root` is a link whose text says `/`.
    #[must_use]
    pub fn new(host: impl AsRef<Path>) -> Root {
        let host = host.as_ref();
        Root { host: std::path::absolute(host).unwrap_or_else(|_| host.to_owned()) }
    }

    /// Where it lies on this machine.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.host
    }

    /// Whether the patient's file system is this machine's own.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.host == Path::new("/")
    }

    /// The path as the patient says it: absolute, without the root, `.` and `..`. Takes the patient's own paths, and paths here
    /// that lead into the root.
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

    /// Where a path of the patient's lies on this machine, all links followed inside the root. A path that does not exist is no
    /// error: whoever opens it learns that.
    ///
    /// # Errors
    /// More than 40 links, which is a loop; a folder or link that cannot be read.
    pub fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let path = path.strip_prefix(&self.host).unwrap_or(path);
        let mut pending: VecDeque<OsString> = parts(path).collect();
        let mut place = self.host.clone();
        // Parts of `place` below the root: none of them is a link.
        let mut depth = 0;
        let mut links = 0;
        while let Some(part) = pending.pop_front() {
            if part == ".." {
                if depth > 0 {
                    place.pop();
                    depth -= 1;
                }
                continue;
            }
            place.push(part);
            depth += 1;
            match fs::symlink_metadata(&place) {
                Ok(about) if about.file_type().is_symlink() => {}
                Ok(_) => continue,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            }
            links += 1;
            if links > LINKS {
                let text = format!("{}: too many symbolic links (more than {LINKS}): a loop", path.display());
                return Err(io::Error::other(text));
            }
            let target = fs::read_link(&place)?;
            place.pop();
            depth -= 1;
            if target.is_absolute() {
                place.clone_from(&self.host);
                depth = 0;
            }
            for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                pending.push_front(part);
            }
        }
        Ok(place)
    }

    /// As [`Root::resolve`], of what exists.
    ///
    /// # Errors
    /// As [`Root::resolve`], and if nothing is there.
    pub fn existing(&self, path: &Path) -> io::Result<PathBuf> {
        let place = self.resolve(path)?;
        fs::symlink_metadata(&place)?;
        Ok(place)
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

    /// Reads a regular file of the patient's, at most `limit` bytes of it; the length tells whether that is all it may be.
    ///
    /// # Errors
    /// It cannot be opened or read, or is no regular file: a pipe would block for ever, a device never end.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        read_regular(&self.resolve(path)?, limit)
    }

    /// As [`Root::read`], with bytes that are no UTF-8 replaced.
    ///
    /// # Errors
    /// As [`Root::read`].
    pub fn read_text(&self, path: &Path, limit: u64) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.read(path, limit)?).into_owned())
    }

    /// As [`Root::read_text`], and whether the file goes on.
    ///
    /// # Errors
    /// As [`Root::read`].
    pub fn read_start(&self, path: &Path, limit: u64) -> io::Result<(String, bool)> {
        let mut bytes = self.read(path, limit.saturating_add(1))?;
        let longer = bytes.len() as u64 > limit;
        bytes.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok((String::from_utf8_lossy(&bytes).into_owned(), longer))
    }

    /// The names in a folder, sorted; of more than `most`, any that many.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self, path: &Path, most: usize) -> io::Result<Vec<OsString>> {
        let entries = fs::read_dir(self.resolve(path)?)?.take(most);
        let mut names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// As [`Root::list`], for showing; an unreadable or absent folder has no names.
    #[must_use]
    pub fn names(&self, path: &Path) -> Vec<String> {
        let names = self.list(path, NAMES).unwrap_or_default();
        names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect()
    }
}

/// Reads at most `limit` bytes of a regular file on this machine.
///
/// # Errors
/// As [`Root::read`].
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = fs::metadata(path)?;
    if !file.is_file() {
        return Err(io::Error::other(format!("{}: not a regular file", path.display())));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A path without `.` and `..`, as text alone; `..` above the start is dropped.
#[must_use]
pub fn lexical(path: &Path) -> PathBuf {
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

/// The named parts of a path; `/` and `.` are none.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}
