//! Flags that change what the checkpoint's config says: dtype, positions, graphs, code of its own.

use lucid_findings::{EngineKind, Finding, ProofKind, Severity};

use super::{CHECK, Serving};

pub(super) fn check(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    half_precision(serving, findings);
    positions(serving, findings);
    eager(serving, findings);
    own_code(serving, findings);
}

/// float16 ends at 65,504; models trained in bfloat16 have activations beyond it.
fn half_precision(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let Some(given) = serving.flag("dtype").filter(|given| matches!(*given, "float16" | "half" | "fp16"))
    else {
        return;
    };
    let trained = serving.config.and_then(|config| config.dtype.as_deref());
    if trained != Some("bfloat16") {
        return;
    }
    let finding = Finding::new(
        CHECK,
        "half-precision",
        Severity::Warning,
        format!("--dtype {given} on a checkpoint in bfloat16: activations beyond 65,504 become infinite"),
    )
    .confidence(0.8)
    .suggests("nan-logits", 2.5);
    findings.push(
        serving
            .command_proof(finding, serving.typed("dtype"))
            .proof(ProofKind::File, "config.json", "dtype bfloat16")
            .remedy("Leave the dtype to the checkpoint.", vec![serving.start("--dtype bfloat16")]),
    );
}

/// The flag that overrides positions, with what it says.
pub(super) fn rope_flag(serving: &Serving<'_>) -> Option<(String, String)> {
    let direct = ["rope-scaling", "rope-theta", "rope-freq-base", "rope-freq-scale", "yarn-orig-ctx"];
    let holders = ["hf-overrides", "json-model-override-args"];
    serving.evidence.flags.flags.iter().rev().find_map(|flag| {
        let value = flag.values.join(" ");
        let head = flag.name.split('.').next().unwrap_or(&flag.name);
        let touches = direct.contains(&head)
            || (holders.contains(&head)
                && (value.contains("rope")
                    || flag.name.contains("rope")
                    || value.contains("max_position_embeddings")));
        touches.then(|| (flag.name.clone(), value))
    })
}

fn positions(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let Some((name, value)) = rope_flag(serving) else { return };
    let own = serving.config.and_then(|config| config.rope.as_ref());
    // An override that repeats the checkpoint's own factor changes nothing.
    let same = own.and_then(|rope| rope.factor).is_some_and(|factor| {
        let compact: String = value.split_whitespace().collect();
        [format!("\"factor\":{factor}"), format!("\"factor\":{factor:.1}")]
            .iter()
            .any(|text| compact.contains(&format!("{text},")) || compact.contains(&format!("{text}}}")))
    });
    if same {
        return;
    }
    let said = own.map_or("none".to_owned(), |rope| format!("{} factor {:?}", rope.kind, rope.factor));
    let finding = Finding::new(
        CHECK,
        "position-override",
        Severity::Warning,
        format!("--{name} changes how positions are encoded; the checkpoint's own scaling is {said}"),
    )
    .detail(
        "Right only if the model was made for it; wrong scaling shows as text that decays with its length.",
    )
    .confidence(0.7)
    .suggests("rope-scaling", 2.0);
    findings.push(
        serving
            .command_proof(finding, format!("--{name} {value}").chars().take(300).collect::<String>())
            .remedy("Compare without it.", vec![serving.start("")]),
    );
}

fn eager(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let flags = &serving.evidence.flags;
    let given = match serving.engine {
        EngineKind::Vllm if flags.is_on("enforce-eager") => "--enforce-eager",
        EngineKind::Sglang if flags.is_on("disable-cuda-graph") => "--disable-cuda-graph",
        _ => return,
    };
    let finding = Finding::new(
        CHECK,
        "eager",
        Severity::Info,
        format!("{given}: no CUDA graphs, so every decode step pays for its launches; some times slower at small batches"),
    )
    .detail("Good for telling whether graphs are at fault, costly as a lasting setting.")
    .suggests("cuda-graph", -3.0);
    findings.push(serving.command_proof(finding, given));
}

/// Kimi's tokenizer is code in the checkpoint; without the permission the start fails, or another tokenizer is taken.
fn own_code(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let kimi = serving.family.as_ref().is_some_and(|family| family.is("kimi"));
    let own = serving.config.is_none_or(|config| config.own_code);
    if !kimi
        || !own
        || serving.evidence.flags.is_on("trust-remote-code")
        || serving.engine == EngineKind::LlamaCpp
    {
        return;
    }
    let running = serving.evidence.running;
    let finding = Finding::new(
        CHECK,
        "own-code-not-trusted",
        if running { Severity::Info } else { Severity::Warning },
        "the checkpoint brings its own tokenizer code, and --trust-remote-code is not given".to_owned(),
    )
    .detail("The start fails with a request for trust_remote_code, or a generic tokenizer is taken whose ids differ.")
    .confidence(if running { 0.3 } else { 0.7 })
    .suggests("wrong-flags", if running { 0.5 } else { 2.5 });
    findings.push(
        serving
            .command_proof(finding, "no --trust-remote-code")
            .remedy("Allow it for a checkpoint that you trust.", vec![serving.start("--trust-remote-code")]),
    );
}
