//! Numbers that the log prints again and again: memory, accepted drafts.

use std::fmt;

use lucid_findings::{Finding, ProofKind, Severity};

use super::CHECK;
use crate::evidence::{LogEvidence, Series};
use crate::timeline::PhaseKind;

/// How a series went while serving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// Kendall's tau against time.
    pub tau: f64,
    /// Median of the first quarter, in GiB: one peak proves nothing.
    pub first: f64,
    /// Median of the last quarter.
    pub last: f64,
    /// Samples.
    pub count: usize,
}

impl Growth {
    /// Whether it surely grew, and by enough to matter.
    pub(crate) fn is_growth(&self) -> bool {
        self.tau >= 0.7 && self.last >= 1.15 * self.first && self.last - self.first >= 1.0
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Growth { tau, first, last, count } = self;
        write!(formatter, "{first:.1} GiB to {last:.1} GiB over {count} samples, Kendall's tau {tau:.2}")
    }
}

/// Growth of a series over the samples of its last run that were taken while serving.
pub(crate) fn growth(series: &Series) -> Option<Growth> {
    let run = series.samples.last()?.run;
    let values: Vec<f64> = series
        .samples
        .iter()
        .filter(|sample| sample.run == run && sample.phase == Some(PhaseKind::Serve))
        .map(|sample| sample.value)
        .collect();
    let count = values.len();
    if count < 12 {
        return None;
    }
    let mut concordant = 0i64;
    for (index, a) in values.iter().enumerate() {
        for b in &values[index + 1..] {
            concordant += i64::from(b > a) - i64::from(b < a);
        }
    }
    let tau = concordant as f64 / (count * (count - 1) / 2) as f64;
    let median = |part: &[f64]| {
        let mut part = part.to_vec();
        part.sort_by(f64::total_cmp);
        part[part.len() / 2]
    };
    let quarter = count / 4;
    let (first, last) = (median(&values[..quarter]), median(&values[count - quarter..]));
    Some(Growth { tau, first, last, count })
}

pub(super) fn memory(evidence: &LogEvidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, what) in [("host-memory-gib", "host memory"), ("gpu-memory-gib", "GPU memory")] {
        let Some(growth) = evidence.series.get(name).and_then(growth) else { continue };
        let number = growth.to_string();
        if growth.is_growth() {
            findings.push(
                Finding::new(CHECK, "memory-growth", Severity::Warning, format!("While serving, {what} grew from {number}"))
                    .proof(ProofKind::Number, name, number)
                    .remedy("Watch it under a constant load; restart before it ends in the OOM killer, and look for a newer FlashInfer and engine.", vec![
                        "lucid watch --log FILE --pid PID".to_owned(),
                        "uv pip list | grep -i -e flashinfer -e vllm -e sglang".to_owned(),
                    ])
                    .suggests("memory-leak", 3.0),
            );
        } else if growth.tau.abs() < 0.5 && growth.last < 1.05 * growth.first {
            findings.push(
                Finding::new(
                    CHECK,
                    "memory-steady",
                    Severity::Info,
                    format!("While serving, {what} did not grow: {number}"),
                )
                .proof(ProofKind::Number, name, number)
                .active(None)
                .suggests("memory-leak", -2.0),
            );
        }
    }
    findings
}

pub(super) fn drafts(evidence: &LogEvidence) -> Option<Finding> {
    let median = |name: &str| {
        let series = evidence.series.get(name)?;
        let mut values: Vec<f64> = series.samples.iter().map(|sample| sample.value).collect();
        values.sort_by(f64::total_cmp);
        (values.len() >= 3).then(|| (values[values.len() / 2], values.len()))
    };
    let length = median("acceptance-length");
    let first = median("first-acceptance");
    // The length counts the token that the target adds: 1.0 is nothing accepted.
    let rejected =
        first.map_or_else(|| length.is_some_and(|(length, _)| length <= 1.05), |(rate, _)| rate < 0.05);
    if !rejected {
        return None;
    }
    let (length, count) = length?;
    let number = format!(
        "mean acceptance length {length:.2}{} over {count} statistics lines",
        first.map_or_else(String::new, |(rate, _)| format!(", first position {:.1} %", 100.0 * rate))
    );
    Some(
        Finding::new(CHECK, "draft-rejected", Severity::Warning, format!("Almost no drafted token is accepted: {number}"))
            .detail("Answers stay right, since the target checks every token, but the draft only costs time. Its weights, its position or its hidden states are wrong; with custom all-reduce over PCIe, look there too.")
            .proof(ProofKind::Number, "acceptance", number)
            .remedy("Compare with speculation off, and with --disable-custom-all-reduce.", vec![
                "vllm serve MODEL  # without --speculative-config".to_owned(),
                "vllm serve MODEL --disable-custom-all-reduce".to_owned(),
            ])
            .suggests("speculative-decoding", 3.0)
            .suggests("collectives", 0.5),
    )
}
