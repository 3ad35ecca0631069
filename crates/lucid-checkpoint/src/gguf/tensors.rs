//! GGUF's tensors under the names that safetensors checkpoints give them, expert stacks cut per expert.

use std::collections::BTreeMap;

use super::blocks::TensorType;
use super::container::{Entry, Part};
use crate::checkpoint::Tensor;
use crate::{Bytes, Dtype, Error, Files};

/// `blk.N.` and this, `.weight` … is `model.layers.N.` and that.
/// Source: gguf-py, `constants.py: TENSOR_NAMES` and `tensor_mapping.py`, architectures `deepseek2`, `deepseek32` and `glm-dsa`.
const LAYER: [(&str, &str); 29] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("indexer.attn_k", "self_attn.indexer.wk"),
    ("indexer.k_norm", "self_attn.indexer.k_norm"),
    ("indexer.proj", "self_attn.indexer.weights_proj"),
    ("nextn.eh_proj", "eh_proj"),
    ("nextn.enorm", "enorm"),
    ("nextn.hnorm", "hnorm"),
    ("nextn.embed_tokens", "embed_tokens"),
    ("nextn.shared_head_head", "shared_head.head"),
    ("nextn.shared_head_norm", "shared_head.norm"),
];

/// All tensors of all parts. A name that the table does not have stays as it is.
pub(super) fn canonical(
    files: &Files,
    parts: Vec<Part>,
    experts: usize,
) -> Result<BTreeMap<String, Tensor>, Error> {
    let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
    for Part { file, tensors: entries, .. } in parts {
        for entry in entries {
            for (name, dtype, shape, bytes) in renamed(files, &file, entry, experts)? {
                let tensor = Tensor { name: name.clone(), dtype, shape, shard: file.clone(), bytes };
                if let Some(first) = tensors.insert(name, tensor) {
                    return Err(Error::DuplicateTensor {
                        name: first.name,
                        first: files.location(&first.shard),
                        second: files.location(&file),
                    });
                }
            }
        }
    }
    Ok(tensors)
}

type Named = (String, Dtype, Vec<usize>, Bytes);

fn renamed(files: &Files, file: &str, entry: Entry, experts: usize) -> Result<Vec<Named>, Error> {
    let dtype = entry.kind.dtype();
    let one = |name: String, entry: Entry| Ok(vec![(name, dtype.clone(), entry.shape, entry.bytes)]);
    let Some((base, part)) = entry.name.rsplit_once('.') else {
        let name = entry.name.clone();
        return one(name, entry);
    };
    let part = match part {
        // NVFP4's global scale is a tensor of its own.
        "scale" => "weight_scale_2",
        other => other,
    };
    let top = match base {
        "token_embd" => Some("model.embed_tokens"),
        "output_norm" => Some("model.norm"),
        "output" => Some("lm_head"),
        _ => None,
    };
    if let Some(top) = top {
        return one(format!("{top}.{part}"), entry);
    }
    let layer = base.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let Some((layer, base)) = layer.filter(|(number, _)| number.parse::<u32>().is_ok()) else {
        let name = entry.name.clone();
        return one(name, entry);
    };
    let at = format!("model.layers.{layer}");
    match base {
        "exp_probs_b" => one(format!("{at}.mlp.gate.e_score_correction_bias"), entry),
        "ffn_gate_exps" | "ffn_up_exps" | "ffn_down_exps" | "ffn_gate_up_exps" => {
            let projections: &[&str] = match base {
                "ffn_gate_exps" => &["gate_proj"],
                "ffn_up_exps" => &["up_proj"],
                "ffn_down_exps" => &["down_proj"],
                _ => &["gate_proj", "up_proj"],
            };
            let names = move |expert: usize, projection: &str| {
                format!("{at}.mlp.experts.{expert}.{projection}.{part}")
            };
            let cut = if part == "weight" { cut_matrices } else { cut_scalars };
            cut(&entry, experts, projections, &names).map_err(|problem| Error::Quantized {
                tensor: entry.name.clone(),
                shard: files.location(file),
                problem,
            })
        }
        _ => match LAYER.iter().find(|(gguf, _)| *gguf == base) {
            Some((_, module)) => one(format!("{at}.{module}.{part}"), entry),
            None => {
                let name = entry.name.clone();
                one(name, entry)
            }
        },
    }
}

/// `[experts, rows, cols]`: one matrix an expert, or two of half the rows, gate first.
fn cut_matrices(
    entry: &Entry,
    experts: usize,
    projections: &[&str],
    name: &dyn Fn(usize, &str) -> String,
) -> Result<Vec<Named>, String> {
    let [stacked, rows, cols] = entry.shape[..] else {
        return Err(format!("has shape {:?}, expected [experts, rows, columns]", entry.shape));
    };
    if stacked != experts || !rows.is_multiple_of(projections.len()) {
        return Err(format!("has shape {:?}, expected {experts} experts", entry.shape));
    }
    // Names for experts without values would be memory without bytes of the file behind it.
    if rows == 0 || cols == 0 {
        return Err(format!("has shape {:?}: experts without a value", entry.shape));
    }
    if let TensorType::Other(_) = entry.kind {
        return Err(format!("is stored as {}, which can't be cut into experts", entry.kind.dtype()));
    }
    let step = entry.bytes.len() / (experts * projections.len()).max(1);
    let mut parts = Vec::new();
    for expert in 0..experts {
        for (i, projection) in projections.iter().enumerate() {
            let start = (expert * projections.len() + i) * step;
            let bytes = entry.bytes.slice(start..start + step).ok_or("is shorter than its shape")?;
            let shape = vec![rows / projections.len(), cols];
            parts.push((name(expert, projection), entry.kind.dtype(), shape, bytes));
        }
    }
    Ok(parts)
}

/// One F32 value an expert: NVFP4's global scales.
fn cut_scalars(
    entry: &Entry,
    experts: usize,
    projections: &[&str],
    name: &dyn Fn(usize, &str) -> String,
) -> Result<Vec<Named>, String> {
    if entry.shape != [experts] || entry.kind.dtype() != Dtype::F32 {
        let dtype = entry.kind.dtype();
        return Err(format!("is {dtype} of shape {:?}, expected F32 [{experts}]", entry.shape));
    }
    let mut parts = Vec::new();
    for expert in 0..experts {
        let bytes = entry.bytes.slice(4 * expert..4 * expert + 4).ok_or("is shorter than its shape")?;
        for projection in projections {
            parts.push((name(expert, projection), Dtype::F32, vec![], bytes.clone()));
        }
    }
    Ok(parts)
}
