//! What a serving command says about the deployment.

use lucid_findings::{Deployment, EngineKind, LoadFormat};

use crate::serving::Flags;

/// Fills engine-independent facts from the flags of a command whose arguments begin at `arguments_at`.
pub(crate) fn fill_from_flags(deployment: &mut Deployment, arguments_at: usize) {
    let arguments = deployment.command.get(arguments_at..).unwrap_or_default();
    let flags = Flags::parse(arguments);
    let positional = flags.positional.first().cloned();
    let named = flags.value("model").map(ToOwned::to_owned);
    let model = match deployment.engine {
        Some(EngineKind::LlamaCpp) => named.or_else(|| flags.value("hf-repo").map(ToOwned::to_owned)),
        _ => named.or(positional),
    };
    deployment.model = model.or(deployment.model.take());
    deployment.tensor_parallel = ranks(&flags, "tensor-parallel-size").or(deployment.tensor_parallel);
    deployment.pipeline_parallel = ranks(&flags, "pipeline-parallel-size").or(deployment.pipeline_parallel);
    if let Some(quantization) = flags.value("quantization") {
        deployment.quantization = Some(quantization.to_owned());
    }
    let named_format = flags.value("load-format");
    deployment.load_format = match named_format {
        Some("safetensors" | "fastsafetensors" | "instanttensor") => Some(LoadFormat::Safetensors),
        Some("pt" | "npcache") => Some(LoadFormat::Pickle),
        Some("dummy") => Some(LoadFormat::Dummy),
        Some("gguf") => Some(LoadFormat::Gguf),
        Some("auto" | "hf") | None => deployment.load_format,
        Some(_) => Some(LoadFormat::Other),
    };
    let gguf = deployment.model.as_deref().is_some_and(|model| model.to_ascii_lowercase().ends_with(".gguf"));
    if gguf && deployment.load_format.is_none() {
        deployment.load_format = Some(LoadFormat::Gguf);
    }
}

fn ranks(flags: &Flags, name: &str) -> Option<u32> {
    u32::try_from(flags.number(name)?).ok()
}
