//! Is an answer written from all of its context?
//!
//! Engines decode by other kernels than they read prompts with, and with context parallelism by other collectives: what one rank holds of a
//! context can be lost to answers alone (vLLM #41623), beyond the length at which it holds anything. So twins are asked for: the same context
//! once continued by a token that is decoded, and once read as a prompt to its end. Of the cache, both read the same entries: those that the
//! prompt left. Where reading is right at every length and decoding is wrong from a length on, the entries are right, and what attends to
//! them is not.
//!
//! What was written wrongly while decoding shows in neither twin (the first decoded token reads the prompt's entries and its own); what was
//! read or kept wrongly shows in both, or at every length.

use lucid_checkpoint::TokenId;

use super::INNOCENT;
use super::probe::{Probe, TOP};
use crate::evidence::{Examination, FEW_BEYOND, PromptScore, compare, observed};
use crate::knowledge::hypotheses;
use crate::report::html::nats;
use crate::report::{Finding, ProofKind, Severity};
use crate::subject::Depth;

/// Divergence of a token at which it may be wrong where no arithmetic is declared, nats, and how many times farther it is than what is usual for
/// those that are read.
const WRONG: f64 = 5e-3;
const APART: f64 = 10.0;
/// Share of an answer's tokens beyond rounding at which it is suspected.
const MANY_BEYOND: f64 = 0.1;
/// Twins that are right below a length, and wrong above it, at the least.
const BELOW: usize = 3;
const ABOVE: usize = 3;

/// One context, continued and read.
#[derive(Clone, Copy, Debug)]
struct Twin {
    /// Tokens of the prompt.
    size: usize,
    /// How far what follows it, the token that was decoded after that, and the same token after a prompt that ends with it are from the
    /// reference, nats.
    kl: [f64; 3],
    /// Which of the three are beyond rounding, of a server that declares an arithmetic that the reference has.
    beyond: Option<[bool; 3]>,
    exchange: usize,
}

impl Twin {
    fn is_wrong(&self, which: usize, bar: f64) -> bool {
        self.beyond.map_or(self.kl[which] > bar, |beyond| beyond[which])
    }

    fn is_decoded_wrongly(&self, bar: f64) -> bool {
        self.is_wrong(1, bar)
    }

    fn is_read_wrongly(&self, bar: f64) -> bool {
        self.is_wrong(0, bar) || self.is_wrong(2, bar)
    }
}

/// Divergence above which a token is wrong.
fn bar(twins: &[Twin]) -> f64 {
    let mut read: Vec<f64> = twins.iter().flat_map(|twin| [twin.kl[0], twin.kl[2]]).collect();
    read.sort_by(f64::total_cmp);
    WRONG.max(APART * read.get(read.len() / 2).copied().unwrap_or(0.0))
}

/// Whether there are answers that no known mistake explains.
pub(super) fn is_suspected(examination: &Examination<'_>) -> bool {
    let evidence = &examination.evidence;
    let is_mistake = |name: &str| hypotheses().variations.iter().all(|variation| variation.name != name);
    let fits = evidence.divergence.iter().flat_map(|divergence| &divergence.hypotheses);
    if fits.into_iter().any(|fit| fit.outcome == "fits" && is_mistake(&fit.name)) {
        return false;
    }
    let exact = evidence.claim.is_some();
    let is_wrong = |score: &PromptScore| {
        let decoded = PromptScore {
            positions: score.positions.iter().filter(|position| position.decoded).copied().collect(),
        };
        if exact { decoded.beyond() > MANY_BEYOND.max(FEW_BEYOND) } else { decoded.mean_kl() > WRONG }
    };
    evidence.threshold || evidence.observed.iter().any(|(_, score)| is_wrong(score))
}

/// Lengths by depth: a page or less, and then by a fifth.
fn lengths(depth: Depth, longest: usize) -> Vec<usize> {
    let last = match depth {
        Depth::Quick => 600,
        Depth::Standard => 1_000,
        Depth::Thorough => 16_000,
    };
    let mut lengths = vec![20];
    while let Some(&length) = lengths.last().filter(|length| **length < last) {
        lengths.push((length + length / 5).max(length + 12));
    }
    // One more token is decoded, and what follows it is asked for.
    lengths.retain(|length| length + 2 < longest);
    lengths
}

/// Asks for twins; a finding if answers beyond a length are the only ones that are wrong, and again so with fresh texts.
pub(super) fn look(
    check: &str,
    examination: &mut Examination<'_>,
    probe: &mut Probe,
    longest: usize,
) -> Option<Finding> {
    if probe.unsure.is_none() {
        // Where the model is sure it stays sure, whatever it attends to.
        probe.look_for_unsure_places().ok()?;
    }
    let lengths = lengths(examination.depth, longest);
    let mut twins = Vec::new();
    for (number, &length) in lengths.iter().enumerate() {
        examination.step(number, lengths.len(), &format!("an answer after {length} tokens"));
        if examination.out_of_patience().is_some() {
            return None;
        }
        twins.extend(ask(examination, probe, length));
    }
    let (right, wrong) = edge(&twins)?;
    let (shortest, last) = (twins.first()?.size, twins.last()?.size);
    let mut fresh = Vec::new();
    for length in [shortest, right.midpoint(shortest), right, wrong, wrong.midpoint(last), last] {
        examination.step(fresh.len(), 6, &format!("an answer after {length} tokens, once more"));
        fresh.push(ask(examination, probe, length)?);
    }
    let bar = bar(&twins);
    let wrong_again = fresh.iter().filter(|twin| twin.is_decoded_wrongly(bar)).count();
    let is_again =
        |twin: &Twin| !twin.is_read_wrongly(bar) && (twin.size >= wrong || !twin.is_decoded_wrongly(bar));
    (fresh.iter().all(is_again) && wrong_again >= 2).then(|| finding(check, [right, wrong], &fresh, bar))
}

/// One context both ways; `None` where the server does not answer, or ends.
fn ask(examination: &mut Examination<'_>, probe: &mut Probe, size: usize) -> Option<Twin> {
    let prompt = probe.cut(size);
    let (decoded, exchange) = follow(examination, probe, &prompt, 2)?;
    let (next, of_next) = decoded;
    let mut longer = prompt;
    longer.push(next?);
    // The prompt's whole pages are in the cache by now.
    let ((_, of_read), _) = follow(examination, probe, &longer, 1)?;
    let (first, second, read) =
        (of_next.positions.first()?, of_next.positions.get(1)?, of_read.positions.first()?);
    let beyond =
        examination.evidence.claim.map(|_| [first.is_beyond(), second.is_beyond(), read.is_beyond()]);
    Some(Twin { size, kl: [first.kl, second.kl, read.kl], beyond, exchange })
}

type Followed = ((Option<TokenId>, PromptScore), usize);

/// The first token after a prompt, and how far what the server says of it and of those after it is from the reference.
fn follow(
    examination: &mut Examination<'_>,
    probe: &mut Probe,
    prompt: &[TokenId],
    most: u32,
) -> Option<Followed> {
    let ids: Vec<u32> = prompt.iter().map(|token| token.0).collect();
    let (exchange, outcome) = examination.take(probe.endpoint.follow_tokens(&ids, most, TOP, true));
    let generated = outcome.ok()?;
    let observed = observed(&|name| examination.id(name), prompt, &[], &generated, exchange);
    let score = compare(&mut probe.scorer, &observed).ok()?;
    Some(((observed.tokens.get(prompt.len()).copied(), score), exchange))
}

/// The longest context that answers are written from rightly, and the shortest one that they are not: all shorter ones are right and those
/// longer wrong, or half of them (where the model is sure it stays sure), and each of them is read rightly.
fn edge(twins: &[Twin]) -> Option<(usize, usize)> {
    let bar = bar(twins);
    if twins.iter().any(|twin| twin.is_read_wrongly(bar)) {
        return None;
    }
    let first = twins.iter().position(|twin| twin.is_decoded_wrongly(bar))?;
    let (below, above) = twins.split_at(first);
    let wrong = above.iter().filter(|twin| twin.is_decoded_wrongly(bar)).count();
    (below.len() >= BELOW && wrong >= ABOVE && 2 * wrong >= above.len())
        .then(|| Some((below.last()?.size, above.first()?.size)))?
}

fn finding(check: &str, [right, wrong]: [usize; 2], fresh: &[Twin], bar: f64) -> Finding {
    let title =
        format!("Answers after more than {right} tokens are not written from all that stands before them");
    let finding = Finding::new(check, "partial-context", Severity::Error, title)
        .detail(format!(
            "Right after up to {right} tokens, wrong from {wrong} on, with the first token that is decoded, and again so with fresh texts. The same contexts are right where they are read as prompts, from the same cache: its entries are right, and what attends to them while decoding is not."
        ))
        .confidence(0.99)
        .suggests("attention-kernel", 14.0)
        .suggests("size-threshold", -12.0)
        .suggests("prefix-cache", -6.0)
        .remedy(
            "Decoding attends to a part of the context alone: a rank's share of it (decode context parallelism), a split of a long context, or a page table is lost. Without context parallelism, and with another attention backend, answers are right or wrong still: that tells which.",
            vec![
                "vllm serve MODEL --decode-context-parallel-size 1".to_owned(),
                "vllm serve MODEL --attention-backend TRITON_MLA".to_owned(),
            ],
        );
    let finding = INNOCENT
        .into_iter()
        .filter(|cause| *cause != "kv-cache-scales")
        .fold(finding, |finding, cause| finding.suggests(cause, -6.0))
        .suggests("kv-cache-scales", -12.0);
    fresh.iter().filter(|twin| twin.is_decoded_wrongly(bar)).fold(finding, |finding, twin| {
        let numbers = format!(
            "after {} tokens: {} nats from the reference where it was decoded, {} where it was read",
            twin.size,
            nats(twin.kl[1]),
            nats(twin.kl[2])
        );
        finding.proof(ProofKind::Exchange, twin.exchange.to_string(), numbers)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twins at all lengths of a quick look, by what is wrong there: (what is decoded, what is read).
    fn twins(exact: bool, at: impl Fn(usize) -> (bool, bool)) -> Vec<Twin> {
        let twin = |size| {
            let (decoded, read) = at(size);
            let kl = |is_wrong: bool| if is_wrong { 0.1 } else { 1e-6 };
            Twin {
                size,
                kl: [1e-6, kl(decoded), kl(read)],
                beyond: exact.then_some([false, decoded, read]),
                exchange: 1,
            }
        };
        lengths(Depth::Quick, 4_096).into_iter().map(twin).collect()
    }

    #[test]
    fn answers_beyond_a_length_are_told_from_everything_else() {
        for exact in [true, false] {
            let found = |at: &dyn Fn(usize) -> (bool, bool)| edge(&twins(exact, at));
            let (right, wrong) = found(&|size| (size > 128, false)).unwrap();
            assert!(right <= 128 && wrong > 128, "{right} {wrong}");
            assert_eq!(found(&|_| (false, false)), None, "what is written wrongly shows in neither");
            assert_eq!(found(&|_| (true, false)), None, "another scale is wrong at every length");
            assert_eq!(
                found(&|size| (size > 128, size > 128)),
                None,
                "entries that are wrong are read so too"
            );
            assert_eq!(
                found(&|size| (size > 128, size > 400)),
                None,
                "pages that hold something else, now and then"
            );
            assert_eq!(found(&|size| (size == 60, false)), None, "one");
        }
    }

    #[test]
    fn what_attends_is_to_blame_and_no_entry() {
        let twins = twins(true, |size| (size > 128, false));
        let finding = finding("reference.sizes", [120, 160], &twins, bar(&twins));
        assert_eq!(
            (finding.severity, finding.suggested_cause()),
            (Severity::Error, Some("attention-kernel"))
        );
        let weight = |cause: &str| finding.suggests.iter().find(|s| s.cause == cause).map(|s| s.weight);
        assert!(weight("kv-cache-scales") < Some(-8.0) && weight("size-threshold") < Some(-8.0));
        assert_eq!(finding.evidence.len(), twins.iter().filter(|twin| twin.size > 128).count());
    }
}
