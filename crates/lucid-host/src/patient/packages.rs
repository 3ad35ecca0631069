//! The package folders of an interpreter.

use std::path::Path;

use super::Patient;
use crate::Root;

/// More entries of a `lib` folder are not looked at.
const MOST_ENTRIES: usize = 400;

impl Patient {
    /// The same patient with its files seen at `root`, its package folders found from its interpreter, and those of the
    /// virtual environments `environments` (as the patient sees them) in front. For patients from a command line or a
    /// manifest, whose files lie somewhere that only the caller knows.
    #[must_use]
    pub fn seen_at(mut self, root: &Path, environments: &[&str]) -> Patient {
        self.root = Some(root.to_owned());
        let seen = Root::new(root);
        for environment in environments {
            add_prefix(&seen, Path::new(environment), &mut self.site_packages);
        }
        add_folders(&mut self);
        self
    }
}

/// A pure Python environment maps nothing of its packages: takes the interpreter's own folders.
pub(super) fn add_folders(patient: &mut Patient) {
    let Some(root) = patient.root.clone().map(Root::new) else { return };
    let command = patient.deployment.command.first().cloned();
    let environment =
        patient.deployment.environment.get("VIRTUAL_ENV").map(|env| format!("{env}/bin/python"));
    for program in [command, patient.python.clone(), environment].into_iter().flatten() {
        // `/opt/venv/bin/vllm` → `/opt/venv`.
        if let Some(prefix) =
            Path::new(&program).parent().and_then(Path::parent).filter(|_| program.starts_with('/'))
        {
            add_prefix(&root, prefix, &mut patient.site_packages);
        }
    }
}

/// The package folders below the `lib` of an environment.
fn add_prefix(root: &Root, prefix: &Path, folders: &mut Vec<String>) {
    let lib = prefix.join("lib");
    for name in root.list(&lib, MOST_ENTRIES).unwrap_or_default() {
        let Some(name) = name.to_str().filter(|name| name.starts_with("python3")) else { continue };
        for packages in ["site-packages", "dist-packages"] {
            let folder = lib.join(name).join(packages);
            let text = folder.to_string_lossy().into_owned();
            if root.existing(&folder).is_ok_and(|place| place.is_dir()) && !folders.contains(&text) {
                folders.push(text);
            }
        }
    }
}
