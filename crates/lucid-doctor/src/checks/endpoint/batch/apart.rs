//! The test after the first: is it prompts that disturb each other, or answers?
//!
//! Two neighbours are already writing when the question comes. So its prompt is read without another one, and its answer is written in
//! company. What is right now is wrong only where prompts share a step.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use lucid_client::{ChatRequest, Endpoint};

use super::super::requests::{greedy, open_questions};
use crate::evidence::{Examination, Sample};
use crate::report::{Finding, Severity};

/// Neighbours.
const NEIGHBOURS: usize = 2;
/// Tokens that a neighbour may write.
const LONG: u32 = 256;
/// Questions that are asked again, at the most.
const QUESTIONS: usize = 4;
/// How long a neighbour may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks questions whose answers changed in company once more; `alone` is what they were answered alone.
pub(super) fn look(
    check: &str,
    examination: &mut Examination<'_>,
    endpoint: &Endpoint,
    changed: &[(&ChatRequest, &Sample)],
    exact: bool,
) -> Option<Finding> {
    let (mut asked, mut wrong) = (0, 0);
    for (question, alone) in changed.iter().take(QUESTIONS) {
        let Some(answer) = among_writers(examination, endpoint, question) else { continue };
        asked += 1;
        wrong += usize::from(alone.compare(&answer, exact).is_different());
    }
    judge(check, asked, wrong)
}

/// The answer to a question that came while others were written; `None` if they had ended before it did.
fn among_writers(
    examination: &mut Examination<'_>,
    endpoint: &Endpoint,
    question: &ChatRequest,
) -> Option<Sample> {
    if examination.out_of_patience().is_some() {
        return None;
    }
    let story = open_questions().into_iter().next()?;
    let request = greedy(story, LONG);
    let ended = AtomicUsize::new(0);
    let (began, begins) = channel();
    let (reply, company, others) = std::thread::scope(|scope| {
        let neighbours: Vec<_> = (0..NEIGHBOURS)
            .map(|_| {
                let (began, ended, request) = (began.clone(), &ended, &request);
                scope.spawn(move || {
                    let mut first = true;
                    let reply = endpoint.chat_stream(request, |_| {
                        if std::mem::take(&mut first) {
                            // Nobody listens any more where the question was given up.
                            let _ = began.send(());
                        }
                    });
                    ended.fetch_add(1, Ordering::Relaxed);
                    reply
                })
            })
            .collect();
        let all = (0..NEIGHBOURS).all(|_| begins.recv_timeout(PATIENCE).is_ok());
        let reply = all.then(|| endpoint.chat(question));
        let company = ended.load(Ordering::Relaxed) < NEIGHBOURS;
        (reply, company, neighbours.into_iter().map(|neighbour| neighbour.join().ok()).collect::<Vec<_>>())
    });
    for other in others.into_iter().flatten() {
        // What the neighbours said is kept as an exchange, and judged by nobody.
        let _ = examination.take(other);
    }
    let reply = reply?;
    let exchange = reply.exchange.clone();
    let (number, outcome) = examination.take(reply);
    outcome.ok().filter(|_| company).map(|answer| Sample::new(&answer, &exchange, number))
}

/// Of `asked` questions among writers, so many had another answer than alone.
fn judge(check: &str, asked: usize, wrong: usize) -> Option<Finding> {
    if asked < 2 {
        return None;
    }
    let numbers = format!("{wrong} of {asked} answers are others while neighbours are already writing.");
    Some(match wrong {
        0 => Finding::new(
            check,
            "only-prompts-together",
            Severity::Info,
            "Only prompts that are read together disturb each other, answers that are written together do not",
        )
        .detail(format!("{numbers} The kernel that reads several prompts in one step is wrong; graphs are captured for answers."))
        .suggests("attention-kernel", 11.0)
        .suggests("cuda-graph", -4.0),
        _ if wrong == asked => Finding::new(
            check,
            "answers-together",
            Severity::Info,
            "Answers that are written together disturb each other",
        )
        .detail(numbers)
        .suggests("attention-kernel", 10.0)
        .suggests("cuda-graph", 5.0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_right_among_writers_blames_prompts() {
        let id = |asked, wrong| judge("endpoint.batch", asked, wrong).map(|finding| finding.id);
        assert_eq!(id(3, 0).as_deref(), Some("endpoint.batch/only-prompts-together"));
        assert_eq!(id(3, 3).as_deref(), Some("endpoint.batch/answers-together"));
        assert_eq!((id(3, 1), id(1, 0)), (None, None), "neither, and too few");
    }
}
