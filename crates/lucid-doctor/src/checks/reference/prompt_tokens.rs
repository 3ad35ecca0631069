//! Does the server make the same tokens of a conversation as the checkpoint's template and tokenizer?

use lucid_checkpoint::TokenId;
use lucid_client::{ChatRequest, Endpoint, Message};

use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::Examination;
use crate::report::{Finding, ProofKind, Severity};

pub(crate) struct PromptTokens;

impl Check for PromptTokens {
    fn id(&self) -> &'static str {
        "reference.prompt-tokens"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server, Need::Checkpoint]
    }

    fn covers(&self) -> &'static str {
        "chat template and tokenizer of the server give the checkpoint's prompt tokens"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 3, tokens: 150 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let conversations = [
            vec![Message::user("What is the capital of France? Answer in one sentence.")],
            vec![
                Message::system("Always answer in upper case."),
                Message::user("What is the capital of Peru?"),
            ],
            vec![
                Message::user("My name is Nina."),
                Message::new("assistant", "Nice to meet you, Nina!"),
                Message::user("What is my name?"),
            ],
        ];
        let mut findings = Vec::new();
        let (mut by_id, mut by_count) = (0, 0);
        for messages in &conversations {
            let reference =
                examination.reference.as_ref().ok_or_else(|| "the checkpoint can't be read".to_owned())?;
            let ours = reference.prompt(messages)?;
            let Some((number, theirs)) = ask(examination, &endpoint, messages) else { continue };
            let difference = match &theirs {
                Theirs::Ids(ids) => {
                    by_id += 1;
                    difference(examination, &ours, ids)
                }
                Theirs::Count(count) => {
                    by_count += 1;
                    let ours = ours.len() as u64;
                    (*count != ours).then(|| {
                        format!(
                            "the server counts {count} prompt tokens, the checkpoint's template gives {ours}"
                        )
                    })
                }
            };
            if let Some(difference) = difference
                && findings.is_empty()
            {
                let finding = Finding::new(
                    self.id(),
                    "differs",
                    Severity::Error,
                    "The server's prompt is not what the checkpoint's template and tokenizer make",
                )
                .detail(difference.clone())
                .proof(ProofKind::Exchange, number.to_string(), difference);
                findings.push(finding);
            }
        }
        if by_id + by_count == 0 {
            return Err(Skip("the server tells neither the prompt's tokens nor their number".to_owned()));
        }
        if findings.is_empty() {
            findings.push(Finding::new(
                self.id(),
                "agrees",
                Severity::Info,
                "Template and tokenizer agree with the checkpoint",
            ));
        }
        Ok(Examined {
            findings,
            covered: format!(
                "{by_id} conversations compared by token ids, {by_count} by their number of tokens"
            ),
        })
    }
}

enum Theirs {
    Ids(Vec<TokenId>),
    Count(u64),
}

/// Ids from `/tokenize` where the dialect has it, else the number of tokens from `usage`.
fn ask(
    examination: &mut Examination<'_>,
    endpoint: &Endpoint,
    messages: &[Message],
) -> Option<(usize, Theirs)> {
    if let Some(reply) = endpoint.tokenize(messages) {
        let (number, outcome) = examination.take(reply);
        if let Ok(ids) = outcome {
            return Some((number, Theirs::Ids(ids.into_iter().map(TokenId).collect())));
        }
    }
    let request =
        ChatRequest { max_tokens: Some(1), temperature: Some(0.0), ..ChatRequest::new(messages.to_vec()) };
    let (number, outcome) = examination.chat(endpoint, &request);
    let count = outcome.ok()?.usage?.prompt_tokens;
    (count > 0).then_some((number, Theirs::Count(count)))
}

fn difference(examination: &Examination<'_>, ours: &[TokenId], theirs: &[TokenId]) -> Option<String> {
    let at = ours
        .iter()
        .zip(theirs)
        .position(|(a, b)| a != b)
        .or((ours.len() != theirs.len()).then(|| ours.len().min(theirs.len())))?;
    let around = |ids: &[TokenId]| {
        let part = ids.get(at.saturating_sub(3)..(at + 4).min(ids.len())).unwrap_or_default();
        examination.reference.as_ref().map(|reference| reference.text(part)).unwrap_or_default()
    };
    Some(format!(
        "from token {at} on: the server has \u{201c}{}\u{201d} ({} tokens), the checkpoint \u{201c}{}\u{201d} ({} tokens)",
        around(theirs),
        theirs.len(),
        around(ours),
        ours.len()
    ))
}
