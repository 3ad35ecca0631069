//! `env.monkeypatch`, its start-up part: what runs before the engine. Described and classified, not condemned.

use std::sync::LazyLock;

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};
use serde::Deserialize;

use super::{counted, some};
use crate::gather::EnvironmentEvidence;
use crate::served_path::{Part, ServedPath};

const CHECK: &str = "env.monkeypatch";

static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    let text = include_str!("../../knowledge/startup-hooks.toml");
    toml::from_str(text).unwrap_or_else(|error| panic!("knowledge/startup-hooks.toml: {error}"))
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    path_file: Vec<Hook>,
    customize: Vec<Hook>,
    preload: Vec<Hook>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hook {
    contains: String,
    what: String,
}

fn known<'a>(hooks: &'a [Hook], text: &str) -> Option<&'a str> {
    hooks.iter().find(|hook| text.contains(&hook.contains)).map(|hook| hook.what.as_str())
}

/// Says what runs before the engine.
///
/// # Errors
///
/// Never yet: an environment that was found has start-up hooks or none.
pub fn startup_hooks(evidence: &EnvironmentEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    let hooks = &evidence.startup;
    let mut findings = Vec::new();
    for file in &hooks.path_files {
        let name = file.path.rsplit('/').next().unwrap_or(&file.path);
        if !file.code.is_empty() {
            let all_known: Option<Vec<&str>> =
                file.code.iter().map(|line| known(&KNOWN.path_file, line)).collect();
            let vouched = match (&all_known, &file.distribution) {
                (Some(what), _) => Some((*what.first().unwrap_or(&"")).to_owned()),
                (None, Some(distribution)) => Some(format!("recorded by {distribution}")),
                (None, None) => None,
            };
            let mut finding = match vouched {
                Some(what) => Finding::new(
                    CHECK,
                    "known-pth",
                    Severity::Info,
                    format!("{name} runs code at every start: {what}"),
                ),
                None => Finding::new(
                    CHECK,
                    "pth-code",
                    Severity::Warning,
                    format!("{name} runs code at every start of Python, and no distribution recorded it"),
                )
                .detail(
                    "Whatever it imports can replace functions of the engine before the engine's first line.",
                )
                .suggests("modified-package-files", 1.0)
                .suggests("leftover-debug-code", 0.5)
                .remedy(
                    "Read it; if nobody needs it, move it away.",
                    vec![format!("mv {0} {0}.disabled", crate::installer::quoted(&file.path))],
                ),
            };
            for line in file.code.iter().take(5) {
                finding = finding.proof(ProofKind::File, &file.path, line);
            }
            findings.push(finding.active(Some(true)));
        }
        let folders = &file.folders;
        if !folders.is_empty() {
            findings.push(
                Finding::new(
                    CHECK,
                    "pth-folder",
                    Severity::Info,
                    format!("{name} adds {} to the import path", counted(folders.len(), "folder", "folders")),
                )
                .detail(some(folders, 5))
                .active(Some(true))
                .proof(ProofKind::File, &file.path, some(folders, 5)),
            );
        }
    }
    for module in &hooks.customize {
        let what = known(&KNOWN.customize, &module.text);
        let vouched = what.is_some() || module.distribution.is_some() || module.text.trim().is_empty();
        let runs = match module.source.as_str() {
            "working directory" => None,
            _ if module.module == "usercustomize" && hooks.switched_off_by.is_some() => Some(false),
            _ => Some(true),
        };
        let mut finding = Finding::new(
            CHECK,
            "customize",
            if vouched || runs != Some(true) { Severity::Info } else { Severity::Warning },
            format!("{} is imported at every start, from the {}", module.module, module.source),
        )
        .detail(match (what, &module.distribution) {
            (Some(what), _) => format!("It is {what}."),
            (None, Some(distribution)) => format!("{distribution} installed it."),
            (None, None) => "No distribution recorded it, and it is none that is known.".to_owned(),
        })
        .active(runs)
        .proof(ProofKind::File, &module.path, beginning(&module.text));
        if !vouched && runs == Some(true) {
            finding =
                finding.suggests("modified-package-files", 1.0).suggests("leftover-debug-code", 0.5).remedy(
                    "Read it; start once without it to compare.",
                    vec![format!("mv {0} {0}.disabled", crate::installer::quoted(&module.path))],
                );
        }
        findings.push(finding);
    }
    earlier_folders(evidence, deployment, &mut findings);
    plugins(evidence, &mut findings);
    for (library, source) in &hooks.preloaded {
        let what = known(&KNOWN.preload, library);
        findings.push(
            Finding::new(
                CHECK,
                "preload",
                Severity::Info,
                format!("{source} loads {library} into every process"),
            )
            .detail(what.map_or_else(
                || "It is none that is known; it can replace any function of the C library.".to_owned(),
                |what| format!("It is {what}."),
            ))
            .active(Some(true))
            .proof(ProofKind::File, source, library),
        );
    }
    let silent = findings.iter().all(|finding| finding.id.ends_with("/known-pth"));
    if silent {
        findings.push(
            Finding::new(CHECK, "none", Severity::Info, "nothing runs before the engine but Python itself")
                .detail("No unknown code in .pth files, no sitecustomize, no folder before the packages, no foreign plugin, no preload, as far as the evidence goes.")
                .suggests("modified-package-files", -0.5),
        );
    }
    Ok(Examined {
        findings,
        covered: format!(
            "{}, {}, {} before the packages, {}",
            counted(hooks.path_files.len(), ".pth file", ".pth files"),
            counted(hooks.customize.len(), "customize module", "customize modules"),
            counted(hooks.earlier.len(), "folder", "folders"),
            counted(hooks.preloaded.len(), "preloaded library", "preloaded libraries"),
        ),
    })
}

fn earlier_folders(evidence: &EnvironmentEvidence, deployment: &Deployment, findings: &mut Vec<Finding>) {
    // A console script puts its own folder first, `python -m` and `-c` put the working directory there.
    let uses_directory =
        deployment.command.iter().take(4).any(|argument| argument == "-m" || argument == "-c");
    for folder in &evidence.startup.earlier {
        let from_directory = folder.source == "working directory";
        let active = match (from_directory, deployment.command.is_empty(), uses_directory) {
            (false, _, _) | (true, false, true) => Some(true),
            (true, true, _) => None,
            (true, false, false) => Some(false),
        };
        if folder.hides.is_empty() {
            if !from_directory {
                findings.push(
                    Finding::new(
                        CHECK,
                        "earlier-folder",
                        Severity::Info,
                        format!("PYTHONPATH puts {} before the installed packages", folder.path),
                    )
                    .detail(if folder.exists {
                        "It hides no installed module."
                    } else {
                        "It does not exist."
                    })
                    .active(Some(folder.exists)),
                );
            }
            continue;
        }
        let known = ServedPath::known();
        let grave: Vec<&String> = folder
            .hides
            .iter()
            .filter(|module| {
                let name = module.replace('_', "-");
                known.part(&name) != Part::Other || *module == "flashinfer"
            })
            .collect();
        let severity =
            if grave.is_empty() || active != Some(true) { Severity::Info } else { Severity::Warning };
        let mut finding = Finding::new(
            CHECK,
            "shadowing",
            severity,
            format!(
                "{} comes first ({}) and hides the installed {}",
                folder.path,
                folder.source,
                some(
                    if grave.is_empty() { folder.hides.iter().collect() } else { grave.clone() }.as_slice(),
                    6
                )
            ),
        )
        .detail(format!(
            "{} installed {} there under the same name, so the RECORDs do not speak of the code that runs.",
            folder.hides.len() + folder.hides_left_out,
            if folder.hides.len() == 1 { "module is" } else { "modules are" }
        ))
        .active(active)
        .proof(ProofKind::File, &folder.path, some(&folder.hides, 10));
        if severity == Severity::Warning {
            finding =
                finding.suggests("modified-package-files", 2.5).suggests("package-version-skew", 1.5).remedy(
                    "Start without it to compare.",
                    vec![if from_directory {
                        "cd / && …the same command".to_owned()
                    } else {
                        "env -u PYTHONPATH …the same command".to_owned()
                    }],
                );
        }
        findings.push(finding);
    }
}

fn plugins(evidence: &EnvironmentEvidence, findings: &mut Vec<Finding>) {
    let known = ServedPath::known();
    let foreign: Vec<String> = evidence
        .distributions
        .iter()
        .filter(|d| known.part(&d.name) != Part::Engine && !d.shadowed)
        .flat_map(|d| d.plugins.iter().map(|p| format!("{}: {} ({}, {})", d.name, p.target, p.group, p.name)))
        .collect();
    if foreign.is_empty() {
        return;
    }
    let mut finding = Finding::new(CHECK, "plugins", Severity::Info,
        format!("{} of other distributions are loaded into the engine", counted(foreign.len(), "entry point", "entry points")))
    .detail(format!("{}. A general plugin may replace any function of the engine; a patch made for another version may silently do nothing, or harm.", some(&foreign, 8)))
    .active(Some(true))
    .suggests("modified-package-files", 1.0);
    for plugin in foreign.iter().take(8) {
        finding = finding.proof(ProofKind::File, "entry_points.txt", plugin);
    }
    findings.push(finding.remedy(
        "Start once without plugins to compare.",
        vec!["VLLM_PLUGINS= …the same command".to_owned()],
    ));
}

fn beginning(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).take(12).collect();
    lines.join("\n").chars().take(1_000).collect()
}
