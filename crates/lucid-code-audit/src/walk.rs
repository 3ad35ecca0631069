//! The Python files of an environment.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lucid_root::Root;

use crate::evidence::Notes;

/// Files taken at the most: eight times a full vLLM environment.
const FILES: usize = 200_000;
/// Folders in folders.
const DEPTH: usize = 64;

/// A Python file that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Path relative to the site-packages folder, `/` between components; bytes that are no UTF-8 are replaced.
    pub relative: String,
    /// Where to read it on this machine.
    pub here: PathBuf,
    /// Length in bytes.
    pub bytes: u64,
}

/// Every `.py` file under `site_packages`, in the order of names. Folders behind symbolic links are entered once (by device and
/// inode), links are followed inside the root only, and what is no plain file (a FIFO named `x.py` would block a reader forever)
/// becomes a note.
pub(crate) fn python_files(root: &Root, site_packages: &Path, notes: &mut Notes) -> Vec<Found> {
    let mut found = Vec::new();
    let mut entered = HashSet::new();
    let mut todo = vec![(site_packages.to_path_buf(), String::new(), 0)];
    while let Some((patient, relative, depth)) = todo.pop() {
        let shown = if relative.is_empty() { ".".to_owned() } else { relative.clone() };
        let here = match root.resolve(&patient) {
            Ok(here) => here,
            Err(error) => {
                notes.add(&shown, error.to_string());
                continue;
            }
        };
        match here.metadata() {
            Ok(metadata) if !entered.insert((metadata.dev(), metadata.ino())) => continue,
            Ok(_) => {}
            Err(error) => {
                notes.add(&shown, format!("folder could not be read: {error}"));
                continue;
            }
        }
        let entries = match std::fs::read_dir(&here) {
            Ok(entries) => entries,
            Err(error) => {
                notes.add(&shown, format!("folder could not be read: {error}"));
                continue;
            }
        };
        for entry in entries {
            let Ok(entry) = entry else {
                notes.add(&shown, "an entry of the folder could not be read".to_owned());
                continue;
            };
            let name = entry.file_name();
            let shown_name = name.to_string_lossy();
            let path =
                if relative.is_empty() { shown_name.to_string() } else { format!("{relative}/{shown_name}") };
            let Ok(mut kind) = entry.file_type() else { continue };
            let mut place = entry.path();
            let python = Path::new(&name).extension().is_some_and(|extension| extension == "py");
            if kind.is_symlink() {
                let Ok(resolved) = root.resolve(&patient.join(&name)) else {
                    notes.add(&path, "a symbolic link that leads nowhere".to_owned());
                    continue;
                };
                let Ok(metadata) = resolved.symlink_metadata() else {
                    if python {
                        notes.add(&path, "a symbolic link to a file that is absent".to_owned());
                    }
                    continue;
                };
                kind = metadata.file_type();
                place = resolved;
            }
            if kind.is_dir() {
                if shown_name == "__pycache__" {
                    continue;
                }
                if depth >= DEPTH {
                    notes.add(&path, format!("folders deeper than {DEPTH}: not entered"));
                    continue;
                }
                todo.push((patient.join(&name), path, depth + 1));
            } else if python {
                if !kind.is_file() {
                    notes.add(&path, "named like a Python file but no plain file".to_owned());
                    continue;
                }
                if found.len() >= FILES {
                    notes.add(&path, format!("more than {FILES} Python files: the rest was not read"));
                    return found;
                }
                let bytes = place.metadata().map_or(0, |metadata| metadata.len());
                found.push(Found { relative: path, here: place, bytes });
            }
        }
    }
    found.sort_by(|a, b| a.relative.cmp(&b.relative));
    found
}
