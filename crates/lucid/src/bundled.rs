//! The canary, compiled into the binary: `lucid serve` and `lucid demo` need no file at all.

use lucid_checkpoint::Files;

macro_rules! canary {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/canary/", $name)))),*]
    };
}

static CANARY: &[(&str, &[u8])] = canary![
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// The bundled model's name, and how it is asked for on the command line.
pub const NAME: &str = "canary";

/// The bundled model's files.
pub fn canary() -> Files {
    Files::Bundled { name: NAME, files: CANARY }
}
