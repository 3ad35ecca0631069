//! The checks. Each reads stored evidence and leaves findings.

mod crash;
mod signatures;
mod timeline;

use lucid_findings::{Deployment, Examined, Skip};

pub use crash::crash;
pub use signatures::signatures;
pub(crate) use timeline::growth;
pub use timeline::timeline;

use crate::evidence::LogEvidence;

/// A check of logs.
pub type Check = fn(&LogEvidence, &Deployment) -> Result<Examined, Skip>;

/// All checks of logs, by id.
pub const CHECKS: &[(&str, Check)] =
    &[("logs.signatures", signatures), ("logs.crash", crash), ("logs.timeline", timeline)];

/// Says why there is nothing to read, if there is nothing.
fn readable(evidence: &LogEvidence) -> Result<(), Skip> {
    if evidence.lines() > 0 {
        return Ok(());
    }
    let errors: Vec<&str> = evidence.sources.iter().filter_map(|source| source.error.as_deref()).collect();
    Err(Skip(if errors.is_empty() {
        "no log was given, or it is empty; give one with --log FILE or --unit NAME".to_owned()
    } else {
        format!("no log could be read: {}", errors.join("; "))
    }))
}

/// `12,345`
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1.2 MB`
fn size(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} bytes"),
        10_000..=999_999 => format!("{:.0} kB", bytes as f64 / 1e3),
        1_000_000..=999_999_999 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
