//! Checkpoints of any size that take no room: sparse files with the names, shapes and types of a published one.
//!
//! What must not be zero is written: global scales, norms, routers (so that tokens go to different experts), and the embeddings of
//! the first tokens. Everything else is a hole, which reads as zeros: attention and experts add nothing.

#![allow(clippy::unwrap_used)] // The lint spares test functions, not what they share.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use lucid_checkpoint::Config;
use serde_json::{Map, Value, json};

/// Tokens whose embedding is not zero.
pub const TOKENS: usize = 512;

/// How a tensor's content is made.
enum Content {
    /// A hole.
    Zeros,
    /// One f32.
    Scalar(f32),
    /// bf16 ones.
    Ones,
    /// So many bf16 values around zero of this size or twice, then a hole.
    Noise(usize, Size),
}

/// The upper byte of a positive bf16.
#[derive(Clone, Copy)]
enum Size {
    /// 1/8
    Embedding = 0x3e,
    /// 1/512: scores of experts that differ, and don't end up at 1 all together.
    Router = 0x3b,
}

struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    content: Content,
}

/// Writes a checkpoint for a `config.json` whose MLPs are NVFP4 (ModelOpt), one shard a layer. Returns the bytes that its files
/// seem to have.
pub fn write(folder: &Path, config_json: &Value, prefix: &str) -> u64 {
    let text = serde_json::to_vec_pretty(config_json).unwrap();
    let config = Config::from_json("config.json", &text).unwrap();
    std::fs::write(folder.join("config.json"), text).unwrap();
    let mut total = 0;
    for layer in 0..config.num_hidden_layers {
        let mut tensors = Vec::new();
        layer_tensors(&config, layer, &format!("{prefix}model.layers.{layer}"), &mut tensors);
        total += shard(&folder.join(format!("model-{layer:05}.safetensors")), tensors);
    }
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    let ends = vec![
        bf16(
            format!("{prefix}model.embed_tokens.weight"),
            &[vocab, hidden],
            Content::Noise(TOKENS * hidden, Size::Embedding),
        ),
        bf16(format!("{prefix}model.norm.weight"), &[hidden], Content::Ones),
        bf16(
            format!("{prefix}lm_head.weight"),
            &[vocab, hidden],
            Content::Noise(TOKENS * hidden, Size::Embedding),
        ),
    ];
    total + shard(&folder.join("model-ends.safetensors"), ends)
}

fn bf16(name: String, shape: &[usize], content: Content) -> Tensor {
    Tensor { name, dtype: "BF16", shape: shape.to_vec(), content }
}

fn layer_tensors(config: &Config, layer: usize, at: &str, out: &mut Vec<Tensor>) {
    let (hidden, heads, latent) = (config.hidden_size, config.num_attention_heads, config.kv_lora_rank);
    let (nope, rope, value) = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim);
    let query = config.q_lora_rank.unwrap();
    for (name, shape) in [
        ("self_attn.q_a_proj", [query, hidden]),
        ("self_attn.q_b_proj", [heads * (nope + rope), query]),
        ("self_attn.kv_a_proj_with_mqa", [latent + rope, hidden]),
        ("self_attn.kv_b_proj", [heads * (nope + value), latent]),
        ("self_attn.o_proj", [hidden, heads * value]),
    ] {
        out.push(bf16(format!("{at}.{name}.weight"), &shape, Content::Zeros));
    }
    for (name, width) in [
        ("input_layernorm", hidden),
        ("post_attention_layernorm", hidden),
        ("self_attn.q_a_layernorm", query),
        ("self_attn.kv_a_layernorm", latent),
    ] {
        out.push(bf16(format!("{at}.{name}.weight"), &[width], Content::Ones));
    }
    let Some(moe) = config.moe.as_ref().filter(|_| config.is_moe_layer(layer)) else {
        return mlp(&format!("{at}.mlp"), config.intermediate_size, hidden, out);
    };
    let experts = moe.n_routed_experts;
    out.push(bf16(
        format!("{at}.mlp.gate.weight"),
        &[experts, hidden],
        Content::Noise(experts * hidden, Size::Router),
    ));
    let bias = format!("{at}.mlp.gate.e_score_correction_bias");
    out.push(Tensor { name: bias, dtype: "F32", shape: vec![experts], content: Content::Zeros });
    mlp(&format!("{at}.mlp.shared_experts"), moe.n_shared_experts * moe.moe_intermediate_size, hidden, out);
    for expert in 0..experts {
        mlp(&format!("{at}.mlp.experts.{expert}"), moe.moe_intermediate_size, hidden, out);
    }
}

fn mlp(at: &str, width: usize, hidden: usize, out: &mut Vec<Tensor>) {
    for (part, rows, cols) in
        [("gate_proj", width, hidden), ("up_proj", width, hidden), ("down_proj", hidden, width)]
    {
        let name = |tensor: &str| format!("{at}.{part}.{tensor}");
        for scale in ["weight_scale_2", "input_scale"] {
            out.push(Tensor {
                name: name(scale),
                dtype: "F32",
                shape: vec![],
                content: Content::Scalar(0.01),
            });
        }
        let content = || Content::Zeros;
        out.push(Tensor {
            name: name("weight"),
            dtype: "U8",
            shape: vec![rows, cols / 2],
            content: content(),
        });
        let shape = vec![rows, cols / 16];
        out.push(Tensor { name: name("weight_scale"), dtype: "F8_E4M3", shape, content: content() });
    }
}

/// Writes one shard: larger types first, as the format's own writer sorts them, so that scalars stand together.
fn shard(path: &Path, mut tensors: Vec<Tensor>) -> u64 {
    let size = |dtype: &str| match dtype {
        "F32" => 4,
        "BF16" => 2,
        _ => 1,
    };
    tensors.sort_by_key(|tensor| std::cmp::Reverse(size(tensor.dtype)));
    let (mut header, mut end) = (Map::new(), 0u64);
    for tensor in &tensors {
        let begin = end;
        end += tensor.shape.iter().map(|&dim| dim as u64).product::<u64>() * size(tensor.dtype);
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]});
        header.insert(tensor.name.clone(), entry);
    }
    let header_bytes = serde_json::to_vec(&header).unwrap();
    let data = 8 + header_bytes.len() as u64;
    let mut file = File::create(path).unwrap();
    file.write_all(&(header_bytes.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header_bytes).unwrap();
    file.set_len(data + end).unwrap();
    let mut random = 0u64;
    for tensor in &tensors {
        let content: Vec<u8> = match tensor.content {
            Content::Zeros => continue,
            Content::Scalar(value) => value.to_le_bytes().to_vec(),
            Content::Ones => [0x80, 0x3f].repeat(tensor.shape[0]),
            Content::Noise(values, size) => (0..values)
                .flat_map(|_| {
                    // SplitMix64 (Steele, Lea and Flood 2014).
                    random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let mixed = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                    let mixed = mixed ^ mixed >> 31;
                    [mixed as u8, size as u8 | (mixed >> 24 & 0x80) as u8]
                })
                .collect(),
        };
        let begin = header[&tensor.name]["data_offsets"][0].as_u64().unwrap();
        file.seek(SeekFrom::Start(data + begin)).unwrap();
        file.write_all(&content).unwrap();
    }
    data + end
}
