//! `checkpoint.digest`: whether every file has the bytes that it should have.

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::{active, examples, fetch_again, size, thousands};
use crate::evidence::{Capped, CheckpointEvidence, FileDigest};

const CHECK: &str = "checkpoint.digest";

/// Compares digests with a manifest, the names of Hugging Face cache blobs, download records or Git LFS pointers.
///
/// # Errors
/// When no digest was computed, or nothing says what it should be.
pub fn digest(evidence: &CheckpointEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    let Some(digests) = &evidence.digests else {
        return Err(Skip("the files were not hashed".to_owned()));
    };
    let compared: Vec<&FileDigest> =
        digests.files.kept.iter().filter(|file| file.sha256.is_some() && file.expected.is_some()).collect();
    let wrong_length = |file: &FileDigest| file.expected_bytes.is_some_and(|bytes| bytes != file.bytes);
    let lengths = digests.files.kept.iter().filter(|file| file.expected_bytes.is_some()).count();
    if compared.is_empty() && lengths == 0 && digests.absent.is_empty() {
        return Err(Skip(format!(
            "nothing says what the digests should be; get a manifest with: curl -s \
                'https://huggingface.co/api/models/{}?blobs=true' > manifest.json, and give it with \
                --manifest",
            super::repository(evidence, deployment)
        )));
    }
    let mut bad: Capped<&FileDigest> = Capped::default();
    for file in &digests.files.kept {
        let differs = file.sha256.is_some() && file.expected.is_some() && file.sha256 != file.expected;
        if differs || wrong_length(file) {
            bad.push(64, file);
        }
    }
    let (active, why) = active(evidence, deployment);
    let mut findings = Vec::new();
    if !bad.is_empty() {
        findings.push(mismatch(&bad, evidence, deployment));
    }
    if !digests.absent.is_empty() {
        let weights =
            digests.absent.kept.iter().any(|name| name.ends_with(".safetensors") || name.ends_with(".gguf"));
        let severity = if weights { Severity::Error } else { Severity::Info };
        let title = format!(
            "{} files of the manifest are not there: {}",
            digests.absent.total,
            examples(&digests.absent, Clone::clone)
        );
        let mut finding = Finding::new(CHECK, "absent", severity, title)
            .detail("The manifest was made of a folder that had them.")
            .remedy("Download them.", fetch_again(evidence, deployment, &digests.absent.kept));
        if weights {
            finding = finding.suggests("checkpoint-corrupt", 5.0);
        }
        findings.push(finding);
    }
    let weights = evidence.shards.total;
    let proven = compared.iter().filter(|file| file.weights && file.sha256 == file.expected).count() as u64;
    if bad.is_empty() && !compared.is_empty() {
        findings.push(matches(proven, weights, compared.len()));
    }
    for finding in &mut findings {
        finding.active = active;
        if let (Some(why), true) = (&why, finding.severity > Severity::Info) {
            finding.detail = format!("{} {why}", finding.detail);
        }
    }
    let covered = format!(
        "{} of {} weight files and {} other files hashed against {}; {} in {:.1} s",
        thousands(compared.iter().filter(|file| file.weights).count() as u64),
        thousands(weights),
        compared.iter().filter(|file| !file.weights).count(),
        digests.sources.join(", "),
        size(digests.bytes),
        digests.seconds
    );
    Ok(Examined { findings, covered })
}

fn matches(proven: u64, weights: u64, files: usize) -> Finding {
    if proven == weights && weights > 0 {
        return Finding::new(
            CHECK,
            "matches",
            Severity::Info,
            format!("All {weights} weight files have the digests that they should have"),
        )
        .detail("The bytes are those that were published: a damaged checkpoint is as good as ruled out.")
        .suggests("checkpoint-corrupt", -6.0);
    }
    // Proof for some files is none for the others.
    let title = format!(
        "{files} files have the digests that they should have, {proven} of {weights} weight files among them"
    );
    Finding::new(CHECK, "matches-partly", Severity::Info, title)
        .suggests("checkpoint-corrupt", -2.0 * proven as f64 / weights.max(1) as f64)
}

fn mismatch(bad: &Capped<&FileDigest>, evidence: &CheckpointEvidence, deployment: &Deployment) -> Finding {
    let weights = bad.kept.iter().any(|file| file.weights);
    let names: Vec<String> = bad.kept.iter().map(|file| file.name.clone()).collect();
    let title = format!(
        "{} not what {} should be: {}",
        if bad.total == 1 { "1 file is".to_owned() } else { format!("{} files are", bad.total) },
        if bad.total == 1 { "it" } else { "they" },
        examples(bad, |file| file.name.clone())
    );
    // An edited template or config is a decision; edited weights are damage.
    let severity = if weights { Severity::Error } else { Severity::Warning };
    let mut finding = Finding::new(CHECK, "mismatch", severity, title).detail(
        "One wrong bit changes the digest. The file was damaged on its way or on the disk, or it is of \
            another revision.",
    );
    for file in bad.kept.iter().take(8) {
        let short = |digest: &Option<String>| {
            digest.as_deref().map_or("unknown".to_owned(), |d| d.chars().take(16).collect())
        };
        let text = format!(
            "{} bytes with sha256 {}…, expected {}{}… ({})",
            file.bytes,
            short(&file.sha256),
            file.expected_bytes.map_or_else(String::new, |bytes| format!("{bytes} bytes with ")),
            short(&file.expected),
            file.source.as_deref().unwrap_or("manifest")
        );
        finding = finding.proof(ProofKind::File, &file.name, text);
    }
    finding = finding
        .remedy("Download these files again, then look again.", fetch_again(evidence, deployment, &names));
    if weights {
        // A proof: that headers and statistics look whole says only that the damage is small.
        finding.suggests("checkpoint-corrupt", 10.0).suggests("wrong-checkpoint", 2.0)
    } else {
        finding.suggests("wrong-checkpoint", 1.0)
    }
}
