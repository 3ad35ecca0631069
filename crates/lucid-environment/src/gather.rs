//! The evidence of one environment, gathered by reading files alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use lucid_findings::Step;
use lucid_root::Root;
use serde::{Deserialize, Serialize};

use crate::distribution::{Distribution, distributions};
use crate::installer::Installer;
use crate::integrity::{self, RecordIntegrity};
use crate::kernel_caches::{self, KernelCache};
use crate::mounts::{self, Mount};
use crate::newer_files::{self, NewerFile};
use crate::package_index::IndexSettings;
use crate::python::{FindError, PythonEnvironment, SiteDirectory, version_in_path};
use crate::served_path::ServedPath;
use crate::shared_libraries::{self, SharedLibraries};
use crate::startup::{self, StartupHooks};

/// Mounts and foreign modules kept.
const KEPT: usize = 500;

/// How the integrity of the files is checked.
#[derive(Clone, Debug, Default)]
pub struct IntegrityOptions {
    /// Keeps hashes between runs in this file on this machine, keyed by size, times and inode.
    pub hash_cache: Option<PathBuf>,
    /// Wheels, or folders of wheels, on this machine: originals for the comparison of modified files.
    pub wheels: Vec<PathBuf>,
    /// Caches of pip and uv, as the patient says them; their wheels are originals too.
    pub installer_caches: Vec<PathBuf>,
    /// Package indexes to fetch originals from; `None` asks nobody.
    pub index: Option<IndexSettings>,
    /// Keeps fetched originals between runs in this folder on this machine.
    pub original_cache: Option<PathBuf>,
    /// Threads; as many as the machine has if `None`.
    pub threads: Option<usize>,
}

/// What is pointed at.
#[derive(Clone, Debug)]
pub struct GatherOptions {
    /// The patient's file system: `/`, `/proc/PID/root`, or a folder that holds an image.
    pub root: PathBuf,
    /// The environment in it: its folder, its `bin/python`, a site-packages folder, or `/` for a whole image.
    pub path: PathBuf,
    /// Environment variables of the serving process, where known.
    pub environment: BTreeMap<String, String>,
    /// Its working directory, where known.
    pub working_directory: Option<PathBuf>,
    /// Home of the user that serves; caches lie in it.
    pub home: Option<PathBuf>,
    /// Text of the process's `/proc/PID/mountinfo`, where known; this machine's own mounts are read by itself.
    pub mountinfo: Option<String>,
    /// Hash every file; `None` leaves the check out.
    pub integrity: Option<IntegrityOptions>,
}

impl GatherOptions {
    /// The environment at `path` of this machine, everything checked.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> GatherOptions {
        GatherOptions {
            root: PathBuf::from("/"),
            path: path.into(),
            environment: BTreeMap::new(),
            working_directory: None,
            home: None,
            mountinfo: None,
            integrity: Some(IntegrityOptions::default()),
        }
    }
}

/// A compiled module of another interpreter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignModule {
    /// Below its site folder.
    pub path: String,
    /// The ABI in its name: `cpython-310`.
    pub abi: String,
}

/// What was read of an environment. Serializable, bounded, and all that the checks of this crate look at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentEvidence {
    /// When it was gathered, in seconds since 1970.
    pub gathered_at: i64,
    /// The environment.
    pub python: PythonEnvironment,
    /// What is installed in it, at most 5,000.
    pub distributions: Vec<Distribution>,
    /// Distributions beyond those.
    pub distributions_left_out: usize,
    /// Comparison with the RECORDs, if it was asked for.
    pub integrity: Option<RecordIntegrity>,
    /// What runs before the engine.
    pub startup: StartupHooks,
    /// Mounts on or in the folders of packages; `None` if the process's mounts were not given.
    pub mounts: Option<Vec<Mount>>,
    /// Compiled modules of other interpreters, at most 500.
    pub foreign_modules: Vec<ForeignModule>,
    /// Compiled modules of engines and what they ask for.
    pub shared_libraries: SharedLibraries,
    /// Caches of compiled kernels; `None` if no home or variable was given to look for them.
    pub kernel_caches: Option<Vec<KernelCache>>,
    /// Version of the NVIDIA driver, from `/proc/driver/nvidia/version`.
    pub driver: Option<String>,
    /// CUDA toolkits: folder and version.
    pub cuda_toolkits: Vec<(String, String)>,
    /// Code of the serving stack that was written long after its distribution was installed, at most 200 files.
    pub newer_files: Vec<NewerFile>,
    /// What was odd, unreadable or left out.
    pub notes: Vec<String>,
}

impl EnvironmentEvidence {
    /// The distribution of a normalized name that Python would find.
    #[must_use]
    pub fn distribution(&self, name: &str) -> Option<&Distribution> {
        self.distributions.iter().find(|d| d.name == name && !d.shadowed)
    }
}

/// Gathers everything that the options point at.
///
/// # Errors
///
/// There is no environment at the path; whatever else cannot be read becomes a note.
pub fn gather(
    options: &GatherOptions,
    progress: &mut dyn FnMut(Step),
) -> Result<EnvironmentEvidence, FindError> {
    let root = Root::new(&options.root);
    let mut python = PythonEnvironment::find(&root, &options.path)?;
    let mut notes = std::mem::take(&mut python.notes);
    add_python_path(&root, &mut python, options);
    let (found, distributions_left_out) = distributions(&root, &python, &mut notes);
    python.installer = installer(&python, &found);
    progress(Step {
        done: found.len() as u64,
        of: found.len() as u64,
        unit: "packages",
        text: format!("read the metadata of {}", python.prefix),
    });
    let integrity = options.integrity.as_ref().map(|integrity| {
        let mut integrity = integrity.clone();
        integrity.installer_caches.extend(installer_caches(options));
        integrity::gather(&root, &python, &found, &integrity, &mut notes, progress)
    });
    let know_home = options.home.is_some() || !options.environment.is_empty();
    let library_path = options.environment.get("LD_LIBRARY_PATH").map_or("", String::as_str);
    Ok(EnvironmentEvidence {
        gathered_at: now(),
        integrity,
        startup: startup::gather(
            &root,
            &python,
            &found,
            &options.environment,
            options.working_directory.as_deref(),
        ),
        mounts: mountinfo(&root, options).map(|text| mounts_over(&root, &python, &text)),
        foreign_modules: foreign_modules(&root, &python),
        shared_libraries: shared_libraries::gather(
            &root,
            &python,
            &ServedPath::known().compiled_packages,
            library_path,
        ),
        kernel_caches: know_home
            .then(|| kernel_caches::gather(&root, &python, &options.environment, options.home.as_deref())),
        driver: driver(&root),
        newer_files: newer_files::gather(&root, &python, &found),
        cuda_toolkits: cuda_toolkits(&root),
        distributions: found,
        distributions_left_out,
        python,
        notes,
    })
}

fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Folders of PYTHONPATH that hold distributions are site folders too, and come first.
fn add_python_path(root: &Root, python: &mut PythonEnvironment, options: &GatherOptions) {
    let value = options.environment.get("PYTHONPATH").map_or("", String::as_str);
    let mut at = 0;
    for entry in value.split(':').filter(|entry| entry.starts_with('/')) {
        let known = python.site_directories.iter().any(|directory| directory.path == entry);
        let holds = root.names(Path::new(entry)).iter().any(|name| name.ends_with(".dist-info"));
        if holds && !known {
            let path = Path::new(entry);
            let directory = SiteDirectory {
                path: root.inside(path).display().to_string(),
                python: version_in_path(path),
                source: "PYTHONPATH".to_owned(),
            };
            python.site_directories.insert(at, directory);
            at += 1;
        }
    }
}

/// The installer that most packages name; conda stays conda, since its own list must stay true.
fn installer(python: &PythonEnvironment, distributions: &[Distribution]) -> Installer {
    if python.installer != Installer::Pip {
        return python.installer;
    }
    let count = |installer: Installer| {
        distributions
            .iter()
            .filter(|d| d.installer.as_deref().and_then(Installer::named) == Some(installer))
            .count()
    };
    if count(Installer::Uv) > count(Installer::Pip) { Installer::Uv } else { Installer::Pip }
}

fn installer_caches(options: &GatherOptions) -> Vec<PathBuf> {
    let variable = |name: &str| options.environment.get(name).map(PathBuf::from);
    let home = options.home.clone().or_else(|| variable("HOME"));
    let cache = variable("XDG_CACHE_HOME").or_else(|| home.map(|home| home.join(".cache")));
    let mut found: Vec<PathBuf> =
        [variable("PIP_CACHE_DIR"), variable("UV_CACHE_DIR")].into_iter().flatten().collect();
    if let Some(cache) = cache {
        found.push(cache.join("pip"));
        found.push(cache.join("uv"));
    }
    found
}

/// The mounts that the patient sees: those given, or this machine's own if it is the patient.
fn mountinfo(root: &Root, options: &GatherOptions) -> Option<String> {
    let own = || root.is_host().then(|| std::fs::read_to_string("/proc/self/mountinfo").ok()).flatten();
    options.mountinfo.clone().or_else(own)
}

fn mounts_over(root: &Root, python: &PythonEnvironment, text: &str) -> Vec<Mount> {
    let sites: Vec<PathBuf> = python
        .site_directories
        .iter()
        .flat_map(|directory| {
            let path = PathBuf::from(&directory.path);
            let real = root.resolve(&path).map(|real| root.inside(&real));
            std::iter::once(path).chain(real)
        })
        .collect();
    let mut found: Vec<Mount> = mounts::parse(text)
        .into_iter()
        .filter(|mount| sites.iter().any(|site| Path::new(&mount.point).starts_with(site)))
        .collect();
    found.dedup();
    found.truncate(KEPT);
    found
}

/// Modules whose name carries the ABI of another Python, where no module for this one lies beside them.
fn foreign_modules(root: &Root, python: &PythonEnvironment) -> Vec<ForeignModule> {
    let Some((major, minor)) = python.minor_version() else { return Vec::new() };
    let own = format!("cpython-{major}{minor}");
    let mut found = Vec::new();
    for directory in &python.site_directories {
        let site = Path::new(&directory.path);
        let mut folders: Vec<(PathBuf, usize)> = vec![(PathBuf::new(), 0)];
        let mut seen = 0;
        while let Some((folder, depth)) = folders.pop() {
            let Ok(host) = root.resolve(&site.join(&folder)) else { continue };
            let mut names: Vec<String> = Vec::new();
            for entry in std::fs::read_dir(host).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                match entry.file_type() {
                    // Modules lie near the top; headers and test data lie deep and are many.
                    Ok(kind) if kind.is_dir() && depth < 6 && name != "__pycache__" && name != "include" => {
                        folders.push((folder.join(name), depth + 1));
                    }
                    Ok(kind) if !kind.is_dir() && name.ends_with(".so") => names.push(name),
                    _ => {}
                }
            }
            seen += 1;
            if seen > 50_000 || found.len() >= KEPT {
                break;
            }
            for name in &names {
                let Some((module, abi)) = name.split_once(".cpython-") else { continue };
                let abi = format!("cpython-{}", abi.split(['-', '.']).next().unwrap_or(abi));
                let has_own = names.iter().any(|other| {
                    other.strip_prefix(module).is_some_and(|rest| {
                        rest.starts_with(&format!(".{own}")) || rest == ".abi3.so" || rest == ".so"
                    })
                });
                if abi != own && !has_own {
                    let path = folder.join(name).to_string_lossy().into_owned();
                    found.push(ForeignModule { path, abi });
                }
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.truncate(KEPT);
    found
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  …`.
fn driver(root: &Root) -> Option<String> {
    let text = root.read_text(Path::new("/proc/driver/nvidia/version"), 4 << 10).ok()?;
    text.lines().next()?.split_whitespace().find_map(|word| {
        let numeric = word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
        numeric.then(|| word.to_owned())
    })
}

fn cuda_toolkits(root: &Root) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for name in root.names(Path::new("/usr/local")) {
        let folder = Path::new("/usr/local").join(&name);
        if !name.starts_with("cuda") || !root.is_dir(&folder) {
            continue;
        }
        let version = root
            .read(&folder.join("version.json"), 1 << 20)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
            .and_then(|value| value["cuda"]["version"].as_str().map(str::to_owned))
            .or_else(|| name.strip_prefix("cuda-").map(str::to_owned));
        if let Some(version) = version {
            found.push((folder.display().to_string(), version));
        }
    }
    found
}
