//! What a log says about the deployment that wrote it.

use lucid_findings::{Deployment, EngineKind, LoadFormat};

use crate::evidence::LogEvidence;

/// The deployment as far as the log tells: engine and version, model, architecture, quantization, ranks, and for vLLM the
/// command that its printed arguments amount to. Secrets were taken out when the log was read.
#[must_use]
pub fn deployment_from(evidence: &LogEvidence) -> Deployment {
    let fact = |name: &str| evidence.facts.get(name).map(|fact| fact.value.clone());
    let argument = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| evidence.arguments.get(*name))
            .filter(|value| !matches!(value.as_str(), "None" | "" | "auto"))
            .cloned()
    };
    let number = |names: &[&str], fact_name: &str| {
        argument(names).or_else(|| fact(fact_name)).and_then(|value| value.parse().ok())
    };
    let engine = fact("engine").and_then(|engine| match engine.as_str() {
        "vllm" => Some(EngineKind::Vllm),
        "sglang" => Some(EngineKind::Sglang),
        "llama.cpp" => Some(EngineKind::LlamaCpp),
        "lucid" => Some(EngineKind::Lucid),
        _ => None,
    });
    let format = argument(&["load_format"]).or_else(|| fact("load-format"));
    let load_format = match (format.as_deref(), engine) {
        (_, Some(EngineKind::LlamaCpp)) => Some(LoadFormat::Gguf),
        // Engines without a word load safetensors where there are some; the log's own loading bar is surer than that.
        (None | Some("auto"), _) => None,
        (Some("safetensors"), _) => Some(LoadFormat::Safetensors),
        (Some("gguf"), _) => Some(LoadFormat::Gguf),
        (Some("pt" | "npcache"), _) => Some(LoadFormat::Pickle),
        (Some("dummy"), _) => Some(LoadFormat::Dummy),
        (Some(_), _) => Some(LoadFormat::Other),
    };
    Deployment {
        engine,
        engine_version: fact("engine-version"),
        command: if engine == Some(EngineKind::Vllm) { vllm_command(evidence) } else { Vec::new() },
        model: argument(&["model", "model_path", "model_tag"]).or_else(|| fact("model")),
        architectures: fact("architecture").into_iter().collect(),
        model_type: fact("model-type"),
        quantization: argument(&["quantization"]).or_else(|| fact("quantization")).filter(|q| q != "None"),
        load_format,
        tensor_parallel: number(&["tensor_parallel_size", "tp_size"], "tensor-parallel-size"),
        pipeline_parallel: number(&["pipeline_parallel_size", "pp_size"], "pipeline-parallel-size"),
        ..Deployment::default()
    }
}

/// vLLM prints the arguments that differ from its defaults, under the names of their flags.
fn vllm_command(evidence: &LogEvidence) -> Vec<String> {
    // Older versions print all arguments, defaults too: that is no command.
    if evidence.arguments.is_empty() || evidence.arguments.len() > 60 {
        return Vec::new();
    }
    let mut command = vec!["vllm".to_owned(), "serve".to_owned()];
    let model = ["model_tag", "model"].iter().find_map(|name| evidence.arguments.get(*name));
    command.extend(model.cloned());
    for (name, value) in &evidence.arguments {
        if matches!(name.as_str(), "model" | "model_tag") {
            continue;
        }
        let flag = format!("--{}", name.replace('_', "-"));
        match value.as_str() {
            "True" => command.push(flag),
            "False" => command.push(flag.replacen("--", "--no-", 1)),
            "None" => {}
            list if list.starts_with('[') && list.ends_with(']') => {
                command.push(flag);
                let items =
                    list[1..list.len() - 1].split(',').map(|item| item.trim().trim_matches(['\'', '"']));
                command.extend(items.filter(|item| !item.is_empty()).map(str::to_owned));
            }
            // Python's dicts become JSON's as far as quotes go.
            dict if dict.starts_with('{') => command.extend([flag, dict.replace('\'', "\"")]),
            other => command.extend([flag, other.to_owned()]),
        }
    }
    command
}
