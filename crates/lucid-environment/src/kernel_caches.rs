//! What engines compiled at run time and kept: FlashInfer, Triton, torch.compile, DeepGEMM, vLLM.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use lucid_root::Root;
use serde::{Deserialize, Serialize};

use crate::python::PythonEnvironment;

/// Files looked at in one cache.
const FILES_SEEN: u64 = 200_000;
/// Names kept of a cache's first level, locks and stale objects.
const NAMES_KEPT: usize = 50;

static LOCATIONS: LazyLock<Vec<Location>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct File {
        cache: Vec<Location>,
    }
    let text = include_str!("../knowledge/caches.toml");
    let file: File = toml::from_str(text).unwrap_or_else(|error| panic!("knowledge/caches.toml: {error}"));
    file.cache
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Location {
    name: String,
    package: String,
    layout: Layout,
    locks: Locks,
    #[serde(default)]
    headers: Vec<String>,
    places: Vec<Place>,
    #[allow(dead_code, reason = "where the fact was read, for whoever changes it")]
    source: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    variable: Option<String>,
    below: Option<String>,
    default: Option<String>,
}

/// How a cache finds its objects again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// The first folder names the library's version.
    VersionFirst,
    /// By a hash of the inputs.
    Hashed,
    /// By fixed names.
    Named,
}

/// What a left lock file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Locks {
    /// The kernel frees it with its process.
    Advisory,
    /// Its presence makes others wait.
    Exclusive,
}

/// A compiled object older than a header that it was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleObject {
    /// The object.
    pub object: String,
    /// Seconds since 1970.
    pub object_time: i64,
}

/// A lock whose build never finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftLock {
    /// The lock file.
    pub path: String,
    /// Seconds since 1970.
    pub time: i64,
}

/// A cache that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelCache {
    /// `flashinfer`, `triton`, …
    pub name: String,
    /// The package whose it is.
    pub package: String,
    /// Where it is.
    pub path: String,
    /// How it finds its objects.
    pub layout: Layout,
    /// What its locks do.
    pub locks: Locks,
    /// Its first level, at most 50 names.
    pub names: Vec<String>,
    /// Names beyond those.
    pub names_left_out: usize,
    /// Files in it.
    pub files: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Whether there are more files than were looked at.
    pub cut: bool,
    /// Oldest file, in seconds since 1970.
    pub oldest: Option<i64>,
    /// Newest file.
    pub newest: Option<i64>,
    /// Owners of its files.
    pub owners: Vec<u32>,
    /// The newest of the headers that it is compiled from, and when it was written.
    pub newest_header: Option<(String, i64)>,
    /// Shared objects older than that header.
    pub older_than_header: Vec<StaleObject>,
    /// How many more.
    pub older_left_out: usize,
    /// Locks of builds that left no object, at most 50.
    pub left_locks: Vec<LeftLock>,
}

/// Looks at every cache that the environment's variables and home say.
pub(crate) fn gather(
    root: &Root,
    python: &PythonEnvironment,
    environment: &BTreeMap<String, String>,
    home: Option<&Path>,
) -> Vec<KernelCache> {
    let mut found: Vec<KernelCache> = Vec::new();
    for location in LOCATIONS.iter() {
        let Some(path) = location.places.iter().find_map(|place| place.path(root, environment, home)) else {
            continue;
        };
        let text = path.display().to_string();
        if found.iter().any(|cache| cache.path == text) {
            continue;
        }
        let newest_header = newest_header(root, python, &location.headers);
        let mut cache = KernelCache {
            name: location.name.clone(),
            package: location.package.clone(),
            path: text,
            layout: location.layout,
            locks: location.locks,
            names: Vec::new(),
            names_left_out: 0,
            files: 0,
            bytes: 0,
            cut: false,
            oldest: None,
            newest: None,
            owners: Vec::new(),
            newest_header,
            older_than_header: Vec::new(),
            older_left_out: 0,
            left_locks: Vec::new(),
        };
        let names = root.names(&path);
        cache.names_left_out = names.len().saturating_sub(NAMES_KEPT);
        cache.names = names.into_iter().take(NAMES_KEPT).collect();
        if let Ok(host) = root.resolve(&path) {
            walk(&host, &path, 0, &mut cache);
        }
        if cache.files > 0 {
            found.push(cache);
        }
    }
    found
}

impl Place {
    /// The folder, if its variable is set (or it has none) and it is there.
    fn path(
        &self,
        root: &Root,
        environment: &BTreeMap<String, String>,
        home: Option<&Path>,
    ) -> Option<PathBuf> {
        let home = home.map(Path::to_owned).or_else(|| environment.get("HOME").map(PathBuf::from));
        let expanded = |text: &str| -> Option<PathBuf> {
            let user =
                environment.get("USER").or_else(|| environment.get("LOGNAME")).cloned().or_else(|| {
                    home.as_ref()
                        .and_then(|home| home.file_name())
                        .map(|name| name.to_string_lossy().into_owned())
                });
            let text = if text.contains("{user}") { text.replace("{user}", &user?) } else { text.to_owned() };
            match text.strip_prefix("~/") {
                Some(rest) => Some(home.as_ref()?.join(rest)),
                None => Some(PathBuf::from(text)),
            }
        };
        let path = match (&self.variable, &self.default) {
            (Some(variable), _) => {
                let value = environment.get(variable).filter(|value| !value.is_empty())?;
                let path = expanded(value)?;
                self.below.as_ref().map_or(path.clone(), |below| path.join(below))
            }
            (None, Some(default)) => expanded(default)?,
            (None, None) => return None,
        };
        root.is_dir(&path).then_some(path)
    }
}

fn walk(host: &Path, inside: &Path, depth: usize, cache: &mut KernelCache) {
    if depth > 24 {
        return;
    }
    for entry in fs::read_dir(host).into_iter().flatten().flatten() {
        if cache.files >= FILES_SEEN {
            cache.cut = true;
            return;
        }
        let path = inside.join(entry.file_name());
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            walk(&entry.path(), &path, depth + 1, cache);
            continue;
        }
        if !metadata.is_file() {
            continue;
        }
        let time = metadata.mtime();
        cache.files += 1;
        cache.bytes += metadata.len();
        cache.oldest = Some(cache.oldest.map_or(time, |oldest| oldest.min(time)));
        cache.newest = Some(cache.newest.map_or(time, |newest| newest.max(time)));
        if !cache.owners.contains(&metadata.uid()) && cache.owners.len() < NAMES_KEPT {
            cache.owners.push(metadata.uid());
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".so")
            && let Some((_, header_time)) = &cache.newest_header
            && time < *header_time
        {
            if cache.older_than_header.len() < NAMES_KEPT {
                let object = path.display().to_string();
                cache.older_than_header.push(StaleObject { object, object_time: time });
            } else {
                cache.older_left_out += 1;
            }
        }
        if (name == "lock" || name.ends_with(".lock"))
            && cache.left_locks.len() < NAMES_KEPT
            && !built(&entry.path(), &name, cache.locks)
        {
            cache.left_locks.push(LeftLock { path: path.display().to_string(), time });
        }
    }
}

/// Whether a lock's build left its object. FlashInfer keeps `tmp/NAME.lock` beside `NAME/NAME.so`; an exclusive lock is
/// removed when a build ends, however it ends.
fn built(lock: &Path, name: &str, locks: Locks) -> bool {
    if locks == Locks::Exclusive {
        return name != "lock";
    }
    let Some(stem) = name.strip_suffix(".lock") else { return true };
    let Some(folder) = lock.parent() else { return true };
    let object = format!("{stem}.so");
    let beside = folder.join(&object);
    let in_its_folder = folder.parent().map(|up| up.join(stem));
    match in_its_folder {
        // Only where that build's folder is there is it known that something was being built.
        Some(build) if build.is_dir() => build.join(&object).exists() || beside.exists(),
        _ => true,
    }
}

fn newest_header(root: &Root, python: &PythonEnvironment, folders: &[String]) -> Option<(String, i64)> {
    fn newest(host: &Path, inside: &Path, depth: usize, seen: &mut u64, best: &mut Option<(String, i64)>) {
        for entry in fs::read_dir(host).into_iter().flatten().flatten() {
            *seen += 1;
            if *seen > FILES_SEEN || depth > 16 {
                return;
            }
            let path = inside.join(entry.file_name());
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                newest(&entry.path(), &path, depth + 1, seen, best);
            } else if metadata.is_file() && best.as_ref().is_none_or(|(_, time)| metadata.mtime() > *time) {
                *best = Some((path.display().to_string(), metadata.mtime()));
            }
        }
    }
    let mut best = None;
    let mut seen = 0;
    for directory in &python.site_directories {
        for folder in folders {
            let path = Path::new(&directory.path).join(folder);
            if let Ok(host) = root.resolve(&path) {
                newest(&host, &path, 0, &mut seen, &mut best);
            }
        }
    }
    best
}
