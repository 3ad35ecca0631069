//! What was gathered on the patient's machine: data that can be stored, sent, and read later, when the container is gone.

use lucid_checkpoint_audit::CheckpointEvidence;
use lucid_code_audit::CodeEvidence;
use lucid_environment::EnvironmentEvidence;
use lucid_findings::Deployment;
use lucid_host::{GpuEvidence, MemoryEvidence, Patient, ServingEvidence};
use lucid_logs::LogEvidence;
use serde::{Deserialize, Serialize};

use crate::report::SubjectSummary;

/// Evidence of a machine, one section for each kind. A section is missing if nothing was pointed at or nothing could be read;
/// `failures` and `notes` then say why.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineEvidence {
    /// When it was gathered, RFC 3339, UTC. Not a section: an archive keeps it in its manifest.
    #[serde(skip_serializing)]
    pub gathered: String,
    /// Which engine serves which model, and how: what all sections together say.
    pub deployment: Deployment,
    /// What was pointed at: a process, a container, a unit, a command.
    pub patient: Option<Patient>,
    /// What is installed.
    pub environment: Option<EnvironmentEvidence>,
    /// What the installed code does.
    pub code: Option<CodeEvidence>,
    /// What was logged.
    pub logs: Option<LogEvidence>,
    /// Flags, config, sizes.
    pub serving: Option<ServingEvidence>,
    /// The GPUs.
    pub gpu: Option<GpuEvidence>,
    /// Memory, limits, disks, clock.
    pub memory: Option<MemoryEvidence>,
    /// The checkpoint's files.
    pub checkpoint: Option<CheckpointEvidence>,
    /// What was pointed at and could not be read: without it there is no verdict.
    pub failures: Vec<String>,
    /// What was odd on the way.
    pub notes: Vec<String>,
}

impl MachineEvidence {
    /// The names of the sections, as an archive has them.
    pub const SECTIONS: &'static [&'static str] = &[
        "deployment",
        "patient",
        "environment",
        "code",
        "logs",
        "serving",
        "gpu",
        "memory",
        "checkpoint",
        "failures",
        "notes",
    ];

    /// What is there, in a line: `38 packages, 5,012 source files, 2 logs`.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut parts = Vec::new();
        if let Some(environment) = &self.environment {
            parts.push(packages(environment.distributions.len()));
        }
        if self.code.is_some() {
            parts.push("their code".to_owned());
        }
        if let Some(logs) = &self.logs {
            parts.push(format!("{} log lines", logs.lines()));
        }
        if self.serving.as_ref().is_some_and(|_| !self.deployment.command.is_empty()) {
            parts.push("the serving command".to_owned());
        }
        if self.gpu.is_some() || self.memory.is_some() {
            parts.push("the machine".to_owned());
        }
        if let Some(checkpoint) = &self.checkpoint {
            parts.push(format!("the checkpoint {}", checkpoint.location));
        }
        if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
    }

    /// Takes over the sections that are missing here: a pod's log is read from outside, its files from inside.
    pub fn fill(&mut self, other: MachineEvidence) {
        fn fill<T>(mine: &mut Option<T>, theirs: Option<T>) {
            *mine = mine.take().or(theirs);
        }
        fill(&mut self.patient, other.patient);
        fill(&mut self.environment, other.environment);
        fill(&mut self.code, other.code);
        fill(&mut self.logs, other.logs);
        fill(&mut self.serving, other.serving);
        fill(&mut self.gpu, other.gpu);
        fill(&mut self.memory, other.memory);
        fill(&mut self.checkpoint, other.checkpoint);
        super::sources::join(&mut self.deployment, &other.deployment);
        self.failures.extend(other.failures);
        self.notes.extend(other.notes);
    }

    /// Names what was examined.
    pub(crate) fn describe(&self, summary: &mut SubjectSummary) {
        if let Some(environment) = &self.environment {
            let python = &environment.python;
            let version = python.version.as_deref().unwrap_or("of an unknown version");
            summary.env = Some(format!(
                "{}, Python {version}, {}",
                python.prefix,
                packages(environment.distributions.len())
            ));
        }
        if let Some(logs) = &self.logs {
            let names: Vec<&str> = logs.sources.iter().map(|source| source.name.as_str()).collect();
            summary.log = Some(match names[..] {
                [] => "none could be read".to_owned(),
                [first] => format!("{first} ({} lines)", logs.lines()),
                [first, ..] => format!("{first} and {} more ({} lines)", names.len() - 1, logs.lines()),
            });
        }
        if self.gpu.is_some() || self.memory.is_some() {
            let gpus: Vec<&str> = self.deployment.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
            summary.host = Some(match gpus[..] {
                [] => "no GPU seen".to_owned(),
                [first, ..] => format!("{} × {first}", gpus.len()),
            });
        }
        if let Some(checkpoint) = &self.checkpoint {
            summary.checkpoint.get_or_insert_with(|| checkpoint.location.clone());
        }
    }
}

fn packages(count: usize) -> String {
    if count == 1 { "1 package".to_owned() } else { format!("{count} packages") }
}
