//! Reasoning and tool parsers against the model's family and what the engine offers.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use lucid_findings::{EngineKind, Finding, Severity};
use serde::Deserialize;

use super::{CHECK, Serving};

/// `knowledge/parsers.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Knowledge {
    /// What each engine offers, as of the versions that the file names.
    offered: BTreeMap<String, Offered>,
    model: Vec<Model>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Offered {
    version: String,
    reasoning: Vec<String>,
    tools: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    family: String,
    /// Whether it thinks unless told otherwise.
    thinks: bool,
    /// The switch that its template reads.
    switch: Option<String>,
    /// By engine: the right parsers, the best first.
    reasoning: BTreeMap<String, Vec<String>>,
    tools: BTreeMap<String, Vec<String>>,
}

pub(super) static KNOWLEDGE: LazyLock<Knowledge> = LazyLock::new(|| {
    toml::from_str(include_str!("../../../knowledge/parsers.toml"))
        .unwrap_or_else(|error| panic!("knowledge/parsers.toml: {error}"))
});

/// A thinking model needs more than this for its thoughts alone.
const FEW_NEW_TOKENS: u64 = 4_096;

pub(super) fn check(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let engine = match serving.engine {
        EngineKind::Vllm => "vllm",
        EngineKind::Sglang => "sglang",
        EngineKind::LlamaCpp | EngineKind::Lucid => return,
    };
    let offered = KNOWLEDGE.offered.get(engine);
    let family = serving.family.as_ref();
    let model = family.and_then(|family| KNOWLEDGE.model.iter().find(|model| model.family == family.name));
    let plugin = serving.evidence.flags.get("reasoning-parser-plugin").is_some()
        || serving.evidence.flags.get("tool-parser-plugin").is_some();
    for (kind, flag) in [(Kind::Reasoning, "reasoning-parser"), (Kind::Tools, "tool-call-parser")] {
        let right: &[String] = model
            .and_then(|model| match kind {
                Kind::Reasoning => model.reasoning.get(engine),
                Kind::Tools => model.tools.get(engine),
            })
            .map_or(&[], Vec::as_slice);
        match serving.flag(flag) {
            Some(given) => {
                if !plugin && !not_offered(serving, offered, kind, flag, given, right, findings) {
                    mismatch(serving, kind, flag, given, right, findings);
                }
            }
            None => missing(serving, kind, flag, right, model, findings),
        }
    }
    if let Some(model) = model.filter(|model| model.thinks) {
        thinking_switch(serving, model, findings);
        few_tokens(serving, findings);
    }
    if serving.evidence.flags.is_on("enable-auto-tool-choice") && serving.flag("tool-call-parser").is_none() {
        let finding = serving.refused(
            "tool-choice-without-parser",
            "wrong-flags",
            4.0,
            "--enable-auto-tool-choice is given without --tool-call-parser; vLLM refuses to start".to_owned(),
        );
        findings.push(serving.command_proof(finding, "--enable-auto-tool-choice").remedy(
            "Name the parser.",
            vec![serving.start("--enable-auto-tool-choice --tool-call-parser NAME")],
        ));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Tools,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Reasoning => "reasoning parser",
            Kind::Tools => "tool parser",
        }
    }

    fn cause(self) -> &'static str {
        match self {
            Kind::Reasoning => "reasoning-parser",
            Kind::Tools => "tool-parser",
        }
    }

    fn slug(self, what: &str) -> String {
        match self {
            Kind::Reasoning => format!("reasoning-parser-{what}"),
            Kind::Tools => format!("tool-parser-{what}"),
        }
    }
}

/// Whether the engine has no such parser.
fn not_offered(
    serving: &Serving<'_>,
    offered: Option<&Offered>,
    kind: Kind,
    flag: &str,
    given: &str,
    right: &[String],
    findings: &mut Vec<Finding>,
) -> bool {
    if given == "auto" {
        return false;
    }
    let own = serving.evidence.arguments.as_ref().and_then(|list| list.choices.get(flag));
    let (known, sure): (Vec<&str>, bool) = match (own, offered) {
        (Some(own), _) => (own.iter().map(String::as_str).collect(), true),
        (None, Some(offered)) => {
            let list = if kind == Kind::Reasoning { &offered.reasoning } else { &offered.tools };
            (list.iter().map(String::as_str).collect(), false)
        }
        (None, None) => return false,
    };
    if known.contains(&given) {
        return false;
    }
    let source = match (own, offered) {
        (Some(_), _) => "this installation".to_owned(),
        (None, Some(offered)) => format!("{} {}", serving.engine_name(), offered.version),
        (None, None) => serving.engine_name().to_owned(),
    };
    let nearest = crate::serving::nearest(given, known.iter().copied());
    let instead = right.first().map(String::as_str).or(nearest).unwrap_or("NAME");
    let title = format!("--{flag} {given}: {source} has no {} of this name", kind.word());
    let finding = serving
        .refused(&kind.slug("not-offered"), "wrong-flags", if sure { 6.0 } else { 4.0 }, title)
        .confidence(if sure { 0.95 } else { 0.7 })
        .detail(format!("It has: {}.", known.join(", ")));
    findings.push(
        serving
            .command_proof(finding, serving.typed(flag))
            .remedy(format!("Take {instead}."), vec![serving.start(&format!("--{flag} {instead}"))]),
    );
    true
}

fn mismatch(
    serving: &Serving<'_>,
    kind: Kind,
    flag: &str,
    given: &str,
    right: &[String],
    findings: &mut Vec<Finding>,
) {
    let Some(best) = right.first() else { return };
    if given == "auto" || right.iter().any(|name| name == given) {
        findings.push(
            Finding::new(
                CHECK,
                &kind.slug("fits"),
                Severity::Info,
                format!("--{flag} {given} fits the model"),
            )
            .suggests(kind.cause(), -1.0),
        );
        return;
    }
    let family = serving.family.as_ref().map_or("this model", |family| family.name);
    let finding = Finding::new(
        CHECK,
        &kind.slug("mismatch"),
        Severity::Warning,
        format!("--{flag} {given} is another family's {}; {family} needs {best}", kind.word()),
    )
    .detail("Reasoning, answer and tool calls are taken apart at markers that differ between families.")
    .confidence(0.8)
    .suggests(kind.cause(), 3.5);
    findings.push(
        serving
            .command_proof(finding, serving.typed(flag))
            .remedy(format!("Take {best}."), vec![serving.start(&format!("--{flag} {best}"))]),
    );
}

fn missing(
    serving: &Serving<'_>,
    kind: Kind,
    flag: &str,
    right: &[String],
    model: Option<&Model>,
    findings: &mut Vec<Finding>,
) {
    let (Some(best), Some(model)) = (right.first(), model) else { return };
    let family = &model.family;
    let (severity, weight, title, detail) = match kind {
        Kind::Reasoning if model.thinks => (
            Severity::Warning,
            4.0,
            format!(
                "{family} thinks before it answers, but no --{flag} is given: its thoughts and `</think>` appear in the answer"
            ),
            "Clients that show or parse `content` take the thoughts for the answer.",
        ),
        Kind::Reasoning => return,
        Kind::Tools => (
            Severity::Info,
            1.5,
            format!("no --{flag} is given: tool calls of {family} arrive as plain text"),
            "Only deployments that use tools need it.",
        ),
    };
    let switch = if kind == Kind::Tools && serving.engine == EngineKind::Vllm {
        "--enable-auto-tool-choice "
    } else {
        ""
    };
    let finding = Finding::new(CHECK, &kind.slug("missing"), severity, title)
        .detail(detail)
        .confidence(0.9)
        .suggests(kind.cause(), weight);
    findings.push(
        serving
            .command_proof(
                finding,
                serving.deployment.command.join(" ").chars().take(400).collect::<String>(),
            )
            .remedy(
                format!("Name the {}.", kind.word()),
                vec![serving.start(&format!("{switch}--{flag} {best}"))],
            ),
    );
}

/// Templates read `thinking` or `enable_thinking`; parsers read the other one too. Setting one alone lets them disagree.
fn thinking_switch(serving: &Serving<'_>, model: &Model, findings: &mut Vec<Finding>) {
    let Some(right) = model.switch.as_deref() else { return };
    let flags = &serving.evidence.flags;
    let set = |key: &str| {
        ["default-chat-template-kwargs", "chat-template-kwargs"]
            .iter()
            .find_map(|flag| flags.member(flag, key))
    };
    let wrong = if right == "thinking" { "enable_thinking" } else { "thinking" };
    let (Some(value), None) = (set(wrong), set(right)) else { return };
    let finding = Finding::new(
        CHECK,
        "thinking-switch",
        Severity::Warning,
        format!("the default `{wrong}: {value}` is not what {}'s template reads (`{right}`)", model.family),
    )
    .detail("The template keeps its own default while the parser obeys the switch: with thinking off for one of them, content is null or holds the thoughts.")
    .confidence(0.8)
    .suggests("reasoning-parser", 3.0)
    .suggests("chat-template", 1.0);
    let both =
        format!(r#"--default-chat-template-kwargs '{{"thinking": {value}, "enable_thinking": {value}}}'"#);
    findings.push(
        serving
            .command_proof(finding, serving.typed("default-chat-template-kwargs"))
            .remedy("Set both keys.", vec![serving.start(&both)]),
    );
}

/// A server-wide cap on new tokens that a thinking model spends on its thoughts.
fn few_tokens(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let flags = &serving.evidence.flags;
    let Some(cap) =
        flags.member("override-generation-config", "max_new_tokens").and_then(|cap| cap.parse::<u64>().ok())
    else {
        return;
    };
    if cap >= FEW_NEW_TOKENS {
        return;
    }
    let finding = Finding::new(
        CHECK,
        "few-new-tokens",
        Severity::Warning,
        format!("the server caps answers at {cap} tokens, thoughts included: a thinking model may end before it answers"),
    )
    .confidence(0.8)
    .suggests("reasoning-budget", 3.0);
    findings.push(serving.command_proof(finding, serving.typed("override-generation-config")).remedy(
        "Raise the cap, or leave it to the clients.",
        vec![serving.start(r#"--override-generation-config '{"max_new_tokens": 32768}'"#)],
    ));
}
