//! How far the server's distributions are from the reference's.

use lucid_checkpoint::TokenId;
use lucid_engine::Scorer;
use serde::Serialize;

use super::claim::ROUNDING;
use crate::statistics::Estimate;

/// What the server said about one position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observation {
    /// Index into the sequence of the token that stands there.
    pub(crate) position: usize,
    /// Its log-probability.
    pub(crate) logprob: f64,
    /// The candidates that the server listed, the standing token possibly among them.
    pub(crate) top: Vec<(TokenId, f64)>,
}

/// A sequence, and what the server said about some of its positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    pub(crate) tokens: Vec<TokenId>,
    /// How many of them are the prompt.
    pub(crate) prompt: usize,
    /// Where the answer ended by itself, if it had to go on: index of its end's token, or of what stands in its place. What follows is no
    /// text that the model knows.
    pub(crate) end: Option<usize>,
    pub(crate) observations: Vec<Observation>,
    /// Number of the exchange, from 1.
    pub(crate) exchange: usize,
}

impl Observed {
    /// Notes where the answer ended by itself: the first of `ends` that was drawn, or that was likelier than what was drawn. vLLM draws
    /// the end's token and goes on; llama-server lists it and draws another.
    pub(crate) fn find_end(&mut self, ends: &[TokenId]) {
        let is_end = |observation: &&Observation| {
            let drawn = self.tokens.get(observation.position).is_some_and(|token| ends.contains(token));
            let listed = |(id, logprob): &(TokenId, f64)| ends.contains(id) && *logprob > observation.logprob;
            observation.position >= self.prompt && (drawn || observation.top.iter().any(listed))
        };
        self.end = self.observations.iter().find(is_end).map(|observation| observation.position);
    }
}

/// One position compared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PositionScore {
    pub(crate) position: usize,
    /// Lower bound of the Kullback-Leibler divergence, server from reference, in nats.
    pub(crate) kl: f64,
    /// |Δ log-probability| of the standing token, in nats.
    pub(crate) delta: f64,
    /// Largest |Δ log-probability| of the candidates that the server listed, nats; the all but impossible ones left aside.
    pub(crate) gap: f64,
    /// Whether the server computed it while decoding, from what earlier steps left in its KV cache; else with the prompt.
    pub(crate) decoded: bool,
    /// Whether it stands past the answer's own end.
    pub(crate) past_end: bool,
    /// Whether both have the same likeliest token, or the reference holds the server's for as likely within `TIE`.
    pub(crate) top1: bool,
}

impl PositionScore {
    /// Whether it deviates by more than f32's rounding.
    pub(crate) fn is_beyond(&self) -> bool {
        // A gap that is no number is no rounding.
        self.gap > ROUNDING || self.gap.is_nan()
    }
}

/// One prompt compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PromptScore {
    pub(crate) positions: Vec<PositionScore>,
}

/// Candidates that both hold for less likely than e^-25 are left aside: f32 says little there.
pub(super) const LEAST: f64 = -25.0;

/// One position counts for at most so much: a near-tie in routing moves single tokens far, honestly.
const CUT_KL: f64 = 1.0;

impl PromptScore {
    /// The positions that are compared by their divergence. Past an answer's end a model knows nothing, wavers between experts, and
    /// honest rounding moves it far: llama-server in bfloat16 by 1.5e-3 nats a token there, and 2e-7 before (canary).
    pub(crate) fn known(&self) -> impl Iterator<Item = &PositionScore> {
        self.positions.iter().filter(|position| !position.past_end)
    }

    /// Mean divergence of the positions up to the answer's end, each cut at 1 nat; NaN without positions.
    #[allow(clippy::cast_precision_loss)] // counts of tokens
    pub(crate) fn mean_kl(&self) -> f64 {
        self.known().map(|position| position.kl.min(CUT_KL)).sum::<f64>() / self.known().count() as f64
    }

    /// Share of the positions that deviate by more than f32's rounding; 0 without positions.
    #[allow(clippy::cast_precision_loss)] // counts of tokens
    pub(crate) fn beyond(&self) -> f64 {
        let beyond = self.positions.iter().filter(|position| position.is_beyond()).count();
        beyond as f64 / self.positions.len().max(1) as f64
    }
}

/// Scores the sequence with the reference and compares position by position.
pub(crate) fn compare(scorer: &mut Scorer, observed: &Observed) -> Result<PromptScore, lucid_engine::Error> {
    let mut positions = Vec::with_capacity(observed.observations.len());
    let mut observations = observed.observations.iter().peekable();
    let last = observed.observations.last().map_or(0, |observation| observation.position);
    let context = observed.tokens.get(..last).unwrap_or(&observed.tokens);
    scorer.score_answer(context, observed.prompt, |position, logprobs| {
        // `logprobs` is the distribution of the token after `position`.
        while let Some(observation) = observations.next_if(|observation| observation.position <= position + 1)
        {
            let token = observed.tokens.get(observation.position);
            if observation.position == position + 1
                && let Some(token) = token
            {
                let decoded = observation.position > observed.prompt;
                let past_end = observed.end.is_some_and(|end| observation.position > end);
                positions.push(PositionScore {
                    decoded,
                    past_end,
                    ..compare_position(observation, *token, logprobs)
                });
            }
        }
    })?;
    Ok(PromptScore { positions })
}

/// The divergence of the partition into the listed candidates and "all others" is a lower bound of the divergence of the
/// whole distributions (data-processing inequality; Cover and Thomas, "Elements of Information Theory", 2.8).
fn compare_position(observation: &Observation, token: TokenId, reference: &[f32]) -> PositionScore {
    let ours = |id: TokenId| Some(reference.get(id.row()).copied().map_or(f64::NEG_INFINITY, f64::from));
    let all = (0_u32..).zip(reference).map(|(id, logprob)| (TokenId(id), f64::from(*logprob)));
    compare_known(observation, token, ours, likeliest(all))
}

/// The same where only some tokens of the reference's distribution are known. Those that the server lists beside them are among
/// "all others".
pub(super) fn compare_listed(
    observation: &Observation,
    token: TokenId,
    listed: &[(TokenId, f64)],
) -> PositionScore {
    let ours = |id: TokenId| listed.iter().find(|(known, _)| *known == id).map(|(_, logprob)| *logprob);
    compare_known(observation, token, ours, likeliest(listed.iter().copied()))
}

fn likeliest(mut pairs: impl Iterator<Item = (TokenId, f64)>) -> Option<TokenId> {
    let first = pairs.next();
    pairs
        .fold(first, |best, next| if best.is_none_or(|best| next.1 > best.1) { Some(next) } else { best })
        .map(|(id, _)| id)
}

fn compare_known(
    observation: &Observation,
    token: TokenId,
    known: impl Fn(TokenId) -> Option<f64>,
    our_best: Option<TokenId>,
) -> PositionScore {
    let (mut kl, mut p_listed, mut q_listed, mut gap) = (0.0, 0.0, 0.0, 0.0_f64);
    let own = (token, observation.logprob);
    let mut seen: Vec<TokenId> = Vec::with_capacity(observation.top.len() + 1);
    for &(id, server) in std::iter::once(&own).chain(&observation.top) {
        if seen.contains(&id) {
            continue;
        }
        seen.push(id);
        let Some(ours) = known(id) else { continue };
        if server.max(ours) > LEAST {
            gap = gap.max((server - ours).abs());
        }
        let (p, q) = (server.exp(), ours.max(FLOOR).exp());
        p_listed += p;
        q_listed += q;
        if p > 0.0 {
            kl += p * (server - ours.max(FLOOR));
        }
    }
    // Rounding in f32 makes the sums exceed 1 by some 1e-6: what is below that is no mass.
    let (p_rest, q_rest) = (1.0 - p_listed, (1.0 - q_listed).max(1e-6));
    if p_rest > 1e-6 {
        kl += p_rest * (p_rest / q_rest).ln();
    }
    let server_best = likeliest(observation.top.iter().copied().chain([own]));
    let ours = |id: TokenId| known(id).unwrap_or(f64::NEG_INFINITY);
    PositionScore {
        position: observation.position,
        kl: if kl.is_nan() { f64::INFINITY } else { kl.max(0.0) },
        // A token that the reference says nothing of tells nothing.
        delta: known(token).map_or(0.0, |ours| (observation.logprob - ours).abs()),
        gap,
        decoded: false,
        past_end: false,
        top1: our_best.is_some_and(|best| server_best.is_some_and(|server| ours(server) >= ours(best) - TIE)),
    }
}

/// Candidates that are so close (nats) are tied: bfloat16 logits around 16 are an eighth apart.
const TIE: f64 = 0.125;

/// Log-probabilities below this are all the same: e^-30.
const FLOOR: f64 = -30.0;

/// The comparison with the reference, for the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// What was decided: `same`, `different`, `open`, `near`: not as near as the server's declared
    /// arithmetic, or `mistaken`: nearly the same, but nearer to a known mistake.
    pub decision: String,
    /// Prompts compared.
    pub prompts: usize,
    /// Positions compared.
    pub positions: usize,
    /// Which positions: `prompt and generated tokens` or `generated tokens`.
    pub of: String,
    /// Lower bound of the divergence in nats a token, with its interval over prompts.
    pub kl: Estimate,
    /// Mean |Δ log-probability| in nats a token, with its interval over prompts.
    pub delta: Estimate,
    /// Share of positions with the same likeliest token, or one that is tied with it.
    pub top1_agreement: f64,
    /// Mean of `kl` where the server computed with the prompt, if it was compared there.
    pub prefill: Option<f64>,
    /// Mean of `kl` where the server was decoding.
    pub decode: Option<f64>,
    /// By position in the sequence.
    pub by_position: Vec<PositionBin>,
    /// The arithmetic of the reference.
    pub semantics: String,
    /// What a right server computes, in words: `what the checkpoint says`, or what was recorded, and of whom.
    pub witness: String,
    /// Known mistakes, and how far the server is from a model that makes them.
    pub hypotheses: Vec<HypothesisFit>,
}

impl Divergence {
    /// Whether known mistakes were tried on a server that computes as the witness does, and none of them fits: the nearest say nothing.
    #[must_use]
    pub fn is_explained_by_nothing(&self) -> bool {
        self.decision == "same"
            && !self.hypotheses.is_empty()
            && self.hypotheses.iter().all(|fit| fit.outcome != "fits")
    }
}

/// Divergence in a range of positions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PositionBin {
    /// First position.
    pub from: usize,
    /// One past the last.
    pub to: usize,
    /// Positions compared in it.
    pub positions: usize,
    /// Mean lower bound of the divergence, nats a token.
    pub kl: f64,
    /// Mean |Δ log-probability|, nats a token.
    pub delta: f64,
}

/// How well one known mistake explains what the server says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HypothesisFit {
    /// The mistake's name.
    pub name: String,
    /// Divergence from a model that makes it, nats a token, cut at 1 a position.
    pub kl: f64,
    /// `fits`, `excluded`, `unclear`.
    pub outcome: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(server: &[(u32, f64)], reference: &[f64]) -> PositionScore {
        let reference: Vec<f32> = reference.iter().map(|p| p.ln() as f32).collect();
        let top: Vec<_> = server.iter().map(|(id, p)| (TokenId(*id), p.ln())).collect();
        let observation = Observation { position: 1, logprob: top[0].1, top: top.clone() };
        compare_position(&observation, top[0].0, &reference)
    }

    /// With all candidates listed the bound is the divergence itself: 0.5 ln(0.5/0.9) + 0.5 ln(0.5/0.1) = 0.5108.
    #[test]
    fn full_lists_give_the_divergence() {
        let scored = score(&[(0, 0.5), (1, 0.5)], &[0.9, 0.1]);
        assert!((scored.kl - 0.510_825_6).abs() < 1e-6, "{scored:?}");
        assert!((scored.delta - (0.9_f64 / 0.5).ln()).abs() < 1e-6);
    }

    #[test]
    fn what_follows_an_answers_end_is_left_aside() {
        let mut observed = Observed {
            tokens: [1, 2, 3, 4].map(TokenId).to_vec(),
            prompt: 1,
            end: None,
            observations: (1..4)
                .map(|position| Observation { position, logprob: -0.5, top: vec![(TokenId(9), -1.0)] })
                .collect(),
            exchange: 1,
        };
        let mut ends = |ends: &[u32]| {
            observed.find_end(&ends.iter().map(|id| TokenId(*id)).collect::<Vec<_>>());
            observed.end
        };
        assert_eq!((ends(&[3, 4]), ends(&[9]), ends(&[1])), (Some(2), None, None));
        observed.observations[1].top[0].1 = -0.1;
        observed.find_end(&[TokenId(9)]);
        assert_eq!(observed.end, Some(2), "listed before what was drawn");
        let position = |kl, past_end| PositionScore { kl, past_end, gap: kl, ..PositionScore::default() };
        let score = PromptScore { positions: vec![position(0.0, false), position(0.4, true)] };
        assert!(score.mean_kl().abs() < 1e-12);
        assert!((score.beyond() - 0.5).abs() < 1e-12, "of plain f32 everything is compared");
    }

    #[test]
    fn cut_lists_give_less_and_never_negative() {
        let whole = score(&[(0, 0.6), (1, 0.3), (2, 0.1)], &[0.2, 0.5, 0.3]);
        let cut = score(&[(0, 0.6)], &[0.2, 0.5, 0.3]);
        assert!(cut.kl <= whole.kl && cut.kl > 0.0 && !cut.top1);
        let same = score(&[(0, 0.6), (1, 0.3)], &[0.6, 0.3, 0.1]);
        assert!(same.kl.abs() < 1e-6 && same.top1);
    }
}
