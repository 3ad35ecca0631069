//! Is the distribution after a single token right?
//!
//! A token that is alone attends to itself with weight 1, whatever query and key are: softmax of one number. So positions, masks,
//! the softmax scale and the keys have no part in what follows it, and embeddings, value projections, norms, router, experts and
//! output matrix have all of it. No mistake has to be known for that.

use lucid_checkpoint::TokenId;

use super::mean;
use crate::evidence::{Examination, FEW_BEYOND, compare, observed};
use crate::report::html::nats;
use crate::report::{Finding, ProofKind, Severity};

/// Tokens that are asked alone.
const TOKENS: usize = 6;
/// Candidates beside each token.
const TOP: u32 = 5;
/// Of the divergence over whole prompts, what is right comes to less than this, and what is wrong to more than `MUCH`.
const LITTLE: f64 = 0.02;
const MUCH: f64 = 0.2;

/// What follows a single token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstToken {
    Right,
    Wrong,
}

/// Asks prompts of one token; nothing where the server takes no tokens, or the answer is neither. `overall` is the divergence
/// over whole prompts, nats a token.
pub(super) fn look(
    check: &str,
    examination: &mut Examination<'_>,
    overall: f64,
) -> Option<(FirstToken, Finding)> {
    let endpoint = examination.endpoint().ok()?;
    if !endpoint.dialect().capabilities().token_prompts {
        return None;
    }
    let claim = examination.evidence.claim;
    let mut scorer = examination.reference.as_ref()?.scorer_as(claim).ok()?;
    let (mut kl, mut beyond, mut exchange) = (Vec::new(), Vec::new(), 0);
    for token in tokens(examination) {
        let (number, outcome) = examination.take(endpoint.score_tokens(&[token.0], 1, TOP, false));
        let Ok((_, generated)) = outcome else { continue };
        let observed = observed(&|name| examination.id(name), &[token], &[], &generated, number);
        let Ok(score) = compare(&mut scorer, &observed) else { continue };
        for position in &score.positions {
            kl.push(position.kl.min(1.0));
            beyond.push(f64::from(u8::from(position.is_beyond())));
        }
        exchange = number;
    }
    if kl.len() < TOKENS / 2 {
        return None;
    }
    judge(check, mean(&kl), claim.map(|_| mean(&beyond)), overall, exchange)
}

/// `beyond` is the share of the tokens beyond f32's rounding, of a server that declares f32.
fn judge(
    check: &str,
    alone: f64,
    beyond: Option<f64>,
    overall: f64,
    exchange: usize,
) -> Option<(FirstToken, Finding)> {
    let numbers =
        format!("{} nats after a single token, {} a token over whole prompts", nats(alone), nats(overall));
    let right = beyond.map_or(alone <= LITTLE * overall, |beyond| beyond <= FEW_BEYOND);
    let (first, finding) = if right {
        let finding = Finding::new(
            check,
            "first-token-right",
            Severity::Info,
            "What follows a single token is right: the mistake lies between tokens, in positions, mask or attention",
        )
        .suggests("attention-kernel", 2.0)
        .suggests("rope-scaling", 2.0)
        .suggests("kv-cache-scales", 0.5)
        .suggests("moe-routing", -4.0)
        // Queries are weights as well.
        .suggests("quantization-loader", -1.0)
        .suggests("wrong-checkpoint", -4.0);
        (FirstToken::Right, finding)
    } else if alone >= MUCH * overall {
        let finding = Finding::new(
            check,
            "first-token-wrong",
            Severity::Info,
            "Already what follows a single token is wrong: the mistake lies in weights, norms or experts, not in positions",
        )
        .suggests("rope-scaling", -4.0)
        .suggests("kv-cache-scales", -2.0)
        .suggests("moe-routing", 2.0)
        .suggests("quantization-loader", 2.5)
        .suggests("wrong-checkpoint", 2.0);
        (FirstToken::Wrong, finding)
    } else {
        return None;
    };
    let finding = finding.detail(numbers.clone()).proof(ProofKind::Exchange, exchange.to_string(), numbers);
    Some((first, finding))
}

/// Different tokens of the compared prompts, none of them special: those all stand at the beginning of something.
fn tokens(examination: &Examination<'_>) -> Vec<TokenId> {
    let mut chosen: Vec<TokenId> = Vec::new();
    for (observed, _) in &examination.evidence.observed {
        let inside = observed.tokens.get(..observed.prompt).unwrap_or(&observed.tokens);
        // The second half of a prompt holds the question.
        for token in inside.iter().skip(inside.len() / 2) {
            if chosen.len() < TOKENS && !chosen.contains(token) {
                chosen.push(*token);
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(alone: f64, beyond: Option<f64>) -> Option<String> {
        judge("reference.hypotheses", alone, beyond, 0.1, 1).map(|(_, finding)| finding.id)
    }

    #[test]
    fn a_single_token_tells_attention_from_weights() {
        assert_eq!(cause(1e-4, None).as_deref(), Some("reference.hypotheses/first-token-right"));
        assert_eq!(cause(0.2, None).as_deref(), Some("reference.hypotheses/first-token-wrong"));
        assert_eq!(cause(0.01, None), None, "neither");
        assert_eq!(cause(1e-5, Some(0.9)), None, "within the bf16 floor, but not what was declared");
        assert_eq!(cause(0.05, Some(0.0)).as_deref(), Some("reference.hypotheses/first-token-right"));
    }
}
