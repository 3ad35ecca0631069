//! The checks of the machine side: each reads evidence that was gathered before, here or elsewhere. Their crates do the work;
//! this is the list.

use std::collections::HashMap;
use std::path::Path;

use lucid_environment::SourceChanges;
use lucid_findings::{Deployment, Examined, Skip};

use super::{Check, Need, TypicalCost};
use crate::evidence::{Examination, MachineEvidence};

/// How a comparison with the original names what stands outside of functions and classes.
const OUTSIDE: &str = "(module)";

/// A check of gathered evidence.
struct MachineCheck {
    id: &'static str,
    needs: &'static [Need],
    covers: &'static str,
    run: fn(&MachineEvidence, &Deployment) -> Result<Examined, Skip>,
}

impl Check for MachineCheck {
    fn id(&self) -> &'static str {
        self.id
    }

    fn needs(&self) -> &'static [Need] {
        self.needs
    }

    fn covers(&self) -> &'static str {
        self.covers
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 0, tokens: 0 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let machine =
            examination.subject.machine.as_ref().ok_or_else(|| Skip("nothing was gathered".to_owned()))?;
        (self.run)(machine, &machine.deployment)
    }
}

const ENVIRONMENT: &[Need] = &[Need::Environment];
const LOGS: &[Need] = &[Need::Logs];
const FILES: &[Need] = &[Need::CheckpointFiles];

/// The machine's checks, in the order in which they are reported.
#[rustfmt::skip]
pub(super) fn machine_checks() -> Vec<Box<dyn Check>> {
    let checks: Vec<MachineCheck> = vec![
        MachineCheck { id: "env.version-sets", needs: ENVIRONMENT, covers: "packages that must match each other do, and every requirement of the serving stack is met", run: version_sets },
        MachineCheck { id: "env.record-integrity", needs: ENVIRONMENT, covers: "every installed file is the one that its package shipped", run: record_integrity },
        MachineCheck { id: "env.debug-code", needs: ENVIRONMENT, covers: "no code left from debugging runs in models, layers, samplers and workers", run: debug_code },
        MachineCheck { id: "env.monkeypatch", needs: ENVIRONMENT, covers: "nothing changes the engine's modules from outside: start-up hooks, plugins, assignments", run: monkeypatch },
        MachineCheck { id: "env.overlay", needs: ENVIRONMENT, covers: "nothing is mounted over the packages, and no other interpreter's modules are mixed in", run: overlay },
        MachineCheck { id: "env.caches", needs: ENVIRONMENT, covers: "compiled kernels were made by the versions that are installed", run: caches },
        MachineCheck { id: "config.flags", needs: &[Need::Command], covers: "the serving command fits the checkpoint, the GPUs and the engine's version", run: flags },
        MachineCheck { id: "checkpoint.extents", needs: FILES, covers: "every tensor's bytes are there: no short, long, empty or hollow files", run: extents },
        MachineCheck { id: "checkpoint.index", needs: FILES, covers: "index and shards name the same tensors", run: index },
        MachineCheck { id: "checkpoint.architecture", needs: FILES, covers: "every tensor that the architecture needs is there, in its shape, and none that it doesn't know", run: architecture },
        MachineCheck { id: "checkpoint.scales", needs: FILES, covers: "weights and quantization scales are numbers of a plausible size", run: scales },
        MachineCheck { id: "checkpoint.digest", needs: FILES, covers: "the files are those that were published", run: digest },
        MachineCheck { id: "checkpoint.tokenizer", needs: FILES, covers: "tokenizer, special tokens, template and config agree", run: tokenizer },
        MachineCheck { id: "logs.crash", needs: LOGS, covers: "no crash, or the exception that it follows from", run: crash },
        MachineCheck { id: "logs.signatures", needs: LOGS, covers: "no line of the log that is known to accuse something", run: signatures },
        MachineCheck { id: "logs.timeline", needs: LOGS, covers: "starts, phases, silences, restarts and memory over time", run: timeline },
        MachineCheck { id: "host.service", needs: &[Need::Patient], covers: "what keeps the service alive gives it the time that it needs", run: service },
        MachineCheck { id: "host.gpu", needs: &[Need::Host], covers: "GPUs, their memory, errors, clocks and links", run: gpu },
        MachineCheck { id: "host.memory", needs: &[Need::Host], covers: "memory, shared memory, limits, disks and the clock", run: memory },
    ];
    checks.into_iter().map(|check| Box::new(check) as Box<dyn Check>).collect()
}

/// The section, or a skip; `needs` has asked before.
fn section<'a, T>(section: &'a Option<T>, what: &str) -> Result<&'a T, Skip> {
    section.as_ref().ok_or_else(|| Skip(format!("{what} was not gathered")))
}

fn version_sets(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_environment::checks::version_sets(section(&machine.environment, "the environment")?, deployment)
}

fn record_integrity(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    let environment = section(&machine.environment, "the environment")?;
    // The audit of the code has read the engine's own registry of models: it knows best what runs.
    let active = |path: &str, function: &str| {
        let code = machine.code.as_ref()?;
        // What stands outside of functions runs when the file is imported.
        let function = if function == OUTSIDE { lucid_code_audit::active::MODULE } else { function };
        let activity = code.models.activity(path, function, deployment);
        activity.active.map(|active| (active, activity.why))
    };
    lucid_environment::checks::record_integrity(environment, deployment, Some(&active))
}

fn overlay(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_environment::checks::overlay(section(&machine.environment, "the environment")?, deployment)
}

fn caches(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_environment::checks::caches(section(&machine.environment, "the environment")?, deployment)
}

fn debug_code(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    let shipped = Shipped::of(machine);
    lucid_code_audit::debug_code(section(&machine.code, "the code")?, deployment, &|path, function| {
        shipped.modified(path, function)
    })
}

/// Two halves of one question: what runs before the engine, and what changes it while it runs.
fn monkeypatch(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    let shipped = Shipped::of(machine);
    let hooks = lucid_environment::checks::startup_hooks(
        section(&machine.environment, "the environment")?,
        deployment,
    );
    let patches = section(&machine.code, "the code").and_then(|code| {
        lucid_code_audit::monkeypatch(code, deployment, &|path, function| shipped.modified(path, function))
    });
    match (hooks, patches) {
        (Ok(mut hooks), Ok(patches)) => {
            hooks.findings.extend(patches.findings);
            hooks.covered = format!("{}; {}", hooks.covered, patches.covered);
            Ok(hooks)
        }
        (Ok(one), Err(Skip(reason))) | (Err(Skip(reason)), Ok(one)) => {
            Ok(Examined { covered: format!("{} (the other half: {reason})", one.covered), ..one })
        }
        (Err(skip), Err(_)) => Err(skip),
    }
}

/// Which files are as their packages shipped them, and of the others which functions.
struct Shipped<'a> {
    modified: HashMap<&'a str, Option<&'a SourceChanges>>,
    known: bool,
}

impl<'a> Shipped<'a> {
    fn of(machine: &'a MachineEvidence) -> Shipped<'a> {
        let integrity = machine.environment.as_ref().and_then(|environment| environment.integrity.as_ref());
        let modified = integrity.map_or_else(HashMap::new, |integrity| {
            let modified = integrity.modified.iter().map(|file| (file.path.as_str(), file.changes.as_ref()));
            modified.chain(integrity.unrecorded.iter().map(|file| (file.path.as_str(), None))).collect()
        });
        // A list that was cut says nothing about the files that it lacks; neither does one without hashes.
        let known = integrity.is_some_and(|integrity| {
            integrity.modified_left_out == 0
                && integrity.unrecorded_left_out == 0
                && integrity.unchecked.is_empty()
        });
        Shipped { modified, known }
    }

    fn modified(&self, path: &Path, function: &str) -> Option<bool> {
        let Some(changes) = path.to_str().and_then(|path| self.modified.get(path)) else {
            return self.known.then_some(false);
        };
        // A class stands for its methods, a function for those inside it.
        let within = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let changed = |changes: &SourceChanges| {
            let function = if function == lucid_code_audit::active::MODULE { OUTSIDE } else { function };
            let mut names = changes.functions.iter().map(|change| change.name.as_str());
            changes.functions.is_empty() || names.any(|name| within(name, function) || within(function, name))
        };
        Some(changes.is_none_or(changed))
    }
}

fn flags(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_host::config_flags(section(&machine.serving, "the serving command")?, deployment)
}

fn extents(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_checkpoint_audit::extents(section(&machine.checkpoint, "the checkpoint")?, deployment)
}

fn index(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_checkpoint_audit::index(section(&machine.checkpoint, "the checkpoint")?, deployment)
}

fn architecture(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_checkpoint_audit::architecture(section(&machine.checkpoint, "the checkpoint")?, deployment)
}

fn scales(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_checkpoint_audit::scales(section(&machine.checkpoint, "the checkpoint")?, deployment)
}

fn digest(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_checkpoint_audit::digest(section(&machine.checkpoint, "the checkpoint")?, deployment)
}

fn tokenizer(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_checkpoint_audit::tokenizer(section(&machine.checkpoint, "the checkpoint")?, deployment)
}

fn crash(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_logs::checks::crash(section(&machine.logs, "the log")?, deployment)
}

fn signatures(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_logs::checks::signatures(section(&machine.logs, "the log")?, deployment)
}

fn timeline(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_logs::checks::timeline(section(&machine.logs, "the log")?, deployment)
}

fn service(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    // The longest start that the log has seen is the one that the limits must allow.
    let starts =
        machine.logs.iter().flat_map(|logs| &logs.timeline.runs).filter_map(lucid_logs::Run::start_seconds);
    let longest = starts
        .fold(None, |longest: Option<f64>, start| Some(longest.map_or(start, |longest| longest.max(start))));
    lucid_host::host_service(section(&machine.patient, "the service")?, deployment, longest)
}

fn gpu(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_host::host_gpu(
        section(&machine.gpu, "the state of the GPUs")?,
        machine.patient.as_ref(),
        deployment,
    )
}

fn memory(machine: &MachineEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    lucid_host::host_memory(section(&machine.memory, "the machine")?, machine.patient.as_ref(), deployment)
}

#[cfg(test)]
mod tests {
    use lucid_environment::FunctionChange;

    use super::*;

    #[test]
    fn a_changed_file_has_functions_that_are_as_shipped() {
        let change = |name: &str| FunctionChange { name: name.to_owned(), line: 1, added: 1, removed: 0 };
        let functions = vec![change("Attention.forward"), change("(module)")];
        let changes = SourceChanges { functions, ..SourceChanges::default() };
        let shipped = Shipped {
            modified: HashMap::from([("a.py", Some(&changes)), ("unrecorded.py", None)]),
            known: true,
        };
        for (path, function, expected) in [
            ("a.py", "Attention.forward", true),
            ("a.py", "Attention.forward.inner", true),
            ("a.py", "Attention", true),
            ("a.py", "<module>", true),
            ("a.py", "Attention.forward_native", false),
            ("a.py", "Attention.load", false),
            ("b.py", "Attention.forward", false),
            ("unrecorded.py", "anything", true),
        ] {
            assert_eq!(shipped.modified(Path::new(path), function), Some(expected), "{path} {function}");
        }
    }
}
