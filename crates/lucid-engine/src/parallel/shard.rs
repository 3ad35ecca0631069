//! A rank's part of the weights.

use std::ops::Range;

use lucid_checkpoint::{Config, Matrix};

use super::cut;
use super::experts::ExpertSharing;
use super::rank::Rank;
use crate::Error;
use crate::weights::{Attention, Experts, FeedForward, KeysAndValues, Layer, Mlp, Query};

/// Cuts out a rank's part, layer by layer, so that never more than a layer is copied at a time.
#[derive(Clone, Copy)]
pub struct Shard<'a> {
    config: &'a Config,
    rank: Rank,
    sharing: ExpertSharing,
}

impl<'a> Shard<'a> {
    /// For a rank of a model with this (whole) config.
    #[must_use]
    pub fn new(config: &'a Config, rank: Rank, sharing: ExpertSharing) -> Shard<'a> {
        Shard { config, rank, sharing }
    }

    /// The config of the whole model.
    #[must_use]
    pub fn whole(&self) -> &'a Config {
        self.config
    }

    /// The config of the part: its heads and widths. Tokens and routed experts keep the numbers of the whole model.
    ///
    /// # Errors
    /// When heads, widths or experts can't be dealt out.
    pub fn config(&self) -> Result<Config, Error> {
        let (config, rank) = (self.config, self.rank);
        let mut part = config.clone();
        part.num_attention_heads = rank.equal_part("attention heads", config.num_attention_heads)?.len();
        part.intermediate_size = rank.equal_part("columns of MLPs", config.intermediate_size)?.len();
        if let Some(moe) = &mut part.moe {
            self.sharing.of_rank(rank, moe.n_routed_experts)?;
            if self.sharing == ExpertSharing::Widths {
                moe.moe_intermediate_size =
                    rank.equal_part("columns of experts", moe.moe_intermediate_size)?.len();
            }
        }
        Ok(part)
    }

    /// The tokens whose embeddings and logits the rank has.
    #[must_use]
    pub fn vocabulary(&self) -> Range<usize> {
        self.rank.part(self.config.vocab_size)
    }

    /// Its rows of the embedding or the output matrix.
    ///
    /// # Errors
    /// When a block of scales lies across the border.
    pub fn vocabulary_rows(&self, matrix: &Matrix) -> Result<Matrix, Error> {
        cut::rows(matrix, self.vocabulary())
    }

    /// Its part of a layer. A rank alone copies nothing but norms.
    ///
    /// # Errors
    /// When a block of scales lies across a border, or experts can't be dealt out.
    pub fn layer(&self, layer: &Layer) -> Result<Layer, Error> {
        Ok(Layer {
            input_layernorm: layer.input_layernorm.clone(),
            attention: self.attention(&layer.attention)?,
            post_attention_layernorm: layer.post_attention_layernorm.clone(),
            feed_forward: match &layer.feed_forward {
                FeedForward::Dense(mlp) => FeedForward::Dense(Box::new(self.mlp(mlp)?)),
                FeedForward::Experts(experts) => FeedForward::Experts(Box::new(self.experts(experts)?)),
            },
        })
    }

    /// By whole heads: a head's key and value rows of `kv_b` stay together.
    fn attention(&self, attention: &Attention) -> Result<Attention, Error> {
        let config = self.config;
        let heads = self.rank.part(config.num_attention_heads);
        let of_heads = |per_head: usize| heads.start * per_head..heads.end * per_head;
        let query = of_heads(config.qk_nope_head_dim + config.qk_rope_head_dim);
        Ok(Attention {
            query: match &attention.query {
                Query::Latent { q_a, q_a_norm, q_b } => Query::Latent {
                    q_a: q_a.clone(),
                    q_a_norm: q_a_norm.clone(),
                    q_b: cut::rows(q_b, query)?,
                },
                Query::Direct(q) => Query::Direct(cut::rows(q, query)?),
            },
            kv_a: attention.kv_a.clone(),
            kv_a_norm: attention.kv_a_norm.clone(),
            keys_values: match &attention.keys_values {
                KeysAndValues::Joined { kv_b, keys } => KeysAndValues::Joined {
                    kv_b: cut::rows(kv_b, of_heads(config.qk_nope_head_dim + config.v_head_dim))?,
                    keys: cut::rows(keys, of_heads(config.kv_lora_rank))?,
                },
                KeysAndValues::Split { keys, values } => KeysAndValues::Split {
                    keys: cut::rows(keys, of_heads(config.kv_lora_rank))?,
                    values: cut::rows(values, of_heads(config.v_head_dim))?,
                },
            },
            // Every rank has to choose the same tokens, so each has the whole indexer.
            indexer: attention.indexer.clone(),
            o: cut::columns(&attention.o, of_heads(config.v_head_dim))?,
        })
    }

    /// Gate and up each by its own rows, down by the columns that meet them.
    fn mlp(&self, mlp: &Mlp) -> Result<Mlp, Error> {
        let width = self.rank.equal_part("columns of an MLP", mlp.gate.rows)?;
        Ok(Mlp {
            gate: cut::rows(&mlp.gate, width.clone())?,
            up: cut::rows(&mlp.up, width.clone())?,
            down: cut::columns(&mlp.down, width)?,
        })
    }

    /// Routed experts by their widths, or whole: of those nothing is copied, and nothing read but by their rank. The shared one is whole beside
    /// whole ones if it can be listed with them, else it is cut by its width.
    ///
    /// # Errors
    /// As [`Shard::layer`].
    pub fn experts(&self, experts: &Experts) -> Result<Experts, Error> {
        let numbers = self.sharing.of_rank(self.rank, experts.routed.len())?;
        let routed = match self.sharing {
            ExpertSharing::Widths => {
                experts.routed.iter().map(|mlp| self.mlp(mlp)).collect::<Result<_, _>>()?
            }
            ExpertSharing::Whole => experts.routed[numbers.clone()].to_vec(),
        };
        let divided = self.sharing == ExpertSharing::Whole && !self.rank.is_alone() && looks_routed(experts);
        let shared = match &experts.shared {
            Some(mlp) if divided => Some(mlp.clone()),
            Some(mlp) => Some(self.mlp(mlp)?),
            None => None,
        };
        Ok(Experts {
            router: experts.router.clone(),
            bias: experts.bias.clone(),
            mistake: experts.mistake,
            first: numbers.start,
            routed,
            shared,
            shared_by: divided.then_some(self.rank),
        })
    }
}

/// Whether the shared expert is of the routed ones' shape and stored as they are.
fn looks_routed(experts: &Experts) -> bool {
    let form = |matrix: &Matrix| (matrix.rows, matrix.cols, matrix.layout());
    let of = |mlp: &Mlp| [&mlp.gate, &mlp.up, &mlp.down].map(form);
    let (shared, routed) = (experts.shared.as_ref(), experts.routed.first());
    shared.is_some() && shared.map(of) == routed.map(of)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lucid_checkpoint::{Bytes, Checkpoint, Files, Packed};

    use super::*;
    use crate::weights::Weights;

    fn canary() -> (Config, Weights) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary");
        let checkpoint = Checkpoint::open(Files::open(&folder).unwrap()).unwrap();
        (checkpoint.config().clone(), Weights::load(&checkpoint, None).unwrap())
    }

    fn row(matrix: &Matrix, row: usize) -> Vec<f32> {
        let mut out = vec![0f32; matrix.cols];
        matrix.decode_row(row, &mut out);
        out
    }

    /// Cut in the middle, `kv_b` gives one rank all keys and the other all values, and text that is almost right.
    #[test]
    fn kv_b_is_cut_by_whole_heads() {
        let (config, weights) = canary();
        let (nope, value) = (config.qk_nope_head_dim, config.v_head_dim);
        let whole = &weights.layers[1].attention;
        let of_rank = config.num_attention_heads / 4;
        for rank in Rank::all(4) {
            let part =
                Shard::new(&config, rank, ExpertSharing::Widths).layer(&weights.layers[1]).unwrap().attention;
            let [keys, kv_b] = part.keys_values.matrices();
            let [whole_keys, whole_kv_b] = whole.keys_values.matrices();
            assert_eq!(kv_b.rows, of_rank * (nope + value));
            for head in 0..of_rank {
                let whole_head = rank.number() * of_rank + head;
                for at in [0, nope - 1, nope, nope + value - 1] {
                    assert_eq!(
                        row(kv_b, head * (nope + value) + at),
                        row(whole_kv_b, whole_head * (nope + value) + at)
                    );
                }
                let latent = config.kv_lora_rank;
                assert_eq!(row(keys, head * latent + 7), row(whole_keys, whole_head * latent + 7));
                let columns = row(&whole.o, 3)[whole_head * value..][..value].to_vec();
                assert_eq!(row(&part.o, 3)[head * value..][..value].to_vec(), columns);
            }
        }
    }

    /// Cut as one matrix, gate and up give one rank all of gate.
    #[test]
    fn gate_and_up_are_cut_each_by_itself() {
        let (config, weights) = canary();
        for layer in &weights.layers {
            for rank in Rank::all(2) {
                let part = Shard::new(&config, rank, ExpertSharing::Widths).layer(layer).unwrap();
                let pairs = match (&part.feed_forward, &layer.feed_forward) {
                    (FeedForward::Dense(part), FeedForward::Dense(whole)) => vec![(&**part, &**whole)],
                    (FeedForward::Experts(part), FeedForward::Experts(whole)) => {
                        let shared = part.shared.iter().zip(&whole.shared);
                        part.routed.iter().zip(&whole.routed).chain(shared).collect()
                    }
                    _ => panic!("another kind of layer"),
                };
                for (part, whole) in pairs {
                    let (half, first) = (whole.gate.rows / 2, rank.number() * whole.gate.rows / 2);
                    assert_eq!((part.gate.rows, part.up.rows, part.down.cols), (half, half, half));
                    for at in [0, half - 1] {
                        assert_eq!(row(&part.gate, at), row(&whole.gate, first + at));
                        assert_eq!(row(&part.up, at), row(&whole.up, first + at));
                    }
                    assert_eq!(row(&part.down, 5), row(&whole.down, 5)[first..first + half].to_vec());
                }
            }
        }
    }

    #[test]
    fn whole_experts_go_to_one_rank_each_and_the_shared_one_to_all() {
        let (config, weights) = canary();
        let FeedForward::Experts(whole) = &weights.layers[1].feed_forward else { panic!("a dense layer") };
        let mut numbers = Vec::new();
        // 32 experts on three ranks: 10, 11 and 11. Heads don't part in three.
        for rank in Rank::all(3) {
            let shard = Shard::new(&config, rank, ExpertSharing::Whole);
            let error = shard.config().unwrap_err().to_string();
            assert!(error.contains("8 attention heads on 3 ranks"), "{error}");
            let part = shard.experts(whole).unwrap();
            assert_eq!(part.router.rows, whole.router.rows);
            for (i, mlp) in part.routed.iter().enumerate() {
                numbers.push(part.first + i);
                assert_eq!(mlp.down.name, whole.routed[part.first + i].down.name);
                assert_eq!((mlp.gate.rows, mlp.down.cols), (128, 128));
            }
        }
        assert!(numbers.into_iter().eq(0..whole.routed.len()));
        let shard = Shard::new(&config, Rank::of(1, 2), ExpertSharing::Whole);
        assert_eq!(shard.config().unwrap().moe.unwrap().moe_intermediate_size, 128);
        let part = shard.experts(whole).unwrap();
        assert_eq!((part.first, part.routed.len(), part.shared.unwrap().gate.rows), (16, 16, 128));
        assert_eq!(part.shared_by, Some(Rank::of(1, 2)));
        // In another form, beside them, it is cut.
        let mut other = (**whole).clone();
        if let (Some(shared), Some(routed)) = (&mut other.shared, other.routed.first()) {
            shared.down =
                Matrix { packed: Packed::Bf16(Bytes::from(vec![0; 2 * 128 * 256])), ..routed.down.clone() };
        }
        let part = shard.experts(&other).unwrap();
        assert_eq!((part.shared.unwrap().gate.rows, part.shared_by), (64, None));
    }
}
