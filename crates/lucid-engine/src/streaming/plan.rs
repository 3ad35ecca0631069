//! How much is computed together, so that the process stays within its memory.

use lucid_checkpoint::{Checkpoint, Config};

use crate::Error;
use crate::cpu::{MOST_EXPANDED, MOST_SCORES};
use crate::kv_cache::PAGE_TOKENS;

/// Bytes of the files by what is in memory together.
pub struct Sizes {
    /// Of each layer, all but its routed experts, with the transposed keys that are made of them.
    pub layers: Vec<u64>,
    /// Of all routed experts of each layer.
    pub experts: Vec<u64>,
    /// Of the largest expert.
    pub expert: u64,
    /// Of one row of the output matrix.
    pub head_row: u64,
}

impl Sizes {
    /// Adds up the checkpoint's tensors.
    pub fn of(checkpoint: &Checkpoint) -> Sizes {
        let config = checkpoint.config();
        let mut sizes = Sizes {
            layers: vec![transposed_keys(config); config.num_hidden_layers],
            experts: vec![0; config.num_hidden_layers],
            expert: 0,
            head_row: 4 * config.hidden_size as u64,
        };
        let mut expert = (String::new(), 0);
        // In the order of names: an expert's tensors follow each other.
        for tensor in checkpoint.tensors() {
            let bytes = tensor.bytes.len() as u64;
            let Some((_, rest)) = tensor.name.split_once("layers.") else { continue };
            let Some((layer, rest)) = rest.split_once('.') else { continue };
            let Some(layer) = layer.parse::<usize>().ok().filter(|layer| *layer < config.num_hidden_layers)
            else {
                continue;
            };
            match rest.split_once("mlp.experts.").and_then(|(_, rest)| rest.split_once('.')) {
                None => sizes.layers[layer] += bytes,
                Some((number, _)) => {
                    let number = format!("{layer}.{number}");
                    if number != expert.0 {
                        expert = (number, 0);
                    }
                    expert.1 += bytes;
                    sizes.experts[layer] += bytes;
                    sizes.expert = sizes.expert.max(expert.1);
                }
            }
        }
        sizes
    }

    /// Of the largest layer without experts.
    pub fn layer(&self) -> u64 {
        self.layers.iter().copied().max().unwrap_or(0)
    }
}

fn transposed_keys(config: &Config) -> u64 {
    4 * (config.num_attention_heads * config.kv_lora_rank * config.qk_nope_head_dim) as u64
}

/// What a sparse-attention indexer needs for a chunk of a passage that it has to choose from: queries, lists, scores.
fn indexer_chunk(config: &Config, longest: usize) -> u64 {
    let Some(indexer) = config.indexer.as_ref().filter(|indexer| longest > indexer.index_topk) else {
        return 0;
    };
    let of_query = indexer.index_n_heads * (indexer.index_head_dim + 1) + indexer.index_topk;
    4 * (CHUNK * of_query + (CHUNK * longest).min(MOST_SCORES).max(longest)) as u64
}

/// Sizes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Tokens whose hidden states are in memory, at the most: whole passages.
    pub batch: usize,
    /// Tokens that go through the experts of a layer together.
    pub block: usize,
    /// Positions whose logits are in memory together.
    pub head_rows: usize,
    /// Rows of the output matrix that are in memory together.
    pub panel_rows: usize,
    /// Bytes that are read ahead.
    pub read_ahead: u64,
}

/// Tokens that attention computes together.
pub const CHUNK: usize = 128;
/// Passages that they belong to, at the most: what is expanded of each is whole pages.
pub const CHUNK_PASSAGES: usize = 8;
/// Tokens that go through the experts together, at the least: with fewer, experts are read again and again.
const MIN_BLOCK: u64 = 16;
/// Read ahead at the most: a disk needs no more to be busy.
const MOST_READ_AHEAD: u64 = 1 << 30;
/// Bytes of a panel of the output matrix.
const PANEL: u64 = 24 << 20;
/// What buffers of threads and the allocator take.
const SLACK: u64 = 32 << 20;

/// Decides. `start`: bytes that the process has now; `longest`: tokens of the longest passage, or of the largest batch of a run
/// that is taken up again; `most`: tokens of a batch, if no passage has more.
///
/// # Errors
/// When `limit` is too small.
pub fn plan(
    config: &Config,
    sizes: &Sizes,
    start: u64,
    limit: u64,
    longest: usize,
    most: Option<usize>,
) -> Result<Plan, Error> {
    let bytes = |values: usize| 4 * values as u64;
    let (hidden, heads, latent) = (config.hidden_size, config.num_attention_heads, config.kv_lora_rank);
    let (rope, value) = (config.qk_rope_head_dim, config.v_head_dim);
    let query = config.qk_nope_head_dim + rope;
    let index_keys = config.indexer.as_ref().map_or(0, |indexer| indexer.index_head_dim);
    let held = bytes(hidden + latent + rope + index_keys);
    // Hidden state, its norm and the output, and beside them an MLP's two halves, or all visits and their router.
    let (visits, experts, shared) = config.moe.as_ref().map_or((0, 0, 0), |moe| {
        (moe.num_experts_per_tok, moe.n_routed_experts, moe.n_shared_experts * moe.moe_intermediate_size)
    });
    let of_experts =
        visits * (hidden + 8) + 2 * experts + 2 * shared + 2 * visits * shared.div_ceil(visits.max(1));
    let of_token = bytes(3 * hidden + of_experts.max(2 * config.intermediate_size));
    // Both forms of attention, whichever this processor takes.
    let of_chunk = CHUNK as u64 * bytes(heads * (2 * query + 2 * latent + 2 * rope + 2 * value) + 4 * hidden);
    // Of a chunk's passages, what is seen of them; keys and values of as many heads as the expanded form takes at a time.
    let positions = (longest + CHUNK + CHUNK_PASSAGES * PAGE_TOKENS) as u64;
    let of_head = bytes(query + value) * positions;
    let expanded =
        (heads as u64 * of_head).min(of_head.max(MOST_EXPANDED as u64)) + bytes(latent + rope) * positions;
    let of_chunk = of_chunk + indexer_chunk(config, longest);
    let two_and_more = sizes.layer() + 2 * sizes.expert;
    let least = start + SLACK + of_chunk + expanded + sizes.layer() + sizes.expert + two_and_more;
    let least_in_all = least
        + held * longest as u64
        + of_token * MIN_BLOCK.min(longest as u64)
        + bytes(config.vocab_size)
        + 2 * PANEL;
    let Some(room) = limit.checked_sub(least_in_all) else {
        return Err(Error::Memory { limit, least: least_in_all });
    };
    // A quarter of what is free for reading ahead; the rest for tokens.
    let more = (room / 4).min(MOST_READ_AHEAD.saturating_sub(two_and_more));
    let room = limit - least - more;
    let whole = (room / (held + of_token)) as usize;
    let (batch, block) = if whole >= longest {
        let most = most.unwrap_or(usize::MAX).max(1);
        (whole.min(most).max(longest), whole.min(most))
    } else {
        (longest, ((room - held * longest as u64) / of_token) as usize)
    };
    let free = room.saturating_sub(held * batch as u64 + 2 * PANEL);
    Ok(Plan {
        batch,
        block,
        head_rows: ((free / bytes(config.vocab_size + hidden)) as usize).max(1),
        // Whole blocks of scales, where the output matrix has such.
        panel_rows: ((PANEL / sizes.head_row.max(1)) as usize / 128 * 128)
            .clamp(128, config.vocab_size.max(128)),
        read_ahead: two_and_more + more,
    })
}
