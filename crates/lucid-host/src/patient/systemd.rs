//! systemd units: `systemctl show` tells what is in force, `EnvironmentFile`s tell the variables.

use std::collections::BTreeMap;
use std::path::Path;

use super::compose::duration;
use super::environment::assignment;
use super::{Patient, PatientError, Source, process, shell, tool_output};
use crate::Root;
use crate::service::UnitFacts;

/// Longer environment files are no environment files.
const LONGEST_FILE: u64 = 1 << 20;

/// Asks systemd for a unit and, if it runs, reads its process.
///
/// # Errors
/// If `systemctl` refuses or there is no such unit.
pub fn inspect_unit(unit: &str) -> Result<Patient, PatientError> {
    let show = tool_output(&["systemctl", "show", "--no-pager", unit])?;
    let mut patient = from_unit(&show, &Root::new("/"))?;
    let main = property(&show, "MainPID").and_then(|pid| pid.parse().ok()).filter(|&pid: &u32| pid > 0);
    if let Some(pid) = main {
        match process::from_process(Path::new("/proc"), pid, &mut |_| {}) {
            Ok(running) if running.deployment.engine.is_some() => {
                let service = std::mem::take(&mut patient.service);
                let notes = std::mem::take(&mut patient.notes);
                patient = Patient { service, ..running };
                patient.notes.extend(notes);
            }
            Ok(_) => {}
            Err(error) => patient.notes.push(format!("the unit's process {pid} could not be read: {error}")),
        }
    }
    Ok(patient)
}

/// A unit from the text of `systemctl show UNIT`; environment files are read under `root`.
///
/// # Errors
/// If the text isn't that of a loaded unit.
pub fn from_unit(show: &str, root: &Root) -> Result<Patient, PatientError> {
    let malformed =
        |reason: &str| PatientError::Malformed { what: "systemctl show", reason: reason.to_owned() };
    let name = property(show, "Id").ok_or_else(|| malformed("there is no Id= in it"))?;
    if property(show, "LoadState") == Some("not-found") {
        return Err(malformed(&format!("there is no unit {name}; systemctl list-units --all lists them")));
    }
    let mut patient = Patient::new(Source::Unit(name.to_owned()));
    patient.root = Some(root.path().to_owned());
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    // systemd reads the files after `Environment=`, so they win.
    for words in properties(show, "Environment") {
        keep_assignments(&shell_words::split(words).unwrap_or_default(), &mut variables);
    }
    for entry in properties(show, "EnvironmentFiles") {
        // `/etc/default/vllm (ignore_errors=yes)`
        let path = entry.split(" (").next().unwrap_or(entry);
        match root.read_start(Path::new(path), LONGEST_FILE) {
            Ok((text, cut)) => {
                for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
                    let words = shell_words::split(line).unwrap_or_else(|_| vec![line.to_owned()]);
                    keep_assignments(&words, &mut variables);
                }
                if cut {
                    patient.notes.push(format!("{path}: only its first {LONGEST_FILE} bytes were read"));
                }
            }
            Err(error) => patient.notes.push(format!("{path}: {error}: its variables are unknown")),
        }
    }
    let line = property(show, "ExecStart").and_then(exec_argv).unwrap_or("");
    let line = expand(line, &variables);
    let command = shell::split(&line)?;
    patient.serve(command, variables);
    patient.working_directory = property(show, "WorkingDirectory")
        .map(|dir| dir.trim_start_matches('!').to_owned())
        .filter(|dir| !dir.is_empty());
    patient.service.unit = Some(unit_facts(name, show));
    Ok(patient)
}

/// `{ path=/usr/bin/vllm ; argv[]=/usr/bin/vllm serve M ; ignore_errors=no ; … }`
fn exec_argv(exec: &str) -> Option<&str> {
    let from = exec.find("argv[]=")? + "argv[]=".len();
    let rest = &exec[from..];
    Some(rest.split(" ; ignore_errors=").next().unwrap_or(rest).trim())
}

/// systemd fills `${NAME}` and `$NAME` from the unit's own variables.
fn expand(line: &str, variables: &BTreeMap<String, String>) -> String {
    let mut line = line.to_owned();
    // Longer names first, so that `$MODEL_DIR` isn't taken for `$MODEL`.
    let mut names: Vec<&String> = variables.keys().collect();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    for name in names {
        line = line
            .replace(&format!("${{{name}}}"), &variables[name])
            .replace(&format!("${name}"), &variables[name]);
    }
    line
}

fn keep_assignments(words: &[String], variables: &mut BTreeMap<String, String>) {
    for (name, value) in words.iter().filter_map(|word| assignment(word)) {
        variables.insert(name.to_owned(), value.to_owned());
    }
}

fn properties<'a>(show: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    show.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix('='))
}

fn property<'a>(show: &'a str, name: &str) -> Option<&'a str> {
    properties(show, name).next()
}

fn unit_facts(name: &str, show: &str) -> UnitFacts {
    let text = |name: &str| property(show, name).filter(|value| !value.is_empty()).map(ToOwned::to_owned);
    // Properties in microseconds are printed as `10min 3s`; `infinity` and 0 mean never.
    let seconds = |name: &str| text(name).and_then(|value| duration(&value));
    // 2^64-1 is systemd's "no limit".
    let number =
        |name: &str| text(name).and_then(|value| value.parse::<u64>().ok()).filter(|&n| n < u64::MAX);
    let monotonic =
        text("ActiveEnterTimestampMonotonic").and_then(|at| at.parse::<f64>().ok()).filter(|&at| at > 0.0);
    UnitFacts {
        name: name.to_owned(),
        kind: text("Type"),
        active_state: text("ActiveState"),
        sub_state: text("SubState"),
        result: text("Result"),
        restarts: number("NRestarts"),
        restart: text("Restart"),
        restart_delay_s: seconds("RestartUSec"),
        start_timeout_s: seconds("TimeoutStartUSec"),
        stop_timeout_s: seconds("TimeoutStopUSec"),
        watchdog_s: seconds("WatchdogUSec").filter(|&s| s > 0.0),
        most_runtime_s: seconds("RuntimeMaxUSec").filter(|&s| s > 0.0),
        kill_mode: text("KillMode"),
        uptime_s: monotonic.zip(system_uptime()).map(|(since, now)| (now - since / 1e6).max(0.0)),
        memory_limit_bytes: number("MemoryMax"),
        open_files_limit: number("LimitNOFILE"),
        locked_memory_limit_bytes: number("LimitMEMLOCK"),
        exit_status: text("ExecMainStatus").and_then(|status| status.parse().ok()),
        private_tmp: text("PrivateTmp").map(|value| value == "yes"),
    }
}

/// Seconds since this machine started, which systemd's monotonic times count from. A recording read elsewhere has another
/// zero, so a nonsensical uptime is dropped by the caller's clamp at 0.
fn system_uptime() -> Option<f64> {
    std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()
}
