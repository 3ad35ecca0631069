//! The ladder: can the model that answers still do simple things?

use lucid_client::{ChatRequest, Endpoint, Message};

use super::soak::blamed_by_words;
use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Answer, AnswerKind, Examination, RungScore, RungState};
use crate::knowledge::{Judge, Rung, ladder};
use crate::ladder::{Judged, Question, judge, questions};
use crate::report::{Finding, ProofKind, Severity};
use crate::statistics::wilson;
use crate::subject::Depth;

pub(crate) struct Ladder;

/// Tokens for an answer at first, reasoning included.
const FIRST_BUDGET: u32 = 512;
/// Tokens for the second attempt of an answer that the first budget cut.
const SECOND_BUDGET: u32 = 2_048;
/// No rung fails on fewer judged answers.
const LEAST: u64 = 3;
/// Tokens for an answer once one didn't end within the second budget and none was right: it shows garble as well.
const SHORT_BUDGET: u32 = 192;
/// Tokens and number of the short answers that tell a slow server from one that stalls.
const SHORT_ANSWER: u32 = 8;
const SHORT_ANSWERS: usize = 3;
/// After so many answers of which none was right, the harder rungs are not climbed: they would only cost.
const HOPELESS: u64 = 6;

impl Check for Ladder {
    fn id(&self) -> &'static str {
        "endpoint.ladder"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server]
    }

    fn covers(&self) -> &'static str {
        "the model answers simple questions rightly: a fact, a sum, code that runs, recall over turns, needles, instructions, JSON"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 50, tokens: 15_000 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let mut climb = Climb { endless: 0, judged: 0, right: 0, findings: Vec::new() };
        let rungs = &ladder().rungs;
        for (number, rung) in rungs.iter().enumerate() {
            examination.step(number, rungs.len(), &rung.title);
            let score = climb.rung(examination, &endpoint, rung);
            examination.evidence.ladder.push(score);
        }
        let scores = &examination.evidence.ladder;
        climb.findings.extend(summary(scores));
        if let Some(answer) = examination.evidence.answers.iter().find(|answer| answer.is_one_character()) {
            let finding = Finding::new(
                self.id(),
                "one-character",
                Severity::Error,
                "An answer is one character over and over",
            )
            .proof(
                ProofKind::Exchange,
                answer.exchange.to_string(),
                excerpt(&format!("{}{}", answer.reasoning, answer.content)),
            );
            climb.findings.push(finding);
        }
        let judged: u64 = scores.iter().map(|score| score.rate.trials).sum();
        let climbed = scores.iter().filter(|score| score.state != RungState::Skipped).count();
        if judged == 0 && climb.findings.iter().all(|finding| finding.severity == Severity::Info) {
            return Err(Skip(
                "no answer could be judged: all were cut by the token budget, or failed".to_owned(),
            ));
        }
        Ok(Examined {
            findings: climb.findings,
            covered: format!("{climbed} rungs, {judged} judged answers"),
        })
    }
}

struct Climb {
    /// Answers that didn't end within the second budget.
    endless: usize,
    judged: u64,
    right: u64,
    findings: Vec<Finding>,
}

impl Climb {
    fn rung(&mut self, examination: &mut Examination<'_>, endpoint: &Endpoint, rung: &Rung) -> RungScore {
        let mut score = RungScore {
            id: rung.id.clone(),
            title: rung.title.clone(),
            covers: rung.covers.clone(),
            rate: wilson(0, 0),
            floor: rung.floor,
            state: RungState::Skipped,
            cut: 0,
            unjudged: 0,
            note: None,
        };
        if let Some(reason) = examination.out_of_patience() {
            score.note = Some(reason);
            return score;
        }
        let long = rung.needle_sentences.unwrap_or(0) > 200;
        if long && examination.depth == Depth::Quick {
            score.note = Some("not part of a quick examination".to_owned());
            return score;
        }
        if self.judged >= HOPELESS && self.right == 0 {
            score.note = Some("none of the simpler questions was answered rightly".to_owned());
            return score;
        }
        // Nine tokens a sentence with most tokenizers; the answer needs room too.
        let needed = rung.needle_sentences.unwrap_or(0) as u64 * 9 + 256;
        if let Some(length) = endpoint.info().max_model_len.filter(|length| *length < needed) {
            score.note = Some(format!("needs about {needed} tokens of context, the server has {length}"));
            return score;
        }
        // The long prompts are dear: one attempt each.
        let attempts = if long { 1 } else { examination.depth.attempts() };
        let (mut passed, mut trials) = (0, 0);
        for question in questions(rung, &ladder().haystack, attempts, examination.seed) {
            if examination.out_of_patience().is_some() {
                break;
            }
            match self.ask(examination, endpoint, rung, &question) {
                Outcome::Right => (passed, trials) = (passed + 1, trials + 1),
                Outcome::Wrong(exchange, reason, text) => {
                    trials += 1;
                    if score.note.is_none() {
                        score.note =
                            Some(format!("exchange {exchange}: {reason}; it says \u{201c}{text}\u{201d}"));
                    }
                }
                Outcome::Cut => score.cut += 1,
                Outcome::Unjudged(reason) => {
                    score.unjudged += 1;
                    score.note.get_or_insert(reason);
                }
            }
            // Certain already, or good enough: the rest would only cost.
            if rung.stop_when_right && passed > 0 {
                break;
            }
            if trials >= LEAST && wilson(passed, trials).high < rung.floor {
                break;
            }
        }
        self.judged += trials;
        self.right += passed;
        score.rate = wilson(passed, trials);
        score.state = match trials {
            0 => RungState::Undecided,
            LEAST.. if score.rate.high < rung.floor => RungState::Failing,
            _ if score.rate.observed() >= rung.floor => RungState::Passed,
            _ => RungState::Undecided,
        };
        score
    }

    fn ask(
        &mut self,
        examination: &mut Examination<'_>,
        endpoint: &Endpoint,
        rung: &Rung,
        question: &Question,
    ) -> Outcome {
        // Nothing right, or nothing that ends: more tokens would show the same.
        let all_endless = self.endless >= LEAST as usize && self.endless as u64 >= self.judged;
        let short = (self.endless > 0 && self.right == 0) || all_endless;
        let first_budget = if short { SHORT_BUDGET } else { FIRST_BUDGET };
        let mut answer = match self.chat(examination, endpoint, question, first_budget) {
            Ok(answer) => answer,
            Err(reason) => return Outcome::Unjudged(reason),
        };
        let ended_by_model = !answer.length || answer.capped_by_server();
        if !ended_by_model && !answer.loops() && self.endless == 0 {
            match self.chat(examination, endpoint, question, SECOND_BUDGET) {
                Ok(second) => answer = second,
                // A context that is too short for the second budget leaves the first answer.
                Err(reason) if answer.kind == AnswerKind::Cut => return Outcome::Unjudged(reason),
                Err(_) => {}
            }
        }
        // Twice cut, or going in circles: that is not a budget that was too small.
        answer.endless = answer.length && !answer.capped_by_server();
        self.endless += usize::from(answer.endless);
        let cut = answer.kind == AnswerKind::Cut && !answer.endless;
        let endless = answer.endless;
        let (exchange, text) = (answer.exchange, answer.text().to_owned());
        let judged = match (rung.judge, answer.kind) {
            // The reasoning around a hidden answer is in lower case: that says nothing about the answer.
            (Judge::UpperCase, AnswerKind::InsideReasoning) => {
                Judged::Unjudged("the answer is inside the reasoning".to_owned())
            }
            _ => judge(rung.judge, &text, &question.answer, &question.cases),
        };
        answer.right = judged == Judged::Right;
        examination.evidence.answers.push(answer);
        if cut {
            return Outcome::Cut;
        }
        match judged {
            Judged::Right => Outcome::Right,
            Judged::Wrong(_) if endless => {
                Outcome::Wrong(exchange, "it doesn't come to an end".to_owned(), excerpt(&text))
            }
            Judged::Wrong(reason) => Outcome::Wrong(exchange, reason, excerpt(&text)),
            Judged::Unjudged(reason) => Outcome::Unjudged(reason),
        }
    }

    fn chat(
        &mut self,
        examination: &mut Examination<'_>,
        endpoint: &Endpoint,
        question: &Question,
        budget: u32,
    ) -> Result<Answer, String> {
        // Servers refuse a request whose prompt and max_tokens together exceed the context. With the checkpoint we
        // count the prompt; without it, four characters a token is what tokenizers reach on our sentences.
        let characters: usize = question.messages.iter().map(|message| message.content.len() + 16).sum();
        let counted =
            examination.reference.as_ref().and_then(|reference| reference.prompt(&question.messages).ok());
        let prompt = counted.map_or(characters / 4, |tokens| tokens.len()) as u64;
        let room = endpoint
            .info()
            .max_model_len
            .map_or(u64::from(u32::MAX), |length| length.saturating_sub(prompt + 16).max(64));
        let max_tokens = budget.min(u32::try_from(room).unwrap_or(u32::MAX));
        let request = ChatRequest {
            max_tokens: Some(max_tokens),
            temperature: Some(question.temperature),
            seed: Some(question.seed),
            ..ChatRequest::new(question.messages.clone())
        };
        let (number, outcome) = examination.chat(endpoint, &request);
        match outcome {
            Ok(answer) => Ok(Answer::new(&answer, number, max_tokens)),
            Err(error) => {
                // One answer that was late may be a busy server's. Two are a pattern, unless short ones come.
                let late = matches!(error, lucid_client::Error::Timeout { .. })
                    && (examination.evidence.timeouts < 2 || is_slow(examination, endpoint));
                let (slug, title) = match error {
                    lucid_client::Error::Timeout { .. } => {
                        ("answers-late", "Answers to ordinary chat requests don't come to an end")
                    }
                    _ => ("requests-failed", "The server refuses or fails ordinary chat requests"),
                };
                if !late && self.findings.iter().all(|finding| !finding.id.ends_with(slug)) {
                    let finding = Finding::new("endpoint.ladder", slug, Severity::Error, title)
                        .detail(error.to_string())
                        .proof(ProofKind::Exchange, number.to_string(), error.to_string());
                    self.findings.push(match error {
                        lucid_client::Error::Timeout { .. } => finding
                            .suggests("collectives", 4.0)
                            .suggests("cuda-graph", 1.5)
                            .suggests("speculative-decoding", 1.0),
                        _ => blamed_by_words(finding, &error.to_string()),
                    });
                }
                Err(format!("exchange {number}: {error}"))
            }
        }
    }
}

/// After two answers that were late: whether short ones come. Then the server is slow, or the limit is short, and what could not be
/// waited for is no fault. A server that stalls does so on some of its short answers too.
fn is_slow(examination: &mut Examination<'_>, endpoint: &Endpoint) -> bool {
    if examination.evidence.slow {
        return false;
    }
    let request = ChatRequest {
        max_tokens: Some(SHORT_ANSWER),
        temperature: Some(0.0),
        ..ChatRequest::new(vec![Message::user("What is the capital of France? Answer in one sentence.")])
    };
    for _ in 0..SHORT_ANSWERS {
        if let (_, Err(lucid_client::Error::Timeout { .. })) = examination.chat(endpoint, &request) {
            return false;
        }
    }
    let limit = examination.subject.timeout.as_secs();
    examination.evidence.obstacles.push(format!(
        "some answers took longer than their length asks for by this server's own pace, or than {limit} s, while short ones came: the server is slow, or the limit is short"
    ));
    // Once: a server that is late again stalls.
    examination.evidence.slow = true;
    examination.evidence.timeouts = 0;
    true
}

enum Outcome {
    Right,
    Wrong(usize, String, String),
    Cut,
    Unjudged(String),
}

/// What the rungs say together.
fn summary(scores: &[RungScore]) -> Vec<Finding> {
    let check = "endpoint.ladder";
    let judged: Vec<&RungScore> = scores.iter().filter(|score| score.rate.trials > 0).collect();
    let failing: Vec<&RungScore> =
        judged.iter().copied().filter(|score| score.state == RungState::Failing).collect();
    let mut findings: Vec<Finding> = failing
        .iter()
        .map(|score| {
            let rate = format!(
                "{} of {} right (95 % interval {:.0}\u{2013}{:.0} %), a healthy model has at least {:.0} %",
                score.rate.passed,
                score.rate.trials,
                score.rate.low * 100.0,
                score.rate.high * 100.0,
                score.floor * 100.0
            );
            Finding::new(
                check,
                &format!("{}-low", score.id),
                Severity::Error,
                format!(
                    "The model fails the rung \u{201c}{}\u{201d}: {} of {} answers right",
                    score.title, score.rate.passed, score.rate.trials
                ),
            )
            .detail(score.note.clone().unwrap_or_default())
            .confidence(0.975)
            .proof(ProofKind::Number, score.id.clone(), rate)
        })
        .collect();
    let is_long = |score: &&RungScore| score.id.ends_with("needle");
    let short_ones_pass =
        judged.iter().filter(|score| !is_long(score)).all(|score| score.state == RungState::Passed);
    if failing.is_empty() && !judged.is_empty() && judged.iter().all(|score| score.state == RungState::Passed)
    {
        findings.push(Finding::new(
            check,
            "coherent",
            Severity::Info,
            "The model climbs every rung of the ladder",
        ));
    } else if !failing.is_empty() && failing.len() * 4 >= judged.len() * 3 {
        findings.push(
            Finding::new(
                check,
                "incoherent",
                Severity::Error,
                "The model is incoherent: most rungs of the ladder fail",
            )
            .confidence(0.99),
        );
    } else if !failing.is_empty() && failing.iter().all(is_long) && short_ones_pass {
        findings.push(Finding::new(
            check,
            "only-long-fails",
            Severity::Info,
            "Short prompts work, long ones fail",
        ));
    }
    findings
}

/// Line ends become spaces, other control characters are spelled out.
fn visible(c: char) -> Vec<char> {
    match c {
        '\n' | '\r' | '\t' => vec![' '],
        c if c.is_control() => c.escape_default().collect(),
        c => vec![c],
    }
}

/// The beginning of a text on one line.
fn excerpt(text: &str) -> String {
    let mut shown = text.trim().chars().flat_map(visible);
    let line: String = shown.by_ref().take(120).collect();
    if shown.next().is_some() { format!("{line}\u{2026}") } else { line }
}
