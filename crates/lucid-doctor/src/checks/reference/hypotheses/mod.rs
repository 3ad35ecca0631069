//! What else reproduces what the server says: a known mistake, or another honest arithmetic?
//!
//! For each hypothesis the reference computes with it and re-scores the recorded answers. A hypothesis fits
//! - when the server is far from the right model, and the hypothesis explains it: the divergence falls to the honest floor; or
//! - when the server is near the right model, but nearer to the hypothesis, prompt after prompt. A small effect (a router
//!   bias that seldom changes the choice) hides in no threshold this way: both distances have the same rounding noise.
//!
//! A server that declares plain f32 is held to it: there a hypothesis fits that reproduces it to the rounding, whatever the size of
//! the effect, and weights that are a little different have nowhere to hide.
//!
//! When none fits as usually made, strengths that can be any number are searched for, and mistakes that sit in single layers are
//! tried layer by layer. When none fits at all, prompts of a single token tell attention from everything else, and every projection is taken for
//! another layer's.

mod budget;
mod candidates;
mod first_token;
mod fit;
mod lost_sums;
mod screen;
mod strength;
mod tried;

use budget::Budget;
use candidates::{
    Copied, Hypothesis, continuous, copied, general, in_strength, layered, lost_sums as of_lost_sums,
};
use first_token::FirstToken;
use fit::{Distances, ROUNDING, mean};
pub(super) use lost_sums::{LostSum, lost_sum};
use lucid_engine::{Plant, Projection};
use screen::Screen;
use tried::Tried;

use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Examination, HypothesisFit, PositionScore, PromptScore};
use crate::report::{Finding, Severity};

pub(crate) struct Hypotheses;

/// Recorded answers that are re-scored for each hypothesis, at the most.
const ANSWERS: usize = 12;
/// Of these, the beginnings of how many say whether it is worth the rest.
const SCREENED: usize = 2;
/// A server that is farther than this from the right model, though near enough for the honest loss of an fp8 cache or of W4A4
/// activations, has to be explained. Honest bf16 servers: 1.2e-5 nats a token on the canary.
const UNEXPLAINED: f64 = 3e-4;
/// How much farther than the right model the best strength of a grid may be, if the search is to go on between its points.
const NO_WORSE: f64 = 1.5;
/// Of the projections that may be another layer's, the nearest ones whose share is searched for, and in which range.
const SEARCHED: usize = 2;
const SHARES: [f64; 2] = [0.1, 1.0];
/// Positions that count as a prompt's beginning.
const BEGINNING: usize = 32;

impl Check for Hypotheses {
    fn id(&self) -> &'static str {
        "reference.hypotheses"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server, Need::Checkpoint]
    }

    fn covers(&self) -> &'static str {
        "no known mistake (positions, routing, scales, shards, masks) and no other arithmetic explains what the server says better than the right model"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 0, tokens: 0 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let Some(divergence) = &examination.evidence.divergence else {
            return Err(Skip("there was no comparison with the reference".to_owned()));
        };
        let different = divergence.decision == "different";
        let claim = examination.evidence.claim;
        let inexact = claim.is_some() && examination.evidence.exact != Some(true);
        // Short answers first: they exclude as well as long ones. Of these, those that tell something.
        examination.evidence.observed.sort_by_key(|(observed, _)| observed.tokens.len());
        let short = different || inexact;
        let screen = Screen::new(&mut examination.evidence.observed, claim.is_some(), short);
        let answers = || examination.evidence.observed.iter().take(ANSWERS).map(|(_, score)| score);
        let right = Distances::of(answers());
        let nothing = if claim.is_some() { !inexact } else { mean(&right.kl) < ROUNDING };
        if !different && nothing {
            let finding = Finding::new(
                self.id(),
                "exact",
                Severity::Info,
                "The server computes the checkpoint to the rounding of f32: no mistake is left to look for",
            );
            return Ok(Examined {
                findings: vec![finding],
                covered: "nothing has to be explained".to_owned(),
            });
        }
        let compared = answers().flat_map(|score| &score.positions);
        let compared = compared.filter(|position| claim.is_some() || !position.past_end);
        let everywhere = is_everywhere(compared, claim.is_some());
        let overall = over_tokens(examination, &right.kl);
        let subject = examination.subject;
        let threads = subject.threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
        // A difference that begins somewhere is no mistake of the model: those are everywhere. A server that declares nothing may be nearer than
        // what is surely different, and farther than honest ones are.
        let far = if claim.is_some() { inexact } else { mean(&right.kl) >= UNEXPLAINED };
        let wrong = different || (far && everywhere);
        let budget = Budget::new(subject.depth, wrong || inexact, threads.unwrap_or(1));
        let mut tried = Tried::new(right, screen, different, claim.is_some(), budget);
        let known = |plant: Option<Plant>| {
            plant.is_none_or(|plant| !subject.unknown.iter().any(|name| name == plant.name()))
        };
        let known_of = |hypotheses: Vec<Hypothesis>| -> Vec<Hypothesis> {
            hypotheses.into_iter().filter(|hypothesis| known(hypothesis.plant())).collect()
        };
        tried.add_all(examination, known_of(general(claim)))?;
        // A bf16 server that is near may be nearer to a model with a slightly wrong scale: no strength is usual there.
        if (wrong || claim.is_none()) && !tried.is_settled() {
            search(examination, &mut tried, &known)?;
        }
        // What differs in answers alone may be a mistake of decoding in another strength than the usual one.
        if inexact && !wrong && !tried.is_settled() {
            search(examination, &mut tried, &|plant| {
                known(plant) && plant.is_some_and(Plant::is_of_decoding)
            })?;
        }
        // What fits may be one strength of a wider mistake, whose own strength is near it.
        let wider: Vec<Plant> = tried.wider();
        if !wider.is_empty() {
            search(examination, &mut tried, &|plant| {
                known(plant) && plant.is_some_and(|plant| wider.contains(&plant))
            })?;
        }
        if wrong && !tried.is_settled() {
            let layers = examination.reference.as_ref().map_or(0, |r| r.config().num_hidden_layers);
            tried.add_all(examination, known_of(layered(layers, claim)))?;
        }
        if wrong && !tried.is_settled() {
            tried.add_all(examination, known_of(of_lost_sums(claim)))?;
        }
        // Nobody has thought of it: then at least where it sits.
        let mut alone = None;
        if wrong && !tried.is_settled() {
            alone = first_token::look(self.id(), examination, overall);
            let first = alone.as_ref().map(|(first, _)| *first);
            overwritten(examination, &mut tried, &known_of, first)?;
        }
        if tried.is_empty() {
            return Err(Skip("no hypothesis applies to this checkpoint".to_owned()));
        }
        let fits = tried.fits();
        let mut findings = tried.findings(self.id(), &fits, overall, far && everywhere);
        if !tried.is_explained() {
            findings.extend(alone.map(|(_, finding)| finding));
        }
        let left = match tried.left_out {
            0 => String::new(),
            left_out => format!("; {left_out} not tried to the end for lack of time (see --depth)"),
        };
        let covered = format!(
            "{} hypotheses tried, {} of them on all {} recorded answers, in {}{left}",
            tried.len(),
            tried.whole(),
            tried.right.kl.len(),
            tried.budget.words()
        );
        let mistaken = tried.is_mistaken(&fits);
        if let Some(divergence) = &mut examination.evidence.divergence {
            divergence.hypotheses = tried
                .iter()
                .zip(&fits)
                .map(|((hypothesis, distances), fit)| HypothesisFit {
                    name: hypothesis.name.clone(),
                    kl: mean(&distances.kl),
                    outcome: fit.name().to_owned(),
                })
                .collect();
            divergence.hypotheses.sort_by(|a, b| a.kl.total_cmp(&b.kl));
            if mistaken && !different {
                divergence.decision = "mistaken".to_owned();
            }
        }
        Ok(Examined { findings, covered })
    }
}

/// Weights are the same whether a token is read or written, and as wrong at a prompt's beginning as later on: what differs in
/// decoding alone is the cache's doing, what differs from a length on a kernel's.
fn is_everywhere<'a>(positions: impl Iterator<Item = &'a PositionScore>, claimed: bool) -> bool {
    let (mut beginning, mut prompts) = ((0.0, 0_u32), (0.0, 0_u32));
    for position in positions {
        let value = if claimed { f64::from(u8::from(position.is_beyond())) } else { position.kl.min(1.0) };
        let count = |(sum, count): &mut (f64, u32)| (*sum, *count) = (*sum + value, *count + 1);
        if position.position <= BEGINNING {
            count(&mut beginning);
        }
        if !position.decoded {
            count(&mut prompts);
        }
    }
    let least = if claimed { (0.1, 0.25) } else { (UNEXPLAINED / 10.0, UNEXPLAINED / 3.0) };
    let reaches = |(sum, count): (f64, u32), least: f64| count == 0 || sum / f64::from(count) >= least;
    reaches(beginning, least.0) && reaches(prompts, least.1)
}

/// Mistakes whose strength can be any number, in the strength that is nearest to the server.
fn search(
    examination: &mut Examination<'_>,
    tried: &mut Tried,
    known: &dyn Fn(Option<Plant>) -> bool,
) -> Result<(), String> {
    let claim = examination.evidence.claim;
    for (mistake, range) in continuous().filter(|(mistake, _)| known(mistake.plant())) {
        let measure = |strength: f64| -> Option<f64> {
            if tried.budget.is_exhausted() {
                return None;
            }
            let hypothesis = in_strength(mistake, strength, None, claim)?;
            Some(tried.screen.load_and_measure(examination, &hypothesis.semantics)?.apart)
        };
        // A grid is coarse: what is no worse than the right model there may be far better between two points.
        let worth = |least: f64| least <= NO_WORSE * tried.screen.right_apart;
        let found = strength::nearest(range, worth, measure);
        if let Some(hypothesis) = found.and_then(|found| in_strength(mistake, found, None, claim)) {
            tried.add(examination, hypothesis)?;
            if tried.is_settled() {
                break;
            }
        }
    }
    Ok(())
}

/// Projections that hold another layer's. Where what follows a single token is right, only queries can; where it is wrong, only others.
fn overwritten(
    examination: &mut Examination<'_>,
    tried: &mut Tried,
    known_of: &dyn Fn(Vec<Hypothesis>) -> Vec<Hypothesis>,
    first: Option<FirstToken>,
) -> Result<(), String> {
    let claim = examination.evidence.claim;
    let layers = examination.reference.as_ref().map_or(0, |r| r.config().num_hidden_layers);
    let is_possible = |projection: Projection| match first {
        Some(FirstToken::Right) => projection.is_between_tokens(),
        Some(FirstToken::Wrong) => !projection.is_between_tokens(),
        None => true,
    };
    tried.add_all(examination, known_of(copied(layers, is_possible, claim)))?;
    for nearest in tried.nearest_copies(SEARCHED) {
        if tried.is_settled() {
            break;
        }
        let measure = |share: f64| -> Option<f64> {
            if tried.budget.is_exhausted() {
                return None;
            }
            let hypothesis = Copied { share, ..nearest }.hypothesis(claim)?;
            Some(tried.screen.load_and_measure(examination, &hypothesis.semantics)?.apart)
        };
        let found = strength::nearest(SHARES, |least| least < tried.screen.right_apart, measure);
        let hypothesis = found.and_then(|share| Copied { share, ..nearest }.hypothesis(claim));
        if let Some(hypothesis) = hypothesis {
            tried.add(examination, hypothesis)?;
        }
    }
    Ok(())
}

/// How far an answer is from a strength. Divergence is the square of something small, and drowns in f32's rounding long before
/// log-probabilities do: a server that declares f32 is measured by these.
fn apart(score: &PromptScore, claimed: bool) -> f64 {
    if !claimed {
        return score.mean_kl();
    }
    mean(&score.positions.iter().map(|position| position.gap.min(1.0)).collect::<Vec<_>>())
}

/// The answers' means together, each weighing as many tokens as it has: comparable with the report's divergence.
#[allow(clippy::cast_precision_loss)] // counts of tokens
fn over_tokens(examination: &Examination<'_>, means: &[f64]) -> f64 {
    let lengths = examination.evidence.observed.iter().map(|(_, score)| score.positions.len() as f64);
    let (sum, tokens) = means
        .iter()
        .zip(lengths)
        .fold((0.0, 0.0), |(sum, all), (mean, tokens)| (sum + mean * tokens, all + tokens));
    sum / f64::max(tokens, 1.0)
}
