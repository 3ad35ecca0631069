//! What Python runs or looks at before the engine's first line: `.pth` files, `sitecustomize`, `PYTHONPATH`, preloads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lucid_root::Root;
use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;
use crate::python::PythonEnvironment;

/// Lines kept of a `.pth` file, and characters of a line.
const LINES_KEPT: usize = 50;
const LINE_KEPT: usize = 400;
/// Hidden modules named of one folder.
const HIDDEN_KEPT: usize = 50;
/// Bytes kept of a `sitecustomize`.
const CUSTOMIZE_KEPT: u64 = 8 << 10;

/// A `.pth` file: `site` puts its paths onto `sys.path` and executes its lines that begin with `import`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathFile {
    /// Where it is.
    pub path: String,
    /// Lines that are executed, shortened to 400 characters.
    pub code: Vec<String>,
    /// Folders that it adds.
    pub folders: Vec<String>,
    /// Lines beyond those kept.
    pub lines_left_out: usize,
    /// The distribution whose RECORD lists it.
    pub distribution: Option<String>,
}

/// A module that `site` imports if it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Customize {
    /// `sitecustomize` or `usercustomize`.
    pub module: String,
    /// Where it is.
    pub path: String,
    /// What brings its folder onto the path: `site-packages`, `standard library`, `PYTHONPATH`, `working directory`.
    pub source: String,
    /// Its beginning, at most 8 KiB.
    pub text: String,
    /// The distribution whose RECORD lists it.
    pub distribution: Option<String>,
}

/// A folder before the installed packages on `sys.path`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierFolder {
    /// Where it is.
    pub path: String,
    /// `PYTHONPATH` or `working directory`.
    pub source: String,
    /// Whether it exists.
    pub exists: bool,
    /// The version in its path, if it is another interpreter's package folder.
    pub python: Option<(u32, u32)>,
    /// Installed top-level modules that it hides.
    pub hides: Vec<String>,
    /// Hidden modules beyond those kept.
    pub hides_left_out: usize,
}

/// What runs before the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartupHooks {
    /// `.pth` files that run code or add folders.
    pub path_files: Vec<PathFile>,
    /// `sitecustomize` and `usercustomize`.
    pub customize: Vec<Customize>,
    /// Folders that come before the installed packages.
    pub earlier: Vec<EarlierFolder>,
    /// Libraries of `LD_PRELOAD` and `/etc/ld.so.preload`, with where they are named.
    pub preloaded: Vec<(String, String)>,
    /// Whether `PYTHONNOUSERSITE`, `-S` or `-I` keep some of this from running: the switch.
    pub switched_off_by: Option<String>,
}

/// Looks for start-up hooks.
pub(crate) fn gather(
    root: &Root,
    python: &PythonEnvironment,
    distributions: &[Distribution],
    environment: &BTreeMap<String, String>,
    working_directory: Option<&Path>,
) -> StartupHooks {
    let mut hooks = StartupHooks::default();
    let mut earlier: Vec<(PathBuf, &str)> = Vec::new();
    for entry in environment.get("PYTHONPATH").map_or("", String::as_str).split(':') {
        if !entry.is_empty() {
            let base = working_directory.unwrap_or(Path::new("/"));
            earlier.push((base.join(entry), "PYTHONPATH"));
        }
    }
    earlier.extend(working_directory.map(|folder| (folder.to_owned(), "working directory")));

    let sites: Vec<PathBuf> = python.site_directories.iter().map(|d| PathBuf::from(&d.path)).collect();
    let installed: BTreeSet<String> =
        sites.iter().flat_map(|site| root.names(site)).filter_map(|name| module_name(&name)).collect();
    for (path, source) in &earlier {
        if sites.contains(path) {
            continue;
        }
        let mut hides: Vec<String> = root
            .names(path)
            .into_iter()
            .filter(|name| {
                // A folder without __init__.py is a namespace portion, which an installed package wins over.
                let module =
                    root.is_file(&path.join(name)) || root.is_file(&path.join(name).join("__init__.py"));
                module && module_name(name).is_some_and(|module| installed.contains(&module))
            })
            .filter_map(|name| module_name(&name))
            .collect();
        hides.dedup();
        let hides_left_out = hides.len().saturating_sub(HIDDEN_KEPT);
        // What matters most must not fall to the cut.
        hides.sort_by_key(|module| {
            (
                !["vllm", "sglang", "torch", "flashinfer", "transformers"].contains(&module.as_str()),
                module.clone(),
            )
        });
        hides.truncate(HIDDEN_KEPT);
        hooks.earlier.push(EarlierFolder {
            path: path.display().to_string(),
            source: (*source).to_owned(),
            exists: root.is_dir(path),
            python: crate::python::version_in_path(path),
            hides,
            hides_left_out,
        });
    }

    let mut customize: Vec<(PathBuf, &str)> = earlier.clone();
    customize.extend(sites.iter().map(|site| (site.clone(), "site-packages")));
    let base = python.base_prefix.as_deref().unwrap_or(&python.prefix);
    if let Some((major, minor)) = python.minor_version() {
        customize.push((Path::new(base).join(format!("lib/python{major}.{minor}")), "standard library"));
        customize.push((PathBuf::from(format!("/usr/lib/python{major}.{minor}")), "standard library"));
    }
    let mut seen = BTreeSet::new();
    for (folder, source) in customize {
        // A venv's base is not the system's interpreter; its /usr/lib belongs to another one.
        if folder.starts_with("/usr/lib") && !base.starts_with("/usr") && source == "standard library" {
            continue;
        }
        for module in ["sitecustomize", "usercustomize"] {
            for file in [format!("{module}.py"), format!("{module}/__init__.py")] {
                let path = folder.join(&file);
                if root.is_file(&path) && seen.insert(root.resolve(&path).unwrap_or_else(|_| path.clone())) {
                    hooks.customize.push(Customize {
                        module: module.to_owned(),
                        text: root.read_text(&path, CUSTOMIZE_KEPT).unwrap_or_default(),
                        distribution: recorded_by(root, python, distributions, &folder, &file),
                        path: path.display().to_string(),
                        source: source.to_owned(),
                    });
                }
            }
        }
    }

    for site in &sites {
        for name in root.names(site) {
            if name.ends_with(".pth")
                && let Ok(text) = root.read_text(&site.join(&name), 1 << 20)
            {
                let mut file = path_file(&site.join(&name), &text);
                if !file.code.is_empty() || !file.folders.is_empty() {
                    file.distribution = recorded_by(root, python, distributions, site, &name);
                    hooks.path_files.push(file);
                }
            }
        }
    }

    for library in environment.get("LD_PRELOAD").map_or("", String::as_str).split([':', ' ']) {
        if !library.is_empty() {
            hooks.preloaded.push((library.to_owned(), "LD_PRELOAD".to_owned()));
        }
    }
    let preload = root.read_text(Path::new("/etc/ld.so.preload"), 64 << 10).unwrap_or_default();
    for line in preload.lines().map(|line| line.split('#').next().unwrap_or("").trim()) {
        hooks.preloaded.extend(
            line.split([':', ' ', '\t'])
                .filter(|name| !name.is_empty())
                .map(|name| (name.to_owned(), "/etc/ld.so.preload".to_owned())),
        );
    }
    hooks.preloaded.truncate(100);
    hooks.switched_off_by = environment
        .get("PYTHONNOUSERSITE")
        .filter(|value| !value.is_empty())
        .map(|_| "PYTHONNOUSERSITE".to_owned());
    hooks
}

/// `site.addpackage`: lines that begin with `import` and a blank are executed, comments and empty lines are passed over.
fn path_file(path: &Path, text: &str) -> PathFile {
    let mut file = PathFile {
        path: path.display().to_string(),
        code: Vec::new(),
        folders: Vec::new(),
        lines_left_out: 0,
        distribution: None,
    };
    for line in text.trim_start_matches('\u{feff}').lines() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        if file.code.len() + file.folders.len() >= LINES_KEPT {
            file.lines_left_out += 1;
        } else if line.starts_with("import ") || line.starts_with("import\t") {
            file.code.push(line.chars().take(LINE_KEPT).collect());
        } else {
            file.folders.push(line.trim_end().chars().take(LINE_KEPT).collect());
        }
    }
    file
}

/// The module that a name in a folder stands for.
fn module_name(name: &str) -> Option<String> {
    if name.contains("-info") || name.starts_with(['.', '_', '~']) {
        return None;
    }
    match name.split_once('.') {
        None => Some(name.to_owned()),
        Some((module, rest)) if rest == "py" || rest.ends_with("so") => Some(module.to_owned()),
        Some(_) => None,
    }
}

fn recorded_by(
    root: &Root,
    python: &PythonEnvironment,
    distributions: &[Distribution],
    folder: &Path,
    name: &str,
) -> Option<String> {
    distributions.iter().filter(|d| d.has_record).find_map(|distribution| {
        let site = Path::new(&python.site_directories[distribution.site].path);
        if site != folder {
            return None;
        }
        let record = root.read_text(&site.join(&distribution.info).join("RECORD"), 16 << 20).ok()?;
        let row = format!("{name},");
        record.lines().any(|line| line.starts_with(&row)).then(|| distribution.name.clone())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_that_begin_with_import_are_code() {
        let file = path_file(
            Path::new("/x.pth"),
            "# import os\n\nimport os; os.x\n /opt/src\nimportlib_folder\nimport\tsys\n",
        );
        assert_eq!(file.code, ["import os; os.x", "import\tsys"]);
        assert_eq!(file.folders, [" /opt/src", "importlib_folder"]);
    }

    #[test]
    fn modules_are_told_from_other_files() {
        assert_eq!(module_name("six.py").as_deref(), Some("six"));
        assert_eq!(module_name("_C.abi3.so"), None);
        assert_eq!(module_name("regex.cpython-311-x86_64-linux-gnu.so").as_deref(), Some("regex"));
        assert_eq!(module_name("vllm").as_deref(), Some("vllm"));
        assert_eq!(module_name("vllm-0.32.0.dist-info"), None);
        assert_eq!(module_name("README.md"), None);
    }
}
