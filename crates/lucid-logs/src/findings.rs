//! The findings that the checks can leave.

use crate::knowledge::signatures;

/// Findings with a name of their own, and what they mean. Known lines add one each: [`findings`] has all.
pub const FINDINGS: &[(&str, &str)] = &[
    ("logs.signatures/clean", "No line of the log has a meaning that accuses anything"),
    ("logs.crash/first-cause", "The exception that a crash follows from"),
    ("logs.crash/without-reason", "The service died, and the log doesn't say why"),
    ("logs.crash/debug-code-in-stack", "A stack passes through debugging code in a model's or layer's file"),
    ("logs.crash/request-errors", "Requests failed with exceptions while the service lived on"),
    ("logs.crash/none", "The log has no crash"),
    ("logs.timeline/start", "How long the start took, and with what"),
    ("logs.timeline/slow-start", "A start took minutes and ended well"),
    ("logs.timeline/slow-load", "Weights came slower than a disk gives them"),
    ("logs.timeline/slow-rank", "One rank loaded much slower than the others"),
    ("logs.timeline/loaded-twice", "The whole model was loaded again as its own draft"),
    ("logs.timeline/starting", "The log ends while the service is still starting"),
    ("logs.timeline/killed-while-starting", "Something outside stopped the service before it served"),
    ("logs.timeline/restarts", "The service was started again and again"),
    ("logs.timeline/vanished", "A run ends without a word"),
    ("logs.timeline/stall", "Minutes without a line while requests were running"),
    ("logs.timeline/silence", "The longest silence while starting"),
    ("logs.timeline/memory-growth", "Memory grew while serving"),
    ("logs.timeline/memory-steady", "Memory did not grow while serving"),
    ("logs.timeline/draft-rejected", "Almost no drafted token is accepted"),
];

/// All findings: those of [`FINDINGS`], and `logs.signatures/ID` for each known line, with what the line means.
pub fn findings() -> impl Iterator<Item = (String, &'static str)> {
    let known = signatures()
        .map(|signature| (format!("logs.signatures/{}", signature.id), signature.meaning.as_str()));
    FINDINGS.iter().map(|(id, meaning)| ((*id).to_owned(), *meaning)).chain(known)
}
