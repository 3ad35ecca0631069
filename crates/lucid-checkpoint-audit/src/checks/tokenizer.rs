//! `checkpoint.tokenizer`: whether tokenizer, template and configs agree on the tokens that matter.

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::{active, chat_template, examples, fetch_again, thousands};
use crate::evidence::CheckpointEvidence;
use crate::tokenizer::{SpecialId, TokenizerFacts};

pub(super) const CHECK: &str = "checkpoint.tokenizer";

/// Whether the vocabulary fits the model, generations end where the template ends a turn, and markers survive decoding.
///
/// # Errors
/// When the tokenizer could not be looked at, or there is none.
pub fn tokenizer(evidence: &CheckpointEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    let Some(facts) = &evidence.tokenizer else {
        return Err(Skip("the tokenizer's files were not read".to_owned()));
    };
    if facts.absent {
        // Such a checkpoint is served with a tokenizer from elsewhere.
        return Err(Skip(format!("{} has neither tokenizer.json nor tiktoken.model", evidence.location)));
    }
    if facts.source.is_none() && facts.template.is_none() && facts.ids.is_empty() {
        let why = facts.problem.as_deref().unwrap_or("there is no tokenizer");
        return Ok(Examined {
            findings: vec![broken(why, evidence, deployment)],
            covered: "0 tokens: the tokenizer's files can't be read".to_owned(),
        });
    }
    let mut findings = Vec::new();
    if let Some(problem) = &facts.problem {
        findings.push(broken(problem, evidence, deployment));
    }
    vocabulary(evidence, facts, &mut findings);
    ids(evidence, facts, &mut findings);
    if let Some(template) = &facts.template {
        chat_template::turn(facts, template, &mut findings);
        chat_template::rendering(template, &mut findings);
    } else if let Some(problem) = &facts.template_problem {
        chat_template::absent(problem, &mut findings);
    }
    markers(facts, &mut findings);
    added(facts, &mut findings);
    twins(facts, &mut findings);
    let clean = findings.iter().all(|finding| finding.severity == Severity::Info);
    if clean && facts.source.is_some() && facts.template.is_some() {
        findings.push(
            Finding::new(CHECK, "agrees", Severity::Info, "Tokenizer, template and configs agree")
                .suggests("chat-template", -0.7)
                .suggests("tokenizer-decode", -1.0),
        );
    }
    let (active, _) = active(evidence, deployment);
    for finding in &mut findings {
        finding.active = active;
    }
    let covered = format!(
        "{} tokens of {}, {} special ids in the configs, {} markers, {}{}",
        thousands(facts.vocab_size),
        facts.source.as_deref().unwrap_or("no tokenizer"),
        facts.ids.len(),
        facts.markers.len(),
        facts.template.as_ref().map_or("no template".to_owned(), |t| format!("{} rendered", t.source)),
        facts.twins.as_ref().map_or(String::new(), |t| {
            format!(
                ", {} ids and {} texts compared between tokenizer.json and tiktoken.model",
                thousands(t.ids),
                t.texts
            )
        })
    );
    Ok(Examined { findings, covered })
}

fn broken(problem: &str, evidence: &CheckpointEvidence, deployment: &Deployment) -> Finding {
    let files = ["tokenizer.json", "tiktoken.model", "tokenizer_config.json"];
    let there = |name: &&str| evidence.files.kept.iter().any(|file| file.name == **name);
    let files: Vec<String> = files.iter().filter(|name| there(name)).map(ToString::to_string).collect();
    Finding::new(CHECK, "unreadable", Severity::Warning, format!("The tokenizer can't be read: {problem}"))
        .detail("Its files are damaged, or of a kind that is not known here.")
        .proof(ProofKind::File, &evidence.location, problem)
        .remedy("Fetch the tokenizer's files again.", fetch_again(evidence, deployment, &files))
        .suggests("tokenizer-decode", 2.0)
        .suggests("checkpoint-corrupt", 1.0)
}

fn vocabulary(evidence: &CheckpointEvidence, facts: &TokenizerFacts, findings: &mut Vec<Finding>) {
    let rows = evidence.sizes.as_ref().map(|sizes| sizes.vocab).or(facts.config_vocab);
    let Some(rows) = rows.filter(|_| facts.source.is_some()) else { return };
    if facts.vocab_size > rows {
        let title = format!("The tokenizer has ids up to {}, the model {rows} rows", facts.vocab_size - 1);
        findings.push(
            Finding::new(CHECK, "vocabulary-larger", Severity::Error, title)
                .detail(
                    "An id beyond the embedding reads other memory or stops the server. Tokenizer \
                    and weights are of different models.",
                )
                .proof(ProofKind::Number, "vocabulary", format!("{} against {rows}", facts.vocab_size))
                .remedy("Fetch tokenizer and weights of one revision.", vec![])
                .suggests("wrong-checkpoint", 4.0)
                .suggests("tokenizer-decode", 3.0),
        );
    }
}

fn ids(evidence: &CheckpointEvidence, facts: &TokenizerFacts, findings: &mut Vec<Finding>) {
    let rows = evidence.sizes.as_ref().map(|sizes| sizes.vocab).or(facts.config_vocab).unwrap_or(u64::MAX);
    let mut wrong: Vec<String> = Vec::new();
    for special in &facts.ids {
        let SpecialId { file, role, id, name } = special;
        match (id, name) {
            (Some(id), _) if *id >= rows => {
                wrong.push(format!("{file}: {role} is {id}, the vocabulary ends at {}", rows - 1))
            }
            (Some(id), None) if facts.source.is_some() => {
                wrong.push(format!("{file}: {role} is {id}, which no token has"))
            }
            (None, Some(name)) => wrong.push(format!("{file}: {role} is {name:?}, which no token is")),
            _ => {}
        }
    }
    if let Some(first) = wrong.first() {
        let mut finding = Finding::new(
            CHECK,
            "special-id",
            Severity::Warning,
            format!("A special id stands for no token: {first}"),
        )
        .detail("Config and tokenizer are of different models, or one was edited.");
        for text in wrong.iter().take(8) {
            let (file, text) = text.split_once(": ").unwrap_or(("", text));
            finding = finding.proof(ProofKind::File, file, text);
        }
        let finding = finding
            .remedy("Correct the id, or fetch config.json and the tokenizer's files of one revision.", vec![])
            .suggests("tokenizer-decode", 2.0)
            .suggests("wrong-checkpoint", 1.5);
        findings.push(finding);
    }
    for role in ["bos", "pad"] {
        let mut given: Vec<&SpecialId> =
            facts.ids.iter().filter(|id| id.role == role && id.id.is_some()).collect();
        given.dedup_by_key(|id| id.id);
        if let [one, .., other] = given.as_slice() {
            let text = |id: &SpecialId| format!("{} in {}", id.name.as_deref().unwrap_or("?"), id.file);
            let title = format!("Files differ in {role}: {} and {}", text(one), text(other));
            findings.push(Finding::new(CHECK, "ids-differ", Severity::Info, title));
        }
    }
}

/// What a parser must see in the decoded text.
const PARSED: [&str; 7] = [
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<tool_call>",
    "</tool_call>",
];

fn markers(facts: &TokenizerFacts, findings: &mut Vec<Finding>) {
    let hidden: Vec<&str> = facts
        .markers
        .iter()
        .filter(|m| m.special && PARSED.contains(&m.name.as_str()))
        .map(|m| m.name.as_str())
        .collect();
    let think = hidden.contains(&"</think>");
    if !hidden.is_empty() {
        let title = format!(
            "{} are special: they vanish from text where special tokens are skipped",
            hidden.join(", ")
        );
        let severity = if think { Severity::Warning } else { Severity::Info };
        let mut finding = Finding::new(CHECK, "marker-special", severity, title)
            .detail(
                "A parser that reads the decoded text then never sees the end of thinking, and the \
                whole answer counts as reasoning.",
            )
            .proof(ProofKind::File, "tokenizer_config.json", hidden.join(" "));
        if think {
            finding = finding
                .remedy("Send skip_special_tokens: false, or use a parser that works on token ids.", vec![])
                .suggests("reasoning-parser", 2.5)
                .suggests("tokenizer-decode", 1.5);
        }
        findings.push(finding);
    }
    let visible: Vec<&str> = facts
        .markers
        .iter()
        .filter(|m| {
            !m.special
                && matches!(
                    m.name.as_str(),
                    "<|im_end|>" | "[EOS]" | "<｜end▁of▁sentence｜>" | "<|endoftext|>"
                )
        })
        .map(|m| m.name.as_str())
        .collect();
    if !visible.is_empty() {
        findings.push(
            Finding::new(
                CHECK,
                "end-not-special",
                Severity::Warning,
                format!("{} is not special: it shows at the end of answers", visible.join(", ")),
            )
            .proof(ProofKind::File, facts.source.as_deref().unwrap_or("tokenizer"), visible.join(" "))
            .remedy("Set \"special\": true for it in the tokenizer's files.", vec![])
            .suggests("tokenizer-decode", 2.0)
            .suggests("chat-template", 1.0),
        );
    }
    let lost: Vec<String> = facts
        .markers
        .iter()
        .filter(|m| m.decoded != m.name)
        .map(|m| format!("{} ({}) decodes to {:?}", m.name, m.id, m.decoded))
        .collect();
    if let Some(first) = lost.first() {
        findings.push(
            Finding::new(
                CHECK,
                "marker-decodes",
                Severity::Error,
                format!("A marker doesn't decode to itself: {first}"),
            )
            .detail("Parsers look for the text of the marker.")
            .proof(ProofKind::File, facts.source.as_deref().unwrap_or("tokenizer"), lost.join("; "))
            .remedy("Fetch the tokenizer's files again.", vec![])
            .suggests("tokenizer-decode", 6.0),
        );
    }
}

fn added(facts: &TokenizerFacts, findings: &mut Vec<Finding>) {
    let differing = &facts.added.differing;
    if !differing.is_empty() {
        let title = format!(
            "{} added tokens have other ids in {}: {}",
            differing.total,
            facts.source.as_deref().unwrap_or("the tokenizer"),
            examples(differing, Clone::clone)
        );
        findings.push(
            Finding::new(CHECK, "added-differ", Severity::Error, title)
                .detail(
                    "A conversion gave the added tokens new ids: the model's </think> decodes to \
                    something else or to nothing.",
                )
                .proof(ProofKind::File, "tokenizer_config.json", examples(differing, Clone::clone))
                .remedy("Remove the converted tokenizer.json, or fetch the original one.", vec![])
                .suggests("tokenizer-decode", 6.0),
        );
    }
    let custom = facts.class.as_deref().is_some_and(|class| class.starts_with("TikToken"));
    if facts.added.unnamed > 0 && custom {
        let title = format!(
            "The added tokens have gaps: {} names, {} ids between them without one",
            facts.added.named, facts.added.unnamed
        );
        findings.push(
            Finding::new(CHECK, "gapped-ids", Severity::Info, title)
                .detail("The files are right. transformers 5.4.0, until its pull request 45359, \
                    replaces this tokenizer's class by one that can't keep gaps: ids after the first \
                    gap are shifted, and </think> decodes to nothing.")
                .remedy(
                    "If answers come as reasoning only, decode the id of </think> in the serving environment.",
                    vec!["uv pip install 'transformers<5.4'".to_owned()],
                )
                .suggests("tokenizer-decode", 1.0),
        );
    }
}

fn twins(facts: &TokenizerFacts, findings: &mut Vec<Finding>) {
    let Some(twins) = &facts.twins else { return };
    if twins.ids_differing.is_empty() && twins.texts_differing.is_empty() {
        return;
    }
    let title = format!(
        "tokenizer.json and tiktoken.model are two different tokenizers: {} ids and {} of {} texts differ",
        twins.ids_differing.total, twins.texts_differing.total, twins.texts
    );
    let mut finding = Finding::new(CHECK, "twins-differ", Severity::Error, title).detail(
        "Engines differ in which file they read: one of them gives the model other tokens than \
            it was trained on.",
    );
    for text in twins.ids_differing.kept.iter().chain(&twins.texts_differing.kept).take(8) {
        finding = finding.proof(ProofKind::File, "tokenizer.json", text);
    }
    findings.push(
        finding
            .remedy(
                "Remove tokenizer.json if it was made by a conversion; tiktoken.model is the \
                original of Kimi checkpoints.",
                vec![],
            )
            .suggests("tokenizer-decode", 5.0),
    );
}
