//! Which Python environment: its folders, interpreter and installer, found without running it.

use std::path::{Path, PathBuf};

use lucid_root::Root;
use serde::{Deserialize, Serialize};

use crate::installer::Installer;

/// What kind of environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EnvironmentKind {
    /// A virtual environment with a `pyvenv.cfg`.
    Venv,
    /// A conda prefix with a `conda-meta`.
    Conda,
    /// An interpreter's own prefix: `/usr`, `/usr/local`, a pyenv version.
    Prefix,
    /// A bare folder of packages.
    #[default]
    SitePackages,
}

/// A folder that packages are imported from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteDirectory {
    /// Where it is, as the patient says it.
    pub path: String,
    /// The version in `lib/python3.11/site-packages`, if the path says one.
    pub python: Option<(u32, u32)>,
    /// How it comes onto the path: `own`, `system-site-packages`, `PYTHONPATH`.
    pub source: String,
}

/// A Python environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonEnvironment {
    /// What kind.
    pub kind: EnvironmentKind,
    /// `sys.prefix`.
    pub prefix: String,
    /// `sys.base_prefix` of a virtual environment.
    pub base_prefix: Option<String>,
    /// The interpreter to put into commands: `/opt/venv/bin/python`.
    pub interpreter: Option<String>,
    /// Its version: `3.11.7`, or `3.11` where no file says more.
    pub version: Option<String>,
    /// The machine, as `platform.machine()` says it: `x86_64`.
    pub machine: String,
    /// In the order of import.
    pub site_directories: Vec<SiteDirectory>,
    /// Whether a virtual environment sees the base interpreter's packages.
    pub system_site_packages: bool,
    /// Who installs here; the packages' `INSTALLER` files have the last word.
    pub installer: Installer,
    /// What could not be told.
    pub notes: Vec<String>,
}

/// Why there is no environment.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The path does not exist, or is a loop of links.
    #[error(
        "{path}: no such folder or interpreter in {root}; give a virtual environment, a prefix or a site-packages folder"
    )]
    Absent {
        /// What was given.
        path: String,
        /// Where it was looked for.
        root: String,
    },
    /// It is there, but it holds no packages.
    #[error(
        "{0}: neither pyvenv.cfg, nor conda-meta, nor lib/pythonX.Y/site-packages, nor *.dist-info in it; give the environment's folder, its bin/python, or its site-packages"
    )]
    NoPackages(String),
}

impl PythonEnvironment {
    /// Finds the environment at `path` of the patient whose file system is `root`: a virtual environment, a conda or system
    /// prefix, an interpreter or script in its `bin`, a folder of packages, or `/` for a whole image.
    ///
    /// # Errors
    ///
    /// Nothing is there, or nothing that holds packages.
    pub fn find(root: &Root, path: &Path) -> Result<PythonEnvironment, FindError> {
        let path = root.inside(path);
        let absent = || FindError::Absent {
            path: path.display().to_string(),
            root: root.resolve(Path::new("/")).map(|r| r.display().to_string()).unwrap_or_default(),
        };
        let host = root.resolve(&path).map_err(|_| absent())?;
        if host.is_file() {
            return PythonEnvironment::of_script(root, &path);
        }
        if !host.is_dir() {
            return Err(absent());
        }
        if let Some(environment) = PythonEnvironment::of_prefix(root, &path) {
            return Ok(environment);
        }
        if let Some(environment) = PythonEnvironment::of_site_packages(root, &path) {
            return Ok(environment);
        }
        if path == Path::new("/") {
            return PythonEnvironment::of_image(root);
        }
        Err(FindError::NoPackages(path.display().to_string()))
    }

    /// The minor version, from the interpreter's version or the first folder that names one.
    #[must_use]
    pub fn minor_version(&self) -> Option<(u32, u32)> {
        self.version
            .as_deref()
            .and_then(minor)
            .or_else(|| self.site_directories.iter().find_map(|directory| directory.python))
    }

    fn of_script(root: &Root, path: &Path) -> Result<PythonEnvironment, FindError> {
        // `bin/python` of a virtual environment is a link to the base interpreter, so the link's own folder comes first.
        let resolved = root.resolve(path).map(|p| root.inside(&p)).unwrap_or_else(|_| path.to_owned());
        for candidate in [path, &resolved] {
            let prefix = candidate.parent().and_then(Path::parent);
            if let Some(found) = prefix.and_then(|prefix| PythonEnvironment::of_prefix(root, prefix)) {
                return Ok(found);
            }
        }
        Err(FindError::NoPackages(path.display().to_string()))
    }

    fn of_prefix(root: &Root, prefix: &Path) -> Option<PythonEnvironment> {
        let config = root.read_text(&prefix.join("pyvenv.cfg"), 64 << 10).ok();
        let conda = root.is_dir(&prefix.join("conda-meta"));
        let directories = package_folders(root, prefix, "own");
        if directories.is_empty() && config.is_none() {
            return None;
        }
        let mut environment = PythonEnvironment {
            kind: match (&config, conda) {
                (Some(_), _) => EnvironmentKind::Venv,
                (None, true) => EnvironmentKind::Conda,
                (None, false) => EnvironmentKind::Prefix,
            },
            prefix: prefix.display().to_string(),
            site_directories: directories,
            installer: if conda { Installer::Conda } else { Installer::Pip },
            ..PythonEnvironment::default()
        };
        if let Some(config) = &config {
            environment.read_pyvenv(root, config);
        } else if conda {
            environment.version = conda_python(root, prefix);
        }
        environment.complete(root, prefix);
        Some(environment)
    }

    fn of_site_packages(root: &Root, path: &Path) -> Option<PythonEnvironment> {
        let named = path.file_name().is_some_and(|n| n == "site-packages" || n == "dist-packages");
        let holds = |name: &String| name.ends_with(".dist-info") || name.ends_with(".egg-info");
        if !named && !root.names(path).iter().any(holds) {
            return None;
        }
        let directory = SiteDirectory {
            path: path.display().to_string(),
            python: version_in_path(path),
            source: "own".to_owned(),
        };
        // lib/python3.11/site-packages and lib/python3/dist-packages lie three below their prefix.
        let below_prefix = path
            .parent()
            .is_some_and(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python")));
        let prefix = if below_prefix { path.ancestors().nth(3).unwrap_or(path) } else { path };
        if let Some(mut environment) =
            below_prefix.then(|| PythonEnvironment::of_prefix(root, prefix)).flatten()
        {
            environment.site_directories.retain(|d| d.path == directory.path || d.source != "own");
            if environment.site_directories.iter().all(|d| d.path != directory.path) {
                environment.site_directories.insert(0, directory);
            }
            return Some(environment);
        }
        let mut environment = PythonEnvironment {
            kind: EnvironmentKind::SitePackages,
            prefix: prefix.display().to_string(),
            site_directories: vec![directory],
            ..PythonEnvironment::default()
        };
        environment.complete(root, prefix);
        Some(environment)
    }

    /// An image's interpreters, the one that holds an engine first.
    fn of_image(root: &Root) -> Result<PythonEnvironment, FindError> {
        let mut prefixes: Vec<PathBuf> =
            ["/opt/venv", "/opt/conda", "/venv", "/app/.venv", "/workspace/.venv", "/usr/local", "/usr"]
                .iter()
                .map(PathBuf::from)
                .collect();
        prefixes.extend(root.names(Path::new("/opt")).iter().map(|name| Path::new("/opt").join(name)));
        let mut found: Vec<PythonEnvironment> =
            prefixes.iter().filter_map(|prefix| PythonEnvironment::of_prefix(root, prefix)).collect();
        let engine = |environment: &PythonEnvironment| {
            environment.site_directories.iter().any(|directory| {
                ["vllm", "sglang"].iter().any(|name| root.is_dir(&Path::new(&directory.path).join(name)))
            })
        };
        let at = found.iter().position(engine).unwrap_or(0);
        if found.is_empty() {
            return Err(FindError::NoPackages("/".to_owned()));
        }
        Ok(found.swap_remove(at))
    }

    fn read_pyvenv(&mut self, root: &Root, config: &str) {
        for line in config.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim();
            match key.trim() {
                "home" => self.base_prefix = Path::new(value).parent().map(|p| p.display().to_string()),
                "version" | "version_info" => {
                    self.version = Some(value.split(".final").next().unwrap_or(value).to_owned());
                }
                "include-system-site-packages" => {
                    self.system_site_packages = value.eq_ignore_ascii_case("true");
                }
                "uv" => self.installer = Installer::Uv,
                _ => {}
            }
        }
        if self.system_site_packages {
            match self.base_prefix.clone() {
                Some(base) => self.site_directories.extend(package_folders(
                    root,
                    Path::new(&base),
                    "system-site-packages",
                )),
                None => self.notes.push("pyvenv.cfg names no home: system packages not found".to_owned()),
            }
        }
    }

    /// Interpreter, version and machine.
    fn complete(&mut self, root: &Root, prefix: &Path) {
        let minor = self.site_directories.iter().find_map(|directory| directory.python);
        if self.version.is_none() {
            self.version = minor.map(|(major, minor)| format!("{major}.{minor}"));
        }
        let mut names = vec!["python".to_owned(), "python3".to_owned()];
        names.extend(minor.map(|(major, minor)| format!("python{major}.{minor}")));
        let interpreter = names.iter().map(|name| prefix.join("bin").join(name)).find(|path| {
            // A link that leads out of what was copied is still the interpreter's name.
            root.is_file(path)
                || root
                    .names(&prefix.join("bin"))
                    .iter()
                    .any(|name| path.file_name().is_some_and(|n| n == name.as_str()))
        });
        self.machine = interpreter
            .as_ref()
            .and_then(|path| root.read(path, 20).ok())
            .and_then(|header| elf_machine(&header))
            .unwrap_or(std::env::consts::ARCH)
            .to_owned();
        self.interpreter = interpreter.map(|path| path.display().to_string());
        if self.version.is_none() {
            self.notes.push(
                "the interpreter's version is not known: requirements are judged as for 3.12".to_owned(),
            );
        }
    }
}

/// `lib*/python3*/{site,dist}-packages` below a prefix, in the order of the interpreter's own path, each folder once.
fn package_folders(root: &Root, prefix: &Path, source: &str) -> Vec<SiteDirectory> {
    let mut found: Vec<SiteDirectory> = Vec::new();
    let mut seen: Vec<PathBuf> = Vec::new();
    // Debian's interpreter in /usr looks into /usr/local first.
    let local = (prefix == Path::new("/usr")).then(|| PathBuf::from("/usr/local"));
    for prefix in local.iter().map(PathBuf::as_path).chain([prefix]) {
        for library in ["lib", "lib64"] {
            let library = prefix.join(library);
            for python in root.names(&library) {
                if !python.strip_prefix("python").is_some_and(|rest| rest.starts_with('3')) {
                    continue;
                }
                for packages in ["site-packages", "dist-packages"] {
                    let path = library.join(&python).join(packages);
                    let Ok(real) = root.resolve(&path) else { continue };
                    if real.is_dir() && !seen.contains(&real) {
                        seen.push(real);
                        found.push(SiteDirectory {
                            python: version_in_path(&path),
                            path: path.display().to_string(),
                            source: source.to_owned(),
                        });
                    }
                }
            }
        }
    }
    found
}

/// The version in `…/python3.11/site-packages`.
pub(crate) fn version_in_path(path: &Path) -> Option<(u32, u32)> {
    path.components().rev().find_map(|component| {
        component.as_os_str().to_str().and_then(|name| name.strip_prefix("python")).and_then(minor)
    })
}

fn minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.');
    let major = numbers.next()?.parse().ok()?;
    let minor: String = numbers.next()?.chars().take_while(char::is_ascii_digit).collect();
    Some((major, minor.parse().ok()?))
}

/// `conda-meta/python-3.11.7-h955ad1f_0.json` names the version.
fn conda_python(root: &Root, prefix: &Path) -> Option<String> {
    root.names(&prefix.join("conda-meta")).iter().find_map(|name| {
        let rest = name.strip_prefix("python-")?;
        rest.starts_with('3').then(|| rest.split('-').next().unwrap_or(rest).to_owned())
    })
}

/// `e_machine` of an ELF header, little-endian, as `platform.machine()` names it.
fn elf_machine(header: &[u8]) -> Option<&'static str> {
    if !header.starts_with(b"\x7fELF") {
        return None;
    }
    match u16::from_le_bytes([*header.get(18)?, *header.get(19)?]) {
        0x3e => Some("x86_64"),
        0xb7 => Some("aarch64"),
        0x15 => Some("ppc64le"),
        0x16 => Some("s390x"),
        0xf3 => Some("riscv64"),
        _ => None,
    }
}
