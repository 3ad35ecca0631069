//! Takes a record from a deployment that is trusted.

use std::time::Instant;

use lucid_client::{BaseUrl, Endpoint, EndpointOptions, Message};
use serde_json::Value;

use crate::checks::prompts;
use crate::evidence::{Passage, Record, Reference, observed};
use crate::subject::Subject;

/// Candidates beside each token.
const TOP: u32 = 20;
/// Tokens to generate for each prompt.
const GENERATED: u32 = 64;

/// Asks a trusted server the questions with which others are compared, and keeps what it says: prompts by its own tokenizer (or the
/// checkpoint's, if the subject has one), greedy answers, the likeliest tokens everywhere. `progress` is told how many of how many
/// texts are done.
///
/// # Errors
/// In words: nobody answers, the server takes no token ids, or nothing names its tokens.
pub fn record(subject: &Subject, progress: &mut dyn FnMut(usize, usize)) -> Result<Record, String> {
    let address = subject.endpoint.as_deref().ok_or("there is no endpoint to record")?;
    let base = BaseUrl::parse(address).map_err(|error| error.to_string())?;
    let options = EndpointOptions {
        model: subject.model.clone(),
        api_key: subject.api_key.clone(),
        timeout: subject.timeout,
        ..EndpointOptions::default()
    };
    let (_, endpoint) = Endpoint::introduce(&base, options);
    let endpoint = endpoint.map_err(|error| error.to_string())?;
    if !endpoint.dialect().capabilities().token_prompts {
        return Err("the server takes no token ids, and a record is made of them".to_owned());
    }
    let reference = match &subject.checkpoint {
        Some(files) => Some(Reference::open(files.clone(), subject.threads)?),
        None => None,
    };
    let info = endpoint.info();
    let version = info.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    let what = format!("{}{version} serving `{}`", info.dialect.name(), info.model);
    let semantics = endpoint.server_info().outcome.ok();
    let semantics = semantics.and_then(|info| info.get("semantics").cloned()).unwrap_or(Value::Null);
    let mut record = Record::new(what, String::new(), semantics);
    let clock = Instant::now();
    let questions = prompts(subject.seed, subject.depth.most_compared_prompts());
    let mut refused = None;
    for (number, messages) in questions.iter().enumerate() {
        progress(number, questions.len());
        match passage(&endpoint, reference.as_ref(), messages) {
            Ok(passage) if !passage.observations.is_empty() => record.passages.push(passage),
            Ok(_) => {
                refused.get_or_insert_with(|| {
                    "the server names tokens by their text: give --checkpoint for its tokenizer".to_owned()
                });
            }
            Err(reason) => {
                refused.get_or_insert(reason);
            }
        }
    }
    record.seconds = clock.elapsed().as_secs_f64();
    match (record.passages.is_empty(), refused) {
        (true, reason) => Err(reason.unwrap_or_else(|| "the server said nothing".to_owned())),
        (false, _) => Ok(record),
    }
}

fn passage(
    endpoint: &Endpoint,
    reference: Option<&Reference>,
    messages: &[Message],
) -> Result<Passage, String> {
    let prompt: Vec<u32> = match reference {
        Some(reference) => reference.prompt(messages)?.into_iter().map(|id| id.0).collect(),
        None => match endpoint.tokenize(messages) {
            Some(reply) => reply.outcome.map_err(|error| error.to_string())?,
            None => {
                return Err(
                    "the server doesn't tell the tokens of a conversation: give --checkpoint for its template"
                        .to_owned(),
                );
            }
        },
    };
    let (of_prompt, generated) =
        endpoint.score_tokens(&prompt, GENERATED, TOP, false).outcome.map_err(|error| error.to_string())?;
    let id = |name: &lucid_client::TokenName| match (name, reference) {
        (lucid_client::TokenName::Id(id), _) => Some(lucid_checkpoint::TokenId(*id)),
        (name, Some(reference)) => reference.id(name),
        (_, None) => None,
    };
    let prompt: Vec<_> = prompt.into_iter().map(lucid_checkpoint::TokenId).collect();
    let said = observed(&id, &prompt, &of_prompt, &generated, 0);
    let name = messages.last().map(|message| message.content.chars().take(60).collect());
    Ok(Passage::of(name.unwrap_or_default(), &said))
}
