//! Where a model's files are.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Bytes, Error};

/// Where a model's files are: a folder, or compiled into the binary (so that the built-in model needs no file at all).
#[derive(Clone, Debug)]
pub enum Files {
    /// A folder as Hugging Face lays it out. Files in folders below it are not looked at.
    Folder(PathBuf),
    /// Files inside the binary.
    Bundled {
        /// The model's name, for messages.
        name: &'static str,
        /// File names and contents.
        files: &'static [(&'static str, &'static [u8])],
    },
}

impl Files {
    /// The files in a folder.
    ///
    /// # Errors
    /// When `path` does not exist, is not a folder, or may not be listed.
    pub fn open(path: &Path) -> Result<Files, Error> {
        let io = |cause| Error::Io { location: path.display().to_string(), cause };
        if !fs::metadata(path).map_err(io)?.is_dir() {
            return Err(Error::NotAFolder { location: path.display().to_string() });
        }
        fs::read_dir(path).map_err(io)?;
        Ok(Files::Folder(path.to_owned()))
    }

    /// The names of all files, sorted. A name that is not Unicode is left out: no checkpoint file has one.
    ///
    /// # Errors
    /// When the folder can't be listed.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        let mut names = match self {
            Files::Bundled { files, .. } => files.iter().map(|(name, _)| (*name).to_owned()).collect(),
            Files::Folder(folder) => {
                let io = |cause| Error::Io { location: folder.display().to_string(), cause };
                let mut names = Vec::new();
                for entry in fs::read_dir(folder).map_err(io)? {
                    let entry = entry.map_err(io)?;
                    // Not `entry.file_type()`: the Hugging Face cache is made of symbolic links.
                    if !entry.path().is_dir()
                        && let Ok(name) = entry.file_name().into_string()
                    {
                        names.push(name);
                    }
                }
                names
            }
        };
        names.sort_unstable();
        Ok(names)
    }

    /// The contents of one file: memory-mapped or part of the binary. `None` when there is no such file.
    ///
    /// # Errors
    /// When `name` has path separators, or the file is there but can't be read.
    pub fn find(&self, name: &str) -> Result<Option<Bytes>, Error> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']) {
            return Err(Error::FileName { name: name.to_owned() });
        }
        match self {
            Files::Bundled { files, .. } => {
                Ok(files.iter().find(|(n, _)| *n == name).map(|(_, bytes)| Bytes::from_static(bytes)))
            }
            Files::Folder(folder) => {
                let path = folder.join(name);
                map(&path).map_err(|cause| Error::Io { location: path.display().to_string(), cause })
            }
        }
    }

    /// A file's place for messages: `models/canary/config.json`.
    #[must_use]
    pub fn location(&self, name: &str) -> String {
        match self {
            Files::Folder(folder) => folder.join(name).display().to_string(),
            Files::Bundled { name: model, .. } => format!("bundled {model}/{name}"),
        }
    }

    /// The place of all the files, for messages.
    #[must_use]
    pub fn root(&self) -> String {
        match self {
            Files::Folder(folder) => folder.display().to_string(),
            Files::Bundled { name, .. } => format!("bundled {name}"),
        }
    }
}

fn map(path: &Path) -> std::io::Result<Option<Bytes>> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        // A link to nowhere is a file that can't be read, not an absent one.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    // Opening a pipe would wait for a writer for ever.
    if !metadata.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let file = fs::File::open(path)?;
    if metadata.len() == 0 {
        return Ok(Some(Bytes::from_static(&[])));
    }
    // SAFETY: the map is read-only and private to this process. `Bytes` documents that nobody may change or truncate
    // the file meanwhile; every reader here treats the bytes as untrusted, so that changed bytes are only wrong values.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    Ok(Some(Bytes::from_map(map)))
}
