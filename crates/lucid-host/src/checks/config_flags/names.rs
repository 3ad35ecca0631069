//! Flags and variables that the engine doesn't know, and flags given twice.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use lucid_findings::{EngineKind, Finding, Severity};
use regex::Regex;

use super::{CHECK, Serving};

/// What Kubernetes puts into every container for a service that happens to be called `vllm`.
static SERVICE_LINKS: LazyLock<Regex> = LazyLock::new(|| {
    let text = r"_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP)(?:_\w+)?|PORT)$";
    Regex::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
});

pub(super) fn check(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    unknown_flags(serving, findings);
    unknown_variables(serving, findings);
    repeated(serving, findings);
    service_link(serving, findings);
}

fn unknown_flags(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let Some(list) = serving.evidence.arguments.as_ref().filter(|list| !list.flags.is_empty()) else {
        return;
    };
    for flag in serving.evidence.flags.flags.iter().filter(|flag| !list.accepts(&flag.name)) {
        let meant = list.nearest_flag(flag.name.split('.').next().unwrap_or(&flag.name));
        let title = match meant {
            Some(meant) => format!(
                "{} has no flag {}; --{meant} is spelled most alike",
                serving.engine_name(),
                flag.spelled
            ),
            None => format!("{} has no flag {}", serving.engine_name(), flag.spelled),
        };
        let slug = if meant.is_some() { "misspelt-flag" } else { "unknown-flag" };
        let finding = serving.refused(slug, "wrong-flags", if meant.is_some() { 5.0 } else { 4.0 }, title);
        let finding = serving.command_proof(finding, serving.typed(&flag.name)).proof(
            lucid_findings::ProofKind::File,
            list.source.clone(),
            format!("{} arguments were read there", list.flags.len()),
        );
        let keep = meant.map_or_else(String::new, |meant| format!("--{meant} {}", flag.values.join(" ")));
        findings.push(finding.remedy(
            "Take it out, or spell it as the engine does.",
            vec![
                match serving.engine {
                    EngineKind::Sglang => "python3 -m sglang.launch_server --help | less".to_owned(),
                    _ => "vllm serve --help=all | less".to_owned(),
                },
                serving.start(keep.trim()),
            ],
        ));
    }
}

fn unknown_variables(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let Some(list) = serving.evidence.arguments.as_ref().filter(|list| !list.variables.is_empty()) else {
        return;
    };
    let prefix = match serving.engine {
        EngineKind::Vllm => "VLLM_",
        EngineKind::Sglang => "SGLANG_",
        EngineKind::LlamaCpp | EngineKind::Lucid => return,
    };
    for (name, value) in &serving.deployment.environment {
        if !name.starts_with(prefix) || list.variables.contains(name) || SERVICE_LINKS.is_match(name) {
            continue;
        }
        let meant = list.nearest_variable(name);
        let (severity, slug) = match meant {
            Some(_) => (Severity::Warning, "misspelt-variable"),
            None => (Severity::Info, "ignored-variable"),
        };
        let title = match meant {
            Some(meant) => format!(
                "{name} does nothing in this {}; {meant} is spelled most alike",
                serving.engine_name()
            ),
            None => format!("{name} does nothing in this {}", serving.engine_name()),
        };
        let mut finding = Finding::new(CHECK, slug, severity, title)
            .detail("The engine's list of variables doesn't have it: it was renamed, removed, or never existed, and is ignored.")
            .confidence(0.8)
            .proof(lucid_findings::ProofKind::File, "environment", format!("{name}={value}"))
            .proof(lucid_findings::ProofKind::File, list.source.clone(), format!("{} variables were read there", list.variables.len()));
        if let Some(meant) = meant {
            finding = finding.suggests("wrong-flags", 1.5).remedy(
                "Spell it as the engine does, or take it out.",
                vec![format!("export {meant}={value}")],
            );
        }
        findings.push(finding);
    }
}

/// Flags that may be given several times by design.
const REPEATABLE: [&str; 6] =
    ["middleware", "api-key", "lora-modules", "lora-paths", "override-tensor", "override-kv"];

fn repeated(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let mut uses: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for flag in &serving.evidence.flags.flags {
        uses.entry(&flag.name).or_default().push(flag.values.join(" "));
    }
    for (name, values) in uses {
        // JSON members (`-cc.a+`) may be appended to, and equal repetitions change nothing.
        let different = values.windows(2).any(|pair| pair[0] != pair[1]);
        if !different || REPEATABLE.contains(&name) || name.contains('.') {
            continue;
        }
        let last = values.last().cloned().unwrap_or_default();
        let finding = Finding::new(
            CHECK,
            "flag-given-twice",
            Severity::Warning,
            format!(
                "--{name} is given {} times with different values; the last one, {last}, counts",
                values.len()
            ),
        )
        .confidence(0.9)
        .suggests("wrong-flags", 1.0);
        findings.push(
            serving
                .command_proof(
                    finding,
                    values.iter().map(|value| format!("--{name} {value}")).collect::<Vec<_>>().join(" … "),
                )
                .remedy("Keep the one that is meant.", vec![serving.start(&format!("--{name} {last}"))]),
        );
    }
}

/// A Kubernetes service called `vllm` sets `VLLM_PORT=tcp://…`, which the engine takes for its own port.
fn service_link(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let Some(port) = serving.variable("VLLM_PORT").filter(|port| port.contains("://")) else { return };
    if serving.engine != EngineKind::Vllm {
        return;
    }
    let finding = serving.refused(
        "service-link-port",
        "wrong-flags",
        6.0,
        "VLLM_PORT holds an address: a Kubernetes service named vllm put it there, and vLLM takes it for its own port".to_owned(),
    );
    findings.push(
        finding.proof(lucid_findings::ProofKind::File, "environment", format!("VLLM_PORT={port}")).remedy(
            "Rename the service, or turn service links off in the pod's spec.",
            vec![r#"kubectl patch deployment NAME -p '{"spec":{"template":{"spec":{"enableServiceLinks":false}}}}'"#.to_owned()],
        ),
    );
}
