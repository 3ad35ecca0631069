//! A patient made of real files: a folder that stands for a machine's root, with an environment in it.
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use lucid_environment::{EnvironmentEvidence, GatherOptions, IntegrityOptions, checks, gather};
use lucid_findings::{Deployment, Examined, Finding, Skip};
use sha2::Digest as _;

pub const SITE: &str = "opt/venv/lib/python3.11/site-packages";

/// A machine's root.
pub struct Patient {
    folder: tempfile::TempDir,
    pub options: GatherOptions,
}

impl Patient {
    /// An empty virtual environment in `/opt/venv`.
    pub fn new() -> Patient {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        fs::create_dir_all(root.join(SITE)).unwrap();
        fs::create_dir_all(root.join("opt/venv/bin")).unwrap();
        fs::write(root.join("opt/venv/bin/python"), "").unwrap();
        fs::write(
            root.join("opt/venv/pyvenv.cfg"),
            "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.7\n",
        )
        .unwrap();
        let options = GatherOptions {
            root,
            path: PathBuf::from("/opt/venv"),
            environment: BTreeMap::from([("HOME".to_owned(), "/home/serve".to_owned())]),
            working_directory: None,
            home: None,
            mountinfo: None,
            integrity: Some(IntegrityOptions { threads: Some(2), ..IntegrityOptions::default() }),
        };
        Patient { folder, options }
    }

    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    pub fn site(&self) -> PathBuf {
        self.root().join(SITE)
    }

    /// Writes a file of the root.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.root().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Installs a package as pip would, with a RECORD.
    pub fn install(&self, name: &str, version: &str, requires: &[&str], files: &[(&str, &str)]) {
        self.install_with("pip", name, version, requires, files);
    }

    pub fn install_with(
        &self,
        installer: &str,
        name: &str,
        version: &str,
        requires: &[&str],
        files: &[(&str, &str)],
    ) {
        let info = format!("{}-{version}.dist-info", name.replace('-', "_"));
        let mut metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
        for requirement in requires {
            metadata.push_str(&format!("Requires-Dist: {requirement}\n"));
        }
        let mut record = String::new();
        let mut all: Vec<(String, String)> =
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        all.push((format!("{info}/METADATA"), metadata));
        all.push((format!("{info}/INSTALLER"), format!("{installer}\n")));
        for (path, text) in &all {
            self.write(&format!("{SITE}/{path}"), text);
            record.push_str(&format!("{path},{},{}\n", hash(text.as_bytes()), text.len()));
        }
        record.push_str(&format!("{info}/RECORD,,\n"));
        self.write(&format!("{SITE}/{info}/RECORD"), record);
    }

    pub fn gather(&self) -> EnvironmentEvidence {
        let evidence = gather(&self.options, &mut |_| {}).unwrap();
        // What an archive keeps must say the same.
        let text = serde_json::to_string(&evidence).unwrap();
        assert!(
            serde_json::from_str::<EnvironmentEvidence>(&text).unwrap() == evidence,
            "not the same after JSON"
        );
        evidence
    }

    /// All findings of all checks.
    pub fn findings(&self, deployment: &Deployment) -> Vec<Finding> {
        let evidence = self.gather();
        let mut found = Vec::new();
        for (_, outcome) in checks::all(&evidence, deployment, None) {
            if let Ok(Examined { findings, .. }) = outcome {
                found.extend(findings);
            }
        }
        for finding in &found {
            assert!(
                lucid_environment::FINDINGS.iter().any(|(id, _)| *id == finding.id),
                "{} is in no table",
                finding.id
            );
            if finding.severity > lucid_findings::Severity::Info {
                assert!(
                    finding.remedy.as_ref().is_some_and(|r| !r.commands.is_empty())
                        || finding.id.ends_with("known-fault"),
                    "{} has no command",
                    finding.id
                );
            }
        }
        found
    }

    pub fn outcome(&self, check: &str, deployment: &Deployment) -> Result<Examined, Skip> {
        let evidence = self.gather();
        checks::all(&evidence, deployment, None).into_iter().find(|(id, _)| *id == check).unwrap().1
    }
}

/// As RECORD says it.
pub fn hash(bytes: &[u8]) -> String {
    let digest = sha2::Sha256::digest(bytes);
    format!("sha256={}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(digest))
}

/// The finding of an id, if there is exactly one or more: the first.
pub fn find<'a>(findings: &'a [Finding], id: &str) -> Option<&'a Finding> {
    findings.iter().find(|finding| finding.id == id)
}

/// Ids in their order.
pub fn ids(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.id.as_str()).collect()
}

/// The least ELF file that a dynamic section is read from: header, two program headers, dynamic section, strings.
pub fn elf(needs: &[impl AsRef<str>]) -> Vec<u8> {
    let mut strings = vec![0_u8];
    let mut entries: Vec<(u64, u64)> = Vec::new();
    for name in needs {
        entries.push((1, strings.len() as u64));
        strings.extend(name.as_ref().as_bytes());
        strings.push(0);
    }
    let dynamic = 64 + 2 * 56;
    let length = (entries.len() as u64 + 3) * 16;
    entries.extend([(5, dynamic + length), (10, strings.len() as u64), (0, 0)]);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    file[32..40].copy_from_slice(&64_u64.to_le_bytes());
    file[54..56].copy_from_slice(&56_u16.to_le_bytes());
    file[56..58].copy_from_slice(&2_u16.to_le_bytes());
    let whole = dynamic + length + strings.len() as u64;
    for (kind, offset, size) in [(1_u32, 0, whole), (2, dynamic, length)] {
        file.extend(kind.to_le_bytes());
        file.extend(0_u32.to_le_bytes());
        for value in [offset, offset, offset, size, size, 8] {
            file.extend(value.to_le_bytes());
        }
    }
    for (tag, value) in entries {
        file.extend(tag.to_le_bytes());
        file.extend(value.to_le_bytes());
    }
    file.extend(strings);
    file
}
