//! Empty and cut answers: a budget that the reasoning ate, or a parser that lost the answer. Neither is incoherence.

use lucid_client::{ChatRequest, Message};

use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Answer, AnswerKind, Examination};
use crate::knowledge::Judge;
use crate::ladder::{Judged, judge};
use crate::report::{Finding, ProofKind, Severity};

pub(crate) struct Budget;

/// Too few tokens for an answer with reasoning, and for most without.
const TINY: u32 = 4;

impl Check for Budget {
    fn id(&self) -> &'static str {
        "endpoint.budget"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server]
    }

    fn covers(&self) -> &'static str {
        "an answer cut by its token budget says so, and reasoning and content come in their own fields"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 2, tokens: 120 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let ask = |max_tokens| ChatRequest {
            max_tokens: Some(max_tokens),
            temperature: Some(0.0),
            ..ChatRequest::new(vec![Message::user("What is the capital of France? Answer in one sentence.")])
        };
        let mut findings = Vec::new();
        let (number, outcome) = examination.chat(&endpoint, &ask(TINY));
        let tiny = outcome.map_err(|error| format!("the request with max_tokens {TINY} failed: {error}"))?;
        let used = tiny.usage.map_or(0, |usage| usage.completion_tokens);
        if used >= u64::from(TINY) && tiny.finish_reason() != Some("length") {
            let reason = tiny.finish_reason().unwrap_or("null");
            findings.push(
                Finding::new(self.id(), "misreported", Severity::Warning, "A cut answer doesn't say that it was cut")
                    .detail(format!("max_tokens {TINY} were used up, and finish_reason is `{reason}` instead of `length`: clients can't tell a cut answer from a whole one"))
                    .proof(ProofKind::Exchange, number.to_string(), format!("finish_reason {reason}, {used} tokens")),
            );
        }
        if examination.evidence.answers.is_empty() {
            let (number, outcome) = examination.chat(&endpoint, &ask(512));
            let answer =
                outcome.map_err(|error| format!("the request with max_tokens 512 failed: {error}"))?;
            let mut answer = Answer::new(&answer, number, 512);
            answer.right = judge(Judge::Contains, answer.text(), "Paris", &[]) == Judged::Right;
            examination.evidence.answers.push(answer);
        }
        let answers = &examination.evidence.answers;
        findings.extend(sides(self.id(), answers));
        let covered = format!("{} answers: which field holds what, and why each ended", answers.len() + 1);
        Ok(Examined { findings, covered })
    }
}

/// Answers that make a pattern.
const LEAST: usize = 3;

/// What the answers say about the fields.
fn sides(check: &str, answers: &[Answer]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let example = |finding: Finding, of: &[&Answer]| match of.first() {
        Some(answer) => finding.proof(ProofKind::Exchange, answer.exchange.to_string(), shown(answer)),
        None => finding,
    };
    let which =
        |test: &dyn Fn(&Answer) -> bool| answers.iter().filter(|answer| test(answer)).collect::<Vec<_>>();
    // Only a right answer in the wrong field is the parser's doing; a garbled model that ends inside its reasoning isn't.
    let hidden = which(&|answer| answer.kind == AnswerKind::InsideReasoning && answer.right);
    let tagged = which(&Answer::shows_think_tag);
    // An answer that goes in circles would use up any budget.
    let cut = which(&|answer| answer.kind == AnswerKind::Cut && !answer.endless);
    // One answer of many may honestly end without a word; a parser that fails, fails on most.
    if hidden.len() * 4 >= answers.len().max(1) {
        let title = format!(
            "{} of {} answers have no content: the answer is inside the reasoning",
            hidden.len(),
            answers.len()
        );
        let finding = Finding::new(check, "answer-inside-reasoning", Severity::Error, title)
            .detail("The model ended by itself (finish_reason `stop`) and wrote an answer, but the server put all of it into the reasoning field. This is not incoherence, and more tokens don't help.");
        findings.push(example(finding, &hidden));
    }
    if !tagged.is_empty() {
        let title = format!("{} of {} answers show `</think>` in their content", tagged.len(), answers.len());
        let finding = Finding::new(check, "think-tag-in-content", Severity::Error, title)
            .detail("Reasoning is delivered as part of the answer: no reasoning parser is set, or it doesn't fit the model's template.");
        findings.push(example(finding, &tagged));
    }
    if !cut.is_empty() {
        let capped = cut.iter().filter(|answer| answer.capped_by_server()).count();
        let title = format!(
            "{} of {} answers are empty because the reasoning used up the token budget",
            cut.len(),
            answers.len()
        );
        let detail = if capped > 0 {
            format!(
                "{capped} of them ended before the `max_tokens` that was asked for: the server has a smaller cap of its own."
            )
        } else {
            "finish_reason is `length`, the reasoning is there, the content is empty. This is not incoherence.".to_owned()
        };
        // Reasoning that was too long is nobody's fault; a cap that nobody asked for, on every answer, is the server's.
        let severity =
            if capped == answers.len() && capped >= LEAST { Severity::Error } else { Severity::Warning };
        findings.push(example(Finding::new(check, "answers-cut", severity, title).detail(detail), &cut));
    }
    // Right answers that go on after their end, all of them: nothing ends them.
    let endless = which(&|answer| answer.right && answer.length && !answer.capped_by_server());
    let ended = which(&|answer| !answer.length);
    if endless.len() >= LEAST && ended.is_empty() {
        let finding = Finding::new(
            check,
            "never-ends",
            Severity::Error,
            "Right answers don't end: they run on until the token budget is used up",
        )
        .detail(format!(
            "{} of {} answers are right, and go on after their end: the token that ends a turn ends nothing.",
            endless.len(),
            answers.len()
        ))
        .suggests("sampling-defaults", 8.0)
        .suggests("chat-template", 2.0);
        findings.push(example(finding, &endless));
    }
    let both = which(&|answer| {
        answer.kind == AnswerKind::Content && !answer.reasoning.is_empty() && !answer.shows_think_tag()
    });
    if findings.is_empty() && !both.is_empty() {
        let title =
            format!("Reasoning and content come apart in {} of {} answers", both.len(), answers.len());
        findings.push(Finding::new(check, "separates", Severity::Info, title));
    }
    findings
}

fn shown(answer: &Answer) -> String {
    let side = |name: &str, text: &str| {
        let beginning: String = text.chars().take(80).collect();
        if text.is_empty() { format!("{name} empty") } else { format!("{name} \u{201c}{beginning}\u{201d}") }
    };
    let reason = if answer.length { "length" } else { "stop" };
    format!(
        "finish_reason {reason}, {}, {}",
        side("content", &answer.content),
        side("reasoning", &answer.reasoning)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(content: &str, reasoning: &str, finish: &str) -> Answer {
        let json = serde_json::json!({"choices": [{"message": {"content": content, "reasoning": reasoning}, "finish_reason": finish}], "usage": {"completion_tokens": 20}});
        Answer {
            right: reasoning.contains("Paris"),
            ..Answer::new(&serde_json::from_value(json).unwrap(), 1, 21)
        }
    }

    fn found(answers: &[Answer]) -> Vec<String> {
        sides("endpoint.budget", answers).into_iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn budget_and_parser_are_told_apart() {
        let whole = answer("Paris.", "The user asks.", "stop");
        assert_eq!(found(&[whole.clone(), whole.clone()]), ["endpoint.budget/separates"]);
        assert_eq!(
            found(&[whole.clone(), answer("", "The user asks", "length")]),
            ["endpoint.budget/answers-cut"]
        );
        assert_eq!(
            found(&[answer("", "The user asks.Paris.", "stop")]),
            ["endpoint.budget/answer-inside-reasoning"]
        );
        assert!(
            found(&[answer("", "Nina lamp the of 7", "stop")]).is_empty(),
            "a garbled model is no parser fault"
        );
        assert_eq!(
            found(&[answer("The user asks.</think>Paris.", "", "stop")]),
            ["endpoint.budget/think-tag-in-content"]
        );
        let many: Vec<Answer> = (0..9).map(|_| whole.clone()).chain([answer("", "Hm.", "stop")]).collect();
        assert_eq!(found(&many), ["endpoint.budget/separates"], "one odd answer convicts nobody");
    }

    #[test]
    fn a_server_cap_is_seen() {
        let cut = Answer { max_tokens: 512, ..answer("", "The user", "length") };
        assert!(cut.capped_by_server());
        assert!(sides("x", &[Answer { endless: true, ..cut.clone() }]).is_empty(), "circles are no budget");
        assert!(sides("x", &[cut])[0].detail.contains("smaller cap"));
    }
}
