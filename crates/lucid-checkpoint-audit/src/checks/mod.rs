//! The checks: one file each. They read the evidence alone.

mod architecture;
mod chat_template;
mod digest;
mod extents;
mod index;
mod scale_findings;
mod scales;
mod tokenizer;

pub use architecture::architecture;
pub use digest::digest;
pub use extents::extents;
pub use index::index;
pub use scales::scales;
pub use tokenizer::tokenizer;

use lucid_findings::{Deployment, EngineKind, LoadFormat};

use crate::evidence::{Capped, CheckpointEvidence, Container};

/// Whether this checkpoint is what the deployment loads: `Some(false)` with the reason when it surely isn't.
pub(crate) fn active(
    evidence: &CheckpointEvidence,
    deployment: &Deployment,
) -> (Option<bool>, Option<String>) {
    match (deployment.load_format, evidence.container) {
        (Some(LoadFormat::Dummy), _) => {
            return (
                Some(false),
                Some("The engine runs with random weights (load format dummy).".to_owned()),
            );
        }
        (Some(LoadFormat::Gguf), Container::Safetensors) => {
            return (Some(false), Some("The engine loads a GGUF file, not these safetensors.".to_owned()));
        }
        (Some(LoadFormat::Safetensors), Container::Gguf) => {
            return (Some(false), Some("The engine loads safetensors, not this GGUF file.".to_owned()));
        }
        _ => {}
    }
    match &deployment.model {
        None => (None, None),
        Some(model) if names_this(model, &evidence.location) => (Some(true), None),
        Some(model) => {
            (None, Some(format!("The engine serves {model}; whether that is this folder is not known.")))
        }
    }
}

/// A path or a hub name that stands for the location.
fn names_this(model: &str, location: &str) -> bool {
    let trim = |text: &str| text.trim_end_matches('/').to_owned();
    let (model, location) = (trim(model), trim(location));
    let last = |text: &str| text.rsplit('/').next().unwrap_or_default().to_owned();
    model == location
        || location.contains(&format!("models--{}", model.replace('/', "--")))
        || (!last(&model).is_empty() && last(&model) == last(&location))
}

/// `a, b and 12 more`, of at most four.
pub(crate) fn examples<T>(list: &Capped<T>, text: impl Fn(&T) -> String) -> String {
    let shown: Vec<String> = list.kept.iter().take(4).map(text).collect();
    let more = list.total.saturating_sub(shown.len() as u64);
    match more {
        0 => shown.join("; "),
        more => format!("{} and {more} more", shown.join("; ")),
    }
}

/// The hub name of the checkpoint, as far as it is known, and its folder.
fn repository(evidence: &CheckpointEvidence, deployment: &Deployment) -> String {
    let cached = evidence.location.split('/').find_map(|part| part.strip_prefix("models--"));
    if let Some(name) = cached {
        return name.replacen("--", "/", 1);
    }
    match &deployment.model {
        Some(model) if model.matches('/').count() == 1 && !model.starts_with(['/', '.']) => model.clone(),
        _ => "OWNER/NAME".to_owned(),
    }
}

/// Commands that fetch files again.
pub(crate) fn fetch_again(
    evidence: &CheckpointEvidence,
    deployment: &Deployment,
    files: &[String],
) -> Vec<String> {
    let repository = repository(evidence, deployment);
    let mut names = files.iter().take(8).map(|name| quoted(name)).collect::<Vec<_>>().join(" ");
    if files.len() > 8 {
        // Of many, all.
        names.clear();
    }
    let space = if names.is_empty() { "" } else { " " };
    if evidence.location.contains("models--") {
        return vec![format!("hf download {repository}{space}{names} --force-download")];
    }
    let folder = quoted(evidence.location.trim_end_matches('/'));
    vec![format!("hf download {repository}{space}{names} --local-dir {folder} --force-download")]
}

fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// `12.9 MB`
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 999.95 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// `43,308`
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// vLLM and SGLang read the weights through the same rules; `None` is taken for one of them.
pub(crate) fn fuses_gate_and_up(deployment: &Deployment) -> bool {
    matches!(deployment.engine, None | Some(EngineKind::Vllm | EngineKind::Sglang))
}
