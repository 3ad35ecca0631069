//! Asks prompts of exact lengths, and asks again.

use lucid_checkpoint::TokenId;
use lucid_client::Endpoint;
use lucid_engine::Scorer;

use super::pattern::{self, Trial, neighbours};
use super::ranks::{self, Edge};
use crate::evidence::{Examination, compare, observed};

/// Candidates beside each token.
pub(super) const TOP: u32 = 5;
/// How far apart prompts begin in the text.
const STRIDE: usize = 37;
/// Sizes that are looked at again, and fresh texts for each.
const CANDIDATES: usize = 4;
const FRESH: usize = 3;
/// Sizes that were wrong again which suffice.
const CONFIRMED: usize = 2;
/// Fresh texts on either side of an edge that ranks show.
const NEAR: usize = 8;
/// Tokens of text whose followers are looked at.
const MOST_TEXT: usize = 1_500;
/// A model is sure of a token that it holds for as likely as this.
const SURE: f32 = 0.9;
/// Beginnings that are tried until a prompt ends where the model is not sure.
const BEGINNINGS: usize = 24;

/// What prompts are asked with.
pub(super) struct Probe {
    pub(super) endpoint: Endpoint,
    pub(super) scorer: Scorer,
    /// A known text; prompts are cut from it as if it went round.
    pub(super) text: Vec<TokenId>,
    /// Where the model is not sure of what follows a token of the text; of servers of which only a prompt's last token is known.
    pub(super) unsure: Option<Vec<bool>>,
    /// Where the next prompt begins.
    pub(super) begins: usize,
}

impl Probe {
    /// A prompt of so many tokens, and how far what follows is from the reference.
    pub(super) fn ask(&mut self, examination: &mut Examination<'_>, size: usize) -> Result<Trial, String> {
        let tokens = self.cut(size);
        let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        let (exchange, outcome) = examination.take(self.endpoint.score_tokens(&ids, 1, TOP, false));
        let (of_prompt, generated) = outcome.map_err(|error| error.to_string())?;
        let observed = observed(&|name| examination.id(name), &tokens, &of_prompt, &generated, exchange);
        let score =
            compare(&mut self.scorer, &observed).map_err(|error| format!("the reference failed: {error}"))?;
        let Some(last) = score.positions.last().copied() else {
            return Err("the server returned no log-probabilities".to_owned());
        };
        let exact = examination.evidence.claim.is_some();
        // Where the last layer is wrong, the last token alone may show it.
        let beyond = exact.then(|| (score.beyond(), last.is_beyond()));
        Ok(Trial { size, kl: score.mean_kl(), last, beyond, exchange, said: (observed, score) })
    }

    /// A prompt of so many tokens that begins elsewhere than the ones before.
    pub(super) fn cut(&mut self, size: usize) -> Vec<TokenId> {
        for _ in 0..BEGINNINGS {
            self.begins = (self.begins + STRIDE) % self.text.len();
            let end = (self.begins + size - 1) % self.text.len();
            if self.unsure.as_ref().is_none_or(|unsure| unsure.get(end).copied().unwrap_or(false)) {
                break;
            }
        }
        self.text.iter().cycle().skip(self.begins).take(size).copied().collect()
    }

    /// Finds the places at which a wrong computation shows: where the model is sure, it stays sure.
    pub(super) fn look_for_unsure_places(&mut self) -> Result<(), String> {
        let text = &self.text[..self.text.len().min(MOST_TEXT)];
        let mut unsure = Vec::with_capacity(text.len());
        self.scorer
            .score(text, |_, logprobs| {
                let likeliest = logprobs.iter().fold(f32::NEG_INFINITY, |most, logprob| most.max(*logprob));
                unsure.push(likeliest < SURE.ln());
            })
            .map_err(|error| format!("the reference failed: {error}"))?;
        self.unsure = Some(unsure);
        Ok(())
    }

    /// The edge of [`Probe::is_edge`] where a last token shows it now and then: half of the fresh prompts beyond it do, and none below.
    pub(super) fn is_seldom_right(
        &mut self,
        examination: &mut Examination<'_>,
        trials: &[Trial],
        right: usize,
        wrong: usize,
    ) -> Vec<Trial> {
        let bar = pattern::bar(trials);
        let longest = trials.last().map_or(wrong, |trial| trial.size);
        let beyond = [wrong, wrong.midpoint(longest), longest];
        let mut shown = Vec::new();
        for size in beyond.into_iter().chain(beyond) {
            examination.step(0, 1, &format!("{size} tokens, once more"));
            shown.extend(self.ask(examination, size).ok().filter(|trial| trial.is_wrong(bar)));
        }
        let below = [right, right.midpoint(1), right];
        let spared =
            below.into_iter().all(|size| self.ask(examination, size).is_ok_and(|trial| !trial.is_wrong(bar)));
        if spared && shown.len() >= beyond.len() { shown } else { Vec::new() }
    }

    /// Fresh prompts near an edge, those of the wrong side, if ranks part them again; empty if they don't. Near it, an honest engine's distances are
    /// alike, however they grow with the length.
    pub(super) fn is_parted(&mut self, examination: &mut Examination<'_>, edge: &Edge) -> Vec<Trial> {
        let [mut wrong, right] = edge.sides(NEAR).map(|sizes| {
            let mut trials = Vec::with_capacity(sizes.len());
            for size in sizes {
                examination.step(trials.len(), NEAR, &format!("{size} tokens, once more"));
                trials.extend(self.ask(examination, size));
            }
            trials
        });
        if !ranks::is_again(&wrong, &right) {
            return Vec::new();
        }
        wrong.truncate(CONFIRMED);
        wrong
    }

    /// Wrong sizes that are wrong again with fresh texts while their neighbours are right.
    pub(super) fn confirmed(
        &mut self,
        examination: &mut Examination<'_>,
        trials: &[Trial],
        wrong: &[usize],
    ) -> Vec<Trial> {
        let mut confirmed = Vec::new();
        // From all over the range.
        let step = wrong.len().div_ceil(CANDIDATES).max(1);
        for &size in wrong.iter().step_by(step) {
            if confirmed.len() >= CONFIRMED {
                break;
            }
            let right = neighbours(trials, wrong, size);
            if let Some(trial) = self.again(examination, trials, &[size; FRESH], &right) {
                confirmed.push(trial);
            }
        }
        confirmed
    }

    /// Fresh prompts at either side of an edge; empty if they don't show it again.
    pub(super) fn is_edge(
        &mut self,
        examination: &mut Examination<'_>,
        trials: &[Trial],
        right: usize,
        wrong: usize,
    ) -> Vec<Trial> {
        let longest = trials.last().map_or(wrong, |trial| trial.size);
        let wrong = [wrong, wrong.midpoint(longest), longest];
        self.again(examination, trials, &wrong, &[right, right.midpoint(1), right]).into_iter().collect()
    }

    /// The same where short steps are the wrong ones.
    pub(super) fn ends(
        &mut self,
        examination: &mut Examination<'_>,
        trials: &[Trial],
        wrong: usize,
        right: usize,
    ) -> Vec<Trial> {
        let longest = trials.last().map_or(right, |trial| trial.size);
        let right = [right, right.midpoint(longest), longest];
        self.again(examination, trials, &[wrong, wrong.midpoint(1), wrong], &right).into_iter().collect()
    }

    /// Asks fresh prompts; one of the wrong ones, if all come out as they should.
    fn again(
        &mut self,
        examination: &mut Examination<'_>,
        trials: &[Trial],
        wrong: &[usize],
        right: &[usize],
    ) -> Option<Trial> {
        let bar = pattern::bar(trials);
        let asked = wrong.iter().map(|size| (*size, true)).chain(right.iter().map(|size| (*size, false)));
        let mut last = None;
        for (size, is_wrong) in asked {
            examination.step(0, 1, &format!("{size} tokens, once more"));
            let trial = self.ask(examination, size).ok()?;
            if trial.is_wrong(bar) != is_wrong {
                return None;
            }
            if is_wrong {
                last = Some(trial);
            }
        }
        last
    }
}
