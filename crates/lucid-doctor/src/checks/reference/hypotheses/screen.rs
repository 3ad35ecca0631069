//! What hypotheses are screened by: the beginnings of two answers that the right model clearly does not give.

use lucid_engine::{Scorer, SemanticsOptions};

use super::fit::{Distances, mean};
use super::{ANSWERS, SCREENED, apart};
use crate::evidence::{Examination, Observed, PromptScore, compare};

/// Tokens of a prompt, and of its answer, that are enough where a mistake shows at most positions.
const OF_PROMPT: usize = 96;
const OF_ANSWER: usize = 16;

/// Tokens that show whether the beginnings themselves are worth re-scoring, of a server that is held to an arithmetic: who reproduces it
/// reproduces these.
const OF_GLANCE: usize = 24;
/// A hypothesis that is as far as the right model there reproduces nothing.
const NO_NEARER: f64 = 0.95;
/// Least distance of the right model at which a glance tells anything: ten times what rounding moves.
const TELLING: f64 = 0.01;

/// The beginnings, and how far the right model is from them.
pub(super) struct Screen {
    pieces: Vec<Observed>,
    pub(super) right: Distances,
    /// See [`apart`].
    pub(super) right_apart: f64,
    claimed: bool,
    /// A glance, and how far the right model is from it; `None` where that tells nothing.
    glance: Option<(Observed, f64)>,
}

/// How far a hypothesis is from the beginnings.
pub(super) struct Screened {
    pub(super) distances: Distances,
    pub(super) apart: f64,
}

impl Screen {
    /// Brings the telling answers to the front: on the others every hypothesis looks alike. `short`: the server is clearly not the right model,
    /// so that beginnings suffice; where it is near, the rounding of few tokens would decide.
    pub(super) fn new(observed: &mut Vec<(Observed, PromptScore)>, claimed: bool, short: bool) -> Screen {
        let compared = observed.iter().take(ANSWERS).map(|(_, score)| apart(score, claimed));
        let bar = mean(&compared.collect::<Vec<_>>()) / 2.0;
        let telling = (0..observed.len().min(ANSWERS)).filter(|i| apart(&observed[*i].1, claimed) >= bar);
        for (to, from) in telling.take(SCREENED).collect::<Vec<_>>().into_iter().enumerate() {
            let answer = observed.remove(from);
            observed.insert(to, answer);
        }
        let mut screen = Screen {
            pieces: Vec::new(),
            right: Distances::default(),
            right_apart: 0.0,
            claimed,
            glance: None,
        };
        let mut measured = Vec::new();
        for (observed, score) in observed.iter().take(SCREENED) {
            let piece = if short { beginning(observed) } else { observed.clone() };
            let inside = score.positions.iter().filter(|position| position.position < piece.tokens.len());
            let score = PromptScore { positions: inside.copied().collect() };
            if claimed && short && screen.glance.is_none() {
                screen.glance = glance(&piece, &score);
            }
            screen.right.push(score.mean_kl(), score.beyond());
            measured.push(apart(&score, claimed));
            screen.pieces.push(piece);
        }
        screen.right_apart = mean(&measured);
        screen
    }

    /// Re-scores the beginnings.
    pub(super) fn measure(&self, scorer: &mut Scorer) -> Screened {
        let mut distances = Distances::default();
        let mut measured = Vec::new();
        for piece in &self.pieces {
            // A mistaken model whose logits are not finite is as far away as can be.
            let Ok(score) = compare(scorer, piece) else {
                distances.push(1.0, 1.0);
                measured.push(1.0);
                continue;
            };
            distances.push(score.mean_kl(), score.beyond());
            measured.push(apart(&score, self.claimed));
        }
        Screened { distances, apart: mean(&measured) }
    }

    /// A glance at a model that is loaded for it, and the beginnings where that shows promise; `None` where it can't be made on this
    /// checkpoint. What is far at a glance is far in proportion.
    pub(super) fn load_and_screen(
        &self,
        examination: &Examination<'_>,
        semantics: &SemanticsOptions,
    ) -> Option<Screened> {
        let mut scorer = examination.reference.as_ref()?.scorer_with(semantics).ok()?;
        if let Some((piece, right)) = &self.glance {
            let score = compare(&mut scorer, piece).ok();
            let far = score.map(|score| (apart(&score, self.claimed), score));
            if let Some((apart, score)) = far.filter(|(apart, _)| *apart >= NO_NEARER * right) {
                let distances = Distances::of(std::iter::once(&score));
                return Some(Screened { distances, apart: apart / right * self.right_apart });
            }
        }
        Some(self.measure(&mut scorer))
    }

    /// The beginnings alone, of a strength; `None` where that can't be made on this checkpoint.
    pub(super) fn load_and_measure(
        &self,
        examination: &Examination<'_>,
        semantics: &SemanticsOptions,
    ) -> Option<Screened> {
        let mut scorer = examination.reference.as_ref()?.scorer_with(semantics).ok()?;
        Some(self.measure(&mut scorer))
    }
}

/// The first tokens of a piece of which the server said something, where the right model is clearly not what it said.
fn glance(piece: &Observed, score: &PromptScore) -> Option<(Observed, f64)> {
    let first = piece.observations.first()?.position;
    let keep = first + OF_GLANCE;
    let positions = score.positions.iter().filter(|position| position.position < keep).copied().collect();
    let right = apart(&PromptScore { positions }, true);
    let mut glance = piece.clone();
    glance.tokens.truncate(keep);
    glance.prompt = glance.prompt.min(glance.tokens.len());
    glance.observations.retain(|observation| observation.position < glance.tokens.len());
    (right >= TELLING && keep < piece.tokens.len()).then_some((glance, right))
}

/// The first tokens of a prompt, or all of it with the first of its answer where the server said nothing of the prompt.
fn beginning(observed: &Observed) -> Observed {
    let told = observed.observations.first().is_some_and(|first| first.position < OF_PROMPT);
    let keep = if observed.prompt > OF_PROMPT && told { OF_PROMPT } else { observed.prompt + OF_ANSWER };
    let mut piece = observed.clone();
    piece.tokens.truncate(keep);
    piece.prompt = piece.prompt.min(piece.tokens.len());
    piece.observations.retain(|observation| observation.position < piece.tokens.len());
    piece
}

#[cfg(test)]
mod tests {
    use lucid_checkpoint::TokenId;

    use super::*;
    use crate::evidence::{Observation, PositionScore};

    fn answer(prompt: usize, tokens: usize, first: usize, gap: f64) -> (Observed, PromptScore) {
        let observation = |position| Observation { position, logprob: -1.0, top: Vec::new() };
        let position = |position| PositionScore { position, kl: gap, gap, ..PositionScore::default() };
        let observed = Observed {
            tokens: vec![TokenId(7); tokens],
            prompt,
            end: None,
            observations: (first..tokens).map(observation).collect(),
            exchange: 1,
        };
        (observed, PromptScore { positions: (first..tokens).map(position).collect() })
    }

    #[test]
    fn beginnings_hold_what_was_said() {
        let cut = |prompt, tokens, first| {
            let piece = beginning(&answer(prompt, tokens, first, 0.1).0);
            (piece.tokens.len(), piece.prompt, piece.observations.len())
        };
        assert_eq!(cut(20, 84, 1), (36, 20, 35));
        assert_eq!(cut(20, 84, 20), (36, 20, 16), "no log-probabilities of the prompt");
        assert_eq!(cut(600, 664, 1), (96, 96, 95));
        assert_eq!(cut(600, 664, 600), (616, 600, 16));
        assert_eq!(cut(20, 24, 20), (24, 20, 4));
    }

    #[test]
    fn a_glance_is_taken_where_something_is_to_be_seen() {
        let (piece, score) = answer(20, 84, 1, 0.1);
        let (cut, right) = glance(&piece, &score).unwrap();
        assert_eq!((cut.tokens.len(), cut.prompt, cut.observations.len()), (25, 20, 24));
        assert!((right - 0.1).abs() < 1e-9);
        let (piece, score) = answer(20, 84, 1, 0.001);
        assert_eq!(glance(&piece, &score), None, "rounding");
        let (piece, score) = answer(20, 24, 1, 0.1);
        assert_eq!(glance(&piece, &score), None, "all of it is as short");
    }

    #[test]
    fn telling_answers_come_first() {
        let mut observed = vec![answer(20, 30, 1, 0.0), answer(20, 40, 1, 0.5), answer(20, 50, 1, 0.4)];
        let screen = Screen::new(&mut observed, true, true);
        assert_eq!(observed.iter().map(|(o, _)| o.tokens.len()).collect::<Vec<_>>(), [40, 50, 30]);
        assert!((screen.right_apart - 0.45).abs() < 1e-9 && screen.right.kl.len() == 2);
    }
}
