//! Finds what a modified file was before: a backup beside it, the wheel, an installer's cache, or, if the user wants it, the
//! package index. Only bytes whose hash is the recorded one are taken.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use lucid_root::{Root, read_regular};
use zip::ZipArchive;

use super::hashing::digest_of;
use super::source_diff;
use super::{FileKind, ModifiedFile, SOURCE_READ, UnrecordedFile};
use crate::distribution::Distribution;
use crate::gather::IntegrityOptions;
use crate::metadata::normalized;
use crate::package_index::{PackageIndex, member};
use crate::python::PythonEnvironment;
use crate::record::RecordedHash;

/// Wheels and cached archives looked into.
const ARCHIVES: usize = 5_000;

/// Where originals may be.
pub(super) struct Originals<'a> {
    root: &'a Root,
    python: &'a PythonEnvironment,
    /// By normalized name and version.
    wheels: BTreeMap<(String, String), Vec<PathBuf>>,
    /// Unpacked archives of uv's cache.
    unpacked: Vec<PathBuf>,
    open: Option<(PathBuf, ZipArchive<File>)>,
    index: Option<PackageIndex>,
}

impl<'a> Originals<'a> {
    pub(super) fn new(
        root: &'a Root,
        python: &'a PythonEnvironment,
        options: &IntegrityOptions,
        notes: &mut Vec<String>,
    ) -> Originals<'a> {
        let mut originals = Originals {
            root,
            python,
            wheels: BTreeMap::new(),
            unpacked: Vec::new(),
            open: None,
            index: None,
        };
        if let Some(settings) = &options.index {
            settings.folders.iter().for_each(|folder| originals.add_folder(folder, 0));
            match PackageIndex::new(settings.clone(), options.original_cache.clone()) {
                Ok(index) => originals.index = Some(index),
                Err(error) => notes.push(format!("no originals were fetched: {error}")),
            }
        }
        for given in &options.wheels {
            if given.is_dir() {
                originals.add_folder(given, 0);
            } else if !originals.add_wheel(given) {
                notes.push(format!("{}: no file of the name NAME-VERSION-….whl", given.display()));
            }
        }
        for cache in &options.installer_caches {
            if let Ok(host) = root.resolve(&cache.join("wheels")) {
                originals.add_folder(&host, 0);
            }
            let archives = cache.join("archive-v0");
            let names = root.names(&archives);
            originals.unpacked.extend(
                names.into_iter().take(ARCHIVES).filter_map(|name| root.resolve(&archives.join(name)).ok()),
            );
        }
        originals
    }

    fn add_folder(&mut self, folder: &Path, depth: usize) {
        // pip spreads its wheels over four levels.
        if depth > 6 || self.wheels.len() > ARCHIVES {
            return;
        }
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.add_folder(&entry.path(), depth + 1),
                Ok(kind) if kind.is_file() => {
                    self.add_wheel(&entry.path());
                }
                _ => {}
            }
        }
    }

    fn add_wheel(&mut self, path: &Path) -> bool {
        let Some(stem) = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".whl"))
        else {
            return false;
        };
        let mut parts = stem.split('-');
        let (Some(name), Some(version)) = (parts.next(), parts.next()) else { return false };
        self.wheels.entry((normalized(name), version.to_owned())).or_default().push(path.to_owned());
        true
    }

    /// Adds what can be said of a modified source: whether it parses, and what was changed.
    pub(super) fn explain(
        &mut self,
        file: &mut ModifiedFile,
        host: &Path,
        recorded: &RecordedHash,
        owner: &Distribution,
        unrecorded: &[UnrecordedFile],
    ) {
        let Ok(bytes) = read_regular(host, SOURCE_READ) else { return };
        let installed = String::from_utf8_lossy(&bytes);
        if file.kind == FileKind::Python {
            file.syntax_error = source_diff::syntax_error(&installed);
        }
        let found = self.find(file, host, recorded, owner, unrecorded);
        let Some((original, from)) = found.or_else(|| self.fetch(file, recorded, owner)) else { return };
        let original = String::from_utf8_lossy(&original);
        file.changes = Some(source_diff::compare(&original, &installed, file.kind == FileKind::Python, from));
    }

    fn find(
        &mut self,
        file: &ModifiedFile,
        host: &Path,
        recorded: &RecordedHash,
        owner: &Distribution,
        unrecorded: &[UnrecordedFile],
    ) -> Option<(Vec<u8>, String)> {
        let is_original = |bytes: &[u8]| digest_of(bytes, recorded.algorithm) == recorded.digest;
        let (folder, name) = (host.parent()?, host.file_name()?.to_str()?);
        let stem = name.strip_suffix(".py").unwrap_or(name);
        let site = self.root.resolve(Path::new(&self.python.site_directories[owner.site].path)).ok()?;
        for backup in unrecorded.iter().filter(|u| u.kind == FileKind::Backup) {
            let path = site.join(&backup.path);
            let beside = path.parent() == Some(folder)
                && path.file_name().is_some_and(|n| n.to_string_lossy().contains(stem));
            if beside
                && let Ok(bytes) = read_regular(&path, SOURCE_READ)
                && is_original(&bytes)
            {
                return Some((bytes, backup.path.clone()));
            }
        }
        let mut wheels =
            self.wheels.get(&(owner.name.clone(), owner.version.clone())).cloned().unwrap_or_default();
        if let Some(path) = owner.direct_url.as_ref().and_then(|url| url.url.strip_prefix("file://"))
            && path.ends_with(".whl")
        {
            wheels.extend(self.root.resolve(Path::new(path)));
        }
        for wheel in wheels {
            if let Some(bytes) = self.read_wheel(&wheel, &file.path)
                && is_original(&bytes)
            {
                let name = wheel.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                return Some((bytes, name));
            }
        }
        self.unpacked.iter().find_map(|archive| {
            let bytes = read_regular(&archive.join(&file.path), SOURCE_READ).ok()?;
            is_original(&bytes).then(|| (bytes, "uv's cache".to_owned()))
        })
    }

    /// Asks the index. Launchers are made by the installer, and what lies outside the site folder is no member of a wheel.
    fn fetch(
        &mut self,
        file: &mut ModifiedFile,
        recorded: &RecordedHash,
        owner: &Distribution,
    ) -> Option<(Vec<u8>, String)> {
        let index = self.index.as_mut()?;
        if file.kind == FileKind::Script || file.path.starts_with('/') {
            return None;
        }
        index
            .original(owner, &file.path, recorded)
            .map_err(|error| file.no_original = Some(error.to_string()))
            .ok()
    }

    fn read_wheel(&mut self, wheel: &Path, path: &str) -> Option<Vec<u8>> {
        if self.open.as_ref().is_none_or(|(open, _)| open != wheel) {
            let archive = ZipArchive::new(File::open(wheel).ok()?).ok()?;
            self.open = Some((wheel.to_owned(), archive));
        }
        let (_, archive) = self.open.as_mut()?;
        let name = wheel.file_name()?.to_string_lossy();
        let entry = archive.by_name(&member(archive, &name, path)?).ok()?;
        let mut bytes = Vec::new();
        // The stated size may be a lie; what is read is bounded in any case.
        entry.take(SOURCE_READ).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }
}
