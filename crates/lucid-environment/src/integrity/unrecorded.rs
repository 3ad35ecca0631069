//! Files that lie between the recorded ones.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lucid_root::Root;

use super::compare::cut;
use super::{FileKind, UnownedModule, UnrecordedFile};
use crate::distribution::Distribution;
use crate::python::PythonEnvironment;

/// Deeper than any package; a guard against bind mounts into themselves.
const DEPTH: usize = 64;
/// Files looked at in all; a large environment has 70,000.
const FILES_SEEN: u64 = 5_000_000;

/// What lies between the recorded files.
#[derive(Default)]
pub(super) struct Beside {
    pub files: Vec<UnrecordedFile>,
    pub left_out: usize,
    pub orphan_bytecode: u64,
    pub unowned: Vec<UnownedModule>,
    pub notes: Vec<String>,
}

struct Walk<'a> {
    recorded: &'a HashMap<&'a OsStr, usize>,
    /// Which distribution has files in or below a folder.
    owners: HashMap<OsString, usize>,
    distributions: &'a [Distribution],
    site: PathBuf,
    unowned: BTreeMap<String, UnownedModule>,
    seen: u64,
    links: u64,
    odd_names: u64,
}

/// Lists what no RECORD lists.
pub(super) fn gather(
    root: &Root,
    python: &PythonEnvironment,
    distributions: &[Distribution],
    recorded: &[(&Path, usize)],
) -> Beside {
    let mut result = Beside::default();
    let by_path: HashMap<&OsStr, usize> = recorded.iter().map(|(path, at)| (path.as_os_str(), *at)).collect();
    for (at, directory) in python.site_directories.iter().enumerate() {
        let site = PathBuf::from(&directory.path);
        let Ok(host) = root.resolve(&site) else { continue };
        let mut walk = Walk {
            recorded: &by_path,
            owners: owners(distributions, at, &site, recorded),
            distributions,
            site: site.clone(),
            unowned: BTreeMap::new(),
            seen: 0,
            links: 0,
            odd_names: 0,
        };
        walk.folder(&host, &site, 0, &mut result);
        if walk.seen >= FILES_SEEN {
            result.notes.push(format!(
                "{}: more than {FILES_SEEN} files; the rest was not looked at",
                site.display()
            ));
        }
        if walk.links > 0 {
            result.notes.push(format!("{}: {} linked folders were not followed", site.display(), walk.links));
        }
        if walk.odd_names > 0 {
            result.notes.push(format!("{}: {} names are not UTF-8", site.display(), walk.odd_names));
        }
        result.unowned.extend(walk.unowned.into_values().take(500));
    }
    result.files.sort_by(|a, b| (a.kind, &a.path).cmp(&(b.kind, &b.path)));
    result.left_out = cut(&mut result.files);
    result
}

/// The folders of each distribution: a file that no RECORD lists belongs to whose folder it lies in.
fn owners(
    distributions: &[Distribution],
    site_index: usize,
    site: &Path,
    recorded: &[(&Path, usize)],
) -> HashMap<OsString, usize> {
    let mut owners: HashMap<OsString, usize> = HashMap::new();
    for (path, distribution) in recorded {
        if distributions[*distribution].site != site_index {
            continue;
        }
        for folder in path.ancestors().skip(1) {
            if owners.contains_key(folder.as_os_str()) || folder == site || !folder.starts_with(site) {
                break;
            }
            owners.insert(folder.as_os_str().to_owned(), *distribution);
        }
    }
    owners
}

impl Walk<'_> {
    fn folder(&mut self, host: &Path, inside: &Path, depth: usize, result: &mut Beside) {
        let Ok(entries) = fs::read_dir(host) else { return };
        for entry in entries.flatten() {
            if self.seen >= FILES_SEEN {
                return;
            }
            let name = entry.file_name();
            let path = inside.join(&name);
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_symlink() && fs::metadata(entry.path()).is_ok_and(|m| m.is_dir()) {
                self.links += 1;
            } else if kind.is_dir() {
                if depth < DEPTH {
                    self.folder(&entry.path(), &path, depth + 1, result);
                }
            } else {
                self.seen += 1;
                if !self.recorded.contains_key(path.as_os_str()) {
                    self.odd_names += u64::from(name.to_str().is_none());
                    self.file(&entry.path(), &path, result);
                }
            }
        }
    }

    fn file(&mut self, host: &Path, path: &Path, result: &mut Beside) {
        let Ok(relative) = path.strip_prefix(&self.site) else { return };
        let name = relative.to_string_lossy().into_owned();
        let kind = FileKind::of(&name);
        let in_pycache = path.parent().is_some_and(|folder| folder.ends_with("__pycache__"));
        if in_pycache {
            // Python writes these by itself; without its source one is never imported.
            if kind == FileKind::Bytecode && !source_of(host).is_some_and(|source| source.exists()) {
                result.orphan_bytecode += 1;
            }
            return;
        }
        // Installers, and people who copy metadata, add files here; none is imported.
        if kind == FileKind::Metadata || name.contains(".egg-info/") {
            return;
        }
        let Some(&owner) = path.ancestors().skip(1).find_map(|folder| self.owners.get(folder.as_os_str()))
        else {
            self.unowned(&name, kind);
            return;
        };
        let metadata = fs::symlink_metadata(host).ok();
        result.files.push(UnrecordedFile {
            distribution: self.distributions[owner].name.clone(),
            size: metadata.as_ref().map_or(0, fs::Metadata::len),
            modified_at: metadata.as_ref().map_or(0, MetadataExt::mtime),
            hides: self.hides(path, kind),
            path: name,
            kind,
        });
    }

    /// Python's import order in one folder: package, extension module, source, bytecode.
    fn hides(&self, path: &Path, kind: FileKind) -> Option<String> {
        let folder = path.parent()?;
        let file = path.file_name()?.to_str()?;
        let hidden = match kind {
            FileKind::Native => folder.join(format!("{}.py", file.split('.').next()?)),
            FileKind::Python if file == "__init__.py" => folder.with_extension("py"),
            _ => return None,
        };
        let found = self.recorded.contains_key(hidden.as_os_str());
        found.then(|| hidden.strip_prefix(&self.site).unwrap_or(&hidden).to_string_lossy().into_owned())
    }

    /// Counts a file whose top-level folder no RECORD knows.
    fn unowned(&mut self, name: &str, kind: FileKind) {
        let top = name.split('/').next().unwrap_or(name);
        let editable = top.starts_with("__editable__") || top.ends_with(".pth") || top.ends_with(".egg-link");
        let metadata = top.ends_with(".dist-info") || top.ends_with(".egg-info");
        let owned_without_record = self.distributions.iter().any(|d| {
            !d.has_record
                && (d.top_level.iter().any(|module| module == top || format!("{module}.py") == top)
                    || d.name.replace('-', "_") == top)
        });
        if editable || metadata || owned_without_record || (kind == FileKind::Data && !name.contains('/')) {
            return;
        }
        let entry = self.unowned.entry(top.to_owned()).or_insert_with(|| UnownedModule {
            path: top.to_owned(),
            code_files: 0,
            files: 0,
        });
        entry.files += 1;
        entry.code_files += u64::from(matches!(kind, FileKind::Python | FileKind::Native));
    }
}

/// The source of `__pycache__/name.cpython-311.opt-1.pyc`.
fn source_of(bytecode: &Path) -> Option<PathBuf> {
    let module = bytecode.file_name()?.to_str()?.split('.').next()?;
    Some(bytecode.parent()?.parent()?.join(format!("{module}.py")))
}
