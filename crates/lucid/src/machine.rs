//! From what was typed about a machine to its evidence.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use lucid_doctor::{MachineEvidence, Sources};
use lucid_logs::{ContainerTool, Source};

use crate::arguments::MachineArguments;
use crate::carrier::{Carrier, quoted};
use crate::progress::ProgressLine;

/// The way to another machine or into a container, if one was named.
pub fn carrier(arguments: &MachineArguments) -> Result<Option<Carrier>> {
    if let Some(host) = arguments.host.as_deref().filter(|host| *host != "local") {
        return Carrier::ssh(host).map(Some);
    }
    if let Some(pod) = &arguments.pod {
        return Carrier::pod(pod).map(Some);
    }
    match &arguments.container {
        // A container whose files this user can see is read from outside: nothing has to run in it.
        Some(name) if !readable(name) => Carrier::container(tool(name), name).map(Some),
        _ => Ok(None),
    }
}

fn readable(container: &str) -> bool {
    let root = lucid_doctor::container_root(container);
    root.is_some_and(|root| std::fs::read_dir(root).is_ok())
}

/// `docker`, or `podman` where only that is there or only that knows the container: docker's client is often there without a daemon.
pub fn tool(container: &str) -> &'static str {
    let there = |program: &str| {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
    };
    let knows = |program: &str| {
        let asked = Command::new(program)
            .args(["container", "inspect", "--", container])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        asked.is_ok_and(|status| status.success())
    };
    match (there("docker"), there("podman")) {
        (false, true) => "podman",
        (true, true) if !knows("docker") && knows("podman") => "podman",
        _ => "docker",
    }
}

/// What `collect` there is told, in its own words.
fn words(arguments: &MachineArguments, checkpoint: Option<&Path>) -> Vec<String> {
    let mut words = Vec::new();
    let mut add = |flag: &str, value: Option<String>| {
        if let Some(value) = value {
            words.extend([flag.to_owned(), value]);
        }
    };
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    add("--env", path(&arguments.env));
    add("--pid", arguments.pid.map(|pid| pid.to_string()));
    add("--unit", arguments.unit.clone());
    add("--service-file", path(&arguments.service_file));
    add("--command", arguments.command.clone());
    for log in &arguments.log {
        add("--log", Some(log.display().to_string()));
    }
    add("--root", path(&arguments.root));
    add("--home", path(&arguments.home));
    for wheel in &arguments.wheel {
        add("--wheel", Some(wheel.display().to_string()));
    }
    add("--manifest", path(&arguments.manifest));
    add("--cache", path(&arguments.cache));
    add("--checkpoint", checkpoint.map(|path| path.display().to_string()));
    if arguments.host.is_some() {
        // On a machine the container is a container there; its own GPUs and limits are of interest anyway.
        add("--container", arguments.container.clone());
    }
    add("--host", Some("local".to_owned()));
    if arguments.fetch_originals {
        words.push("--fetch-originals".to_owned());
    }
    words
}

/// Gathers through a carrier; what only the outside knows (a pod's log, its limits, its probes) is added here.
pub fn fetch(
    carrier: &Carrier,
    arguments: &MachineArguments,
    checkpoint: Option<&Path>,
    line: &mut ProgressLine,
) -> Result<MachineEvidence> {
    let mut words = words(arguments, checkpoint);
    let mut outside = None;
    if let (Some(pod), true) = (&arguments.pod, arguments.host.is_none()) {
        let (namespace, pod, container) = Carrier::pod_name(pod)?;
        let log = Source::Kubernetes {
            pod: pod.clone(),
            namespace: namespace.clone(),
            container: container.clone(),
            previous: false,
        };
        let sources =
            Sources { pod: Some((namespace, pod, container)), logs: vec![log], ..Sources::default() };
        outside = Some(lucid_doctor::gather(&sources, &mut |what, _| line.say(what)));
    }
    // Only inside are config.json and the engine's own flags; which of them count, the command says, and that is known outside.
    let command = outside.as_ref().map(|outside| outside.deployment.command.as_slice()).unwrap_or_default();
    let told = !command.is_empty() && arguments.command.is_none() && arguments.pid.is_none();
    if told {
        let command: Vec<String> = command.iter().map(|word| quoted(word)).collect();
        words.extend(["--command".to_owned(), command.join(" ")]);
    }
    line.say(&format!("gathering through {carrier}"));
    let mut evidence = carrier.collect(&words)?;
    if let Some(outside) = outside {
        if told {
            // A command is less than the container with its restarts and probes.
            evidence.patient = None;
        }
        evidence.fill(outside);
    }
    Ok(evidence)
}

/// Reads this machine; `None` if nothing was pointed at.
pub fn gather(
    arguments: &MachineArguments,
    checkpoint: Option<&Path>,
    weights: bool,
    line: &mut ProgressLine,
) -> Result<Option<MachineEvidence>> {
    let sources = sources(arguments, checkpoint, weights)?;
    if sources.is_empty() {
        return Ok(None);
    }
    if let Some(folder) = &arguments.cache {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the cache folder {}", folder.display()))?;
    }
    let mut since = Instant::now();
    let mut last = "";
    let evidence = lucid_doctor::gather(&sources, &mut |what, step| {
        if what != last {
            (last, since) = (what, Instant::now());
        }
        line.step(what, &step, since);
    });
    Ok(Some(evidence))
}

fn sources(arguments: &MachineArguments, checkpoint: Option<&Path>, weights: bool) -> Result<Sources> {
    let mut logs = Vec::new();
    for path in &arguments.log {
        logs.push(if path == Path::new("-") {
            Source::StandardInput
        } else if path.exists() {
            Source::File(path.clone())
        } else {
            bail!("--log {}: there is no such file or folder", path.display())
        });
    }
    if let Some(unit) = &arguments.unit {
        logs.push(Source::Journal { unit: Some(unit.clone()), since: None });
    }
    if let Some(name) = &arguments.container {
        let tool = if tool(name) == "podman" { ContainerTool::Podman } else { ContainerTool::Docker };
        logs.push(Source::Container { tool, name: name.clone() });
    }
    // Below a root, paths are the patient's own; on this machine they are what the shell means.
    let here = |path: &Path| match arguments.root {
        None => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
        Some(_) => path.to_owned(),
    };
    Ok(Sources {
        root: arguments.root.clone(),
        env: arguments.env.as_deref().map(here),
        working_directory: std::env::current_dir().ok().filter(|_| arguments.root.is_none()),
        pid: arguments.pid,
        container: arguments.container.clone(),
        unit: arguments.unit.clone(),
        service_file: arguments.service_file.clone(),
        command: arguments.command.clone(),
        logs,
        home: arguments.home.clone(),
        wheels: arguments.wheel.clone(),
        fetch_originals: arguments.fetch_originals,
        checkpoint: checkpoint.map(here),
        manifest: arguments.manifest.clone(),
        weights,
        cache: arguments.cache.clone(),
        host: arguments.host.is_some(),
        ..Sources::default()
    })
}
