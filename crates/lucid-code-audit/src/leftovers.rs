//! Files that debugging code left behind.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use lucid_root::Root;
use serde::{Deserialize, Serialize};

use crate::evidence::Notes;
use crate::glob;

/// Entries of one folder that are looked at.
const ENTRIES: usize = 200_000;
/// Names kept as examples.
const EXAMPLES: usize = 5;
/// Patterns that are looked for.
const PATTERNS: usize = 200;

/// Files that match a path that a fact writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leftover {
    /// The pattern: `/tmp/nomla_debug_tp*.pt`.
    pub glob: String,
    /// What matched.
    pub files: FileGroup,
}

/// Dump files of one extension in a folder for temporary files, whoever wrote them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DumpFolder {
    /// The folder, as the patient sees it.
    pub folder: String,
    /// Extension: `pt`.
    pub extension: String,
    /// The files.
    pub files: FileGroup,
}

/// A number of files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FileGroup {
    /// How many.
    pub count: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Last change of the oldest, in seconds since 1970.
    pub oldest: Option<u64>,
    /// Last change of the newest, in seconds since 1970.
    pub newest: Option<u64>,
    /// Seconds that the newest had when it was seen.
    pub newest_age: Option<u64>,
    /// Seconds that the oldest had when it was seen.
    pub oldest_age: Option<u64>,
    /// The first names in order.
    pub examples: Vec<String>,
}

impl FileGroup {
    fn add(&mut self, name: String, metadata: &std::fs::Metadata, now: SystemTime) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(metadata.len());
        if let Ok(changed) = metadata.modified() {
            let seconds = changed.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let age = now.duration_since(changed).map_or(0, |age| age.as_secs());
            if self.oldest.is_none_or(|oldest| seconds < oldest) {
                (self.oldest, self.oldest_age) = (Some(seconds), Some(age));
            }
            if self.newest.is_none_or(|newest| seconds > newest) {
                (self.newest, self.newest_age) = (Some(seconds), Some(age));
            }
        }
        self.examples.push(name);
        self.examples.sort();
        self.examples.truncate(EXAMPLES);
    }
}

/// Files under `root` that match the patterns. Only plain files count, links are not followed, and a pattern is looked for in
/// its own folder: what is computed stands in the last components.
pub(crate) fn matching(root: &Root, globs: &[String], notes: &mut Notes) -> Vec<Leftover> {
    let now = SystemTime::now();
    let mut found = Vec::new();
    for pattern in globs.iter().take(PATTERNS) {
        let fixed: Vec<&str> = pattern.split('/').take_while(|component| !component.contains('*')).collect();
        let components: Vec<&str> = pattern.split('/').collect();
        let depth = fixed.len().min(components.len() - 1);
        let folder = components[..depth].join("/");
        // `/*` would count the whole machine, and says nothing.
        if folder.is_empty()
            || components[depth..].iter().any(|component| component.chars().all(|c| c == '*' || c == '.'))
        {
            continue;
        }
        let mut files = FileGroup::default();
        collect(root, &folder, &components[depth..], now, &mut files, notes);
        if files.count > 0 {
            found.push(Leftover { glob: pattern.clone(), files });
        }
    }
    if globs.len() > PATTERNS {
        notes.add("", format!("{} patterns of written files were not looked for", globs.len() - PATTERNS));
    }
    found
}

fn collect(
    root: &Root,
    folder: &str,
    rest: &[&str],
    now: SystemTime,
    files: &mut FileGroup,
    notes: &mut Notes,
) {
    let Some((pattern, behind)) = rest.split_first() else { return };
    let Ok(here) = root.resolve(Path::new(folder)) else { return };
    let Ok(entries) = std::fs::read_dir(here) else { return };
    for (number, entry) in entries.flatten().enumerate() {
        if number >= ENTRIES {
            notes.add(folder, format!("more than {ENTRIES} entries: leftovers may be more than counted"));
            return;
        }
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !glob::component_matches(pattern, &name) {
            continue;
        }
        let Ok(metadata) = entry.path().symlink_metadata() else { continue };
        let path = format!("{folder}/{name}");
        if behind.is_empty() {
            if metadata.is_file() {
                files.add(path, &metadata, now);
            }
        } else if metadata.is_dir() {
            collect(root, &path, behind, now, files, notes);
        }
    }
}

/// Dump files that lie in the folders for temporary files.
pub(crate) fn dumps(root: &Root, notes: &mut Notes) -> Vec<DumpFolder> {
    const EXTENSIONS: &[&str] = &["pt", "pth", "npy", "npz", "pkl", "pickle", "safetensors", "bin"];
    let now = SystemTime::now();
    let mut found: BTreeMap<(&str, String), FileGroup> = BTreeMap::new();
    for folder in ["/tmp", "/var/tmp", "/dev/shm", "/root"] {
        let Ok(here) = root.resolve(Path::new(folder)) else { continue };
        let Ok(entries) = std::fs::read_dir(here) else { continue };
        for (number, entry) in entries.flatten().enumerate() {
            if number >= ENTRIES {
                notes
                    .add(folder, format!("more than {ENTRIES} entries: dump files may be more than counted"));
                break;
            }
            let name = entry.file_name();
            let Some(extension) = Path::new(&name).extension().and_then(|extension| extension.to_str())
            else {
                continue;
            };
            if !EXTENSIONS.contains(&extension) {
                continue;
            }
            let Ok(metadata) = entry.path().symlink_metadata() else { continue };
            if metadata.is_file() {
                let group = found.entry((folder, extension.to_owned())).or_default();
                group.add(format!("{folder}/{}", name.to_string_lossy()), &metadata, now);
            }
        }
    }
    found
        .into_iter()
        .map(|((folder, extension), files)| DumpFolder { folder: folder.to_owned(), extension, files })
        .collect()
}
