//! `env.overlay`: what lies over the installed packages, and whether one interpreter installed them.

use std::collections::BTreeMap;

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::{counted, some};
use crate::gather::EnvironmentEvidence;
use crate::installer::quoted;
use crate::integrity::FileKind;
use crate::mounts::Mount;
use crate::served_path::{Part, ServedPath};

const CHECK: &str = "env.overlay";

/// Judges mounts over packages, owners, and modules of other interpreters.
///
/// # Errors
///
/// No package folder is known.
pub fn overlay(evidence: &EnvironmentEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    if evidence.python.site_directories.is_empty() {
        return Err(Skip(format!("{} has no folder of packages", evidence.python.prefix)));
    }
    let mut findings = Vec::new();
    for mount in evidence.mounts.iter().flatten() {
        findings.push(mounted(evidence, deployment, mount));
    }
    owners(evidence, &mut findings);
    interpreters(evidence, &mut findings);
    newer(evidence, deployment, &mut findings);
    let nothing = findings.is_empty() && evidence.mounts.is_some();
    if nothing {
        findings.push(
            Finding::new(CHECK, "none", Severity::Info, "nothing is mounted over the installed packages")
                .detail("One user installed them, for one interpreter.")
                .suggests("modified-package-files", -0.5),
        );
    }
    let mounts = match &evidence.mounts {
        Some(mounts) => counted(mounts.len(), "mount", "mounts"),
        None => "mounts unknown (the process's mountinfo was not given)".to_owned(),
    };
    Ok(Examined {
        findings,
        covered: format!(
            "{}: {mounts}, {}",
            counted(evidence.python.site_directories.len(), "folder of packages", "folders of packages"),
            counted(evidence.foreign_modules.len(), "module of another Python", "modules of other Pythons")
        ),
    })
}

fn mounted(evidence: &EnvironmentEvidence, deployment: &Deployment, mount: &Mount) -> Finding {
    let below = evidence.python.site_directories.iter().find_map(|directory| {
        mount.point.strip_prefix(&directory.path).map(|rest| rest.trim_start_matches('/'))
    });
    let access = if mount.read_only { "read-only" } else { "writable" };
    let text = format!("{} of a {} file system, {access}", mount.source, mount.file_system);
    let Some(path) = below.filter(|path| !path.is_empty()) else {
        // A volume with the whole environment is an ordinary way of shipping it.
        return Finding::new(
            CHECK,
            "mounted-other",
            Severity::Info,
            format!("the package folder {} is itself a mount", mount.point),
        )
        .detail(text)
        .active(Some(true));
    };
    let package = path.split('/').next().unwrap_or(path);
    let name = package.trim_end_matches(".py").replace('_', "-");
    let known = ServedPath::known();
    let kind = FileKind::of(path);
    let is_package = !path.contains('.');
    let code = is_package || matches!(kind, FileKind::Python | FileKind::Native | FileKind::KernelSource);
    let serving = known.part(&name) != Part::Other || known.compiled_packages.iter().any(|p| p == package);
    if !code || !serving {
        return Finding::new(CHECK, "mounted-other", Severity::Info, format!("{path} is a mount"))
            .detail(text)
            .active(None)
            .proof(ProofKind::File, &mount.point, "mount point");
    }
    let active = known.active(path, &name, deployment);
    let version = evidence.distribution(&name).map(|d| format!(" {}", d.version)).unwrap_or_default();
    let what = if is_package { "a folder" } else { "a file" };
    let quiet = active.active == Some(false);
    Finding::new(CHECK, "mounted-code", if quiet { Severity::Info } else { Severity::Warning },
        format!("{what} is mounted over {path} of {package}{version}"))
    .detail(format!(
        "{text}. An overlay is a copy of one commit: over another version it misses what that version moved or added. {}.",
        active.reason
    ))
    .active(active.active)
    .suggests("modified-package-files", if quiet { 0.3 } else { 3.0 })
    .suggests("package-version-skew", if quiet { 0.1 } else { 1.0 })
    .proof(ProofKind::File, &mount.point, format!("mounted from {text}"))
    .remedy(
        "Start once without the mount; if it is needed, take it from the very commit of the installed version.",
        vec![
            format!("findmnt -T {}", quoted(&mount.point)),
            format!("umount {}   # or leave the -v / volumeMounts entry out", quoted(&mount.point)),
        ],
    )
}

/// Files newer than their install; where the files were hashed, the hashes have said more.
fn newer(evidence: &EnvironmentEvidence, deployment: &Deployment, findings: &mut Vec<Finding>) {
    if evidence.newer_files.is_empty() || evidence.integrity.is_some() {
        return;
    }
    let known = ServedPath::known();
    let active = |path: &str, name: &str| known.active(path, name, deployment).active;
    let runs = evidence.newer_files.iter().any(|file| active(&file.path, &file.distribution) != Some(false));
    let mut finding = Finding::new(
        CHECK,
        "newer-files",
        Severity::Info,
        format!(
            "{} of the serving stack {} written long after the install",
            counted(evidence.newer_files.len(), "code file", "code files"),
            if evidence.newer_files.len() == 1 { "was" } else { "were" }
        ),
    )
    .detail("The files were not hashed, so whether they were changed is not known.")
    .active(None)
    .suggests("modified-package-files", if runs { 1.0 } else { 0.1 })
    .remedy(
        "Hash them against their RECORDs.",
        vec![format!("lucid doctor --env {}", quoted(&evidence.python.prefix))],
    );
    for file in evidence.newer_files.iter().take(10) {
        finding = finding.proof(
            ProofKind::File,
            &file.path,
            format!("{} after {} was installed", super::duration(file.after), file.distribution),
        );
    }
    findings.push(finding);
}

fn owners(evidence: &EnvironmentEvidence, findings: &mut Vec<Finding>) {
    let mut by_owner: BTreeMap<(usize, u32), Vec<String>> = BTreeMap::new();
    for distribution in &evidence.distributions {
        if let Some(owner) = distribution.owner {
            by_owner.entry((distribution.site, owner)).or_default().push(distribution.name.clone());
        }
    }
    for site in 0..evidence.python.site_directories.len() {
        let here: Vec<_> = by_owner.iter().filter(|((s, _), _)| *s == site).collect();
        if here.len() < 2 {
            continue;
        }
        let told: Vec<String> =
            here.iter().map(|((_, owner), names)| format!("user {owner}: {}", some(names, 6))).collect();
        findings.push(
            Finding::new(
                CHECK,
                "other-owner",
                Severity::Info,
                format!(
                    "packages in {} were installed by {} users",
                    evidence.python.site_directories[site].path,
                    here.len()
                ),
            )
            .detail(told.join("; "))
            .active(None),
        );
    }
}

fn interpreters(evidence: &EnvironmentEvidence, findings: &mut Vec<Finding>) {
    let own = evidence.python.minor_version();
    let mut foreign: Vec<String> = evidence
        .python
        .site_directories
        .iter()
        .filter(|directory| directory.python.is_some() && directory.python != own)
        .map(|directory| directory.path.clone())
        .collect();
    foreign.extend(
        evidence
            .startup
            .earlier
            .iter()
            .filter(|f| f.python.is_some() && f.python != own && f.exists)
            .map(|f| f.path.clone()),
    );
    foreign.dedup();
    let version = own.map_or_else(|| "unknown".to_owned(), |(major, minor)| format!("{major}.{minor}"));
    if !foreign.is_empty() && own.is_some() {
        let on_path = evidence.startup.earlier.iter().any(|f| foreign.contains(&f.path));
        findings.push(
            Finding::new(CHECK, "mixed-interpreters", if on_path { Severity::Warning } else { Severity::Info },
                format!("package folders of another Python than {version} belong to the environment"))
            .detail(format!("{}. Their compiled modules cannot be loaded here, and their sources may be of another version.", some(&foreign, 5)))
            .active(if on_path { Some(true) } else { None })
            .suggests("package-version-skew", if on_path { 2.5 } else { 0.3 })
            .remedy("Keep the import path to one Python.", if on_path { vec!["env -u PYTHONPATH …the same command".to_owned()] } else { Vec::new() }),
        );
    }
    if !evidence.foreign_modules.is_empty() {
        let known = ServedPath::known();
        let names: Vec<String> = evidence
            .foreign_modules
            .iter()
            .map(|module| format!("{} ({})", module.path, module.abi))
            .collect();
        let serving = evidence.foreign_modules.iter().any(|module| {
            let package = module.path.split(['/', '.']).next().unwrap_or_default();
            known.part(&package.replace('_', "-")) != Part::Other
        });
        findings.push(
            Finding::new(CHECK, "foreign-abi", if serving { Severity::Warning } else { Severity::Info },
                format!("{} cannot be loaded by Python {version}", counted(names.len(), "compiled module of another Python", "compiled modules of other Pythons")))
            .detail(format!("{}. No module for this Python lies beside them: the packages were copied from another environment, or the interpreter was changed under them.", some(&names, 8)))
            .active(None)
            .suggests("package-version-skew", if serving { 3.0 } else { 0.5 })
            .remedy("Install these packages anew with this interpreter.", vec![format!("{} -m pip check", evidence.python.interpreter.as_deref().unwrap_or("python3"))]),
        );
    }
}
