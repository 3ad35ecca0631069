//! A copy of the canary to damage, and what the checks say of it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use lucid_checkpoint_audit::{CheckpointEvidence, FINDINGS, Options, gather};
use lucid_findings::{Deployment, Examined, Finding, Severity, Skip};
use serde_json::{Map, Value};
use tempfile::TempDir;

pub(crate) const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
pub(crate) const INDEX: &str = "model.safetensors.index.json";

pub(crate) fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").canonicalize().unwrap()
}

/// Numbers that differ from run to run; `LUCID_TEST_SEED` repeats a run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Random {
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = std::env::var("LUCID_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(now);
        // Shown when the test fails.
        println!("LUCID_TEST_SEED={seed}");
        Random(seed | 1)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    pub(crate) fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// A folder of links to the canary's files; what is changed becomes a file of its own.
pub(crate) struct Patient {
    pub(crate) folder: TempDir,
}

impl Patient {
    pub(crate) fn canary() -> Patient {
        Patient::of(&models().join("canary"))
    }

    pub(crate) fn of(model: &Path) -> Patient {
        let folder = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(model).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != "README.md" {
                symlink(entry.path(), folder.path().join(entry.file_name())).unwrap();
            }
        }
        Patient { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        let _ = fs::remove_file(&path);
        fs::write(path, bytes).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    pub(crate) fn edit_json(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut json: Value = serde_json::from_slice(&self.read(name)).unwrap();
        edit(&mut json);
        self.write(name, json.to_string());
    }

    /// Edits a shard's header and data.
    pub(crate) fn edit_shard(&self, name: &str, edit: impl FnOnce(&mut Shard)) {
        let mut shard = Shard::parse(&self.read(name));
        edit(&mut shard);
        self.write(name, shard.bytes());
    }

    /// The shard that holds a tensor.
    pub(crate) fn shard_of(&self, tensor: &str) -> &'static str {
        let holds = |name: &&&str| Shard::parse(&self.read(name)).header.contains_key(tensor);
        SHARDS.iter().find(holds).unwrap_or_else(|| panic!("{tensor} is in no shard"))
    }

    /// Overwrites a tensor's bytes.
    pub(crate) fn edit_tensor(&self, tensor: &str, edit: impl FnOnce(&mut [u8])) {
        self.edit_shard(self.shard_of(tensor), |shard| edit(shard.tensor(tensor)));
    }

    pub(crate) fn gather(&self, options: &Options) -> CheckpointEvidence {
        gather(Path::new("/"), self.folder.path(), options, &mut |_| {}).unwrap()
    }

    /// Everything read, and all checks run on what the archive would hold.
    pub(crate) fn audit(&self) -> Audit {
        let evidence = self.gather(&Options { statistics: true, ..Options::default() });
        Audit::of(&evidence, &Deployment::default())
    }

    pub(crate) fn audit_with(&self, options: &Options) -> Audit {
        Audit::of(&self.gather(options), &Deployment::default())
    }
}

/// A safetensors file taken apart.
pub(crate) struct Shard {
    pub(crate) header: Map<String, Value>,
    pub(crate) data: Vec<u8>,
}

impl Shard {
    pub(crate) fn parse(bytes: &[u8]) -> Shard {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        Shard { header, data: bytes[8 + length..].to_vec() }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let header = Value::Object(self.header.clone()).to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&self.data);
        bytes
    }

    pub(crate) fn range(&self, tensor: &str) -> std::ops::Range<usize> {
        let offsets = &self.header[tensor]["data_offsets"];
        offsets[0].as_u64().unwrap() as usize..offsets[1].as_u64().unwrap() as usize
    }

    pub(crate) fn tensor(&mut self, tensor: &str) -> &mut [u8] {
        let range = self.range(tensor);
        &mut self.data[range]
    }

    /// Takes tensors out, and closes the gaps.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.rebuild(|name, entry, bytes| keep(name).then(|| (name.to_owned(), entry, bytes)));
    }

    /// Writes all tensors anew, each as `change` gives it.
    pub(crate) fn rebuild(
        &mut self,
        change: impl Fn(&str, Value, Vec<u8>) -> Option<(String, Value, Vec<u8>)>,
    ) {
        self.rebuild_many(|name, entry, bytes| change(name, entry, bytes).into_iter().collect());
    }

    /// Writes all tensors anew, each as any number of others.
    pub(crate) fn rebuild_many(
        &mut self,
        change: impl Fn(&str, Value, Vec<u8>) -> Vec<(String, Value, Vec<u8>)>,
    ) {
        let mut names: Vec<String> =
            self.header.keys().filter(|name| *name != "__metadata__").cloned().collect();
        names.sort_by_key(|name| self.range(name).start);
        let (mut header, mut data) = (Map::new(), Vec::new());
        for name in names {
            let bytes = self.data[self.range(&name)].to_vec();
            for (name, mut entry, bytes) in change(&name, self.header[&name].clone(), bytes) {
                let begin = data.len();
                data.extend_from_slice(&bytes);
                entry["data_offsets"] = serde_json::json!([begin, data.len()]);
                header.insert(name, entry);
            }
        }
        (self.header, self.data) = (header, data);
    }
}

/// What all checks say.
pub(crate) struct Audit {
    pub(crate) findings: Vec<Finding>,
    pub(crate) skips: Vec<(&'static str, String)>,
    pub(crate) covered: Vec<(&'static str, String)>,
}

type Check = fn(&CheckpointEvidence, &Deployment) -> Result<Examined, Skip>;

pub(crate) const CHECKS: [(&str, Check); 6] = [
    ("checkpoint.extents", lucid_checkpoint_audit::extents),
    ("checkpoint.index", lucid_checkpoint_audit::index),
    ("checkpoint.architecture", lucid_checkpoint_audit::architecture),
    ("checkpoint.scales", lucid_checkpoint_audit::scales),
    ("checkpoint.digest", lucid_checkpoint_audit::digest),
    ("checkpoint.tokenizer", lucid_checkpoint_audit::tokenizer),
];

impl Audit {
    /// The checks see the evidence as it comes out of an archive.
    pub(crate) fn of(evidence: &CheckpointEvidence, deployment: &Deployment) -> Audit {
        let text = serde_json::to_string(evidence).unwrap();
        let evidence: CheckpointEvidence = serde_json::from_str(&text).unwrap();
        let mut audit = Audit { findings: Vec::new(), skips: Vec::new(), covered: Vec::new() };
        for (name, check) in CHECKS {
            match check(&evidence, deployment) {
                Ok(Examined { findings, covered }) => {
                    assert!(covered.contains(|c: char| c.is_ascii_digit()), "{name}: {covered}");
                    audit.covered.push((name, covered));
                    audit.findings.extend(findings);
                }
                Err(Skip(why)) => audit.skips.push((name, why)),
            }
        }
        for finding in &audit.findings {
            assert!(FINDINGS.iter().any(|(id, _)| *id == finding.id), "{} is not in the table", finding.id);
            assert!(finding.id.starts_with(&format!("{}/", finding.check)));
            let grave = finding.severity > Severity::Info;
            assert!(!grave || finding.remedy.is_some(), "{} has no remedy", finding.id);
            assert!(
                !grave || !finding.detail.is_empty() || !finding.evidence.is_empty(),
                "{} shows nothing",
                finding.id
            );
        }
        audit
    }

    pub(crate) fn grave(&self) -> Vec<&Finding> {
        self.findings.iter().filter(|finding| finding.severity > Severity::Info).collect()
    }

    pub(crate) fn titles(&self) -> String {
        let line = |f: &Finding| format!("  {:?} {}: {} {:?}\n", f.severity, f.id, f.title, f.suggests);
        self.findings.iter().map(line).collect::<String>() + &format!("  skipped {:?}", self.skips)
    }

    pub(crate) fn find(&self, id: &str) -> &Finding {
        self.findings
            .iter()
            .find(|finding| finding.id == id)
            .unwrap_or_else(|| panic!("no {id} in\n{}", self.titles()))
    }

    /// The cause that any finding speaks for the most.
    pub(crate) fn cause(&self) -> Option<&str> {
        let suggestions = self.findings.iter().flat_map(|finding| &finding.suggests);
        let strongest = suggestions.filter(|s| s.weight > 0.0).max_by(|a, b| a.weight.total_cmp(&b.weight));
        strongest.map(|suggestion| suggestion.cause.as_str())
    }

    /// The finding is there, grave, and the strongest suggestion of all names the cause.
    pub(crate) fn convicts(&self, id: &str, cause: &str) {
        let finding = self.find(id);
        assert!(finding.severity > Severity::Info, "{id} is {:?}", finding.severity);
        assert_eq!(self.cause(), Some(cause), "\n{}", self.titles());
    }

    pub(crate) fn is_clean(&self) {
        assert!(self.grave().is_empty(), "\n{}", self.titles());
    }
}
