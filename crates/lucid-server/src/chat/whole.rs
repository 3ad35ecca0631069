//! A chat answer in one piece.

use lucid_checkpoint::TokenId;
use lucid_text::{Parsed, Piece};

use super::Chat;
use super::reader::Reader;
use crate::generation::{Generation, Step};
use crate::protocol::chat::{ChatChoice, ChatResponse, Message};
use crate::protocol::error::ApiError;
use crate::protocol::finish::Ending;
use crate::protocol::logprobs::{ChatEntry, ChatLogprobs, TokenNames, prompt_logprobs};
use crate::protocol::routes::base64_npy;
use crate::protocol::usage::Counts;

struct Answer {
    reader: Reader,
    pieces: Vec<Piece>,
    token_ids: Vec<TokenId>,
    logprobs: ChatLogprobs,
    ending: Option<Ending>,
    routes: Option<String>,
}

/// Waits for all answers and puts the response together.
pub(crate) async fn collect<'a>(
    chat: &'a Chat,
    mut generation: Generation,
) -> Result<ChatResponse<'a>, ApiError> {
    let common = &chat.request.common;
    let names = TokenNames { tokenizer: &chat.app.tokenizer, as_ids: common.tokens_as_ids };
    let mut answers: Vec<Answer> = (0..common.n)
        .map(|_| Answer {
            reader: Reader::new(chat),
            pieces: Vec::new(),
            token_ids: Vec::new(),
            logprobs: ChatLogprobs::default(),
            ending: None,
            routes: None,
        })
        .collect();
    let mut of_prompt = None;
    while let Some(update) = generation.next().await {
        let update = update?;
        let Some(answer) = answers.get_mut(update.index) else { continue };
        match update.step {
            Step::Prompt(Some(entries)) => of_prompt = Some(prompt_logprobs(&entries, &chat.app.tokenizer)),
            Step::Prompt(None) => {}
            Step::Token(token) => {
                answer.pieces.extend(answer.reader.token(&token));
                answer.token_ids.push(token.id);
                answer
                    .logprobs
                    .content
                    .extend(token.logprobs.iter().map(|entry| ChatEntry::new(entry, names)));
            }
            Step::Routes(routes) => answer.routes = Some(base64_npy(&routes)),
            Step::End { rest, mut ending } => {
                answer.pieces.extend(answer.reader.end(&rest, &mut ending));
                answer.ending = Some(ending);
            }
        }
    }
    let counts = Counts {
        prompt: chat.prompt.len(),
        cached: generation.cached_tokens(common.n),
        completion: answers.iter().map(|answer| answer.reader.tokens).sum(),
        reasoning: Some(answers.iter().map(|answer| answer.reader.reasoning_tokens).sum()),
    };
    let choice = |(index, answer): (usize, Answer)| {
        let ending = answer.ending?;
        Some(ChatChoice {
            index,
            message: Message::new(Parsed::from_pieces(answer.pieces)),
            logprobs: chat.request.logprobs.map(|_| answer.logprobs),
            finish_reason: ending.reason,
            stop_reason: ending.stop,
            token_ids: common.return_token_ids.then_some(answer.token_ids),
            routed_experts: answer.routes,
        })
    };
    Ok(ChatResponse {
        id: &chat.id,
        object: "chat.completion",
        created: chat.created,
        model: &chat.app.facts.name,
        choices: answers.into_iter().enumerate().filter_map(choice).collect(),
        service_tier: (),
        system_fingerprint: &chat.app.fingerprint,
        usage: counts.usage(),
        prompt_logprobs: of_prompt,
        prompt_token_ids: common.return_token_ids.then_some(&chat.prompt),
        prompt_text: chat.request.return_prompt_text.then_some(&chat.prompt_text),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics: (),
    })
}
