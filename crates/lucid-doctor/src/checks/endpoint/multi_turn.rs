//! A conversation that the server renders, against the same prompt as token ids.
//!
//! Servers that answer a first turn rightly and a second one wrongly have often lost something of the history: an end of turn,
//! the reasoning, a role. The checkpoint's own template says what the prompt is; `/v1/completions` takes it as ids, past the
//! server's template. Both must begin their answer with the same distributions.

use lucid_client::{CompletionRequest, Endpoint, Message, Prompt};

use super::requests::greedy;
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Alike, Examination, Sample, SampleToken};
use crate::report::{Finding, ProbeTable, ProofKind, Severity};

pub(crate) struct MultiTurn;

/// Tokens of an answer.
const ANSWER: u32 = 16;
/// Candidates beside each token.
const TOP: u32 = 4;

impl Check for MultiTurn {
    fn id(&self) -> &'static str {
        "endpoint.multi-turn"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server, Need::Checkpoint]
    }

    fn covers(&self) -> &'static str {
        "conversations of several turns, with and without a system message, reach the model as the checkpoint's template renders them"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 8, tokens: 800 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let exact = examination.evidence.claim.is_some();
        if !endpoint.dialect().capabilities().token_prompts {
            return Err(Skip(format!("{} takes no token ids as a prompt", endpoint.dialect().name())));
        }
        let mut table = ProbeTable::new(
            self.id(),
            "Rendered by the server against the same prompt as token ids",
            &["turns", "prompt tokens", "first tokens of the answer"],
        );
        let (mut compared, mut different, mut refused) = (0, Vec::new(), None);
        let mut broken_off = 0;
        for messages in conversations() {
            if let Some(reason) = examination.out_of_patience() {
                refused.get_or_insert(reason);
                break;
            }
            let reference =
                examination.reference.as_ref().ok_or_else(|| "the checkpoint can't be read".to_owned())?;
            let prompt = reference.prompt(&messages)?;
            let rendered = examination.sample(&endpoint, &greedy(messages.clone(), ANSWER));
            let ids: Vec<u32> = prompt.iter().map(|id| id.0).collect();
            let raw = complete(examination, &endpoint, ids);
            let (rendered, raw) = match (rendered, raw) {
                (Ok(rendered), Ok(raw)) => (rendered, raw),
                (Err(reason), _) | (_, Err(reason)) => {
                    refused.get_or_insert(reason);
                    continue;
                }
            };
            let (rendered, raw) = (named(examination, rendered), named(examination, raw));
            if rendered.tokens.is_empty() || raw.tokens.is_empty() {
                refused.get_or_insert("the server tells no log-probabilities".to_owned());
                continue;
            }
            let alike = rendered.compare(&raw, exact);
            let turns = messages.iter().filter(|message| message.role == "user").count();
            table.row(&[&turns, &format!("{} and {}", rendered.prompt_tokens, prompt.len()), &alike.word()]);
            compared += 1;
            // Another length is another prompt, whatever the model makes of it.
            let other_length = rendered.prompt_tokens > 0 && rendered.prompt_tokens != prompt.len() as u64;
            // An answer that breaks off is no other prompt: the second form repeats the first.
            broken_off += usize::from(alike.is_ended() && !other_length);
            if (alike.is_different() && !alike.is_ended()) || other_length {
                let exchanges = (rendered.exchange, raw.exchange);
                different.push(Unlike { turns, exchanges, alike, sure: other_length || exact });
            }
        }
        if compared == 0 {
            return Err(Skip(refused.unwrap_or_else(|| "nothing could be compared".to_owned())));
        }
        examination.evidence.probes.push(table);
        Ok(Examined {
            findings: findings(self.id(), &different, compared - broken_off, examination.evidence.unstable),
            covered: format!(
                "{compared} conversations of 1 to 4 turns, rendered by the server and by the checkpoint's template"
            ),
        })
    }
}

fn conversations() -> Vec<Vec<Message>> {
    let user = |text: &str| Message::user(text);
    let assistant = |text: &str| Message::new("assistant", text);
    let two = vec![user("My name is Nina."), assistant("Nice to meet you, Nina!"), user("What is my name?")];
    let mut four = two.clone();
    four.extend([
        assistant("Your name is Nina."),
        user("What is 12 * 7?"),
        assistant("12 * 7 = 84."),
        user("What is the capital of Kenya?"),
    ]);
    let mut with_system = vec![Message::system("Always answer in upper case.")];
    with_system.extend(two.clone());
    vec![vec![user("What is the capital of Norway? Answer in one sentence.")], two, with_system, four]
}

/// The answer to a prompt of token ids.
fn complete(examination: &mut Examination<'_>, endpoint: &Endpoint, ids: Vec<u32>) -> Result<Sample, String> {
    let request =
        CompletionRequest { logprobs: Some(TOP), ..CompletionRequest::greedy(Prompt::Tokens(ids), ANSWER) };
    let (number, outcome) = examination.take(endpoint.complete(&request));
    let answer = outcome.map_err(|error| error.to_string())?;
    let choice = answer.choices.first().ok_or("`choices` is empty")?;
    let scored = endpoint.dialect().completion_logprobs(choice)?;
    let tokens = scored.into_iter().map(|scored| SampleToken {
        name: scored.token,
        logprob: scored.logprob,
        top: scored.top,
    });
    Ok(Sample { exchange: number, text: choice.text.clone(), tokens: tokens.collect(), prompt_tokens: 0 })
}

/// Chat and completions call tokens by different names: ids, where they are known, are the same in both.
fn named(examination: &Examination<'_>, mut sample: Sample) -> Sample {
    let id = |name: &lucid_client::TokenName| {
        let id = examination.reference.as_ref().and_then(|reference| reference.id(name));
        id.map_or_else(|| name.clone(), |id| lucid_client::TokenName::Id(id.0))
    };
    for token in &mut sample.tokens {
        token.name = id(&token.name);
        for (name, _) in &mut token.top {
            *name = id(name);
        }
    }
    sample
}

/// A conversation that gets another answer than the same prompt as token ids.
struct Unlike {
    turns: usize,
    /// Rendered by the server, and as token ids.
    exchanges: (usize, usize),
    alike: Alike,
    /// One is enough: another length is another prompt, and plain f32 has no near-ties. Any other server may have computed one of the two
    /// from a cache, by another kernel, and have chosen an expert by a hair.
    sure: bool,
}

fn findings(check: &str, different: &[Unlike], compared: usize, unstable: bool) -> Vec<Finding> {
    // A server that gives other answers to the same request says nothing about its template.
    if unstable || compared == 0 {
        return Vec::new();
    }
    let Some(Unlike { turns, exchanges: (rendered, raw), alike, .. }) = different.first() else {
        return vec![
            Finding::new(
                check,
                "alike",
                Severity::Info,
                "Conversations reach the model as the checkpoint's template renders them",
            )
            .suggests("chat-template", -3.0),
        ];
    };
    if different.len() < 2 && !different.iter().any(|unlike| unlike.sure) {
        return Vec::new();
    }
    let later = *turns > 1;
    let title = if later {
        "From the second turn on, the server renders another prompt than the checkpoint's template"
    } else {
        "The server renders another prompt than the checkpoint's template"
    };
    vec![
        Finding::new(check, "renders-differently", Severity::Error, title)
            .detail(format!(
                "{} of {compared} conversations have another length, or get other distributions, than the same prompt as token ids.",
                different.len()
            ))
            .proof(
                ProofKind::Exchange,
                rendered.to_string(),
                format!("rendered by the server; as token ids in exchange {raw}: {}", alike.word()),
            )
            .suggests("chat-template", 9.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_turn_that_differs_is_named() {
        let alike = Alike::Different { at: 0, shift: 1.0 };
        let found = |turns: &[(usize, bool)], unstable| {
            let unlike = |&(turns, sure): &(usize, bool)| Unlike { turns, exchanges: (3, 4), alike, sure };
            let different: Vec<Unlike> = turns.iter().map(unlike).collect();
            findings("endpoint.multi-turn", &different, 4, unstable)
        };
        assert_eq!(found(&[], false)[0].id, "endpoint.multi-turn/alike");
        assert!(found(&[(2, true)], false)[0].title.starts_with("From the second turn"));
        assert!(found(&[(1, false), (2, false)], false)[0].title.starts_with("The server renders"));
        assert!(found(&[(1, true)], true).is_empty());
        assert!(found(&[(2, false)], false).is_empty(), "one may be a near-tie");
    }
}
