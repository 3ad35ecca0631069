//! Completions in one piece.

use super::Completions;
use super::answer::Answer;
use crate::generation::{Generation, Step};
use crate::protocol::completions::{CompletionsChoice, CompletionsResponse};
use crate::protocol::error::ApiError;
use crate::protocol::finish::Ending;
use crate::protocol::logprobs::{PromptLogprobs, prompt_logprobs};
use crate::protocol::routes::base64_npy;
use crate::protocol::usage::Counts;

#[derive(Default)]
struct Whole {
    answer: Answer,
    prompt_logprobs: Option<PromptLogprobs>,
    ending: Option<Ending>,
    routes: Option<String>,
}

/// Waits for all answers and puts the response together.
pub(crate) async fn collect<'a>(
    of: &'a Completions,
    mut generation: Generation,
) -> Result<CompletionsResponse<'a>, ApiError> {
    let mut wholes: Vec<Whole> = (0..of.answers()).map(|_| Whole::default()).collect();
    while let Some(update) = generation.next().await {
        let update = update?;
        let Some(whole) = wholes.get_mut(update.index) else { continue };
        match update.step {
            Step::Prompt(entries) => {
                whole.answer.prompt(of, update.index, entries.as_deref());
                whole.prompt_logprobs = entries.map(|entries| prompt_logprobs(&entries, &of.app.tokenizer));
            }
            Step::Token(token) => whole.answer.token(of, &token),
            Step::Routes(routes) => whole.routes = Some(base64_npy(&routes)),
            Step::End { rest, ending } => {
                whole.answer.text.push_str(&rest);
                whole.ending = Some(ending);
            }
        }
    }
    let counts = Counts {
        prompt: of.prompt_tokens(),
        cached: generation.cached_tokens(of.request.common.n),
        completion: wholes.iter().map(|whole| whole.answer.tokens).sum(),
        reasoning: None,
    };
    let choices =
        wholes.into_iter().enumerate().filter_map(|(index, whole)| choice(of, index, whole)).collect();
    Ok(CompletionsResponse {
        id: &of.id,
        object: "text_completion",
        created: of.created,
        model: &of.app.facts.name,
        choices,
        service_tier: (),
        system_fingerprint: &of.app.fingerprint,
        usage: counts.usage(),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
    })
}

fn choice(of: &Completions, index: usize, mut whole: Whole) -> Option<CompletionsChoice> {
    let ending = whole.ending?;
    let prompt = of.prompt_of(index)?;
    let ids = of.request.common.return_token_ids;
    let logprobs = of.request.logprobs.map(|_| whole.answer.take_logprobs().unwrap_or_default());
    Some(CompletionsChoice {
        index,
        text: whole.answer.text,
        logprobs,
        finish_reason: ending.reason,
        stop_reason: ending.stop,
        token_ids: ids.then_some(whole.answer.token_ids),
        prompt_logprobs: whole.prompt_logprobs,
        prompt_token_ids: ids.then(|| prompt.tokens.clone()),
        routed_experts: whole.routes,
        prompt_text: of.request.return_prompt_text.then(|| prompt.text.clone()),
    })
}
