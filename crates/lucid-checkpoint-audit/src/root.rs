//! Paths below a root: a container's files are read with its own links, and no link leads out of it.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The most links on the way to a file, as in Linux.
const MAX_LINKS: usize = 40;

/// The place of `path` (as the processes inside see it) below `root`, links followed. Absolute links begin at the root
/// again and `..` never leaves it, as after `chroot`.
pub(crate) fn resolve(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut todo: Vec<OsString> = parts(path);
    // Below the root; its parts hold no link.
    let mut done: Vec<OsString> = Vec::new();
    let mut links = 0;
    while let Some(part) = todo.pop() {
        if part == ".." {
            done.pop();
            continue;
        }
        done.push(part);
        let here = join(root, &done);
        let Ok(target) = std::fs::read_link(&here) else { continue };
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::other(format!("{}: more than {MAX_LINKS} links", path.display())));
        }
        done.pop();
        if target.is_absolute() {
            done.clear();
        }
        todo.extend(parts(&target));
    }
    Ok(join(root, &done))
}

/// The last part first; `.` and the leading `/` left out.
fn parts(path: &Path) -> Vec<OsString> {
    let part = |component| match component {
        Component::Normal(part) => Some(part.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    };
    path.components().rev().filter_map(part).collect()
}

fn join(root: &Path, parts: &[OsString]) -> PathBuf {
    let mut path = root.to_owned();
    path.extend(parts);
    path
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_stay_below_the_root() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        std::fs::create_dir_all(root.join("models/blobs")).unwrap();
        std::fs::write(root.join("models/blobs/abc"), "x").unwrap();
        symlink("/models/blobs/abc", root.join("models/absolute")).unwrap();
        symlink("blobs/abc", root.join("models/relative")).unwrap();
        symlink("../../../../../etc/passwd", root.join("models/escape")).unwrap();
        symlink("loop", root.join("models/loop")).unwrap();
        let at = |name: &str| resolve(root, &Path::new("/models").join(name));
        assert_eq!(at("absolute").unwrap(), root.join("models/blobs/abc"));
        assert_eq!(at("relative").unwrap(), root.join("models/blobs/abc"));
        assert_eq!(at("escape").unwrap(), root.join("etc/passwd"));
        assert!(at("loop").is_err());
    }
}
