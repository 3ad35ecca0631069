//! Finding the patient: which command serves, in which root, with which environment, interpreter and ranks.

mod compose;
mod container;
mod deployment;
mod environment;
mod kubernetes;
mod packages;
mod process;
mod shell;
mod systemd;

use std::io;
use std::path::PathBuf;

use lucid_findings::Deployment;
use serde::{Deserialize, Serialize};

use crate::service::ServiceEvidence;

pub use compose::from_compose;
pub use container::{from_container_inspect, inspect_container};
pub use kubernetes::{from_kubernetes, inspect_pod};
pub use process::{from_process, serving_processes};
pub use systemd::{from_unit, inspect_unit};

pub(crate) use deployment::fill_from_flags;
pub(crate) use process::{process_table, titled_engine};
pub(crate) use shell::{base_name, mask_secrets};

/// How a patient was pointed at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A running process.
    Process(u32),
    /// A docker or podman container, by name.
    Container(String),
    /// A pod, by name.
    Pod(String),
    /// A systemd unit.
    Unit(String),
    /// A service of a compose file, or a workload of a Kubernetes manifest: nothing has to run.
    Manifest(String),
    /// A command line as somebody typed it.
    Command,
}

/// A file system that the patient sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where the patient sees it.
    pub target: String,
    /// Where it comes from: a host path, a volume, a device.
    pub source: String,
    /// `overlay`, `ext4`, `bind`, `volume`.
    pub kind: String,
    /// Size, where a manifest sets it.
    #[serde(default)]
    pub size_bytes: Option<u64>,
}

/// The image that a container was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// As it was asked for: `vllm/vllm-openai:v0.11.0`.
    pub name: String,
    /// What it was then: `sha256:…`.
    pub digest: Option<String>,
}

/// One process of the patient: the API server, the engine core, each rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessFacts {
    /// Process id.
    pub pid: u32,
    /// Its parent; 1 for an orphan.
    pub parent: u32,
    /// The name that it gave itself: `VLLM::Worker_TP3`.
    pub title: String,
    /// Its rank of tensor parallelism, where the title says it.
    pub tensor_rank: Option<u32>,
    /// `R`, `S`, `D` (uninterruptible), `Z` (dead and not collected), …
    pub state: String,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Threads.
    pub threads: u32,
    /// Seconds since it started.
    pub uptime_s: Option<f64>,
}

/// What was pointed at, read from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Patient {
    /// How it was pointed at.
    pub source: Source,
    /// Where its `/` is seen from this machine; `None`: its files have to be fetched (`files_elsewhere` says how).
    pub root: Option<PathBuf>,
    /// How to get at its files where they are not seen from this machine.
    #[serde(default)]
    pub files_elsewhere: Option<String>,
    /// Engine, model, command and environment.
    pub deployment: Deployment,
    /// Where the engine's own arguments begin in `deployment.command`.
    pub arguments_at: usize,
    /// Working directory, as the patient sees it.
    pub working_directory: Option<String>,
    /// The Python interpreter, as the patient sees it.
    pub python: Option<String>,
    /// The package folders that the process really maps or its interpreter has, as the patient sees them.
    pub site_packages: Vec<String>,
    /// Shared libraries that decide about GPUs and collectives, as mapped: `libnccl.so.2`, `libcuda.so.1`, preloaded ones.
    pub libraries: Vec<String>,
    /// Mapped files that were replaced or deleted on disk since: what is on disk is not what runs.
    pub replaced_libraries: Vec<String>,
    /// The process and its descendants.
    pub processes: Vec<ProcessFacts>,
    /// Other servers of this machine, and helpers of engines whose server is gone.
    #[serde(default)]
    pub neighbours: Vec<ProcessFacts>,
    /// What it sees of other file systems.
    pub mounts: Vec<Mount>,
    /// The container's image.
    pub image: Option<Image>,
    /// How it is kept alive.
    pub service: ServiceEvidence,
    /// What could not be read, and what to do about it.
    pub notes: Vec<String>,
}

impl Patient {
    /// Whether it was seen running: then its engine has accepted its flags.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let container = self.service.container.as_ref().and_then(|container| container.state.as_deref());
        !self.processes.is_empty() || container == Some("running")
    }

    /// A patient of which nothing is known yet.
    pub(crate) fn new(source: Source) -> Patient {
        Patient {
            source,
            root: None,
            files_elsewhere: None,
            deployment: Deployment::default(),
            arguments_at: 0,
            working_directory: None,
            python: None,
            site_packages: Vec::new(),
            libraries: Vec::new(),
            replaced_libraries: Vec::new(),
            processes: Vec::new(),
            neighbours: Vec::new(),
            mounts: Vec::new(),
            image: None,
            service: ServiceEvidence::default(),
            notes: Vec::new(),
        }
    }

    /// Takes over a serving command and the environment around it.
    pub(crate) fn serve(
        &mut self,
        command: shell::ServingCommand,
        environment: impl IntoIterator<Item = (String, String)>,
    ) {
        let all: Vec<(String, String)> = environment.into_iter().chain(command.assignments).collect();
        let (kept, notes) =
            environment::relevant(all.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        self.notes.extend(notes);
        self.deployment.environment = kept;
        self.deployment.engine = command.engine.or(self.deployment.engine);
        self.arguments_at = command.arguments_at;
        self.deployment.command = shell::mask_secrets(&command.words);
        if self.deployment.command.is_empty() {
            self.notes.push("no command was found that serves a model".to_owned());
        }
        fill_from_flags(&mut self.deployment, self.arguments_at);
    }

    /// Takes over an image: its name may say engine and version, and its entry point may be the engine itself.
    pub(crate) fn of_image(&mut self, name: &str, digest: Option<&str>) {
        let (engine, version) = shell::image_engine(name);
        self.deployment.engine = self.deployment.engine.or(engine);
        self.deployment.engine_version = self.deployment.engine_version.take().or(version);
        self.image = Some(Image { name: name.to_owned(), digest: digest.map(ToOwned::to_owned) });
    }
}

/// A patient from a command line as a user or a script has it: `VLLM_USE_V1=1 vllm serve MODEL …`, `docker run … IMAGE …`.
///
/// # Errors
/// If quotes don't close, or the line is longer than any command.
pub fn from_command(line: &str) -> Result<Patient, PatientError> {
    let command = shell::split(line)?;
    // `docker run OPTIONS IMAGE COMMAND`: the options are the patient's, whether the image's own command serves or another.
    let words = shell_words::split(line).unwrap_or_default();
    if let Some(run) = container::run_command(&words).or_else(|| container::run_command(&command.words)) {
        let mut patient = Patient::new(Source::Command);
        run.apply(&mut patient);
        if patient.deployment.engine.is_some() || command.engine.is_none() {
            return Ok(patient);
        }
    }
    let mut patient = Patient::new(Source::Command);
    patient.serve(command, []);
    Ok(patient)
}

/// The serving command of a container: `words` are entry point and arguments; where they name no engine, the image's does.
pub(crate) fn container_command(words: &[String], image: &str) -> shell::ServingCommand {
    let mut command = shell::from_words(words);
    if command.engine.is_none() {
        command.engine = shell::image_engine(image).0;
        // vLLM's image has `vllm serve` (formerly the API server's module) as entry point: only flags follow.
        let only_arguments = command.words.first().is_some_and(|word| word.starts_with('-'));
        command.arguments_at = if only_arguments { 0 } else { command.arguments_at };
    }
    command
}

/// Why a patient could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PatientError {
    /// A file of `/proc` or a manifest.
    #[error("{path}: {source}; run as the same user, or as root: sudo lucid …")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A tool that answers for the patient is missing or refused.
    #[error("`{command}` failed: {reason}")]
    Tool {
        /// The command.
        command: String,
        /// What it said.
        reason: String,
    },
    /// Recorded output that isn't what its tool writes.
    #[error("{what}: {reason}")]
    Malformed {
        /// Which text.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A command line whose quotes do not close.
    #[error("the quotes of this command line don't close: {line}")]
    Unquoted {
        /// Its beginning.
        line: String,
    },
    /// A text beyond all sense.
    #[error("{what} has {bytes} bytes; at most {limit} are read")]
    TooLong {
        /// Which text.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// What is read.
        limit: usize,
    },
    /// Several services, pods or containers could be meant, or the named one isn't there.
    #[error("{what} names no serving container{}; there are: {}", .wanted.as_ref().map(|name| format!(" {name}")).unwrap_or_default(), .there.join(", "))]
    NotThere {
        /// Which text.
        what: &'static str,
        /// What was asked for.
        wanted: Option<String>,
        /// What is there.
        there: Vec<String>,
    },
}

/// Runs a tool that only reads (`docker inspect`, `systemctl show`) and gives what it printed.
pub(crate) fn tool_output(command: &[&str]) -> Result<String, PatientError> {
    let fail = |reason: String| PatientError::Tool { command: command.join(" "), reason };
    let (program, arguments) = command.split_first().ok_or_else(|| fail("no command".to_owned()))?;
    let output = std::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|error| fail(error.to_string()))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(fail(reason.trim().chars().take(500).collect()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
