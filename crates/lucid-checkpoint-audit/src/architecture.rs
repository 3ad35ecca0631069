//! Which tensors a model of given sizes needs, and what it has.
//!
//! Source of names and shapes: DeepSeek-V3 `README_WEIGHTS.md`; transformers `modeling_deepseek_v3.py`, `modular_glm_moe_dsa.py`;
//! for GGUF, under the names that `lucid-checkpoint` gives.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::evidence::{ModelSizes, TensorGroup};
use crate::groups::{contains, runs};

/// What a module of the model holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// A linear layer `[out, in]`, in any quantized layout.
    Linear(u64, u64),
    /// A matrix that engines keep in floats: embedding, head, router.
    Matrix(u64, u64),
    /// A tensor of exactly this name and shape.
    Tensor(Vec<u64>),
}

/// A module or tensor in some layers.
#[derive(Clone, Debug)]
pub(crate) struct Needed {
    /// Module path, or tensor name of [`Holds::Tensor`].
    pub(crate) pattern: String,
    pub(crate) holds: Holds,
    /// `None`: once in the model.
    pub(crate) layers: Option<Vec<u32>>,
    /// Experts of each layer; 0 for none.
    pub(crate) experts: u32,
}

/// Everything that the model needs.
pub(crate) fn needed(sizes: &ModelSizes) -> Vec<Needed> {
    let s = sizes;
    let mut out = Vec::new();
    let mut once = |pattern: &str, holds| {
        out.push(Needed { pattern: pattern.to_owned(), holds, layers: None, experts: 0 });
    };
    once("model.embed_tokens", Holds::Matrix(s.vocab, s.hidden));
    once("model.norm.weight", Holds::Tensor(vec![s.hidden]));
    if !s.tied {
        once("lm_head", Holds::Matrix(s.vocab, s.hidden));
    }
    let all: Vec<u32> = (0..s.layers).collect();
    let (moe, dense): (Vec<u32>, Vec<u32>) = all.iter().partition(|layer| contains(&s.moe_layers, **layer));
    let mut layered = |name: &str, holds: Holds, layers: &[u32], experts: u32| {
        let pattern = format!("model.layers.*.{name}");
        out.push(Needed { pattern, holds, layers: Some(layers.to_vec()), experts });
    };
    let vector = |length: u64| Holds::Tensor(vec![length]);
    layered("input_layernorm.weight", vector(s.hidden), &all, 0);
    layered("post_attention_layernorm.weight", vector(s.hidden), &all, 0);
    let queries = s.heads * (s.nope + s.rope);
    if s.q_lora > 0 {
        layered("self_attn.q_a_proj", Holds::Linear(s.q_lora, s.hidden), &all, 0);
        layered("self_attn.q_a_layernorm.weight", vector(s.q_lora), &all, 0);
        layered("self_attn.q_b_proj", Holds::Linear(queries, s.q_lora), &all, 0);
    } else {
        layered("self_attn.q_proj", Holds::Linear(queries, s.hidden), &all, 0);
    }
    layered("self_attn.kv_a_proj_with_mqa", Holds::Linear(s.kv_lora + s.rope, s.hidden), &all, 0);
    layered("self_attn.kv_a_layernorm.weight", vector(s.kv_lora), &all, 0);
    layered("self_attn.kv_b_proj", Holds::Linear(s.heads * (s.nope + s.value), s.kv_lora), &all, 0);
    layered("self_attn.o_proj", Holds::Linear(s.hidden, s.heads * s.value), &all, 0);
    for (path, width, layers, experts) in [
        ("mlp", s.intermediate, &dense, 0),
        ("mlp.experts.*", s.moe_intermediate, &moe, s.experts),
        ("mlp.shared_experts", s.shared_experts * s.moe_intermediate, &moe, 0),
    ] {
        if width > 0 {
            layered(&format!("{path}.gate_proj"), Holds::Linear(width, s.hidden), layers, experts);
            layered(&format!("{path}.up_proj"), Holds::Linear(width, s.hidden), layers, experts);
            layered(&format!("{path}.down_proj"), Holds::Linear(s.hidden, width), layers, experts);
        }
    }
    layered("mlp.gate", Holds::Matrix(u64::from(s.experts), s.hidden), &moe, 0);
    layered("mlp.gate.e_score_correction_bias", vector(u64::from(s.experts)), &moe, 0);
    if let Some((heads, width)) = s.indexer {
        let own: Vec<u32> = all
            .iter()
            .copied()
            .filter(|layer| s.indexer_layers.is_empty() || contains(&s.indexer_layers, *layer))
            .collect();
        layered("self_attn.indexer.wq_b", Holds::Linear(heads * width, s.q_lora), &own, 0);
        layered("self_attn.indexer.wk", Holds::Linear(width, s.hidden), &own, 0);
        layered("self_attn.indexer.k_norm.weight", vector(width), &own, 0);
        layered("self_attn.indexer.k_norm.bias", vector(width), &own, 0);
        layered("self_attn.indexer.weights_proj", Holds::Linear(heads, s.hidden), &own, 0);
    }
    out.retain(|needed| needed.layers.as_ref().is_none_or(|layers| !layers.is_empty()));
    out
}

/// Tensors that a quantized module may have beside its weight.
const BESIDE: [&str; 13] = [
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "input_scale",
    "input_global_scale",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "qzeros",
    "scales",
    "g_idx",
    "pre_quant_scale",
];

/// The tensor that holds a module's values.
const WEIGHT: [&str; 4] = ["weight", "weight_packed", "qweight", "weight_quantized"];

/// A module or tensor that is not there.
#[derive(Debug)]
pub(crate) struct Missing {
    pub(crate) pattern: String,
    pub(crate) layer: Option<u32>,
    /// Empty when the name has no expert.
    pub(crate) experts: Vec<(u32, u32)>,
}

/// What is there, compared with what is needed.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// Modules and tensors that were looked for.
    pub(crate) needed: u64,
    pub(crate) missing: Vec<Missing>,
    /// Tensor, what it is, what it should be.
    pub(crate) wrong: Vec<(String, String, String)>,
    /// Tensors that the model doesn't know: pattern with an example of layer, and how many.
    pub(crate) unknown: Vec<(String, u64)>,
    /// Layers beyond the model's, with whether they are its MTP layers.
    pub(crate) extra_layers: BTreeSet<u32>,
    /// Whether tensors of MTP layers are there.
    pub(crate) mtp: bool,
    /// The expert counts of the MoE layers, with how many layers have them.
    pub(crate) expert_counts: BTreeMap<u32, u32>,
    /// Linear modules by pattern: layers with codes and scales, and layers with floats.
    pub(crate) stored: BTreeMap<String, (BTreeSet<u32>, BTreeSet<u32>)>,
    /// Vision tensors were there.
    pub(crate) vision: bool,
}

/// Compares the groups with the needs.
pub(crate) fn compare(sizes: &ModelSizes, groups: &[TensorGroup]) -> Compared {
    let mut by_pattern: HashMap<&str, Vec<&TensorGroup>> = HashMap::new();
    for group in groups {
        by_pattern.entry(&group.pattern).or_default().push(group);
    }
    let mut compared = Compared::default();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for need in &needed(sizes) {
        let found = find(need, &by_pattern, &mut known, &mut compared);
        compare_one(need, &found, &mut compared);
    }
    unknown(sizes, groups, &known, &mut compared);
    compared
}

/// Layer (`None` for none) to the experts that are there in the right shape.
type Found = BTreeMap<Option<u32>, BTreeSet<u32>>;

fn find(
    need: &Needed,
    by_pattern: &HashMap<&str, Vec<&TensorGroup>>,
    known: &mut BTreeSet<String>,
    compared: &mut Compared,
) -> Found {
    let mut found = Found::new();
    let names: Vec<String> = match &need.holds {
        Holds::Tensor(_) => vec![need.pattern.clone()],
        _ => WEIGHT.iter().map(|part| format!("{}.{part}", need.pattern)).collect(),
    };
    if !matches!(need.holds, Holds::Tensor(_)) {
        known.extend(BESIDE.iter().map(|part| format!("{}.{part}", need.pattern)));
    }
    for name in &names {
        known.insert(name.clone());
        for group in by_pattern.get(name.as_str()).into_iter().flatten() {
            if let Some(expected) = wrong_shape(&need.holds, group) {
                let example = example(group);
                compared.wrong.push((example, format!("{} {:?}", group.dtype, group.shape), expected));
            }
            // A tensor in a wrong shape is there; it is not missing too.
            for members in &group.members {
                let experts = members.experts.iter().flat_map(|(first, last)| *first..=(*last).min(1 << 20));
                found.entry(members.layer).or_default().extend(experts);
            }
            if matches!(need.holds, Holds::Linear(..)) {
                let floats = matches!(group.dtype.as_str(), "BF16" | "F16" | "F32");
                let (codes, plain) = compared.stored.entry(need.pattern.clone()).or_default();
                let layers = group.members.iter().filter_map(|members| members.layer);
                if floats { plain.extend(layers) } else { codes.extend(layers) }
            }
        }
    }
    if need.pattern.ends_with(".kv_b_proj") {
        halves_of_kv_b(need, by_pattern, known, &mut found);
    }
    check_scales(need, by_pattern, compared);
    found
}

/// GGUF files hold `kv_b_proj` as two stacks.
fn halves_of_kv_b(
    need: &Needed,
    by_pattern: &HashMap<&str, Vec<&TensorGroup>>,
    known: &mut BTreeSet<String>,
    found: &mut Found,
) {
    let layers = |half: &str| -> BTreeSet<Option<u32>> {
        let name = format!("{}.weight", need.pattern.replace("kv_b_proj", half));
        let groups = by_pattern.get(name.as_str()).into_iter().flatten();
        groups.flat_map(|group| group.members.iter().map(|members| members.layer)).collect()
    };
    let (k, v) = (layers("k_b_proj"), layers("v_b_proj"));
    for layer in k.intersection(&v) {
        found.entry(*layer).or_default();
    }
    for half in ["k_b_proj", "v_b_proj"] {
        known.insert(format!("{}.weight", need.pattern.replace("kv_b_proj", half)));
    }
}

/// What the shape should be, when it is not.
fn wrong_shape(holds: &Holds, group: &TensorGroup) -> Option<String> {
    let expected = match holds {
        Holds::Tensor(shape) => vec![shape.clone()],
        Holds::Linear(rows, cols) | Holds::Matrix(rows, cols) => {
            let part = group.pattern.rsplit_once('.').map_or("", |(_, part)| part);
            match (group.dtype.as_str(), part) {
                // Layouts of other quantizers; their shapes are their own.
                (_, "qweight" | "weight_quantized") => return None,
                ("U8", _) => vec![vec![*rows, cols / 2]],
                // 4 and 8 bits in words of 32.
                ("I32", _) => vec![vec![*rows, cols.div_ceil(8)], vec![*rows, cols.div_ceil(4)]],
                _ => vec![vec![*rows, *cols]],
            }
        }
    };
    if expected.contains(&group.shape) {
        return None;
    }
    // A vector that is stored as a column or a row holds the same values.
    if let Holds::Tensor(shape) = holds
        && group.shape.iter().filter(|dim| **dim != 1).eq(shape.iter())
    {
        return None;
    }
    Some(expected.iter().map(|shape| format!("{shape:?}")).collect::<Vec<_>>().join(" or "))
}

/// Block scales must fit the matrix that they scale.
fn check_scales(need: &Needed, by_pattern: &HashMap<&str, Vec<&TensorGroup>>, compared: &mut Compared) {
    let Holds::Linear(rows, cols) = need.holds else { return };
    for part in ["weight_scale", "weight_scale_inv"] {
        let name = format!("{}.{part}", need.pattern);
        for group in by_pattern.get(name.as_str()).into_iter().flatten() {
            let fits = match group.shape.as_slice() {
                // One for the tensor, or one a row.
                [] | [1] => true,
                [n] => *n == rows,
                [n, 1] if *n == rows => true,
                // Groups within a row, or square blocks; the last may be partial.
                [r, c] if *r == rows => {
                    *c > 0 && [16, 32, 64, 128].contains(&cols.div_ceil(*c)) && cols.is_multiple_of(*c)
                }
                [r, c] => [16u64, 32, 64, 128, 256]
                    .iter()
                    .any(|b| rows.div_ceil(*b) == *r && cols.div_ceil(*b) == *c),
                // ModelOpt's `[out/128, 1, in/128, 1]`.
                [r, 1, c, 1] => rows.div_ceil(128) == *r && cols.div_ceil(128) == *c,
                _ => false,
            };
            if !fits {
                let expected = format!("scales for {rows} rows and {cols} columns");
                compared.wrong.push((example(group), format!("{} {:?}", group.dtype, group.shape), expected));
            }
        }
    }
}

fn compare_one(need: &Needed, found: &Found, compared: &mut Compared) {
    let layers: Vec<Option<u32>> = match &need.layers {
        None => vec![None],
        Some(layers) => layers.iter().copied().map(Some).collect(),
    };
    let count_experts = need.pattern.ends_with("experts.*.gate_proj");
    for layer in layers {
        if need.experts == 0 {
            compared.needed += 1;
            if !found.contains_key(&layer) {
                compared.missing.push(Missing { pattern: need.pattern.clone(), layer, experts: Vec::new() });
            }
            continue;
        }
        compared.needed += u64::from(need.experts);
        let none = BTreeSet::new();
        let present = found.get(&layer).unwrap_or(&none);
        let lacking = runs((0..need.experts).filter(|expert| !present.contains(expert)));
        if !lacking.is_empty() {
            compared.missing.push(Missing { pattern: need.pattern.clone(), layer, experts: lacking });
        }
        if count_experts {
            *compared.expert_counts.entry(present.len() as u32).or_default() += 1;
        }
    }
}

/// Parts of a checkpoint that a text engine passes over.
const PASSED_OVER: [&str; 10] = [
    "vision_tower.",
    "mm_projector.",
    "multi_modal_projector.",
    "visual.",
    "vision_model.",
    "rope_freqs",
    "mtp.",
    "audio_tower.",
    "model.vision_tower.",
    "model.visual.",
];

/// Last parts of names that hold no weight: scales of the KV cache, frequencies that engines compute.
const HARMLESS: [&str; 8] = [
    "k_scale",
    "v_scale",
    "q_scale",
    "kv_scale",
    "prob_output_scale",
    "inv_freq",
    "k_zero_point",
    "v_zero_point",
];

fn unknown(sizes: &ModelSizes, groups: &[TensorGroup], known: &BTreeSet<String>, compared: &mut Compared) {
    for group in groups {
        let count: u64 =
            group.members.iter().map(|members| crate::groups::count(&members.experts).max(1)).sum();
        if PASSED_OVER.iter().any(|start| group.pattern.starts_with(start)) {
            compared.vision |= group.pattern.contains("vis") || group.pattern.contains("mm_");
            continue;
        }
        let mut beyond = 0;
        for members in &group.members {
            if let Some(layer) = members.layer.filter(|layer| *layer >= sizes.layers) {
                beyond += 1;
                let declared = layer < sizes.layers.saturating_add(sizes.nextn);
                let mtp = ["eh_proj", "enorm", "hnorm", "shared_head", "nextn"];
                compared.mtp |= declared || mtp.iter().any(|part| group.pattern.contains(part));
                compared.extra_layers.insert(layer);
            }
        }
        let last = group.pattern.rsplit_once('.').map_or(group.pattern.as_str(), |(_, last)| last);
        let only_beyond = beyond > 0 && beyond == group.members.len();
        // Indexers of layers that share another's are stored and never used.
        if !known.contains(&group.pattern) && !HARMLESS.contains(&last) && !only_beyond {
            compared.unknown.push((example(group), count));
        }
    }
}

/// A real name of the group.
fn example(group: &TensorGroup) -> String {
    let mut name = group.pattern.clone();
    if let Some(members) = group.members.first() {
        if let Some(layer) = members.layer {
            name = name.replacen('*', &layer.to_string(), 1);
        }
        if let Some((expert, _)) = members.experts.first() {
            name = name.replacen('*', &expert.to_string(), 1);
        }
    }
    name
}
