//! The same small request many times: do quality, latency or memory change with use?

use lucid_client::{ChatRequest, Endpoint, Message};

use super::requests::greedy;
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Examination, Sample};
use crate::report::{Finding, ProbeTable, ProofKind, Severity};
use crate::statistics::{Change, change_point};
use crate::subject::Depth;

pub(crate) struct Soak;

/// Blocks of requests between two looks at the memory.
const BLOCKS: usize = 6;
/// Memory that has to be gained in all, and by each request: allocators and caches breathe by less.
const GAINED: f64 = 8e6;
const GAINED_BY_REQUEST: f64 = 64e3;
/// Confidence that a change has to have.
const CONFIDENCE: f64 = 0.999;
/// A change of the first token's log-probability that matters, in nats; honest servers move by hundredths.
const MOVED: f64 = 0.1;

/// Requests of a block by depth.
fn block(depth: Depth) -> usize {
    match depth {
        Depth::Quick => 4,
        Depth::Standard => 8,
        Depth::Thorough => 60,
    }
}

impl Check for Soak {
    fn id(&self) -> &'static str {
        "endpoint.soak"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server]
    }

    fn covers(&self) -> &'static str {
        "answers, latency and (where /metrics tells it) memory stay as they are over some dozens of requests"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 60, tokens: 1_300 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let request =
            greedy(vec![Message::user("What is the capital of France? Answer in one sentence.")], 1);
        let size = block(examination.depth);
        let mut course = Course::default();
        course.memory.extend(memory(examination, &endpoint));
        for number in 0..BLOCKS {
            examination.step(number, BLOCKS, "the same request, again");
            if let Some(reason) = examination.out_of_patience() {
                return Err(Skip(reason));
            }
            course.block(examination, &endpoint, &request, size)?;
            course.memory.extend(memory(examination, &endpoint));
        }
        // By chance alone every block gains in one server of 64: what grows once has to grow twice as long.
        if course.grows(size) {
            for number in 0..BLOCKS {
                examination.step(number, BLOCKS, "the same request, to see whether memory goes on growing");
                if examination.out_of_patience().is_some() {
                    break;
                }
                course.block(examination, &endpoint, &request, size)?;
                course.memory.extend(memory(examination, &endpoint));
            }
        }
        if course.seconds.len() < 2 * BLOCKS && course.failures == 0 {
            return Err(Skip("too few answers came".to_owned()));
        }
        let mut findings = Vec::new();
        findings.extend(course.memory_finding(self.id(), size));
        findings.extend(course.quality_finding(self.id(), examination.seed));
        findings.extend(course.failure_finding(self.id(), examination));
        let mut table =
            ProbeTable::new(self.id(), "Over time", &["requests", "seconds a request", "resident memory"]);
        for (number, seconds) in course.seconds.chunks(size).enumerate() {
            let mean = seconds.iter().sum::<f64>() / seconds.len().max(1) as f64;
            let memory = course
                .memory
                .get(number + 1)
                .map_or_else(|| "not told".to_owned(), |bytes| format!("{:.1} MB", bytes / 1e6));
            table.row(&[&((number + 1) * size), &format!("{mean:.3}"), &memory]);
        }
        examination.evidence.probes.push(table);
        let memory = match (course.memory.first(), course.memory.last()) {
            (Some(first), Some(last)) if course.memory.len() > BLOCKS => {
                format!("memory {:+.1} MB", (last - first) / 1e6)
            }
            _ => "no memory told".to_owned(),
        };
        Ok(Examined {
            findings,
            covered: format!("{} requests, {memory}", course.seconds.len() + course.failures),
        })
    }
}

/// What happened over time.
#[derive(Default)]
struct Course {
    /// Of each answer, seconds.
    seconds: Vec<f64>,
    /// Log-probability of the first token.
    logprobs: Vec<f64>,
    /// Resident memory before the first and after each block, bytes.
    memory: Vec<f64>,
    failures: usize,
}

impl Course {
    fn block(
        &mut self,
        examination: &mut Examination<'_>,
        endpoint: &Endpoint,
        request: &ChatRequest,
        size: usize,
    ) -> Result<(), Skip> {
        for _ in 0..size {
            let reply = endpoint.chat(request);
            let exchange = reply.exchange.clone();
            let (number, outcome) = examination.take(reply);
            match outcome {
                Ok(answer) => {
                    self.seconds.push(exchange.seconds);
                    let sample = Sample::new(&answer, &exchange, number);
                    self.logprobs.extend(sample.tokens.first().map(|token| token.logprob));
                }
                Err(error) => {
                    self.failures += 1;
                    if let Some(reason) = examination.out_of_patience() {
                        return Err(Skip(format!("{reason}: {error}")));
                    }
                    if self.failures >= 3 {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Memory that was gained, bytes, and blocks of requests that gained it.
    fn gained(&self) -> (f64, usize) {
        let (first, last) = (self.memory.first(), self.memory.last());
        (first.zip(last).map_or(0.0, |(first, last)| last - first), self.memory.len().saturating_sub(1))
    }

    /// Blocks that gained nothing.
    fn exceptions(&self) -> usize {
        self.memory.windows(2).filter(|pair| pair[1] <= pair[0]).count()
    }

    /// Whether every block of `size` requests gains memory, but for one, and how much it is in all. Memory that every block gains is kept by
    /// requests; caches fill once. A machine that is short of memory takes some back now and then.
    fn grows(&self, size: usize) -> bool {
        let (all, blocks) = self.gained();
        let by_request = all / (blocks.max(1) * size) as f64;
        let each = self.exceptions() <= 1;
        blocks >= BLOCKS && each && all >= GAINED && by_request >= GAINED_BY_REQUEST
    }

    fn memory_finding(&self, check: &str, size: usize) -> Option<Finding> {
        let (all, blocks) = self.gained();
        if blocks < BLOCKS {
            return None;
        }
        let by_request = all / (blocks * size) as f64;
        if !self.grows(size) {
            return Some(
                Finding::new(
                    check,
                    "memory-steady",
                    Severity::Info,
                    "The server's memory doesn't grow with requests",
                )
                .suggests("memory-leak", -3.0),
            );
        }
        Some(
            Finding::new(check, "memory-grows", Severity::Error, "The server's memory grows with every request")
                .detail(format!(
                    "{:.0} kB a request: {:.1} MB more after {} small requests, in {} of {blocks} blocks (by chance: 1 in {}).",
                    by_request / 1e3,
                    all / 1e6,
                    blocks * size,
                    blocks - self.exceptions(),
                    // Of so many coins, all the same, or all but one.
                    (1_u64 << blocks.min(63)) / if self.exceptions() == 0 { 1 } else { blocks as u64 + 1 }
                ))
                .proof(ProofKind::Number, "process_resident_memory_bytes", format!("{:.0} → {:.0}", self.memory[0], self.memory[blocks]))
                .suggests("memory-leak", 9.0),
        )
    }

    fn quality_finding(&self, check: &str, seed: u64) -> Option<Finding> {
        let Change { at, before, after, confidence } = change_point(&self.logprobs, seed)?;
        ((before - after).abs() >= MOVED && confidence >= CONFIDENCE).then(|| {
            Finding::new(check, "changes", Severity::Error, "The same request gets another distribution after some time")
                .detail(format!(
                    "After {at} requests the first token's log-probability moves from {before:.3} to {after:.3} (confidence {:.1} %).",
                    confidence * 100.0
                ))
                .confidence(confidence)
                .suggests("gpu-hardware", 4.0)
                .suggests("prefix-cache", 3.0)
        })
    }

    /// Calls that failed, here or in any probe before: the ladder reports its own.
    fn failure_finding(&self, check: &str, examination: &Examination<'_>) -> Option<Finding> {
        let (number, text) = examination.evidence.failures.first()?;
        Some(failed_calls(check, examination.evidence.failures.len(), *number, text))
    }
}

/// Calls that the server failed.
fn failed_calls(check: &str, count: usize, number: usize, text: &str) -> Finding {
    let finding = Finding::new(check, "calls-failed", Severity::Error, "The server fails ordinary requests")
        .detail(format!("{count} calls; the first: {text}"))
        .proof(ProofKind::Exchange, number.to_string(), text.to_owned());
    blamed_by_words(finding, text)
}

/// The causes that a server's own words about a failed call point to.
pub(super) fn blamed_by_words(finding: Finding, text: &str) -> Finding {
    let text = text.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&["not finite", "nan", "inf or", "contains either"]) {
        finding.suggests("nan-logits", 9.0)
    } else if says(&["out of memory", "oom"]) {
        finding.suggests("out-of-memory", 7.0)
    } else if says(&["illegal memory access", "ecc", "xid"]) {
        finding.suggests("gpu-hardware", 3.0).suggests("attention-kernel", 2.0)
    } else if says(&["nccl", "all_reduce", "allreduce"]) {
        finding.suggests("collectives", 5.0)
    } else {
        finding
    }
}

/// Resident memory of the server's process, if it tells.
fn memory(examination: &mut Examination<'_>, endpoint: &Endpoint) -> Option<f64> {
    let (_, text) = examination.take(endpoint.metrics());
    resident(&text.ok()?)
}

fn resident(text: &str) -> Option<f64> {
    text.lines()
        .find(|line| line.starts_with("process_resident_memory_bytes"))
        .and_then(|line| line.split_whitespace().last()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(values: &[f64]) -> String {
        let course = Course { memory: values.iter().map(|mb| mb * 1e6).collect(), ..Course::default() };
        course.memory_finding("endpoint.soak", 8).map(|finding| finding.id).unwrap_or_default()
    }

    #[test]
    fn only_memory_that_every_block_gains_is_a_leak() {
        assert_eq!(memory(&[100.0, 108.0, 116.0, 124.0, 132.0, 140.0, 148.0]), "endpoint.soak/memory-grows");
        assert_eq!(memory(&[100.0, 160.0, 160.0, 160.0, 160.0, 160.0, 160.0]), "endpoint.soak/memory-steady");
        assert_eq!(memory(&[100.0, 100.1, 100.2, 100.3, 100.4, 100.5, 100.6]), "endpoint.soak/memory-steady");
        assert_eq!(memory(&[100.0, 108.0, 116.0, 113.0, 121.0, 129.0, 137.0]), "endpoint.soak/memory-grows");
        assert_eq!(memory(&[100.0, 118.0, 116.0, 134.0, 132.0, 140.0, 148.0]), "endpoint.soak/memory-steady");
        assert_eq!(memory(&[100.0, 120.0]), "", "too few looks");
    }

    #[test]
    fn words_point_to_causes() {
        for (text, cause) in [
            ("the logits at position 7 are not finite", Some("nan-logits")),
            ("probability tensor contains either `inf`, `nan` or element < 0", Some("nan-logits")),
            ("CUDA out of memory", Some("out-of-memory")),
            ("Internal Server Error", None),
        ] {
            assert_eq!(failed_calls("x", 1, 1, text).suggested_cause(), cause, "{text}");
        }
    }

    #[test]
    fn metrics_are_read() {
        let text =
            "# TYPE x gauge\nprocess_resident_memory_bytes 1.5e+08\nprocess_resident_memory_bytes_total 3\n";
        assert_eq!(resident(text), Some(1.5e8));
        assert_eq!(resident("nothing"), None);
    }
}
