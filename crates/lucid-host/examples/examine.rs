//! Examines this machine, or the deployment that a process belongs to: `examine [--pid N | --command LINE | --unit NAME |
//! --container NAME | --pod NAME | --manifest FILE] [--root DIR [--env VENV]] [--json]`.
#![allow(clippy::print_stdout)]

use std::path::Path;

use lucid_findings::{Examined, Severity, Skip};
use lucid_host::{
    GpuEvidence, MemoryEvidence, Patient, ServingEvidence, config_flags, from_command, from_compose,
    from_kubernetes, from_process, host_gpu, host_memory, host_service, inspect_container, inspect_pod,
    inspect_unit, serving_processes,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).map(String::as_str)
    };
    let mut patient: Option<Patient> = None;
    if let Some(pid) = value("--pid") {
        patient = Some(from_process(Path::new("/proc"), pid.parse()?, &mut |_| {})?);
    } else if let Some(line) = value("--command") {
        patient = Some(from_command(line)?);
    } else if let Some(unit) = value("--unit") {
        patient = Some(inspect_unit(unit)?);
    } else if let Some(name) = value("--container") {
        patient = Some(inspect_container(name)?);
    } else if let Some(pod) = value("--pod") {
        patient = Some(inspect_pod(pod, None, None)?);
    } else if let Some(file) = value("--manifest") {
        let text = std::fs::read_to_string(file)?;
        patient = Some(from_compose(&text, None).or_else(|_| from_kubernetes(&text, None))?);
    }
    if let (Some(root), Some(found)) = (value("--root"), patient.take_if(|_| value("--root").is_some())) {
        patient = Some(found.seen_at(Path::new(root), &Vec::from_iter(value("--env"))));
    }
    if patient.is_none() {
        for process in serving_processes(Path::new("/proc")) {
            println!("serves here: --pid {} ({})", process.pid, process.title);
        }
    }
    let mut gpu = GpuEvidence::gather(None, &mut |_| {});
    let mut memory = MemoryEvidence::gather(Path::new("/"), patient.as_ref(), &mut |_| {});
    let mut serving = None;
    if let Some(patient) = &mut patient {
        let evidence = ServingEvidence::gather(patient, &mut |_| {});
        evidence.inform(&mut patient.deployment);
        patient.deployment.gpus = gpu.models();
        memory.checkpoint_bytes = evidence.checkpoint_bytes;
        gpu.add_runtimes([], patient.libraries.iter().map(String::as_str));
        serving = Some(evidence);
    }
    if arguments.iter().any(|argument| argument == "--json") {
        println!("{}", serde_json::to_string_pretty(&(&patient, &serving, &gpu, &memory))?);
        return Ok(());
    }
    let deployment = patient.as_ref().map(|patient| patient.deployment.clone()).unwrap_or_default();
    if let (Some(patient), Some(serving)) = (&patient, &serving) {
        println!("{:?} serves {:?} with {:?}", patient.source, deployment.model, deployment.engine);
        println!(
            "python {:?}, packages {:?}, {} processes",
            patient.python,
            patient.site_packages,
            patient.processes.len()
        );
        for note in patient.notes.iter().chain(&serving.notes) {
            println!("note: {note}");
        }
        tell("config.flags", config_flags(serving, &deployment));
        tell("host.service", host_service(patient, &deployment, None));
    }
    tell("host.gpu", host_gpu(&gpu, patient.as_ref(), &deployment));
    tell("host.memory", host_memory(&memory, patient.as_ref(), &deployment));
    Ok(())
}

fn tell(check: &str, outcome: Result<Examined, Skip>) {
    match outcome {
        Err(Skip(reason)) => println!("\n{check}: skipped: {reason}"),
        Ok(examined) => {
            println!("\n{check}: {}", examined.covered);
            for finding in &examined.findings {
                let mark = match finding.severity {
                    Severity::Error => "ERROR  ",
                    Severity::Warning => "warning",
                    Severity::Info => "info   ",
                };
                println!("  {mark} {} {}", finding.id, finding.title);
                for command in finding.remedy.iter().flat_map(|remedy| &remedy.commands) {
                    println!("            $ {command}");
                }
            }
        }
    }
}
