//! Compose files.

use serde_json::Value;

use super::container::{bytes, strings};
use super::environment::assignment;
use super::{Mount, Patient, PatientError, Source, container_command};
use crate::service::{ContainerFacts, Probe, ProbeKind};

/// Longer manifests are not read.
pub(crate) const LONGEST_MANIFEST: usize = 4 << 20;

/// The serving service of a compose file; `wanted` names one of several.
///
/// # Errors
/// If the text is no YAML, or no service of it (or not the wanted one) serves a model.
pub fn from_compose(yaml: &str, wanted: Option<&str>) -> Result<Patient, PatientError> {
    let documents = documents(yaml, "compose file")?;
    let services = documents.iter().find_map(|document| document.get("services")?.as_object());
    let services = services.ok_or(PatientError::Malformed {
        what: "compose file",
        reason: "it has no `services`; a Kubernetes manifest is read with from_kubernetes".to_owned(),
    })?;
    let serving = services.iter().filter(|(name, service)| match wanted {
        Some(wanted) => name.as_str() == wanted,
        None => read_service(name, service).deployment.engine.is_some(),
    });
    let mut serving = serving.map(|(name, service)| read_service(name, service));
    match (serving.next(), serving.next()) {
        (Some(patient), None) => Ok(patient),
        _ => Err(PatientError::NotThere {
            what: "the compose file",
            wanted: wanted.map(ToOwned::to_owned),
            there: services.keys().cloned().collect(),
        }),
    }
}

/// All documents of a YAML text as plain values.
pub(crate) fn documents(yaml: &str, what: &'static str) -> Result<Vec<Value>, PatientError> {
    if yaml.len() > LONGEST_MANIFEST {
        return Err(PatientError::TooLong { what, bytes: yaml.len(), limit: LONGEST_MANIFEST });
    }
    serde_saphyr::from_multiple(yaml).map_err(|error| PatientError::Malformed {
        what,
        reason: error.to_string().chars().take(500).collect(),
    })
}

fn read_service(name: &str, service: &Value) -> Patient {
    let mut patient = Patient::new(Source::Manifest(name.to_owned()));
    let text = |key: &str| service.get(key).and_then(Value::as_str);
    let image = text("image").unwrap_or("").to_owned();
    patient.of_image(&image, None);
    let mut words = words(service.get("entrypoint"));
    words.extend(self::words(service.get("command")));
    let mut variables = variables(service.get("environment"), &mut patient.notes);
    // `${NAME}` is filled in when compose runs; what stands here may not be what runs.
    if words.iter().any(|word| word.contains("${")) {
        patient.notes.push("the command has ${…} placeholders: their values are not known here".to_owned());
    }
    variables.retain(|(_, value)| !value.contains("${"));
    patient.serve(container_command(&words, &image), variables);
    if service.get("env_file").is_some() {
        patient.notes.push("env_file is not read: pass the variables that it sets".to_owned());
    }
    for volume in service.get("volumes").and_then(Value::as_array).into_iter().flatten().take(200) {
        patient.mounts.extend(mount(volume));
    }
    patient.service.container = Some(ContainerFacts {
        runtime: "compose".to_owned(),
        restart_policy: text("restart").map(ToOwned::to_owned),
        shared_memory_bytes: size(service.get("shm_size")),
        ipc: text("ipc").map(ToOwned::to_owned),
        memory_limit_bytes: size(service.get("mem_limit"))
            .or_else(|| size(service.pointer("/deploy/resources/limits/memory"))),
        ..ContainerFacts::default()
    });
    patient.service.probes.extend(service.get("healthcheck").and_then(healthcheck));
    patient
}

/// A command is a list, or a line in shell's spelling.
fn words(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(line)) => shell_words::split(line).unwrap_or_else(|_| vec![line.clone()]),
        Some(Value::Array(items)) => items.iter().map(plain).collect(),
        _ => Vec::new(),
    }
}

/// Numbers and switches of YAML stand for their text.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn variables(value: Option<&Value>, notes: &mut Vec<String>) -> Vec<(String, String)> {
    match value {
        Some(Value::Object(map)) => map.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
        Some(list @ Value::Array(_)) => strings(Some(list))
            .iter()
            .filter_map(|entry| assignment(entry))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        Some(_) => {
            notes.push("`environment` is neither a list nor a map: not read".to_owned());
            Vec::new()
        }
        None => Vec::new(),
    }
}

fn mount(volume: &Value) -> Option<Mount> {
    if let Some(text) = volume.as_str() {
        let mut parts = text.split(':');
        let source = parts.next()?.to_owned();
        let target = parts.next().unwrap_or(&source).to_owned();
        return Some(Mount { target, source, kind: "bind".to_owned(), size_bytes: None });
    }
    Some(Mount {
        target: volume.get("target")?.as_str()?.to_owned(),
        source: volume.get("source").map(plain).unwrap_or_default(),
        kind: volume.get("type").map(plain).unwrap_or_default(),
        size_bytes: size(volume.pointer("/tmpfs/size")),
    })
}

pub(crate) fn size(value: Option<&Value>) -> Option<u64> {
    bytes(&plain(value?))
}

fn healthcheck(check: &Value) -> Option<Probe> {
    if check.get("disable").and_then(Value::as_bool) == Some(true) {
        return None;
    }
    let test = words(check.get("test"));
    let asks: Vec<&str> =
        test.iter().map(String::as_str).filter(|word| !matches!(*word, "CMD" | "CMD-SHELL")).collect();
    if asks.is_empty() || asks == ["NONE"] {
        return None;
    }
    let seconds =
        |key: &str, default: f64| check.get(key).and_then(|value| duration(&plain(value))).unwrap_or(default);
    Some(Probe {
        kind: ProbeKind::Healthcheck,
        asks: asks.join(" ").chars().take(200).collect(),
        delay_s: seconds("start_period", 0.0),
        period_s: seconds("interval", 30.0),
        failures: check.get("retries").and_then(Value::as_u64).map_or(3, |count| count.min(1_000_000) as u32),
        timeout_s: seconds("timeout", 30.0),
    })
}

/// `1m30s`, `20s`, `90`, `500ms`, `1h`; systemd's `10min 5s` too.
pub(crate) fn duration(text: &str) -> Option<f64> {
    let mut total = 0.0;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..end].parse().ok()?;
        let unit_end = rest[end..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| end + at);
        total += number
            * match rest[end..unit_end].trim() {
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "" | "s" | "sec" | "second" | "seconds" => 1.0,
                "m" | "min" | "minute" | "minutes" => 60.0,
                "h" | "hr" | "hour" | "hours" => 3_600.0,
                "d" | "day" | "days" => 86_400.0,
                "w" | "week" | "weeks" => 604_800.0,
                _ => return None,
            };
        rest = rest[unit_end..].trim_start();
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_both_dialects() {
        for (text, seconds) in [
            ("90", 90.0),
            ("1m30s", 90.0),
            ("10min", 600.0),
            ("2h", 7_200.0),
            ("1min 30s", 90.0),
            ("500ms", 0.5),
        ] {
            assert_eq!(duration(text), Some(seconds), "{text}");
        }
        assert_eq!(duration("infinity"), None);
        assert_eq!(duration("3 moons"), None);
    }
}
