//! `env.caches`: whether compiled code of another day is still in use.

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::{counted, duration, grouped, some};
use crate::gather::EnvironmentEvidence;
use crate::installer::quoted;
use crate::kernel_caches::{KernelCache, Layout, Locks};

const CHECK: &str = "env.caches";
/// A build of the largest kernels takes some minutes; a lock of that age may be at work.
const BUILD_SECONDS: i64 = 1_800;
/// Files of one install are written within this time of its RECORD.
const INSTALL_SECONDS: i64 = 600;

/// Judges the caches of compiled kernels.
///
/// # Errors
///
/// Nothing was told of where they are.
pub fn caches(evidence: &EnvironmentEvidence, _deployment: &Deployment) -> Result<Examined, Skip> {
    let Some(caches) = &evidence.kernel_caches else {
        return Err(Skip(
            "neither the serving user's home nor its environment variables are known; give --home or --pid"
                .to_owned(),
        ));
    };
    let mut findings = Vec::new();
    for cache in caches {
        judge(evidence, cache, &mut findings);
    }
    if caches.is_empty() {
        findings.push(
            Finding::new(CHECK, "none", Severity::Info, "no cache of compiled code is there")
                .detail("Looked for those of FlashInfer, Triton, torch, vLLM, SGLang and DeepGEMM where variables and home say.")
                .suggests("stale-cache", -4.0),
        );
    } else {
        let told: Vec<String> = caches
            .iter()
            .map(|cache| {
                format!(
                    "{} in {} ({}, {:.1} MB)",
                    cache.name,
                    cache.path,
                    counted(usize::try_from(cache.files).unwrap_or(usize::MAX), "file", "files"),
                    cache.bytes as f64 / 1e6
                )
            })
            .collect();
        findings.push(
            Finding::new(
                CHECK,
                "summary",
                Severity::Info,
                format!(
                    "{} of compiled code {} there",
                    counted(caches.len(), "cache", "caches"),
                    if caches.len() == 1 { "is" } else { "are" }
                ),
            )
            .detail(told.join("; "))
            .active(Some(true)),
        );
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let files: u64 = caches.iter().map(|cache| cache.files).sum();
    Ok(Examined {
        findings,
        covered: format!("{}, {} files", counted(caches.len(), "cache", "caches"), grouped(files)),
    })
}

fn delete(path: &str) -> Vec<String> {
    // Moved, not removed: the old objects are evidence.
    vec![format!("mv {0} {0}.old", quoted(path))]
}

fn judge(evidence: &EnvironmentEvidence, cache: &KernelCache, findings: &mut Vec<Finding>) {
    let package = evidence.distribution(&cache.package).or_else(|| {
        (cache.package == "vllm")
            .then(|| evidence.distributions.iter().find(|d| d.name.starts_with("vllm-")))
            .flatten()
    });
    let old: Vec<_> =
        cache.left_locks.iter().filter(|lock| evidence.gathered_at - lock.time > BUILD_SECONDS).collect();
    if let Some(first) = old.first() {
        let exclusive = cache.locks == Locks::Exclusive;
        findings.push(
            Finding::new(CHECK, "left-lock", Severity::Warning,
                format!("{} in the {} cache, {} old, and no object of that build", counted(old.len(), "lock was left", "locks were left"), cache.name, duration(evidence.gathered_at - first.time)))
            .detail(if exclusive {
                "Its presence alone makes every later start wait for ever, without a message."
            } else {
                "The build was killed. On a local disk the next start builds anew; on a network file system the lock may still be held, and the start hangs in it without a message."
            })
            .active(None)
            .suggests("stale-cache", if exclusive { 4.0 } else { 2.0 })
            .proof(ProofKind::File, &first.path, format!("written {} before the examination", duration(evidence.gathered_at - first.time)))
            .remedy("With no server running, move the cache away.", delete(&cache.path)),
        );
    }
    let installed = package.and_then(|package| package.installed_at);
    if let (Some((header, header_time)), Some(installed)) = (&cache.newest_header, installed)
        && let Some(first) = cache.older_than_header.first()
    {
        let count = cache.older_than_header.len() + cache.older_left_out;
        let edited = header_time - installed > INSTALL_SECONDS;
        let text = format!(
            "{} in the {} cache {} older than {header}",
            counted(count, "compiled object", "compiled objects"),
            cache.name,
            if count == 1 { "is" } else { "are" }
        );
        findings.push(if edited {
            Finding::new(CHECK, "objects-before-edit", Severity::Warning, text)
                .detail(format!("That file was written {} after the install, and the cache does not notice edits of headers: the old kernel goes on running.", duration(header_time - installed)))
                .active(Some(true))
                .suggests("stale-cache", 3.5)
                .suggests("modified-package-files", 1.0)
                .proof(ProofKind::File, &first.object, format!("compiled {} before {header} was written", duration(header_time - first.object_time)))
                .remedy("With no server running, move the cache away; it is compiled anew.", delete(&cache.path))
        } else {
            Finding::new(CHECK, "objects-before-install", Severity::Info, text)
                .detail("The package was installed after they were compiled. If it is the same build, they are right.")
                .active(None)
                .suggests("stale-cache", 0.7)
                .proof(ProofKind::File, &first.object, format!("compiled {} before {header} was written", duration(header_time - first.object_time)))
                .remedy("If in doubt, move the cache away; it is compiled anew.", delete(&cache.path))
        });
    } else if cache.layout != Layout::VersionFirst
        && let (Some(installed), Some(oldest)) = (installed, cache.oldest)
        && oldest < installed - INSTALL_SECONDS
    {
        findings.push(
            Finding::new(CHECK, "objects-before-install", Severity::Info,
                format!("the {} cache holds files from {} before the installed {}", cache.name, duration(installed - oldest), cache.package))
            .detail("Its key is meant to cover versions and flags. Starts that fail inside it (\"Expected tensors only\", \"too many values to unpack\") were cured by removing it.")
            .active(None)
            .suggests("stale-cache", 1.0)
            .proof(ProofKind::File, &cache.path, "older than the package that wrote it")
            .remedy("If the start fails inside compiled code, move it away.", delete(&cache.path)),
        );
    }
    if cache.layout == Layout::VersionFirst
        && let Some(package) = package
    {
        let versions: Vec<&String> =
            cache.names.iter().filter(|name| name.starts_with(|c: char| c.is_ascii_digit())).collect();
        let others: Vec<&&String> = versions.iter().filter(|name| ***name != package.version).collect();
        if !others.is_empty() {
            let old_tuning = cache.name == "flashinfer-autotune";
            findings.push(
                Finding::new(
                    CHECK,
                    "other-versions",
                    Severity::Info,
                    format!("the {} cache also holds objects of {}", cache.name, some(&others, 6)),
                )
                .detail(format!(
                    "{} reads only those of its own version, {}.",
                    cache.package, package.version
                ))
                .active(Some(false))
                .suggests("stale-cache", if old_tuning { 0.0 } else { -0.3 })
                .proof(ProofKind::File, &cache.path, some(&versions, 10)),
            );
        }
    }
    if cache.name == "flashinfer-autotune"
        && let Some(package) = package
        && super::version_rules::matches("<0.6.13", &package.version)
    {
        findings.push(
            Finding::new(CHECK, "stale-autotune", Severity::Warning,
                format!("tuning results of flashinfer-python {} are kept, whose keys collide", package.version))
            .detail("Before 0.6.13 the key left out a scale layout, so a tactic may be taken that was measured for another kernel.")
            .active(Some(true))
            .suggests("stale-cache", 2.5)
            .proof(ProofKind::File, &cache.path, counted(usize::try_from(cache.files).unwrap_or(usize::MAX), "file", "files"))
            .remedy("Move them away and take flashinfer-python 0.6.13 or later.", delete(&cache.path)),
        );
    }
    if cache.owners.len() > 1 {
        let owners: Vec<String> = cache.owners.iter().map(u32::to_string).collect();
        findings.push(
            Finding::new(
                CHECK,
                "shared",
                Severity::Info,
                format!("files of users {} lie in the {} cache", some(&owners, 5), cache.name),
            )
            .detail(
                "Servers that share one compile cache have broken each other's starts: one cache root each.",
            )
            .active(None)
            .suggests("stale-cache", 1.0)
            .proof(ProofKind::File, &cache.path, "several owners"),
        );
    }
}
