//! Installed distributions: what their metadata says, and how each came here.

use std::path::{Path, PathBuf};

use lucid_findings::redact;
use lucid_root::Root;
use serde::{Deserialize, Serialize};

use crate::metadata::{Headers, normalized};
use crate::python::PythonEnvironment;

/// Distributions kept of one environment; real ones have hundreds.
const DISTRIBUTIONS_KEPT: usize = 5_000;
/// Requirements kept of one distribution; the longest real list, of `sglang`, has some 150.
const REQUIREMENTS_KEPT: usize = 1_000;
/// Bytes read of a metadata file; long READMEs stand after the headers.
const METADATA_READ: u64 = 1 << 20;

/// In which form the metadata is installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetadataFormat {
    /// `NAME-VERSION.dist-info`, which has a RECORD.
    #[default]
    DistInfo,
    /// `NAME.egg-info`, folder or file, as old setuptools, Debian and `setup.py develop` leave it.
    EggInfo,
    /// `NAME.egg-link`: a source folder in development mode.
    EggLink,
}

/// Where a distribution came from, if not from an index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectUrl {
    /// The address, without credentials.
    pub url: String,
    /// Whether its source folder itself is imported.
    pub editable: bool,
    /// The commit of a version-controlled source.
    pub commit: Option<String>,
}

/// An entry point of an engine's plugin group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryPoint {
    /// `vllm.general_plugins`.
    pub group: String,
    /// Its name in the group.
    pub name: String,
    /// `module:function`.
    pub target: String,
}

/// An installed distribution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// Normalized as PEP 503 says.
    pub name: String,
    /// As its metadata says it.
    pub version: String,
    /// Index into [`PythonEnvironment::site_directories`].
    pub site: usize,
    /// Name of the metadata folder or file: `vllm-0.32.0.dist-info`.
    pub info: String,
    /// Form of the metadata.
    pub format: MetadataFormat,
    /// `Requires-Dist`.
    pub requires: Vec<String>,
    /// Requirements beyond those kept.
    pub requires_left_out: usize,
    /// `Requires-Python`.
    pub requires_python: Option<String>,
    /// The tool in `INSTALLER`.
    pub installer: Option<String>,
    /// The wheel's tags: `cp311-cp311-manylinux_2_28_x86_64`.
    pub tags: Vec<String>,
    /// Its source, if it was no index.
    pub direct_url: Option<DirectUrl>,
    /// The source folder that is imported in development mode.
    pub editable_source: Option<String>,
    /// Whether that folder is a git checkout.
    pub git_checkout: bool,
    /// Whether it has a RECORD.
    pub has_record: bool,
    /// Top-level modules that it says it owns; needed where it has no RECORD.
    pub top_level: Vec<String>,
    /// Entry points of engines' plugin groups.
    pub plugins: Vec<EntryPoint>,
    /// When its metadata was written, in seconds since 1970.
    pub installed_at: Option<i64>,
    /// Owner of its metadata.
    pub owner: Option<u32>,
    /// Whether a distribution of the same name comes earlier on the path, so that this one is not seen.
    pub shadowed: bool,
}

impl Distribution {
    /// What an installer is asked for to get exactly this one: `NAME==VERSION`, or its direct address.
    #[must_use]
    pub fn requirement(&self) -> String {
        match &self.direct_url {
            Some(DirectUrl { url, editable: false, commit: Some(commit) }) => {
                format!("git+{}@{commit}", url.trim_start_matches("git+"))
            }
            Some(DirectUrl { url, editable: false, commit: None }) if !url.is_empty() => url.clone(),
            _ => format!("{}=={}", self.name, self.version),
        }
    }

    /// `vllm 0.32.0`.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    /// A version that is no release of the index: nightly, development or local build.
    #[must_use]
    pub fn unreleased(&self) -> bool {
        use std::str::FromStr;
        pep440_rs::Version::from_str(&self.version).is_ok_and(|v| v.is_dev() || v.is_local())
    }
}

/// Distributions of an environment, and what was odd.
pub(crate) fn distributions(
    root: &Root,
    python: &PythonEnvironment,
    notes: &mut Vec<String>,
) -> (Vec<Distribution>, usize) {
    let mut found: Vec<Distribution> = Vec::new();
    let mut left_out = 0;
    for (site, directory) in python.site_directories.iter().enumerate() {
        let folder = PathBuf::from(&directory.path);
        for name in root.names(&folder) {
            let format = match name.rsplit_once('.') {
                Some((_, "dist-info")) => MetadataFormat::DistInfo,
                Some((_, "egg-info")) => MetadataFormat::EggInfo,
                Some((_, "egg-link")) => MetadataFormat::EggLink,
                _ => continue,
            };
            if name.starts_with('~') {
                notes.push(format!(
                    "{}: left behind by an interrupted pip; remove it",
                    folder.join(&name).display()
                ));
                continue;
            }
            if found.len() >= DISTRIBUTIONS_KEPT {
                left_out += 1;
                continue;
            }
            match read(root, &folder, &name, format, notes) {
                Some(distribution) => found.push(Distribution { site, ..distribution }),
                None => notes.push(format!(
                    "{}: metadata without a name and version; passed over",
                    folder.join(&name).display()
                )),
            }
        }
    }
    mark_shadowed(&mut found);
    mark_editable(root, python, &mut found);
    (found, left_out)
}

fn read(
    root: &Root,
    folder: &Path,
    name: &str,
    format: MetadataFormat,
    notes: &mut Vec<String>,
) -> Option<Distribution> {
    let info = folder.join(name);
    let mut distribution = Distribution { info: name.to_owned(), format, ..Distribution::default() };
    if format == MetadataFormat::EggLink {
        let text = root.read_text(&info, 64 << 10).ok()?;
        distribution.name = normalized(name.trim_end_matches(".egg-link"));
        distribution.editable_source = text.lines().next().map(|line| line.trim().to_owned());
        return Some(distribution);
    }
    let file = match format {
        MetadataFormat::DistInfo => info.join("METADATA"),
        _ if root.is_dir(&info) => info.join("PKG-INFO"),
        _ => info.clone(),
    };
    let headers = match root.read_text(&file, METADATA_READ) {
        Ok(text) => Headers::parse(&text),
        Err(error) => {
            notes.push(format!("{}: {error}", file.display()));
            Headers::default()
        }
    };
    // The folder's name is the fallback: an emptied METADATA is itself a fault that pip shows as an unnamed package.
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let mut parts = stem.splitn(3, '-');
    let (stem_name, stem_version) = (parts.next(), parts.next());
    distribution.name = normalized(headers.first("name").or(stem_name)?);
    distribution.version = headers.first("version").or(stem_version)?.to_owned();
    let requires: Vec<&str> = headers.all("requires-dist").collect();
    distribution.requires_left_out = requires.len().saturating_sub(REQUIREMENTS_KEPT);
    distribution.requires =
        requires.iter().take(REQUIREMENTS_KEPT).map(|r| r.chars().take(2_000).collect()).collect();
    distribution.requires_python = headers.first("requires-python").map(str::to_owned);
    distribution.installer =
        root.read_text(&info.join("INSTALLER"), 200).ok().map(|text| text.trim().to_owned());
    if let Ok(wheel) = root.read_text(&info.join("WHEEL"), 64 << 10) {
        distribution.tags = Headers::parse(&wheel).all("tag").take(20).map(str::to_owned).collect();
    }
    distribution.direct_url = root
        .read(&info.join("direct_url.json"), 64 << 10)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
        .map(|value| direct_url(&value));
    distribution.has_record = root.is_file(&info.join("RECORD"));
    if let Ok(text) = root.read_text(&info.join("top_level.txt"), 64 << 10) {
        distribution.top_level =
            text.lines().map(str::trim).filter(|l| !l.is_empty()).take(200).map(str::to_owned).collect();
    }
    if let Ok(text) = root.read_text(&info.join("entry_points.txt"), 1 << 20) {
        distribution.plugins = plugins(&text);
    }
    if let Ok(metadata) = root.resolve(&info).and_then(std::fs::metadata) {
        use std::os::unix::fs::MetadataExt;
        distribution.owner = Some(metadata.uid());
    }
    let written = ["RECORD", "INSTALLER", "METADATA", "PKG-INFO"]
        .iter()
        .find_map(|name| root.resolve(&info.join(name)).and_then(std::fs::metadata).ok());
    if let Some(metadata) = written {
        use std::os::unix::fs::MetadataExt;
        distribution.installed_at = Some(metadata.mtime());
    }
    Some(distribution)
}

fn direct_url(value: &serde_json::Value) -> DirectUrl {
    let text = |value: &serde_json::Value| value.as_str().map(|text| redact(text).into_owned());
    DirectUrl {
        url: text(&value["url"]).unwrap_or_default(),
        editable: value["dir_info"]["editable"].as_bool().unwrap_or(false),
        commit: text(&value["vcs_info"]["commit_id"]),
    }
}

/// Entry points of groups that engines load into their processes.
fn plugins(text: &str) -> Vec<EntryPoint> {
    let mut found = Vec::new();
    let mut group = String::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name.trim().clone_into(&mut group);
        } else if let Some((name, target)) = line.split_once('=')
            && (group.starts_with("vllm.") || group.starts_with("sglang."))
            && found.len() < 100
        {
            found.push(EntryPoint {
                group: group.clone(),
                name: name.trim().to_owned(),
                target: target.trim().to_owned(),
            });
        }
    }
    found
}

/// Of two distributions with one name the first on the path is seen; in one folder both are, so neither is marked.
fn mark_shadowed(distributions: &mut [Distribution]) {
    for at in 0..distributions.len() {
        let (before, rest) = distributions.split_at_mut(at);
        let Some(this) = rest.first_mut() else { continue };
        this.shadowed = before.iter().any(|other| other.name == this.name && other.site != this.site);
    }
}

/// Finds the source folders of editable installs: `direct_url.json`, or a path in `__editable__.NAME-VERSION.pth`.
fn mark_editable(root: &Root, python: &PythonEnvironment, distributions: &mut [Distribution]) {
    for distribution in distributions {
        if distribution.editable_source.is_none()
            && let Some(url) = &distribution.direct_url
            && url.editable
        {
            distribution.editable_source = url.url.strip_prefix("file://").map(str::to_owned);
        }
        if distribution.editable_source.is_none()
            && let Some(directory) = python.site_directories.get(distribution.site)
        {
            let file =
                format!("__editable__.{}-{}.pth", distribution.name.replace('-', "_"), distribution.version);
            if let Ok(text) = root.read_text(&Path::new(&directory.path).join(file), 64 << 10) {
                let line = text.lines().find(|line| line.starts_with('/'));
                distribution.editable_source = Some(line.unwrap_or("(through an import finder)").to_owned());
            }
        }
        if let Some(source) = &distribution.editable_source {
            let source = Path::new(source);
            distribution.git_checkout = source.is_absolute()
                && source.ancestors().take(4).any(|folder| {
                    // A worktree's `.git` is a file.
                    let git = folder.join(".git");
                    root.is_dir(&git) || root.is_file(&git)
                });
        }
    }
}
