//! The real configs of published checkpoints, with headers as those checkpoints have them: nobody may be blamed.
//!
//! The headers are written here from the documents of each format, not by the code under test; the data is a hole.

use std::fs;
use std::path::{Path, PathBuf};

use lucid_checkpoint_audit::{CheckpointEvidence, Options, gather};
use lucid_findings::Deployment;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::patient::Audit;

pub(crate) fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../lucid-checkpoint/tests/configs")
}

/// How a linear layer is stored.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    Bf16,
    Nvfp4,
    Int4,
    Fp8,
}

pub(crate) struct Imagined {
    pub(crate) config: Value,
    pub(crate) hf_quant: Option<Value>,
    file: String,
    /// Before `model.` and `lm_head`.
    pub(crate) prefix: &'static str,
    header: Map<String, Value>,
    at: u64,
}

impl Imagined {
    /// A published config, with at most so many layers (which leaves MTP layers out).
    pub(crate) fn new(file: &str, layers: Option<u64>) -> Imagined {
        let read = |name: &str| -> Option<Value> {
            serde_json::from_slice(&fs::read(configs().join(name)).ok()?).ok()
        };
        let mut config = read(file).unwrap();
        let hf_quant = read(&file.replace("_config.json", "_hf_quant_config.json"));
        let prefix = if config.get("text_config").is_some() { "language_model." } else { "" };
        if let Some(layers) = layers {
            let text = if prefix.is_empty() { &mut config } else { &mut config["text_config"] };
            text["num_hidden_layers"] = json!(layers);
            text["num_nextn_predict_layers"] = json!(0);
            for list in ["indexer_types", "mlp_layer_types"] {
                if let Some(list) = text.get_mut(list).and_then(Value::as_array_mut) {
                    list.truncate(layers as usize);
                }
            }
        }
        Imagined { config, hf_quant, file: file.to_owned(), prefix, header: Map::new(), at: 0 }
    }

    pub(crate) fn text(&self) -> &Value {
        self.config.get("text_config").unwrap_or(&self.config)
    }

    fn number(&self, name: &str) -> u64 {
        self.text().get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    fn add(&mut self, name: &str, dtype: &str, shape: &[u64]) {
        let size = match dtype {
            "U8" | "F8_E4M3" => 1,
            "BF16" => 2,
            _ => 4,
        };
        let bytes = size * shape.iter().product::<u64>();
        let name = format!("{}{name}", self.prefix);
        self.header.insert(
            name,
            json!({"dtype": dtype, "shape": shape, "data_offsets": [self.at, self.at + bytes]}),
        );
        self.at += bytes;
    }

    fn linear(&mut self, module: &str, layer: u64, rows: u64, cols: u64) {
        match self.layout(module, layer) {
            Layout::Bf16 => self.add(&format!("{module}.weight"), "BF16", &[rows, cols]),
            Layout::Fp8 => {
                self.add(&format!("{module}.weight"), "F8_E4M3", &[rows, cols]);
                let scales = [rows.div_ceil(128), cols.div_ceil(128)];
                self.add(&format!("{module}.weight_scale_inv"), "F32", &scales);
            }
            Layout::Nvfp4 => {
                self.add(&format!("{module}.weight"), "U8", &[rows, cols / 2]);
                self.add(&format!("{module}.weight_scale"), "F8_E4M3", &[rows, cols / 16]);
                self.add(&format!("{module}.weight_scale_2"), "F32", &[]);
                self.add(&format!("{module}.input_scale"), "F32", &[]);
            }
            Layout::Int4 => {
                self.add(&format!("{module}.weight_packed"), "I32", &[rows, cols / 8]);
                self.add(&format!("{module}.weight_scale"), "BF16", &[rows, cols / 32]);
                self.add(&format!("{module}.weight_shape"), "I32", &[2]);
            }
        }
    }

    /// What the publisher's notes say is quantized.
    fn layout(&self, module: &str, layer: u64) -> Layout {
        let file = self.file.as_str();
        let attention = module.contains("self_attn");
        let routed = module.contains(".experts.");
        let mtp = layer >= self.number("num_hidden_layers");
        let nvfp4 = |yes: bool| if yes && !mtp { Layout::Nvfp4 } else { Layout::Bf16 };
        if file.contains("DeepSeek-V3.1-NVFP4") || file.contains("DeepSeek-V3.2-NVFP4") {
            nvfp4(!attention || module.ends_with("o_proj"))
        } else if file.contains("GLM-5-NVFP4") || file.contains("Kimi-K2.5-NVFP4") {
            nvfp4(!attention)
        } else if file.contains("NVFP4") {
            // GLM-5.1 and 5.2, Kimi-K2.6 and K2.7-Code.
            nvfp4(routed)
        } else if file.contains("Kimi-K2.5_config") || file.contains("kimi-vendor-verifier") {
            if routed { Layout::Int4 } else { Layout::Bf16 }
        } else if (file.contains("zai-org") && !file.contains("FP8")) || module.ends_with("weights_proj") {
            Layout::Bf16
        } else {
            Layout::Fp8
        }
    }

    fn mlp(&mut self, path: &str, layer: u64, width: u64, hidden: u64) {
        self.linear(&format!("{path}.gate_proj"), layer, width, hidden);
        self.linear(&format!("{path}.up_proj"), layer, width, hidden);
        self.linear(&format!("{path}.down_proj"), layer, hidden, width);
    }

    /// All tensors of the model.
    pub(crate) fn fill(&mut self) {
        let n = |name: &str| self.number(name);
        let (h, layers, heads, experts) =
            (n("hidden_size"), n("num_hidden_layers"), n("num_attention_heads"), n("n_routed_experts"));
        let (q, l, nope, rope, v) = (
            n("q_lora_rank"),
            n("kv_lora_rank"),
            n("qk_nope_head_dim"),
            n("qk_rope_head_dim"),
            n("v_head_dim"),
        );
        let (dense, moe, vocab, mtp) = (
            n("intermediate_size"),
            n("moe_intermediate_size"),
            n("vocab_size"),
            n("num_nextn_predict_layers"),
        );
        let (first, shared) = (n("first_k_dense_replace"), n("n_shared_experts"));
        let (index_heads, index_width) = (n("index_n_heads"), n("index_head_dim"));
        self.add("model.embed_tokens.weight", "BF16", &[vocab, h]);
        self.add("model.norm.weight", "BF16", &[h]);
        self.add("lm_head.weight", "BF16", &[vocab, h]);
        for layer in 0..layers + mtp {
            let at = format!("model.layers.{layer}");
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                self.add(&format!("{at}.{norm}.weight"), "BF16", &[h]);
            }
            let a = format!("{at}.self_attn");
            self.linear(&format!("{a}.q_a_proj"), layer, q, h);
            self.add(&format!("{a}.q_a_layernorm.weight"), "BF16", &[q]);
            self.linear(&format!("{a}.q_b_proj"), layer, heads * (nope + rope), q);
            self.linear(&format!("{a}.kv_a_proj_with_mqa"), layer, l + rope, h);
            self.add(&format!("{a}.kv_a_layernorm.weight"), "BF16", &[l]);
            self.linear(&format!("{a}.kv_b_proj"), layer, heads * (nope + v), l);
            self.linear(&format!("{a}.o_proj"), layer, h, heads * v);
            if index_heads > 0 {
                self.linear(&format!("{a}.indexer.wq_b"), layer, index_heads * index_width, q);
                self.linear(&format!("{a}.indexer.wk"), layer, index_width, h);
                self.linear(&format!("{a}.indexer.weights_proj"), layer, index_heads, h);
                self.add(&format!("{a}.indexer.k_norm.weight"), "F32", &[index_width]);
                self.add(&format!("{a}.indexer.k_norm.bias"), "F32", &[index_width]);
            }
            if layer < first {
                self.mlp(&format!("{at}.mlp"), layer, dense, h);
            } else {
                self.add(&format!("{at}.mlp.gate.weight"), "BF16", &[experts, h]);
                self.add(&format!("{at}.mlp.gate.e_score_correction_bias"), "F32", &[experts]);
                self.mlp(&format!("{at}.mlp.shared_experts"), layer, shared * moe, h);
                for expert in 0..experts {
                    self.mlp(&format!("{at}.mlp.experts.{expert}"), layer, moe, h);
                }
            }
            if layer >= layers {
                for norm in ["enorm", "hnorm", "shared_head.norm"] {
                    self.add(&format!("{at}.{norm}.weight"), "BF16", &[h]);
                }
                self.add(&format!("{at}.eh_proj.weight"), "BF16", &[h, 2 * h]);
                self.add(&format!("{at}.embed_tokens.weight"), "BF16", &[vocab, h]);
                self.add(&format!("{at}.shared_head.head.weight"), "BF16", &[vocab, h]);
            }
        }
        if !self.prefix.is_empty() {
            let prefix = std::mem::take(&mut self.prefix);
            self.add("vision_tower.patch_embed.pos_emb.weight", "BF16", &[64, 64]);
            self.add("vision_tower.encoder.blocks.0.wqkv.weight", "BF16", &[64, 64]);
            self.add("mm_projector.proj.0.weight", "BF16", &[64, 64]);
            self.prefix = prefix;
        }
    }

    /// Writes config and header; the data is a hole as large as the checkpoint.
    pub(crate) fn folder(&self) -> TempDir {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("config.json"), self.config.to_string()).unwrap();
        if let Some(json) = &self.hf_quant {
            fs::write(place.path().join("hf_quant_config.json"), json.to_string()).unwrap();
        }
        let header = Value::Object(self.header.clone()).to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        let path = place.path().join("model.safetensors");
        fs::write(&path, &bytes).unwrap();
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes.len() as u64 + self.at).unwrap();
        place
    }

    /// What is seen without reading the data; that it is a hole is forgotten.
    pub(crate) fn evidence(&self) -> CheckpointEvidence {
        let place = self.folder();
        let mut evidence = gather(Path::new("/"), place.path(), &Options::default(), &mut |_| {}).unwrap();
        for shard in &mut evidence.shards.kept {
            shard.problems.kept.retain(|problem| problem.kind != lucid_checkpoint_audit::ExtentKind::Hole);
            shard.problems.total = shard.problems.kept.len() as u64;
        }
        evidence
    }
}

fn names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(configs())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with("_config.json") && !name.contains("hf_quant"))
        // Another architecture, which the reader of configs refuses.
        .filter(|name| !name.contains("Kimi-K3"))
        .collect();
    names.sort();
    names
}

fn is_complete(audit: &Audit, name: &str) {
    audit.find("checkpoint.architecture/complete");
    assert!(audit.grave().is_empty(), "{name}\n{}", audit.titles());
}

#[test]
fn published_checkpoints_are_complete() {
    let names = names();
    assert!(names.len() >= 18, "{names:?}");
    for name in names {
        let mut imagined = Imagined::new(&name, Some(5));
        imagined.fill();
        is_complete(&Audit::of(&imagined.evidence(), &Deployment::default()), &name);
    }
}

#[test]
fn a_whole_trillion_parameter_checkpoint_gives_small_evidence() {
    for name in ["nvidia--Kimi-K2.5-NVFP4_config.json", "nvidia--DeepSeek-V3.1-NVFP4_config.json"] {
        let mut imagined = Imagined::new(name, None);
        imagined.fill();
        let evidence = imagined.evidence();
        is_complete(&Audit::of(&evidence, &Deployment::default()), name);
        assert!(evidence.shards.kept[0].tensors > 170_000);
        let size = serde_json::to_string(&evidence).unwrap().len();
        assert!(size < 1_000_000, "{size}");
    }
}
