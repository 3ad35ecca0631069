//! Where a model's files are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Bytes, Error};

/// Where a model's files are: a folder, a GGUF file, compiled into the binary (so that the built-in model needs no file at all), or
/// in memory.
#[derive(Clone, Debug)]
pub enum Files {
    /// A folder as Hugging Face lays it out. Files in folders below it are not looked at.
    Folder(PathBuf),
    /// A GGUF model: one file, or several parts in one folder.
    Gguf {
        /// The folder.
        folder: PathBuf,
        /// The names of the parts, in order.
        parts: Vec<String>,
    },
    /// Files inside the binary.
    Bundled {
        /// The model's name, for messages.
        name: &'static str,
        /// File names and contents.
        files: &'static [(&'static str, &'static [u8])],
    },
    /// Files in memory: made up, or received from somewhere. A GGUF model when there is no `config.json` and a `.gguf` file.
    Memory {
        /// The model's name, for messages.
        name: String,
        /// File names and contents.
        files: BTreeMap<String, Bytes>,
    },
}

impl Files {
    /// The files in a folder, or a `.gguf` file (of a split model, any part). A folder without `config.json` that holds one
    /// GGUF model is that model.
    ///
    /// # Errors
    /// When `path` does not exist, is neither, or may not be listed.
    pub fn open(path: &Path) -> Result<Files, Error> {
        let io = |cause| Error::Io { location: path.display().to_string(), cause };
        if !fs::metadata(path).map_err(io)?.is_dir() {
            return match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
                (Some(folder), Some(name)) if name.ends_with(GGUF) => {
                    // The parent of a bare name is empty.
                    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                    Ok(Files::Gguf { folder: folder.to_owned(), parts: parts(name) })
                }
                _ => Err(Error::NotAFolder { location: path.display().to_string() }),
            };
        }
        let names = Files::Folder(path.to_owned()).names()?;
        let models: Vec<&String> = names.iter().filter(|name| name.ends_with(GGUF)).collect();
        match models.first() {
            Some(first) if !names.iter().any(|name| name == "config.json") => {
                let parts = parts(first);
                if parts.len() < models.len() || !models.iter().all(|name| parts.contains(name)) {
                    let location = path.display().to_string();
                    return Err(Error::SeveralModels { location, count: models.len() });
                }
                Ok(Files::Gguf { folder: path.to_owned(), parts })
            }
            _ => Ok(Files::Folder(path.to_owned())),
        }
    }

    /// Whether this is a GGUF model.
    #[must_use]
    pub fn is_gguf(&self) -> bool {
        match self {
            Files::Gguf { .. } => true,
            Files::Memory { files, .. } => {
                !files.contains_key("config.json") && files.keys().any(|name| name.ends_with(GGUF))
            }
            Files::Folder(_) | Files::Bundled { .. } => false,
        }
    }

    /// The names of all files, sorted. A name that is not Unicode is left out: no checkpoint file has one.
    ///
    /// # Errors
    /// When the folder can't be listed.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        let mut names = match self {
            Files::Bundled { files, .. } => files.iter().map(|(name, _)| (*name).to_owned()).collect(),
            Files::Memory { files, .. } => files.keys().cloned().collect(),
            // Not sorted by name: the order of the parts.
            Files::Gguf { parts, .. } => return Ok(parts.clone()),
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
            Files::Memory { files, .. } => Ok(files.get(name).cloned()),
            // Other files beside it belong to other models.
            Files::Gguf { parts, .. } if !parts.iter().any(|part| part == name) => Ok(None),
            Files::Folder(folder) | Files::Gguf { folder, .. } => {
                let path = folder.join(name);
                map(&path).map_err(|cause| Error::Io { location: path.display().to_string(), cause })
            }
        }
    }

    /// A file's place for messages: `models/canary/config.json`.
    #[must_use]
    pub fn location(&self, name: &str) -> String {
        match self {
            Files::Folder(folder) | Files::Gguf { folder, .. } => folder.join(name).display().to_string(),
            Files::Bundled { name: model, .. } => format!("bundled {model}/{name}"),
            Files::Memory { name: model, .. } => format!("{model}/{name}"),
        }
    }

    /// The place of all the files, for messages.
    #[must_use]
    pub fn root(&self) -> String {
        match self {
            Files::Folder(folder) => folder.display().to_string(),
            Files::Gguf { folder, parts } => {
                folder.join(parts.first().map_or("", String::as_str)).display().to_string()
            }
            Files::Bundled { name, .. } => format!("bundled {name}"),
            Files::Memory { name, .. } => name.clone(),
        }
    }
}

const GGUF: &str = ".gguf";

/// The most parts of a split model; its file names have five digits.
const MAX_PARTS: usize = 99_999;

/// The parts of the model that the file of this name is a part of: itself, or `NAME-00001-of-00003.gguf` and so on.
fn parts(name: &str) -> Vec<String> {
    let split = || {
        let (rest, count) = name.strip_suffix(GGUF)?.rsplit_once("-of-")?;
        let (base, number) = rest.rsplit_once('-')?;
        let five = |digits: &str| (digits.len() == 5).then(|| digits.parse::<usize>().ok()).flatten();
        let (number, count) = (five(number)?, five(count)?);
        (1..=count).contains(&number).then_some((base, count.min(MAX_PARTS)))
    };
    match split() {
        Some((base, count)) => (1..=count).map(|i| format!("{base}-{i:05}-of-{count:05}{GGUF}")).collect(),
        None => vec![name.to_owned()],
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
    Ok(Some(Bytes::from_map(map, file, path.display().to_string())))
}
