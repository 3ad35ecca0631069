//! Code that was written long after its distribution was installed: a hint where nothing is hashed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lucid_root::Root;
use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;
use crate::integrity::FileKind;
use crate::python::PythonEnvironment;
use crate::served_path::{Part, ServedPath};

/// Files of one install, and of a copied environment, are written within this many seconds.
const SLACK: i64 = 3_600;
/// Files kept of one distribution; when more are newer, the folder was copied or installed anew, which tells nothing.
const KEPT_EACH: usize = 20;
/// Files kept in all.
const KEPT: usize = 200;
/// Files looked at in one distribution.
const SEEN: u32 = 100_000;

/// A file that is newer than its distribution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewerFile {
    /// The distribution in whose folder it lies.
    pub distribution: String,
    /// Below its site folder.
    pub path: String,
    /// Seconds after the install.
    pub after: i64,
}

/// Looks through the folders of the serving stack.
pub(crate) fn gather(
    root: &Root,
    python: &PythonEnvironment,
    distributions: &[Distribution],
) -> Vec<NewerFile> {
    let known = ServedPath::known();
    let mut found: Vec<NewerFile> = Vec::new();
    for distribution in distributions {
        let Some(directory) = python.site_directories.get(distribution.site) else { continue };
        if known.part(&distribution.name) == Part::Other || distribution.shadowed {
            continue;
        }
        // Of several distributions over one folder the latest install counts.
        let folder =
            distribution.top_level.first().cloned().unwrap_or_else(|| distribution.name.replace('-', "_"));
        let shares = |other: &&Distribution| {
            other.site == distribution.site
                && (other.top_level.contains(&folder) || other.name.replace('-', "_") == folder)
        };
        let times = distributions.iter().filter(shares).filter_map(|other| other.installed_at);
        let Some(installed) = times.chain(distribution.installed_at).max() else { continue };
        if found.iter().any(|file| file.path.starts_with(&format!("{folder}/"))) || folder.contains('/') {
            continue;
        }
        let Ok(host) = root.resolve(&Path::new(&directory.path).join(&folder)) else { continue };
        let mut here = Vec::new();
        walk(&host, &folder, installed, 0, &mut 0, &mut here);
        if here.len() <= KEPT_EACH {
            found.extend(here.into_iter().map(|(path, after)| NewerFile {
                distribution: distribution.name.clone(),
                path,
                after,
            }));
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.truncate(KEPT);
    found
}

fn walk(
    host: &Path,
    inside: &str,
    installed: i64,
    depth: usize,
    seen: &mut u32,
    found: &mut Vec<(String, i64)>,
) {
    for entry in fs::read_dir(host).into_iter().flatten().flatten() {
        *seen += 1;
        if depth > 32 || *seen > SEEN || found.len() > KEPT_EACH {
            return;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{inside}/{name}");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && name != "__pycache__" => {
                walk(&entry.path(), &path, installed, depth + 1, seen, found);
            }
            Ok(kind) if kind.is_file() && code(&path) => {
                let after = entry.metadata().map_or(0, |metadata| metadata.mtime() - installed);
                if after > SLACK {
                    found.push((path, after));
                }
            }
            _ => {}
        }
    }
}

fn code(path: &str) -> bool {
    matches!(FileKind::of(path), FileKind::Python | FileKind::Native | FileKind::KernelSource)
}
