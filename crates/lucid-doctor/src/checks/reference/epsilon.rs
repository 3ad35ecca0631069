//! Which of the honest epsilons a server of a declared arithmetic has.
//!
//! For the latent norms vLLM, SGLang and llama.cpp take the config's, transformers takes 1e-6 whatever the config says. Both are
//! right, and no server is believed about it: what it says is re-scored with the other one. From there on it is compared in the one
//! that reproduces it. Otherwise every probe that holds it to rounding would take the epsilon, which moves a few tokens of
//! some answers, for a fault of those answers.

use crate::evidence::{Claim, Examination, FEW_BEYOND, PromptScore, compare, share};
use crate::knowledge::hypotheses;

/// The server's own arithmetic, and its answers compared in it.
pub(super) struct Recognized {
    pub(super) claim: Claim,
    /// In words.
    pub(super) title: &'static str,
    /// The reference's arithmetic, for the report.
    pub(super) semantics: String,
    pub(super) scores: Vec<PromptScore>,
}

/// Tries the other epsilons if anything is beyond rounding; `None` if none of them reproduces the recorded answers.
///
/// # Errors
/// The reference can't be loaded or fails.
pub(super) fn recognize(
    examination: &Examination<'_>,
    claim: Claim,
    scores: &[PromptScore],
) -> Result<Option<Recognized>, String> {
    let (right, Some(reference)) = (share(scores), &examination.reference) else { return Ok(None) };
    if right <= 0.0 {
        return Ok(None);
    }
    for variation in &hypotheses().variations {
        let Some(eps) = variation.other_epsilon() else { continue };
        let claim = claim.with_latent_norm_eps(eps);
        let mut scorer = reference.scorer_as(Some(claim))?;
        let observed = examination.evidence.observed.iter();
        let scores: Vec<PromptScore> = observed
            .map(|(observed, _)| compare(&mut scorer, observed))
            .collect::<Result<_, _>>()
            .map_err(|error| format!("the reference failed: {error}"))?;
        let other = share(&scores);
        if other <= FEW_BEYOND && other <= right / 4.0 {
            let semantics = scorer.semantics().to_string();
            return Ok(Some(Recognized { claim, title: &variation.title, semantics, scores }));
        }
    }
    Ok(None)
}
