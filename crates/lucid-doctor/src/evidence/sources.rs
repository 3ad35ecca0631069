//! Gathers a machine's evidence from whatever was pointed at.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lucid_environment::{GatherOptions, IndexSettings, IntegrityOptions};
use lucid_findings::{Deployment, Step};
use lucid_host::{GpuEvidence, MemoryEvidence, Patient, PatientError, ServingEvidence};
use lucid_logs::{Source as LogSource, SourceSummary};

use super::MachineEvidence;

/// Where to look. Every field may be left out; what isn't pointed at is not examined.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The machine's `/`: an unpacked image, a mounted disk.
    pub root: Option<PathBuf>,
    /// A Python environment: a venv, a prefix, a site-packages folder.
    pub env: Option<PathBuf>,
    /// A running engine.
    pub pid: Option<u32>,
    /// A container of docker or podman.
    pub container: Option<String>,
    /// A pod: namespace, pod, container.
    pub pod: Option<(Option<String>, String, Option<String>)>,
    /// A systemd unit.
    pub unit: Option<String>,
    /// A compose file or a Kubernetes manifest.
    pub service_file: Option<PathBuf>,
    /// A serving command.
    pub command: Option<String>,
    /// Where it was typed: its relative paths begin there.
    pub working_directory: Option<PathBuf>,
    /// Logs.
    pub logs: Vec<LogSource>,
    /// Home of the engine's user.
    pub home: Option<PathBuf>,
    /// Wheels as published.
    pub wheels: Vec<PathBuf>,
    /// Whether originals of modified files are fetched from the package index that pip and uv are set up with here.
    pub fetch_originals: bool,
    /// The checkpoint, as the machine's own paths go.
    pub checkpoint: Option<PathBuf>,
    /// Digests of its files.
    pub manifest: Option<PathBuf>,
    /// Whether every weight is read, or the headers only.
    pub weights: bool,
    /// Where to keep what was read between runs.
    pub cache: Option<PathBuf>,
    /// GPUs, memory and limits of this machine.
    pub host: bool,
}

impl Sources {
    /// Whether anything was pointed at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let patient = self.pid.is_some()
            || self.container.is_some()
            || self.pod.is_some()
            || self.unit.is_some()
            || self.service_file.is_some()
            || self.command.is_some();
        !(patient || self.env.is_some() || !self.logs.is_empty() || self.checkpoint.is_some() || self.host)
    }
}

/// Gathers. Nothing of the patient's is imported, run or changed; what can't be read becomes a note.
pub fn gather(sources: &Sources, progress: &mut dyn FnMut(&'static str, Step)) -> MachineEvidence {
    let mut evidence = MachineEvidence {
        gathered: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        ..MachineEvidence::default()
    };
    evidence.patient = patient(sources, &mut |step| progress("the patient", step), &mut evidence.failures);
    if let Some(patient) = &mut evidence.patient {
        evidence.notes.append(&mut patient.notes);
        // Whoever asks the cluster for a pod reads its files inside.
        if sources.pod.is_none() && sources.root.is_none() {
            evidence.notes.extend(patient.files_elsewhere.clone());
        }
        evidence.deployment = patient.deployment.clone();
    }
    let root = sources
        .root
        .clone()
        .or_else(|| evidence.patient.as_ref()?.root.clone())
        .unwrap_or_else(|| PathBuf::from("/"));
    logs(sources, &mut evidence, progress);
    serving(sources, &root, &mut evidence, progress);
    environment(sources, &root, &mut evidence, progress);
    host(sources, &mut evidence, progress);
    checkpoint(sources, &root, &mut evidence, progress);
    evidence
}

/// The first of what was pointed at: what runs says more than what is written down.
fn patient(sources: &Sources, progress: &mut dyn FnMut(Step), failures: &mut Vec<String>) -> Option<Patient> {
    let found = if let Some(pid) = sources.pid {
        lucid_host::from_process(Path::new("/proc"), pid, progress)
    } else if let Some(name) = &sources.container {
        lucid_host::inspect_container(name)
    } else if let Some((namespace, pod, container)) = &sources.pod {
        lucid_host::inspect_pod(pod, namespace.as_deref(), container.as_deref())
    } else if let Some(unit) = &sources.unit {
        lucid_host::inspect_unit(unit)
    } else if let Some(file) = &sources.service_file {
        from_service_file(file)
    } else if let Some(command) = &sources.command {
        lucid_host::from_command(command)
    } else {
        return None;
    };
    found.map_err(|error| failures.push(error.to_string())).ok()
}

/// A compose file has `services`; anything else is read as Kubernetes does.
fn from_service_file(path: &Path) -> Result<Patient, PatientError> {
    /// No manifest is longer.
    const LONGEST: u64 = 8 << 20;
    let unreadable = |source| PatientError::Unreadable { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > LONGEST {
        return Err(PatientError::TooLong {
            what: "manifest",
            bytes: bytes as usize,
            limit: LONGEST as usize,
        });
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    match lucid_host::from_compose(&text, None) {
        Err(PatientError::Malformed { .. }) => lucid_host::from_kubernetes(&text, None),
        found => found,
    }
}

/// What a program that could not give a log says of that, in lines: they are no log.
const COMPLAINT: u64 = 5;

/// Why a log could not be read, if it could not.
pub(super) fn unread(source: &SourceSummary) -> Option<String> {
    source.error.clone().filter(|_| source.lines <= COMPLAINT)
}

/// A log that was named is a file of this machine, also where the patient lives in a root of its own.
fn logs(sources: &Sources, evidence: &mut MachineEvidence, progress: &mut dyn FnMut(&'static str, Step)) {
    if sources.logs.is_empty() {
        return;
    }
    let container = evidence.patient.as_ref().and_then(|patient| patient.service.container.as_ref());
    let restarted = container.and_then(|container| container.restarts).is_some_and(|restarts| restarts > 0);
    let mut wanted = sources.logs.clone();
    for log in &mut wanted {
        if let LogSource::Kubernetes { previous, .. } = log {
            *previous |= restarted;
        }
    }
    let logs = lucid_logs::gather(Path::new("/"), &wanted, &lucid_logs::Options::default(), &mut |step| {
        progress("logs", step)
    });
    // Of a container that ended, the cluster may have forgotten the log; the pod's own is there all the same.
    let (forgotten, failed): (Vec<_>, Vec<_>) =
        logs.sources.iter().partition(|source| source.name.contains(" --previous"));
    evidence.notes.extend(forgotten.into_iter().filter_map(unread));
    evidence.failures.extend(failed.into_iter().filter_map(unread));
    join(&mut evidence.deployment, &lucid_logs::deployment_from(&logs));
    evidence.logs = Some(logs);
}

fn serving(
    sources: &Sources,
    root: &Path,
    evidence: &mut MachineEvidence,
    progress: &mut dyn FnMut(&'static str, Step),
) {
    // Without a patient, the log may still say the command, and the checkpoint its config.
    let mut patient = evidence.patient.clone().or_else(|| lucid_host::from_command("").ok());
    let Some(mut patient) = patient.take() else { return };
    join(&mut patient.deployment, &evidence.deployment);
    if let Some(checkpoint) = &sources.checkpoint {
        patient.deployment.model = Some(checkpoint.display().to_string());
    }
    if patient.working_directory.is_none() {
        let typed = sources.working_directory.as_ref().filter(|_| sources.command.is_some());
        patient.working_directory = typed.map(|folder| folder.display().to_string());
    }
    if patient.root.is_none() {
        let venvs: Vec<&str> = sources.env.iter().filter_map(|path| path.to_str()).collect();
        patient = patient.seen_at(root, &venvs);
    }
    let serving = ServingEvidence::gather(&patient, &mut |step| progress("the serving command", step));
    serving.inform(&mut evidence.deployment);
    if evidence.patient.is_some() || !evidence.deployment.command.is_empty() {
        evidence.serving = Some(serving);
    }
}

fn environment(
    sources: &Sources,
    root: &Path,
    evidence: &mut MachineEvidence,
    progress: &mut dyn FnMut(&'static str, Step),
) {
    let patient = evidence.patient.as_ref();
    let named = sources.env.clone();
    let found = patient.and_then(|patient| {
        patient.python.clone().or_else(|| patient.site_packages.first().cloned()).map(PathBuf::from)
    });
    let Some(path) = named.or(found) else { return };
    let integrity = IntegrityOptions {
        hash_cache: sources.cache.as_ref().map(|folder| folder.join("hashes.json")),
        wheels: sources.wheels.clone(),
        // An image's own settings are not this user's: they must not lead the request somewhere.
        index: sources.fetch_originals.then(|| {
            let prefix = path.is_dir().then_some(path.as_path()).filter(|_| root == Path::new("/"));
            IndexSettings::of_this_user(prefix)
        }),
        original_cache: sources.cache.as_ref().map(|folder| folder.join("originals")),
        ..IntegrityOptions::default()
    };
    let mountinfo = match sources.pid.or_else(|| first_process(evidence)) {
        Some(pid) => std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok(),
        None if root == Path::new("/") => std::fs::read_to_string("/proc/self/mountinfo").ok(),
        None => None,
    };
    let options = GatherOptions {
        root: root.to_owned(),
        environment: evidence.deployment.environment.clone(),
        working_directory: patient.and_then(|patient| patient.working_directory.clone()).map(PathBuf::from),
        home: sources.home.clone().or_else(|| evidence.deployment.environment.get("HOME").map(PathBuf::from)),
        mountinfo,
        integrity: Some(integrity),
        ..GatherOptions::new(path)
    };
    let found = match lucid_environment::gather(&options, &mut |step| progress("the environment", step)) {
        Ok(found) => found,
        Err(error) => return evidence.failures.push(error.to_string()),
    };
    let folders: Vec<PathBuf> =
        found.python.site_directories.iter().map(|site| PathBuf::from(&site.path)).collect();
    match lucid_code_audit::gather(root, &folders, &mut |step| progress("its code", step)) {
        Ok(code) => evidence.code = Some(code),
        Err(error) => evidence.failures.push(error.to_string()),
    }
    evidence.environment = Some(found);
}

/// The patient's first process, if it was read in this machine's `/proc`.
fn first_process(evidence: &MachineEvidence) -> Option<u32> {
    Some(evidence.patient.as_ref()?.processes.first()?.pid)
}

fn host(sources: &Sources, evidence: &mut MachineEvidence, progress: &mut dyn FnMut(&'static str, Step)) {
    // A process or a unit runs here: its machine is this one. So is that of a container whose processes are seen from here.
    let runs_here = sources.container.is_some() && first_process(evidence).is_some();
    if !sources.host && sources.pid.is_none() && sources.unit.is_none() && !runs_here {
        // What a container is promised, its shared memory above all, is known without its machine.
        if evidence.patient.as_ref().is_some_and(|patient| patient.service.container.is_some()) {
            evidence.memory = Some(MemoryEvidence {
                notes: vec!["the machine itself was not read".to_owned()],
                ..MemoryEvidence::default()
            });
        }
        return;
    }
    let mut gpu = GpuEvidence::gather(None, &mut |step| progress("GPUs", step));
    let installed = evidence.environment.iter().flat_map(|environment| &environment.distributions);
    let mapped = evidence.patient.iter().flat_map(|patient| &patient.libraries);
    gpu.add_runtimes(
        installed.map(|package| (package.name.as_str(), package.version.as_str())),
        mapped.map(String::as_str),
    );
    if evidence.deployment.gpus.is_empty() {
        evidence.deployment.gpus = gpu.models();
    }
    evidence.gpu = Some(gpu);
    let mut memory = MemoryEvidence::gather(Path::new("/"), evidence.patient.as_ref(), &mut |step| {
        progress("memory", step)
    });
    memory.checkpoint_bytes = evidence.serving.as_ref().and_then(|serving| serving.checkpoint_bytes);
    evidence.memory = Some(memory);
}

fn checkpoint(
    sources: &Sources,
    root: &Path,
    evidence: &mut MachineEvidence,
    progress: &mut dyn FnMut(&'static str, Step),
) {
    let Some(path) = &sources.checkpoint else { return };
    let options = lucid_checkpoint_audit::Options {
        statistics: sources.weights,
        digests: sources.weights || sources.manifest.is_some(),
        all_digests: false,
        manifest: sources.manifest.clone(),
        state: sources.cache.as_ref().map(|folder| folder.join("checkpoint.json")),
    };
    match lucid_checkpoint_audit::gather(root, path, &options, &mut |step| progress("the checkpoint", step)) {
        Ok(found) => evidence.checkpoint = Some(found),
        Err(error) => evidence.failures.push(error.to_string()),
    }
}

/// Fills what is not known yet.
pub(super) fn join(known: &mut Deployment, more: &Deployment) {
    let more = more.clone();
    known.engine = known.engine.or(more.engine);
    known.engine_version = known.engine_version.take().or(more.engine_version);
    if known.command.is_empty() {
        known.command = more.command;
    }
    for (name, value) in more.environment {
        known.environment.entry(name).or_insert(value);
    }
    known.model = known.model.take().or(more.model);
    if known.architectures.is_empty() {
        known.architectures = more.architectures;
    }
    known.model_type = known.model_type.take().or(more.model_type);
    known.quantization = known.quantization.take().or(more.quantization);
    known.load_format = known.load_format.or(more.load_format);
    known.tensor_parallel = known.tensor_parallel.or(more.tensor_parallel);
    known.pipeline_parallel = known.pipeline_parallel.or(more.pipeline_parallel);
    if known.gpus.is_empty() {
        known.gpus = more.gpus;
    }
}

/// Where a container's `/` is seen from this machine, if docker or podman says so.
#[must_use]
pub fn container_root(name: &str) -> Option<PathBuf> {
    lucid_host::inspect_container(name).ok()?.root
}
