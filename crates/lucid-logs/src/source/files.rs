//! Log files: found under a root, grouped by rotation, unpacked.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::SourceError;
use crate::moment::Moment;

/// Most files read of a folder.
const MOST_FILES: usize = 256;
const BUFFER: usize = 256 << 10;

/// The files behind the paths that were given.
#[derive(Default)]
pub(crate) struct Expanded {
    /// Files of one log, oldest first.
    pub groups: Vec<Vec<PathBuf>>,
    /// What could not be used.
    pub errors: Vec<SourceError>,
    /// What was left out.
    pub notes: Vec<String>,
}

/// Finds the files, all inside `root`.
pub(crate) fn expand(root: &Path, paths: &[&Path]) -> Expanded {
    let mut expanded = Expanded::default();
    let mut files = Vec::new();
    for path in paths {
        match inside(root, path) {
            Ok(path) if path.is_dir() => folder(&path, &mut files, &mut expanded),
            Ok(path) => files.push(path),
            Err(error) => expanded.errors.push(error),
        }
    }
    // Rotated files of one log stand together, oldest first; logs stay in the order in which they were given.
    let mut groups: BTreeMap<PathBuf, (usize, Vec<(i64, PathBuf)>)> = BTreeMap::new();
    for (order, file) in files.into_iter().enumerate() {
        let (log, age) = rotation(&file);
        let group = groups.entry(log).or_insert((order, Vec::new()));
        if !group.1.iter().any(|(_, known)| *known == file) {
            group.1.push((age, file));
        }
    }
    let mut groups: Vec<(usize, Vec<(i64, PathBuf)>)> = groups.into_values().collect();
    groups.sort_by_key(|(order, _)| *order);
    for (_, mut group) in groups {
        group.sort();
        expanded.groups.push(group.into_iter().map(|(_, file)| file).collect());
    }
    expanded
}

/// The path under the root, refused if it leads out of it.
fn inside(root: &Path, path: &Path) -> Result<PathBuf, SourceError> {
    let name = path.display().to_string();
    let whole = if root == Path::new("/") {
        path.to_owned()
    } else {
        let below: PathBuf = path
            .components()
            .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
            .collect();
        root.join(below)
    };
    let real = whole.canonicalize().map_err(|error| SourceError::Io { path: name.clone(), error })?;
    let real_root =
        root.canonicalize().map_err(|error| SourceError::Io { path: root.display().to_string(), error })?;
    if !real.starts_with(&real_root) {
        return Err(SourceError::OutsideRoot { path: name, root: root.display().to_string() });
    }
    // A pipe or a device may never end.
    let metadata = fs::metadata(&real).map_err(|error| SourceError::Io { path: name.clone(), error })?;
    if metadata.is_file() || metadata.is_dir() { Ok(real) } else { Err(SourceError::NotAFile(name)) }
}

/// The regular files of a folder, not those below it, and no links.
fn folder(folder: &Path, files: &mut Vec<PathBuf>, expanded: &mut Expanded) {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            expanded.errors.push(SourceError::Io { path: folder.display().to_string(), error });
            return;
        }
    };
    let mut found: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    if found.len() > MOST_FILES {
        expanded.notes.push(format!(
            "{}: holds {} files, the first {MOST_FILES} by name are read; name the others to read them",
            folder.display(),
            found.len()
        ));
        found.truncate(MOST_FILES);
    }
    files.extend(found);
}

/// The log that a file belongs to, and where in it: `x.log.2.gz` is older than `x.log.1`, that than `x.log`;
/// `x.log-20261128` is older than `x.log-20261129`.
fn rotation(file: &Path) -> (PathBuf, i64) {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let plain = name.strip_suffix(".gz").unwrap_or(&name);
    let cut = plain.rfind(['.', '-']).map(|at| (&plain[..at], &plain[at + 1..]));
    match cut {
        Some((log, number)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
            let number: i64 = number.parse().unwrap_or(i64::MAX);
            match number {
                // A rank's or a date's file: `rank-3`, `vllm-20261129.log` are no rotations, `.1` and `-20261129` are.
                20_000_101..=99_991_231 => (file.with_file_name(log), number - 99_991_232),
                1..=999 if plain.contains(&format!(".{number}")) => (file.with_file_name(log), -number),
                _ => (file.to_owned(), 0),
            }
        }
        _ => (file.with_file_name(plain), 0),
    }
}

/// An opened file.
pub(crate) struct Opened {
    pub reader: Box<dyn BufRead>,
    /// When it was last written, UTC.
    pub modified: Option<Moment>,
}

/// Opens a file and unpacks gzip; `read` counts the bytes that came from the disk.
pub(crate) fn open(path: &Path, read: Arc<AtomicU64>) -> Result<Opened, SourceError> {
    let name = path.display().to_string();
    let failed = |error| SourceError::Io { path: name.clone(), error };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let modified = metadata.modified().ok().and_then(|time| {
        let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(Moment::from_millis(i64::try_from(since.as_millis()).ok()?))
    });
    let mut reader = BufReader::with_capacity(BUFFER, Counted { file, read });
    let head = reader.fill_buf().map_err(failed)?;
    let compressed = |kind, command| SourceError::Compressed { path: name.clone(), kind, command };
    let reader: Box<dyn BufRead> = match head {
        [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(reader))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => return Err(compressed("zstd", "zstd -d")),
        [0xfd, b'7', b'z', b'X', ..] => return Err(compressed("xz", "xz -dk")),
        [b'B', b'Z', b'h', ..] => return Err(compressed("bzip2", "bzip2 -dk")),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            return Err(compressed("UTF-16 text", "iconv -f utf-16 -t utf-8"));
        }
        _ => Box::new(reader),
    };
    Ok(Opened { reader, modified })
}

struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_files_come_oldest_first_and_ranks_stay_apart() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "vllm.log",
            "vllm.log.1",
            "vllm.log.2.gz",
            "vllm.log.10.gz",
            "rank-0",
            "rank-1",
            "svc.log-20261128",
            "svc.log-20261129",
            "svc.log",
        ];
        for name in names {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let expanded = expand(Path::new("/"), &[folder.path()]);
        let mut groups: Vec<Vec<String>> = expanded
            .groups
            .iter()
            .map(|group| {
                group.iter().map(|f| f.file_name().unwrap().to_string_lossy().into_owned()).collect()
            })
            .collect();
        groups.sort();
        let expected: Vec<Vec<&str>> = vec![
            vec!["rank-0"],
            vec!["rank-1"],
            vec!["svc.log-20261128", "svc.log-20261129", "svc.log"],
            vec!["vllm.log.10.gz", "vllm.log.2.gz", "vllm.log.1", "vllm.log"],
        ];
        assert_eq!(groups, expected);
    }

    #[cfg(unix)]
    #[test]
    fn nothing_leads_out_of_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(folder.path().join("secret"), "x").unwrap();
        fs::write(root.join("in.log"), "x").unwrap();
        std::os::unix::fs::symlink(folder.path().join("secret"), root.join("link.log")).unwrap();
        std::os::unix::fs::symlink("loop.log", root.join("loop.log")).unwrap();
        for (path, inside) in [
            ("/in.log", true),
            ("in.log", true),
            ("/link.log", false),
            ("../secret", false),
            ("loop.log", false),
        ] {
            let expanded = expand(&root, &[Path::new(path)]);
            assert_eq!(
                (expanded.groups.len(), expanded.errors.len()),
                if inside { (1, 0) } else { (0, 1) },
                "{path}"
            );
        }
        assert!(matches!(
            expand(Path::new("/"), &[Path::new("/dev/zero")]).errors[..],
            [SourceError::NotAFile(_)]
        ));
    }
}
