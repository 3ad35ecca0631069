//! The same request streamed and in one piece.

use lucid_client::{ChatAnswer, ChatRequest, Endpoint, Message, StreamedChat};
use serde_json::{Map, Value, json};

use super::requests::short_questions;
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::Examination;
use crate::report::{Finding, ProofKind, Severity};
use crate::subject::Depth;

pub(crate) struct Streaming;

/// Tokens of an answer.
const ANSWER: u32 = 96;
/// Bias of the bytes of `é`: more than any logit.
const BIAS: u32 = 100;

/// Questions by depth.
fn count(depth: Depth) -> usize {
    match depth {
        Depth::Quick => 1,
        Depth::Standard => 2,
        Depth::Thorough => 6,
    }
}

impl Check for Streaming {
    fn id(&self) -> &'static str {
        "endpoint.streaming"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server]
    }

    fn covers(&self) -> &'static str {
        "streams keep to the standard, end, and carry the same text, finish reason and token counts as answers in one piece"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 6, tokens: 600 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        // Also one that stalls: a stream shows after how much.
        let endpoint = examination.endpoint.clone().ok_or_else(|| "no server answers".to_owned())?;
        let mut requests: Vec<ChatRequest> =
            short_questions(examination.seed.wrapping_add(3), count(examination.depth))
                .into_iter()
                .map(plain)
                .collect();
        requests.extend(accents(examination));
        let (mut compared, mut findings) = (0, Vec::new());
        for (number, request) in requests.iter().enumerate() {
            examination.step(number, requests.len(), "streamed and whole");
            if number > 0 && examination.out_of_patience().is_some() {
                break;
            }
            let Some(pair) = ask(examination, &endpoint, request, &mut findings) else { continue };
            compared += 1;
            if let Some(finding) = pair.difference() {
                // Texts may honestly part at a near-tie: only what parts twice, and in the same way, is the stream's doing.
                let again = ask(examination, &endpoint, request, &mut findings);
                if again.is_some_and(|again| again.repeats(&pair, &finding.id)) {
                    findings.push(finding);
                }
            }
        }
        findings.dedup_by(|a, b| a.id == b.id);
        if compared == 0 && findings.is_empty() {
            return Err(Skip("no stream could be compared".to_owned()));
        }
        if findings.is_empty() {
            findings.push(
                Finding::new(
                    self.id(),
                    "equal",
                    Severity::Info,
                    "Streams carry what answers in one piece have",
                )
                .suggests("tokenizer-decode", -1.0),
            );
        }
        Ok(Examined { findings, covered: format!("{compared} requests, streamed and whole") })
    }
}

fn plain(messages: Vec<Message>) -> ChatRequest {
    ChatRequest { max_tokens: Some(ANSWER), temperature: Some(0.0), ..ChatRequest::new(messages) }
}

/// A request whose answer is made of characters of two tokens: the two bytes of `é` are wanted more than anything else, and
/// each the less the more often it came. Needs the ids of the bytes, so the checkpoint.
fn accents(examination: &Examination<'_>) -> Option<ChatRequest> {
    let reference = examination.reference.as_ref()?;
    let [lead, tail] = [0xc3, 0xa9].map(|byte| reference.token_of(&[byte]));
    let mut extra = Map::new();
    extra.insert("logit_bias".to_owned(), json!({ lead?.0.to_string(): BIAS, tail?.0.to_string(): BIAS }));
    extra.insert("frequency_penalty".to_owned(), json!(2));
    Some(ChatRequest { max_tokens: Some(16), extra, ..plain(vec![Message::user("Write é.")]) })
}

/// Both forms of one answer.
struct Pair {
    whole: (usize, ChatAnswer),
    streamed: (usize, StreamedChat),
}

/// Asks both ways. What breaks the rules of streams becomes a finding; `None` if there is nothing to compare.
fn ask(
    examination: &mut Examination<'_>,
    endpoint: &Endpoint,
    request: &ChatRequest,
    findings: &mut Vec<Finding>,
) -> Option<Pair> {
    let stalls = examination.evidence.timeouts >= 2;
    let whole = (!stalls).then(|| examination.chat(endpoint, request));
    let mut pieces = 0;
    let (number, streamed) = examination
        .take(endpoint.waiting(examination.patience_for(request)).chat_stream(request, |_| pieces += 1));
    let check = "endpoint.streaming";
    let broken = |slug: &str, title: &str, text: String| {
        Finding::new(check, slug, Severity::Error, title).detail(text.clone()).proof(
            ProofKind::Exchange,
            number.to_string(),
            text,
        )
    };
    let streamed = match streamed {
        Ok(streamed) => {
            // A stream's token counts stand in its last event, which `take` doesn't look into.
            if let Some(usage) = streamed.answer.usage {
                examination.evidence.cost.prompt_tokens += usage.prompt_tokens;
                examination.evidence.cost.completion_tokens += usage.completion_tokens;
            }
            streamed
        }
        Err(error @ lucid_client::Error::Timeout { .. }) if pieces > 0 => {
            findings.push(
                broken(
                    "stalls",
                    "A stream began and then stood still",
                    format!("{pieces} pieces of text came, then nothing more: {error}"),
                )
                .suggests("collectives", 6.0)
                .suggests("cuda-graph", 2.0)
                .suggests("speculative-decoding", 1.0),
            );
            return None;
        }
        Err(_) => return None,
    };
    if let Some(error) = &streamed.error {
        findings.push(broken("breaks-off", "A stream ends with an error", error.clone()));
        return None;
    }
    if let Some(frame) = streamed.malformed.first() {
        let frame: String = frame.chars().take(120).collect();
        findings.push(
            broken("malformed", "A stream has frames that are not JSON events", frame)
                .suggests("tokenizer-decode", 2.0),
        );
    } else if !streamed.done {
        findings.push(broken(
            "no-end",
            "A stream ends without [DONE]",
            "clients that wait for the end report a broken connection".to_owned(),
        ));
    }
    let (whole_number, whole) = whole?;
    Some(Pair { whole: (whole_number, whole.ok()?), streamed: (number, streamed) })
}

impl Pair {
    /// Whether this one, asked later, differs in the same way as `before`. Texts that part are the stream's doing only if each form repeats
    /// itself: a server that doesn't has other texts whatever the form.
    fn repeats(&self, before: &Pair, finding: &str) -> bool {
        let text = |answer: &ChatAnswer| {
            squeezed(answer.reasoning().unwrap_or_default()) + &squeezed(answer.content())
        };
        let same = |a: &ChatAnswer, b: &ChatAnswer| text(a) == text(b);
        let forms =
            same(&self.whole.1, &before.whole.1) && same(&self.streamed.1.answer, &before.streamed.1.answer);
        self.difference().is_some_and(|again| again.id == finding)
            && (forms || !finding.ends_with("other-text"))
    }

    /// What differs, the most telling first.
    fn difference(&self) -> Option<Finding> {
        let (whole, streamed) = (&self.whole.1, &self.streamed.1.answer);
        let texts = |answer: &ChatAnswer| {
            (answer.reasoning().unwrap_or_default().to_owned(), answer.content().to_owned())
        };
        let ((reasoning, content), (streamed_reasoning, streamed_content)) = (texts(whole), texts(streamed));
        let finding = |slug: &str, title: &str, detail: String| {
            Finding::new("endpoint.streaming", slug, Severity::Error, title)
                .detail(detail)
                .proof(ProofKind::Exchange, self.whole.0.to_string(), shown(&reasoning, &content))
                .proof(
                    ProofKind::Exchange,
                    self.streamed.0.to_string(),
                    shown(&streamed_reasoning, &streamed_content),
                )
        };
        let (all, streamed_all) =
            (reasoning.clone() + &content, streamed_reasoning.clone() + &streamed_content);
        let broken = |text: &str| text.matches('\u{fffd}').count();
        if broken(&streamed_all) > broken(&all) {
            let detail = format!(
                "{} replacement characters in the stream, {} in the same answer in one piece: characters of several tokens are decoded token by token.",
                broken(&streamed_all),
                broken(&all)
            );
            return Some(
                finding(
                    "splits-characters",
                    "A stream breaks characters that an answer in one piece has whole",
                    detail,
                )
                .suggests("tokenizer-decode", 9.0),
            );
        }
        // Servers trim differently where one field ends and the next begins.
        if (reasoning.trim(), content.trim()) != (streamed_reasoning.trim(), streamed_content.trim()) {
            let moved = squeezed(&all) == squeezed(&streamed_all);
            return Some(if moved {
                finding(
                    "other-fields",
                    "A stream splits reasoning and content elsewhere than an answer in one piece",
                    String::new(),
                )
                .suggests("reasoning-parser", 7.0)
            } else {
                finding(
                    "other-text",
                    "A stream carries another text than the same answer in one piece",
                    String::new(),
                )
                .suggests("tokenizer-decode", 3.0)
                .suggests("reasoning-parser", 1.0)
            });
        }
        let reasons = (whole.finish_reason(), streamed.finish_reason());
        if reasons.0 != reasons.1 {
            let detail = format!(
                "{} in one piece, {} streamed.",
                reasons.0.unwrap_or("null"),
                reasons.1.unwrap_or("null")
            );
            return Some(finding(
                "other-finish",
                "A stream ends for another reason than the same answer in one piece",
                detail,
            ));
        }
        None
    }
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

fn shown(reasoning: &str, content: &str) -> String {
    let text = json!({ "reasoning": reasoning, "content": content });
    let text = match text {
        Value::Object(_) => text.to_string(),
        _ => String::new(),
    };
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(reasoning: &str, content: &str, finish: &str) -> ChatAnswer {
        serde_json::from_value(json!({"choices": [{"message": {"reasoning": reasoning, "content": content}, "finish_reason": finish}]})).unwrap()
    }

    fn difference(whole: ChatAnswer, streamed: ChatAnswer) -> Option<String> {
        let streamed = StreamedChat { answer: streamed, done: true, ..StreamedChat::default() };
        Pair { whole: (1, whole), streamed: (2, streamed) }.difference().map(|finding| finding.id)
    }

    #[test]
    fn texts_that_part_must_repeat_in_either_form() {
        let pair = |whole: &str, streamed: &str| {
            let streamed =
                StreamedChat { answer: answer("", streamed, "stop"), done: true, ..StreamedChat::default() };
            Pair { whole: (1, answer("", whole, "stop")), streamed: (2, streamed) }
        };
        let first = pair("Red.", "Blue.");
        let id = first.difference().unwrap().id;
        assert!(pair("Red.", "Blue.").repeats(&first, &id));
        assert!(!pair("Blue.", "Red.").repeats(&first, &id), "now the other way round: no form is to blame");
        assert!(!pair("Red.", "Red.").repeats(&first, &id));
    }

    #[test]
    fn differences_are_told_apart() {
        let whole = || answer("The user asks.", "Café.", "stop");
        assert_eq!(difference(whole(), whole()), None);
        assert_eq!(
            difference(whole(), answer("The user asks.\n", "Café.", "stop")),
            None,
            "trimmed differently"
        );
        for (streamed, id) in [
            (answer("The user asks.", "Caf\u{fffd}\u{fffd}.", "stop"), "splits-characters"),
            (answer("The user asks.Café.", "", "stop"), "other-fields"),
            (answer("The user asks.", "Tea.", "stop"), "other-text"),
            (answer("The user asks.", "Café.", "length"), "other-finish"),
        ] {
            assert_eq!(difference(whole(), streamed), Some(format!("endpoint.streaming/{id}")));
        }
    }
}
