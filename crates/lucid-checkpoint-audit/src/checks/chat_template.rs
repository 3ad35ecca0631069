//! The chat template's part of `checkpoint.tokenizer`.

use lucid_findings::{Finding, ProofKind, Severity};

use super::tokenizer::CHECK;
use crate::tokenizer::{SpecialId, TemplateFacts, TokenizerFacts};

/// Ids that end a generation, by file.
fn ends(facts: &TokenizerFacts) -> Vec<&SpecialId> {
    facts.ids.iter().filter(|id| id.role == "eos").collect()
}

pub(super) fn turn(facts: &TokenizerFacts, template: &TemplateFacts, findings: &mut Vec<Finding>) {
    let Some((name, id)) = &template.turn_end else { return };
    let ends = ends(facts);
    if ends.is_empty() {
        let title = format!("No file says what ends a generation; the template ends a turn with {name}");
        findings.push(eos(
            Finding::new(CHECK, "eos-absent", Severity::Warning, title)
                .detail("Generations run to the limit.")
                .suggests("chat-template", 3.0),
            name,
            *id,
        ));
        return;
    }
    let said = || {
        let text = |id: &&SpecialId| {
            format!("{} ({}) in {}", id.id.unwrap_or_default(), id.name.as_deref().unwrap_or("?"), id.file)
        };
        ends.iter().map(text).collect::<Vec<_>>().join(", ")
    };
    let by: Vec<&str> = ends.iter().filter(|end| end.id == Some(*id)).map(|end| end.file.as_str()).collect();
    if by.is_empty() {
        let title = format!(
            "The template ends a turn with {name} ({id}), and no file names it as an end: {}",
            said()
        );
        let finding = Finding::new(CHECK, "eos-turn", Severity::Error, title)
            .detail(
                "Generations run past the end of the turn: the model goes on with a question of its \
                own, or repeats itself to the limit.",
            )
            .proof(ProofKind::File, &template.source, format!("a turn ends with {name}"))
            .proof(ProofKind::File, "configs", said())
            .suggests("chat-template", 4.0)
            .suggests("wrong-checkpoint", 1.0);
        findings.push(eos(finding, name, *id));
    } else if facts.generation_config && by == ["config.json"] {
        // vLLM takes generation_config.json and the tokenizer's own eos; config.json counts where there is no other.
        let title = format!("{name} ({id}) ends a turn, and only config.json names it as an end: {}", said());
        let finding = Finding::new(CHECK, "eos-config-only", Severity::Warning, title)
            .detail(
                "vLLM reads the ends from generation_config.json and tokenizer_config.json when \
                they are there, and runs past this one.",
            )
            .proof(ProofKind::File, "configs", said())
            .suggests("chat-template", 3.0);
        findings.push(eos(finding, name, *id));
    } else if ends.iter().any(|end| end.id != Some(*id) && !end.file.starts_with("tokenizer.ggml")) {
        let title = format!("{name} ({id}) ends a turn; files differ in what ends a generation: {}", said());
        findings.push(Finding::new(CHECK, "eos-differs", Severity::Info, title));
    }
}

/// The remedy for a wrong end.
fn eos(finding: Finding, name: &str, id: u64) -> Finding {
    finding.remedy(
        format!("Name {name} in generation_config.json, or send stop_token_ids with each request."),
        vec![format!("vllm serve … --override-generation-config '{{\"eos_token_id\": {id}}}'")],
    )
}

pub(super) fn rendering(template: &TemplateFacts, findings: &mut Vec<Finding>) {
    if let Some(problem) = &template.problem {
        findings.push(
            Finding::new(
                CHECK,
                "template-fails",
                Severity::Error,
                format!("{} fails on a plain conversation: {problem}", template.source),
            )
            .detail(
                "Rendered were a question, an answer and a question. If the engine's own Jinja \
                    knows a function that is not known here, this is no fault.",
            )
            .confidence(0.8)
            .proof(ProofKind::File, &template.source, problem)
            .remedy("Fetch the template again, or give another with --chat-template.", vec![])
            .suggests("chat-template", 4.0),
        );
        return;
    }
    if !template.lost.is_empty() {
        let words = |word: &String| match word.as_str() {
            "qxzquestion" => "the first question",
            "qxzanswer" => "the assistant's answer",
            _ => "the last question",
        };
        let lost = template.lost.iter().map(words).collect::<Vec<_>>().join(" and ");
        findings.push(
            Finding::new(
                CHECK,
                "template-loses",
                Severity::Error,
                format!("{} leaves out {lost}", template.source),
            )
            .detail("The model never sees it.")
            .proof(ProofKind::File, &template.source, &template.rendered)
            .remedy("Fetch the template again, or give another with --chat-template.", vec![])
            .suggests("chat-template", 5.0),
        );
    }
    if let Some(first) = template.broken_markers.first() {
        findings.push(
            Finding::new(
                CHECK,
                "marker-broken",
                Severity::Warning,
                format!("{} writes {first}, which is no token of this tokenizer", template.source),
            )
            .detail(
                "The model sees letters where it learned a token. Template and tokenizer are of \
                    different models, or tokenizer_config.json lost its added tokens.",
            )
            .proof(ProofKind::File, &template.source, template.broken_markers.join(" "))
            .remedy("Fetch template and tokenizer of one revision.", vec![])
            .suggests("chat-template", 3.5)
            .suggests("tokenizer-decode", 2.0),
        );
    }
}

pub(super) fn absent(problem: &str, findings: &mut Vec<Finding>) {
    let none = problem.contains("there is no chat template");
    let (slug, severity, weight) = if none {
        ("template-absent", Severity::Warning, 2.0)
    } else {
        ("template-invalid", Severity::Error, 4.0)
    };
    let detail = if none {
        "Chat requests are refused, unless the engine is given one with --chat-template."
    } else {
        "Chat requests fail."
    };
    findings.push(
        Finding::new(CHECK, slug, severity, problem)
            .detail(detail)
            .remedy(
                "Fetch chat_template.jinja of the model, or give one.",
                vec!["vllm serve … --chat-template FILE".to_owned()],
            )
            .suggests("chat-template", weight),
    );
}
