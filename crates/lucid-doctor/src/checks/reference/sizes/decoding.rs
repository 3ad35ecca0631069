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
use super::pattern::{Pattern, Trial};
use super::probe::{Probe, TOP};
use super::ranks;
use crate::evidence::{Examination, FEW_BEYOND, PositionScore, PromptScore, compare, observed};
use crate::knowledge::hypotheses;
use crate::report::html::nats;
use crate::report::{Finding, ProofKind, Severity};
use crate::subject::Depth;

/// Share of an answer's tokens beyond rounding at which it is suspected, and its divergence where no arithmetic is declared, nats a token: honest
/// servers in bfloat16 stay below a tenth of that.
const MANY_BEYOND: f64 = 0.1;
const FAR: f64 = 1e-4;
/// Texts of each length where no arithmetic is declared, so that ranks tell, and fresh ones near an edge.
const TEXTS: usize = 2;
const NEAR: usize = 8;
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
    /// Of a server that declares its arithmetic.
    fn is_decoded_wrongly(&self) -> bool {
        self.beyond.is_some_and(|beyond| beyond[1])
    }

    /// The same for both tokens that are read.
    fn is_read_wrongly(&self) -> bool {
        self.beyond.is_some_and(|beyond| beyond[0] || beyond[2])
    }

    /// What ranks need of the token that was decoded.
    fn decoded(&self) -> Trial {
        Trial {
            size: self.size,
            kl: self.kl[1],
            last: PositionScore::default(),
            beyond: None,
            exchange: self.exchange,
            said: Default::default(),
        }
    }
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
        if exact { decoded.beyond() > MANY_BEYOND.max(FEW_BEYOND) } else { decoded.mean_kl() > FAR }
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
    let exact = examination.evidence.claim.is_some();
    let texts = if exact { 1 } else { TEXTS };
    let lengths = lengths(examination.depth, longest).into_iter().flat_map(|length| vec![length; texts]);
    let twins = ask_all(examination, probe, lengths.collect())?;
    if exact {
        by_rounding(check, examination, probe, &twins)
    } else {
        by_ranks(check, examination, probe, &twins)
    }
}

/// An edge to the rounding of what is declared.
fn by_rounding(
    check: &str,
    examination: &mut Examination<'_>,
    probe: &mut Probe,
    twins: &[Twin],
) -> Option<Finding> {
    let (right, wrong) = edge(twins)?;
    let (shortest, last) = (twins.first()?.size, twins.last()?.size);
    let lengths = [shortest, right.midpoint(shortest), right, wrong, wrong.midpoint(last), last];
    let fresh = ask_all(examination, probe, lengths.to_vec())?;
    let is_again =
        |twin: &Twin| !twin.is_read_wrongly() && (twin.size >= wrong || !twin.is_decoded_wrongly());
    let shown: Vec<Twin> = fresh.iter().copied().filter(Twin::is_decoded_wrongly).collect();
    (fresh.len() == lengths.len() && fresh.iter().all(is_again) && shown.len() >= 2)
        .then(|| finding(check, [right, wrong], &shown))
}

/// An edge that ranks show, where nobody is held to rounding.
fn by_ranks(
    check: &str,
    examination: &mut Examination<'_>,
    probe: &mut Probe,
    twins: &[Twin],
) -> Option<Finding> {
    let (edge, [right, wrong]) = parted(twins)?;
    let [longer, shorter] = edge.sides(NEAR).map(|lengths| ask_all(examination, probe, lengths));
    let (longer, shorter) = (longer?, shorter?);
    is_parted_again(&longer, &shorter, edge.bar).then(|| finding(check, [right, wrong], &longer[..2]))
}

/// The edge that parts what is decoded and not what is read.
fn parted(twins: &[Twin]) -> Option<(ranks::Edge, [usize; 2])> {
    let edge = ranks::edge(&twins.iter().map(Twin::decoded).collect::<Vec<_>>())?;
    let Pattern::Above { right, wrong } = edge.pattern else { return None };
    let longer: Vec<Twin> = twins.iter().copied().filter(|twin| twin.size >= wrong).collect();
    is_read_rightly(&longer, edge.bar).then_some((edge, [right, wrong]))
}

fn is_parted_again(longer: &[Twin], shorter: &[Twin], bar: f64) -> bool {
    let decoded = |twins: &[Twin]| twins.iter().map(Twin::decoded).collect::<Vec<_>>();
    longer.len() >= 2 && ranks::is_again(&decoded(longer), &decoded(shorter)) && is_read_rightly(longer, bar)
}

/// Three quarters of the tokens that are read are nearer than any that counts as wrong.
fn is_read_rightly(twins: &[Twin], bar: f64) -> bool {
    let read = || twins.iter().flat_map(|twin| [twin.kl[0], twin.kl[2]]);
    4 * read().filter(|kl| *kl > bar).count() <= read().count()
}

/// Twins of these lengths, those that are answered; `None` where patience is at its end.
fn ask_all(examination: &mut Examination<'_>, probe: &mut Probe, lengths: Vec<usize>) -> Option<Vec<Twin>> {
    let mut twins = Vec::with_capacity(lengths.len());
    for (number, length) in lengths.iter().enumerate() {
        examination.step(number, lengths.len(), &format!("an answer after {length} tokens"));
        if examination.out_of_patience().is_some() {
            return None;
        }
        twins.extend(ask(examination, probe, *length));
    }
    Some(twins)
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
    if twins.iter().any(Twin::is_read_wrongly) {
        return None;
    }
    let first = twins.iter().position(Twin::is_decoded_wrongly)?;
    let (below, above) = twins.split_at(first);
    let wrong = above.iter().filter(|twin| twin.is_decoded_wrongly()).count();
    let is_edge = below.len() >= BELOW && wrong >= ABOVE && 2 * wrong >= above.len();
    Some((below.last()?.size, above.first()?.size)).filter(|_| is_edge)
}

/// `shown`: fresh twins of which the decoded one is wrong.
fn finding(check: &str, [right, wrong]: [usize; 2], shown: &[Twin]) -> Finding {
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
    shown.iter().fold(finding, |finding, twin| {
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
    use crate::statistics::Random;

    /// Twins at all lengths of a quick look, by what is wrong there: (what is decoded, what is read). What is wrong is farther by a factor
    /// of a thousand, in noise of a factor of 400.
    fn twins(exact: bool, at: impl Fn(usize) -> (bool, bool)) -> Vec<Twin> {
        let mut random = Random::new(7);
        let mut twin = |size| {
            let (decoded, read) = at(size);
            let mut kl = |is_wrong: bool| {
                let noise = (6.0 * (random.below(1_000) as f64 / 1_000.0 - 0.5)).exp();
                if is_wrong { 1e-3 * noise } else { 1e-6 * noise }
            };
            Twin {
                size,
                kl: [kl(false), kl(decoded), kl(read)],
                beyond: exact.then_some([false, decoded, read]),
                exchange: 1,
            }
        };
        let texts = if exact { 1 } else { TEXTS };
        let lengths = lengths(Depth::Quick, 4_096).into_iter().flat_map(|length| vec![length; texts]);
        lengths.map(&mut twin).collect()
    }

    #[test]
    fn answers_beyond_a_length_are_told_from_everything_else() {
        for exact in [true, false] {
            let found = |at: &dyn Fn(usize) -> (bool, bool)| {
                let twins = twins(exact, at);
                if exact { edge(&twins) } else { parted(&twins).map(|(_, [right, wrong])| (right, wrong)) }
            };
            for lost in [128, 256] {
                let (right, wrong) = found(&|size| (size > lost, false)).unwrap();
                assert!(right <= lost && wrong > lost, "{right} {wrong}");
            }
            assert_eq!(found(&|_| (false, false)), None, "what is written wrongly shows in neither");
            assert_eq!(found(&|_| (true, false)), None, "another scale is wrong at every length");
            assert_eq!(
                found(&|size| (size > 128, size > 128)),
                None,
                "entries that are wrong are read so too"
            );
            assert_eq!(found(&|size| (size == 56, false)), None, "one");
        }
        let now_and_then = twins(true, |size| (size > 128, size > 400));
        assert_eq!(edge(&now_and_then), None, "pages that hold something else, now and then");
    }

    #[test]
    fn fresh_twins_have_to_show_it_again() {
        let of = |decoded, read| twins(false, |_| (decoded, read));
        let again = |longer: Vec<Twin>, shorter: Vec<Twin>| is_parted_again(&longer, &shorter, 3e-5);
        assert!(again(of(true, false), of(false, false)));
        assert!(!again(of(false, false), of(false, false)));
        assert!(!again(of(true, true), of(false, false)), "read wrongly as well");
    }

    #[test]
    fn what_attends_is_to_blame_and_no_entry() {
        let shown = &twins(true, |_| (true, false))[..2];
        let finding = finding("reference.sizes", [120, 160], shown);
        assert_eq!(
            (finding.severity, finding.suggested_cause()),
            (Severity::Error, Some("attention-kernel"))
        );
        let weight = |cause: &str| finding.suggests.iter().find(|s| s.cause == cause).map(|s| s.weight);
        assert!(weight("kv-cache-scales") < Some(-8.0) && weight("size-threshold") < Some(-8.0));
        assert_eq!(finding.evidence.len(), 2);
    }
}
