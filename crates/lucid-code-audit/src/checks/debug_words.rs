//! What a block of debugging code does, in sentences.

use super::debug_code::{Block, capital};
use crate::evidence::{CodeEvidence, CodeFact, Effect};
use crate::knowledge::MARKS;
use crate::leftovers::FileGroup;

/// The finding in one sentence: where, what, when.
pub(super) fn title(block: &Block<'_>) -> String {
    let lead = block.lead();
    let mut title = format!("{} in {}, line {}", does(lead), lead.file, lead.line);
    // What is known in words says more than the branches of the original around it, which the details have.
    let (words, code) = conditions(lead);
    if let Some(when) = joined(if words.is_empty() { &code } else { &words }) {
        title.push_str(&format!(", when {when}"));
    }
    title
}

/// `_t2.save (torch.save) writes q to /tmp/q_tp{rank}.pt`.
fn does(fact: &CodeFact) -> String {
    let call = if fact.call.ends_with(&fact.spelled)
        || fact.spelled.len() > 50
        || fact.call.starts_with("Tensor.")
    {
        fact.spelled.clone()
    } else {
        format!("{} ({})", fact.spelled, fact.call)
    };
    let path = fact.writes.as_deref().filter(|path| !path.is_empty());
    let subject = fact.subject.as_deref().unwrap_or("");
    match fact.effect {
        Effect::FileWrite => {
            let what = if subject.is_empty() { String::new() } else { format!(" `{subject}`") };
            format!("`{call}` writes{what} to {}", path.unwrap_or("a file"))
        }
        Effect::HardCodedPath => format!("`{call}` is given {}", path.unwrap_or("a hard-coded path")),
        Effect::Breakpoint => format!("`{call}` stops the process in a debugger"),
        Effect::Sleep => format!("`{call}` sleeps"),
        Effect::Subprocess => format!("`{call}` starts another program"),
        Effect::Print => format!("`{call}` prints"),
        Effect::HostSync => format!("`{call}` waits for the device"),
        Effect::EnvironmentBranch => format!("The environment variable {subject} is asked for"),
    }
}

/// Conditions in words (`exactly 5 query tokens are processed`), and those that are code.
fn conditions(fact: &CodeFact) -> (Vec<&str>, Vec<&str>) {
    fact.when.iter().map(String::as_str).partition(|condition| !condition.starts_with('`'))
}

fn joined(conditions: &[&str]) -> Option<String> {
    (!conditions.is_empty()).then(|| conditions.join(" and "))
}

fn when(fact: &CodeFact) -> Option<String> {
    let (words, code) = conditions(fact);
    joined(&[words, code].concat())
}

/// Everything else: how often, what more, why it is suspected, whether it runs, what it left.
pub(super) fn summary(block: &Block<'_>, evidence: &CodeEvidence) -> String {
    let lead = block.lead();
    let mut text = format!("In {} ({} code). ", lead.function, lead.area);
    match when(lead) {
        Some(when) => text.push_str(&format!("It fires when {when}; {}. ", lead.how_often)),
        None => text.push_str(&format!("It fires {}. ", lead.how_often)),
    }
    if let Some((import, line)) = &lead.import {
        text.push_str(&format!(
            "The name comes from `{import}` in line {line}, so that a search for `{}` doesn't find it. ",
            lead.call
        ));
    }
    let mut others: Vec<String> = Vec::new();
    for fact in block.facts.iter().skip(1) {
        let other = format!("{} (line {})", does(fact), fact.line);
        if !others.contains(&other) && others.len() < 4 {
            others.push(other);
        }
    }
    if !others.is_empty() {
        text.push_str(&format!("In the same block: {}. ", others.join("; ")));
    }
    let writes: Vec<&CodeFact> = block.facts.iter().copied().filter(|fact| fact.glob.is_some()).collect();
    let mut told: Vec<&str> = Vec::new();
    for fact in writes {
        let Some(glob) = fact.glob.as_deref().filter(|glob| !told.contains(glob)) else { continue };
        told.push(glob);
        match evidence.leftovers.iter().find(|leftover| leftover.glob == glob) {
            Some(leftover) => {
                let files = &leftover.files;
                text.push_str(&format!(
                    "It has run here: {} {} {glob} ({}, {}), such as {}. ",
                    files.count,
                    if files.count == 1 { "file matches" } else { "files match" },
                    size(files.bytes),
                    age(files),
                    files.examples.first().map_or("", String::as_str)
                ));
            }
            None => text.push_str(&format!("No file matches {glob} now. ")),
        }
    }
    text.push_str(&format!("It is taken for a leftover because {}", MARKS.words(&lead.marks).join("; ")));
    text.push_str(match block.modified {
        Some(true) => "; the code is not what its wheel ships. ",
        Some(false) => "; but it is exactly as its wheel ships it, so nobody left it here. ",
        None => ". ",
    });
    if let Some(variable) = &block.switched_on {
        text.push_str(&format!("{variable} is set in this deployment. "));
    }
    text.push_str(&format!("{}: {}.", activity(block), block.activity.why));
    text
}

fn activity(block: &Block<'_>) -> String {
    capital(match block.activity.active {
        Some(true) => "it lies on the served model's path",
        Some(false) => "it does not run for the served model",
        None => "whether the served model runs it is not known",
    })
}

/// Bytes for people.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// `3 minutes to 12 days old`.
pub(super) fn age(files: &FileGroup) -> String {
    let words = |seconds: u64| match seconds {
        0..120 => format!("{seconds} seconds"),
        120..7_200 => format!("{} minutes", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    };
    match (files.newest_age, files.oldest_age) {
        (Some(newest), Some(oldest)) if words(newest) == words(oldest) => format!("{} old", words(oldest)),
        (Some(newest), Some(oldest)) => format!("{} to {} old", words(newest), words(oldest)),
        _ => "of unknown age".to_owned(),
    }
}
