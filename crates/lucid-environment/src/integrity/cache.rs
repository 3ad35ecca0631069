//! Hashes of an earlier run, kept in a file that the user asked for.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lucid_root::read_regular;
use serde::{Deserialize, Serialize};

use crate::record::Algorithm;

/// The longest cache file that is read: 40,000 files need 8 MB.
const CACHE_READ: u64 = 512 << 20;

/// A file's identity: if these four are as they were, so is the content. The change time is in it because editors and
/// `touch -r` can restore a modification time, but nobody can set a change time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    inode: (u64, u64),
}

impl Stamp {
    pub(super) fn of(metadata: &fs::Metadata) -> Stamp {
        Stamp {
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            inode: (metadata.dev(), metadata.ino()),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Known {
    stamp: Stamp,
    algorithm: Algorithm,
    digest: Vec<u8>,
}

/// Known hashes by path.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct HashCache {
    files: HashMap<String, Known>,
}

impl HashCache {
    /// Reads a cache; an absent one is empty.
    pub(super) fn read(path: &Path) -> io::Result<HashCache> {
        match read_regular(path, CACHE_READ) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(HashCache::default()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn get(&self, path: &str, stamp: Stamp, algorithm: Algorithm) -> Option<&[u8]> {
        let known = self.files.get(path)?;
        (known.stamp == stamp && known.algorithm == algorithm).then_some(known.digest.as_slice())
    }

    pub(super) fn put(&mut self, path: String, stamp: Stamp, algorithm: Algorithm, digest: Vec<u8>) {
        self.files.insert(path, Known { stamp, algorithm, digest });
    }

    /// Writes the cache beside its place and moves it there, so that an interrupted run leaves the old one.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".part");
        fs::write(&beside, serde_json::to_vec(self)?)?;
        fs::rename(&beside, path)
    }
}
