//! Kubernetes: a pod's JSON as `kubectl get pod -o json` prints it, or a manifest of any workload that holds a pod template.

use serde_json::Value;

use super::compose::{documents, plain, size};
use super::container::strings;
use super::{Mount, Patient, PatientError, Source, container_command, tool_output};
use crate::service::{ContainerFacts, Probe, ProbeKind};

/// Deeper nesting than this is no manifest.
const DEEPEST: usize = 16;

/// Asks the cluster for a pod with the operator's own `kubectl`.
///
/// # Errors
/// If `kubectl` refuses, or no container of the pod serves.
pub fn inspect_pod(
    pod: &str,
    namespace: Option<&str>,
    container: Option<&str>,
) -> Result<Patient, PatientError> {
    let mut command = vec!["kubectl", "get", "pod", pod, "-o", "json"];
    command.extend(namespace.into_iter().flat_map(|namespace| ["-n", namespace]));
    from_kubernetes(&tool_output(&command)?, container)
}

/// The serving container of a pod's JSON or of a manifest in YAML (Pod, Deployment, StatefulSet, LeaderWorkerSet, …).
///
/// # Errors
/// If the text is neither, or no container of it (or not the wanted one) serves a model.
pub fn from_kubernetes(text: &str, wanted: Option<&str>) -> Result<Patient, PatientError> {
    let documents = documents(text, "Kubernetes manifest")?;
    let mut pods = Vec::new();
    for document in &documents {
        let name = document.pointer("/metadata/name").map(plain).unwrap_or_default();
        find_pods(document, &name, DEEPEST, &mut pods);
    }
    let mut there = Vec::new();
    for (name, spec, whole) in &pods {
        for container in spec.get("containers").and_then(Value::as_array).into_iter().flatten() {
            let container_name = container.get("name").map(plain).unwrap_or_default();
            let patient = read_container(name, container, spec, whole);
            let meant = wanted.map_or(patient.deployment.engine.is_some(), |wanted| wanted == container_name);
            if meant {
                return Ok(patient);
            }
            there.push(format!("{name}/{container_name}"));
        }
    }
    Err(PatientError::NotThere { what: "the manifest", wanted: wanted.map(ToOwned::to_owned), there })
}

/// Every mapping with a list `containers`, the name of what holds it, and the document around it (for its status).
fn find_pods<'a>(value: &'a Value, name: &str, deep: usize, pods: &mut Vec<(String, &'a Value, &'a Value)>) {
    fn walk<'a>(
        value: &'a Value,
        whole: &'a Value,
        name: &str,
        deep: usize,
        pods: &mut Vec<(String, &'a Value, &'a Value)>,
    ) {
        if deep == 0 {
            return;
        }
        match value {
            Value::Object(map) => {
                if map.get("containers").is_some_and(Value::is_array) {
                    pods.push((name.to_owned(), value, whole));
                    return;
                }
                // The items of a List have names of their own.
                let own = value.pointer("/metadata/name").map(plain);
                let name = own.as_deref().unwrap_or(name);
                for child in map.values() {
                    walk(child, whole, name, deep - 1, pods);
                }
            }
            Value::Array(items) => {
                for child in items {
                    let whole = if child.get("kind").is_some() { child } else { whole };
                    walk(child, whole, name, deep - 1, pods);
                }
            }
            _ => {}
        }
    }
    walk(value, value, name, deep, pods);
}

fn read_container(pod: &str, container: &Value, spec: &Value, whole: &Value) -> Patient {
    let name = container.get("name").map(plain).unwrap_or_default();
    let status = container_status(whole, &name);
    let source = match status {
        Some(_) => Source::Pod(pod.to_owned()),
        None => Source::Manifest(format!("{pod}/{name}")),
    };
    let mut patient = Patient::new(source);
    let image = container.get("image").map(plain).unwrap_or_default();
    let digest = status.and_then(|status| status.get("imageID")?.as_str());
    patient.of_image(&image, digest.filter(|digest| !digest.is_empty()));
    let mut words = strings(container.get("command"));
    words.extend(container.get("args").and_then(Value::as_array).into_iter().flatten().map(plain));
    let mut variables = Vec::new();
    for entry in container.get("env").and_then(Value::as_array).into_iter().flatten() {
        let name = entry.get("name").map(plain).unwrap_or_default();
        match entry.get("value") {
            Some(value) => variables.push((name, plain(value))),
            None => patient
                .notes
                .push(format!("{name} comes from a secret, a config map or a field: its value is unknown")),
        }
    }
    if container.get("envFrom").is_some() {
        patient
            .notes
            .push("envFrom is not read: variables of config maps and secrets are unknown".to_owned());
    }
    patient.serve(container_command(&words, &image), variables);
    patient.working_directory = container.get("workingDir").map(plain);
    if matches!(patient.source, Source::Pod(_)) {
        patient.files_elsewhere = Some(format!(
            "the pod's files are not seen from here: kubectl cp {pod}:/PATH LOCAL -c {name}, or run `lucid collect` inside with kubectl exec {pod} -c {name}"
        ));
    }
    read_volumes(container, spec, &mut patient);

    let text = |pointer: &str| status.and_then(|status| status.pointer(pointer)).map(plain);
    // A container that isn't started again has its end in `state`.
    let ended = if text("/lastState/terminated/reason").is_some() { "/lastState" } else { "/state" };
    let of_end = |field: &str| text(&format!("{ended}/terminated/{field}"));
    let run_time = of_end("startedAt").zip(of_end("finishedAt"));
    patient.service.container = Some(ContainerFacts {
        runtime: "kubernetes".to_owned(),
        state: text("/state/waiting/reason")
            .or_else(|| status?.get("state")?.as_object()?.keys().next().cloned()),
        restarts: status.and_then(|status| status.get("restartCount")?.as_u64()),
        last_reason: of_end("reason"),
        exit_code: of_end("exitCode").and_then(|code| code.parse().ok()),
        out_of_memory_killed: of_end("reason").map(|reason| reason == "OOMKilled"),
        restart_policy: spec.get("restartPolicy").map(plain),
        shared_memory_bytes: patient
            .mounts
            .iter()
            .find(|mount| mount.target == "/dev/shm")
            .and_then(|mount| mount.size_bytes),
        ipc: spec
            .get("hostIPC")
            .and_then(Value::as_bool)
            .map(|host| if host { "host" } else { "private" }.to_owned()),
        memory_limit_bytes: size(container.pointer("/resources/limits/memory")),
        last_run_s: run_time.and_then(|(from, to)| Some(clock_seconds(&to)? - clock_seconds(&from)?)),
    });
    for (key, kind) in [
        ("startupProbe", ProbeKind::Startup),
        ("livenessProbe", ProbeKind::Liveness),
        ("readinessProbe", ProbeKind::Readiness),
    ] {
        patient.service.probes.extend(container.get(key).map(|probe| read_probe(kind, probe)));
    }
    patient
}

fn container_status<'a>(whole: &'a Value, name: &str) -> Option<&'a Value> {
    let statuses = whole.pointer("/status/containerStatuses")?.as_array()?;
    statuses.iter().find(|status| status.get("name").map(plain).as_deref() == Some(name))
}

fn read_volumes(container: &Value, spec: &Value, patient: &mut Patient) {
    let volumes = spec.get("volumes").and_then(Value::as_array);
    for mount in container.get("volumeMounts").and_then(Value::as_array).into_iter().flatten().take(200) {
        let name = mount.get("name").map(plain).unwrap_or_default();
        let volume = volumes
            .and_then(|all| all.iter().find(|one| one.get("name").map(plain).as_deref() == Some(&name)));
        let kind = volume
            .and_then(|volume| volume.as_object()?.keys().find(|key| *key != "name").cloned())
            .unwrap_or_else(|| "volume".to_owned());
        let memory = volume.and_then(|volume| volume.pointer("/emptyDir/medium")).map(plain);
        let source = volume.and_then(|volume| volume.pointer("/hostPath/path")).map_or(name, plain);
        patient.mounts.push(Mount {
            target: mount.get("mountPath").map(plain).unwrap_or_default(),
            source,
            kind: if memory.as_deref() == Some("Memory") { "memory".to_owned() } else { kind },
            size_bytes: size(volume.and_then(|volume| volume.pointer("/emptyDir/sizeLimit"))),
        });
    }
}

/// Kubernetes' defaults: no delay, every 10 s, 3 failures, 1 s for an answer.
fn read_probe(kind: ProbeKind, probe: &Value) -> Probe {
    let number = |key: &str, default: f64| {
        probe
            .get(key)
            .and_then(Value::as_f64)
            .filter(|&n| n > 0.0 || key == "initialDelaySeconds")
            .unwrap_or(default)
    };
    let asks = if let Some(http) = probe.get("httpGet") {
        format!(
            "GET :{}{}",
            http.get("port").map(plain).unwrap_or_default(),
            http.get("path").map_or_else(|| "/".to_owned(), plain)
        )
    } else if let Some(tcp) = probe.get("tcpSocket") {
        format!("TCP :{}", tcp.get("port").map(plain).unwrap_or_default())
    } else if let Some(exec) = probe.get("exec") {
        format!("exec {}", strings(exec.get("command")).join(" "))
    } else {
        "gRPC".to_owned()
    };
    Probe {
        kind,
        asks: asks.chars().take(200).collect(),
        delay_s: number("initialDelaySeconds", 0.0),
        period_s: number("periodSeconds", 10.0),
        failures: number("failureThreshold", 3.0) as u32,
        timeout_s: number("timeoutSeconds", 1.0),
    }
}

/// Seconds of `2026-09-30T12:34:56Z` since the year 0, good for differences within a month.
fn clock_seconds(text: &str) -> Option<f64> {
    let (date, time) = text.trim_end_matches('Z').split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<f64>().ok());
    let (_, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    Some((month * 31.0 + day) * 86_400.0 + hour * 3_600.0 + minute * 60.0 + second)
}
