//! Docker and podman: `inspect` output, and the `docker run` line that somebody typed.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::environment::assignment;
use super::{Mount, Patient, PatientError, Source, container_command, process, shell, tool_output};
use crate::service::{ContainerFacts, Probe, ProbeKind};

/// More mounts than this are cut.
const MOST_MOUNTS: usize = 200;

/// Asks docker, then podman, for a container.
///
/// # Errors
/// If neither knows it; the message has what each said.
pub fn inspect_container(name: &str) -> Result<Patient, PatientError> {
    let docker = tool_output(&["docker", "inspect", "--type", "container", name]);
    let json = match docker {
        Ok(json) => json,
        Err(docker) => {
            tool_output(&["podman", "inspect", "--type", "container", name]).map_err(|podman| {
                PatientError::Tool {
                    command: format!("docker/podman inspect {name}"),
                    reason: format!("{docker}; {podman}"),
                }
            })?
        }
    };
    let mut patient = from_container_inspect(&json)?;
    let pid = container_pid(&json);
    if let Some(pid) = pid {
        // The running process knows what the image and the command line only intend.
        match process::from_process(Path::new("/proc"), pid, &mut |_| {}) {
            Ok(running) => {
                patient.site_packages = running.site_packages;
                patient.python = running.python;
                patient.processes = running.processes;
                patient.neighbours = running.neighbours;
                patient.libraries = running.libraries;
                patient.replaced_libraries = running.replaced_libraries;
                if running.deployment.engine.is_some() {
                    patient.deployment = running.deployment;
                    patient.arguments_at = running.arguments_at;
                }
            }
            Err(error) => {
                patient.notes.push(format!("the container's process {pid} could not be read: {error}"))
            }
        }
    }
    Ok(patient)
}

fn container_pid(json: &str) -> Option<u32> {
    let document: Value = serde_json::from_str(json).ok()?;
    let pid = document.get(0)?.pointer("/State/Pid")?.as_u64()?;
    u32::try_from(pid).ok().filter(|&pid| pid > 0)
}

/// A container from the JSON of `docker inspect NAME` or `podman inspect NAME`.
///
/// # Errors
/// If the text is no such JSON.
pub fn from_container_inspect(json: &str) -> Result<Patient, PatientError> {
    let malformed = |reason: String| PatientError::Malformed { what: "docker inspect", reason };
    let document: Value = serde_json::from_str(json).map_err(|error| malformed(error.to_string()))?;
    let container = document.get(0).unwrap_or(&document);
    let Some(config) = container.get("Config") else {
        return Err(malformed(
            "there is no Config in it; ask with `docker inspect --type container NAME`".to_owned(),
        ));
    };
    let text = |pointer: &str| container.pointer(pointer).and_then(Value::as_str);
    let name = text("/Name").unwrap_or("").trim_start_matches('/').to_owned();
    let mut patient = Patient::new(Source::Container(name.clone()));
    let image = text("/Config/Image").unwrap_or("").to_owned();
    patient.of_image(&image, text("/Image"));

    // Path and Args are what the runtime really starts: entry point and command, joined and resolved.
    let mut words: Vec<String> = text("/Path").map(ToOwned::to_owned).into_iter().collect();
    words.extend(strings(container.get("Args")));
    if words.is_empty() {
        words = strings(config.get("Entrypoint"));
        words.extend(strings(config.get("Cmd")));
    }
    let variables: Vec<(String, String)> = strings(config.get("Env"))
        .iter()
        .filter_map(|entry| assignment(entry))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    patient.serve(container_command(&words, &image), variables);
    patient.working_directory =
        text("/Config/WorkingDir").filter(|dir| !dir.is_empty()).map(ToOwned::to_owned);

    patient.root = match (container_pid(json), text("/GraphDriver/Data/MergedDir")) {
        (Some(pid), _) => Some(PathBuf::from(format!("/proc/{pid}/root"))),
        (None, Some(merged)) => Some(PathBuf::from(merged)),
        (None, None) => {
            patient.files_elsewhere = Some(format!(
                "the container's files are not mounted here: docker cp {name}:/ ROOT, or docker export {name} | tar -x -C ROOT"
            ));
            None
        }
    };
    for mount in container.get("Mounts").and_then(Value::as_array).into_iter().flatten().take(MOST_MOUNTS) {
        let field = |name: &str| mount.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
        patient.mounts.push(Mount {
            target: field("Destination"),
            source: field("Source"),
            kind: field("Type"),
            size_bytes: None,
        });
    }
    let number = |pointer: &str| container.pointer(pointer).and_then(Value::as_i64);
    patient.service.container = Some(ContainerFacts {
        runtime: if container.get("ImageName").is_some() { "podman" } else { "docker" }.to_owned(),
        state: text("/State/Status").map(ToOwned::to_owned),
        restarts: number("/RestartCount").and_then(|count| u64::try_from(count).ok()),
        last_reason: text("/State/Error").filter(|error| !error.is_empty()).map(ToOwned::to_owned),
        exit_code: number("/State/ExitCode"),
        out_of_memory_killed: container.pointer("/State/OOMKilled").and_then(Value::as_bool),
        restart_policy: text("/HostConfig/RestartPolicy/Name")
            .filter(|name| !name.is_empty())
            .map(ToOwned::to_owned),
        shared_memory_bytes: number("/HostConfig/ShmSize").and_then(|size| u64::try_from(size).ok()),
        ipc: text("/HostConfig/IpcMode").filter(|mode| !mode.is_empty()).map(ToOwned::to_owned),
        memory_limit_bytes: number("/HostConfig/Memory")
            .and_then(|size| u64::try_from(size).ok())
            .filter(|&size| size > 0),
        last_run_s: None,
    });
    patient.service.probes.extend(healthcheck(config.get("Healthcheck")));
    Ok(patient)
}

/// Docker writes the times of a health check in nanoseconds; 0 is its default.
fn healthcheck(check: Option<&Value>) -> Option<Probe> {
    let check = check?;
    let test = strings(check.get("Test"));
    if test.is_empty() || test[0] == "NONE" {
        return None;
    }
    let seconds = |name: &str, default: f64| {
        let given = check.get(name).and_then(Value::as_f64).unwrap_or(0.0) / 1e9;
        if given > 0.0 { given } else { default }
    };
    Some(Probe {
        kind: ProbeKind::Healthcheck,
        asks: test[1..].join(" ").chars().take(200).collect(),
        delay_s: seconds("StartPeriod", 0.0),
        period_s: seconds("Interval", 30.0),
        failures: check
            .get("Retries")
            .and_then(Value::as_u64)
            .filter(|&n| n > 0)
            .map_or(3, |n| n.min(1_000_000) as u32),
        timeout_s: seconds("Timeout", 30.0),
    })
}

pub(crate) fn strings(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect(),
        Some(Value::String(text)) => vec![text.clone()],
        _ => Vec::new(),
    }
}

/// A `docker run` line, apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunCommand {
    image: String,
    words: Vec<String>,
    variables: Vec<(String, String)>,
    mounts: Vec<Mount>,
    facts: ContainerFacts,
}

impl RunCommand {
    pub(crate) fn apply(self, patient: &mut Patient) {
        patient.of_image(&self.image, None);
        patient.serve(container_command(&self.words, &self.image), self.variables);
        patient.mounts = self.mounts;
        patient.service.container = Some(self.facts);
    }
}

/// Options of `docker run` that stand alone; all others take a value.
const ALONE: [&str; 9] = [
    "--rm",
    "--privileged",
    "--init",
    "--detach",
    "--interactive",
    "--tty",
    "--read-only",
    "--no-healthcheck",
    "--quiet",
];

/// Reads `docker run OPTIONS IMAGE ARGUMENTS`.
pub(crate) fn run_command(words: &[String]) -> Option<RunCommand> {
    let at = words.windows(2).position(|pair| {
        matches!(shell::base_name(&pair[0]), "docker" | "podman" | "nerdctl")
            && matches!(pair[1].as_str(), "run" | "create")
    })?;
    let runtime = shell::base_name(&words[at]).to_owned();
    let mut run = RunCommand {
        facts: ContainerFacts { runtime, ..ContainerFacts::default() },
        ..RunCommand::default()
    };
    let mut rest = words[at + 2..].iter();
    while let Some(word) = rest.next() {
        if !word.starts_with('-') {
            run.image.clone_from(word);
            run.words.extend(rest.cloned());
            return Some(run);
        }
        // `-it`, `-d`: letters together, none of which takes a value.
        let letters = word.len() > 1 && word[1..].chars().all(|c| matches!(c, 'i' | 't' | 'd'));
        if letters || ALONE.contains(&word.as_str()) {
            continue;
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => (word.clone(), rest.next()?.clone()),
        };
        match name.as_str() {
            "-e" | "--env" => {
                run.variables
                    .extend(assignment(&value).map(|(name, value)| (name.to_owned(), value.to_owned())));
            }
            "--shm-size" => run.facts.shared_memory_bytes = bytes(&value),
            "--ipc" => run.facts.ipc = Some(value),
            "-m" | "--memory" => run.facts.memory_limit_bytes = bytes(&value),
            "--restart" => run.facts.restart_policy = Some(value),
            "--entrypoint" => run.words.insert(0, value),
            "-v" | "--volume" if run.mounts.len() < MOST_MOUNTS => {
                let mut parts = value.split(':');
                let source = parts.next().unwrap_or("").to_owned();
                let target = parts.next().unwrap_or("").to_owned();
                run.mounts.push(Mount { target, source, kind: "bind".to_owned(), size_bytes: None });
            }
            _ => {}
        }
    }
    None
}

/// `16g`, `64M`, `1gb`, `8Gi`, `1048576`.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..split].parse().ok()?;
    let factor = match text[split..].trim() {
        "" | "b" => 1.0,
        "k" | "kb" | "ki" | "kib" => 1024.0,
        "m" | "mb" | "mi" | "mib" => 1024.0 * 1024.0,
        "g" | "gb" | "gi" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tb" | "ti" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    (number >= 0.0 && number * factor < 9e18).then_some((number * factor) as u64)
}
