//! Who says what the right distributions are: the checkpoint, computed here, or a record of what it or a trusted server said.

use std::fmt;

use lucid_checkpoint::TokenId;
use lucid_client::{ChatRequest, Endpoint, Message, ScoredToken};
use lucid_engine::Scorer;

use crate::evidence::{Examination, Observed, Passage, PromptScore, Record, compare, observed};
use crate::knowledge::ladder;
use crate::ladder::questions;
use crate::statistics::Random;
use crate::subject::Subject;

/// Candidates beside each token.
const TOP: u32 = 5;
/// Tokens to generate for each prompt.
const GENERATED: u32 = 64;
/// The first answers go on after their end, up to so many tokens: a cache that decays with the length of an answer is right for the first
/// hundred (TensorRT-LLM #16916).
const LONG: u32 = 160;
/// How many do. One could be chance.
const LONG_ANSWERS: usize = 2;
/// Places of a recorded prompt at which a server that scores no prompts is asked for the next token.
const PLACES: usize = 8;

/// The witness.
pub(super) enum Witness<'a> {
    /// The checkpoint.
    Computed(Box<Scorer>),
    /// What was recorded.
    Recorded(&'a Record),
}

/// What the server is asked about.
pub(super) enum Text<'a> {
    /// A conversation.
    Messages(Vec<Message>),
    /// A recorded text.
    Passage(&'a Passage),
}

impl<'a> Witness<'a> {
    /// A record where one was given, else the checkpoint.
    pub(super) fn call(examination: &Examination<'a>) -> Result<Witness<'a>, String> {
        if let Some(record) = &examination.subject.record {
            return Ok(Witness::Recorded(record));
        }
        let reference = examination.reference.as_ref().ok_or("the checkpoint can't be read")?;
        Ok(Witness::Computed(Box::new(reference.scorer_as(examination.evidence.claim)?)))
    }

    /// What a right server computes.
    pub(super) fn word(&self) -> String {
        match self {
            Witness::Computed(_) => "what the checkpoint says".to_owned(),
            // A server has no files.
            Witness::Recorded(record) if record.fingerprint.is_empty() => {
                format!("what {} says", record.checkpoint)
            }
            Witness::Recorded(record) => format!("what was recorded of {}", record.checkpoint),
        }
    }

    /// What to ask, in this order.
    pub(super) fn texts(&self, subject: &Subject) -> Vec<Text<'a>> {
        let most = subject.depth.most_compared_prompts();
        match self {
            Witness::Computed(_) => prompts(subject.seed, most).into_iter().map(Text::Messages).collect(),
            Witness::Recorded(record) => {
                let mut passages: Vec<&Passage> =
                    record.passages.iter().filter(|passage| !passage.observations.is_empty()).collect();
                Random::new(subject.seed).shuffle(&mut passages);
                passages.truncate(most);
                passages.into_iter().map(Text::Passage).collect()
            }
        }
    }

    /// Asks the server, and compares.
    pub(super) fn ask(
        &mut self,
        examination: &mut Examination<'_>,
        endpoint: &Endpoint,
        text: &Text<'_>,
    ) -> Result<(Observed, PromptScore), String> {
        match (self, text) {
            (Witness::Computed(scorer), Text::Messages(messages)) => {
                let long = examination.evidence.observed.len() < LONG_ANSWERS;
                let observed = ask(examination, endpoint, messages, long)?;
                let score =
                    compare(scorer, &observed).map_err(|error| format!("the reference failed: {error}"))?;
                Ok((observed, score))
            }
            (_, Text::Passage(passage)) => ask_passage(examination, endpoint, passage),
            (Witness::Recorded(_), Text::Messages(_)) => {
                Err("the record knows its own texts alone".to_owned())
            }
        }
    }
}

/// The arithmetic.
impl fmt::Display for Witness<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Witness::Computed(scorer) => write!(f, "{}", scorer.semantics()),
            Witness::Recorded(record) => write!(f, "recorded from {}", record.checkpoint),
        }
    }
}

/// The questions of the ladder, shuffled: text that models of this family are at home in. Two needles among the first, for
/// the positions beyond a few hundred: one could be chance, more of them would only cost.
pub(crate) fn prompts(seed: u64, most: usize) -> Vec<Vec<Message>> {
    let ladder = ladder();
    let of = |needles: bool| {
        let rungs = ladder.rungs.iter().filter(move |rung| match rung.needle_sentences {
            Some(sentences) => needles && sentences < 200,
            None => !needles,
        });
        rungs.flat_map(|rung| questions(rung, &ladder.haystack, 1, seed)).map(|question| question.messages)
    };
    let mut prompts: Vec<Vec<Message>> = of(false).collect();
    Random::new(seed).shuffle(&mut prompts);
    for (needle, place) in of(true).zip([2, 4]) {
        prompts.insert(prompts.len().min(place), needle);
    }
    prompts.truncate(most);
    prompts
}

/// Asks for log-probabilities the best way that the dialect has.
fn ask(
    examination: &mut Examination<'_>,
    endpoint: &Endpoint,
    messages: &[Message],
    long: bool,
) -> Result<Observed, String> {
    let reference = |examination: &Examination<'_>| {
        examination.reference.as_ref().map(|reference| (reference.prompt(messages), reference.max_len()))
    };
    let (prompt, max_len) = reference(examination).ok_or("the checkpoint can't be read")?;
    let prompt = prompt?;
    let most = if long { LONG } else { GENERATED };
    if prompt.len() + most as usize > max_len {
        return Err(format!("a prompt of {} tokens is too long for the reference", prompt.len()));
    }
    let (number, of_prompt, generated) = if endpoint.dialect().capabilities().token_prompts {
        score(examination, endpoint, &prompt, most, long)?
    } else {
        let request = ChatRequest {
            max_tokens: Some(GENERATED),
            temperature: Some(0.0),
            logprobs: Some(true),
            top_logprobs: Some(TOP),
            ..ChatRequest::new(messages.to_vec())
        };
        let reply = endpoint.chat(&request);
        let exchange = reply.exchange.clone();
        let (number, outcome) = examination.take(reply);
        let answer = outcome.map_err(|error| error.to_string())?;
        let scored = Endpoint::chat_logprobs(&exchange, &answer).map_err(|error| error.to_string())?;
        (number, Vec::new(), scored.ok_or("the server returned no log-probabilities")?)
    };
    let mut observed = observed(&|name| examination.id(name), &prompt, &of_prompt, &generated, number);
    if long && let Some(reference) = &examination.reference {
        observed.find_end(&reference.ends());
    }
    Ok(observed)
}

/// Asks for a recorded text, and compares: the prompt is scored and continued. Where prompts are not scored, the next token is asked
/// for after some of its beginnings.
fn ask_passage(
    examination: &mut Examination<'_>,
    endpoint: &Endpoint,
    passage: &Passage,
) -> Result<(Observed, PromptScore), String> {
    let capabilities = endpoint.dialect().capabilities();
    if !capabilities.token_prompts {
        return Err("the server takes no token ids, and a record is made of them".to_owned());
    }
    let answer = passage.tokens.len() - passage.prompt;
    // Without an answer, the last token is part of what is scored.
    let (prompt, most) = if answer == 0 {
        (passage.tokens.as_slice(), 1)
    } else {
        (&passage.tokens[..passage.prompt], GENERATED.min(u32::try_from(answer).unwrap_or(GENERATED)))
    };
    let (number, of_prompt, generated) = score(examination, endpoint, prompt, most, false)?;
    let whole = observed(&|name| examination.id(name), prompt, &of_prompt, &generated, number);
    let mut compared = PromptScore::default();
    if of_prompt.is_empty() {
        for position in places_of(passage) {
            let beginning = &passage.tokens[..position];
            let (number, _, next) = score(examination, endpoint, beginning, 1, false)?;
            let next = observed(&|name| examination.id(name), beginning, &[], &next, number);
            compared.positions.extend(passage.compare(&next).positions);
        }
    }
    compared.positions.extend(passage.compare(&whole).positions);
    if whole.observations.is_empty() && compared.positions.is_empty() {
        return Err("the server names tokens by their text: give --checkpoint for its tokenizer".to_owned());
    }
    Ok((whole, compared))
}

fn score(
    examination: &mut Examination<'_>,
    endpoint: &Endpoint,
    prompt: &[TokenId],
    generated: u32,
    past_end: bool,
) -> Result<(usize, Vec<ScoredToken>, Vec<ScoredToken>), String> {
    let ids: Vec<u32> = prompt.iter().map(|id| id.0).collect();
    let (number, outcome) = examination.take(endpoint.score_tokens(&ids, generated, TOP, past_end));
    let (of_prompt, generated) = outcome.map_err(|error| error.to_string())?;
    Ok((number, of_prompt, generated))
}

/// Recorded places of the prompt, evenly from its beginning to its end.
fn places_of(passage: &Passage) -> Vec<usize> {
    let recorded: Vec<usize> =
        (1..passage.prompt).filter(|position| passage.is_recorded(*position)).collect();
    let step = recorded.len().div_ceil(PLACES).max(1);
    recorded.into_iter().step_by(step).collect()
}
