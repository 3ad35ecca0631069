//! What the checkpoint holds, by the model's structure: still packed, every shape checked.

use lucid_checkpoint::{Bytes, Checkpoint, Config, Layout, Matrix, MoE, Packed};

use crate::{Error, Planted};

/// All weights of a model.
pub struct Weights {
    /// `[vocab_size, hidden_size]`
    pub embed_tokens: Matrix,
    /// The decoder layers, first to last.
    pub layers: Vec<Layer>,
    /// `[hidden_size]`
    pub norm: Vec<f32>,
    /// `[vocab_size, hidden_size]`
    pub lm_head: Matrix,
}

/// One decoder layer.
pub struct Layer {
    /// `[hidden_size]`
    pub input_layernorm: Vec<f32>,
    /// Multi-head latent attention.
    pub attention: Attention,
    /// `[hidden_size]`
    pub post_attention_layernorm: Vec<f32>,
    /// Dense or mixture of experts.
    pub feed_forward: FeedForward,
}

/// Multi-head latent attention. A = heads, N = qk_nope, R = qk_rope, V = v_head, L = kv_lora.
pub struct Attention {
    /// How queries are projected.
    pub query: Query,
    /// `[L + R, hidden_size]`
    pub kv_a: Matrix,
    /// `[L]`
    pub kv_a_norm: Vec<f32>,
    /// `[A (N + V), L]`: per head N key rows, then V value rows.
    pub kv_b: Matrix,
    /// `[A L, N]`: the key rows of `kv_b`, transposed per head, for the absorbed form. Exact: values are only moved.
    pub k_b_transposed: Matrix,
    /// `[hidden_size, A V]`
    pub o: Matrix,
}

/// The projection of queries.
pub enum Query {
    /// Through a latent: `q_b · RMSNorm(q_a · x)`.
    Latent {
        /// `[Q, hidden_size]`
        q_a: Matrix,
        /// `[Q]`
        q_a_norm: Vec<f32>,
        /// `[A (N + R), Q]`
        q_b: Matrix,
    },
    /// `[A (N + R), hidden_size]`
    Direct(Matrix),
}

/// A SwiGLU block: `down · (silu(gate · x) ⊙ (up · x))`.
pub struct Mlp {
    /// `[width, hidden_size]`
    pub gate: Matrix,
    /// `[width, hidden_size]`
    pub up: Matrix,
    /// `[hidden_size, width]`
    pub down: Matrix,
}

/// The second half of a layer.
pub enum FeedForward {
    /// One MLP.
    Dense(Mlp),
    /// A router and its experts.
    Experts(Experts),
}

/// A mixture of experts.
pub struct Experts {
    /// `[experts, hidden_size]`
    pub router: Matrix,
    /// `e_score_correction_bias` `[experts]`
    pub bias: Option<Vec<f32>>,
    /// Whether the bias goes into the experts' weights too: never, but for a planted fault.
    pub bias_in_weights: bool,
    /// The routed experts.
    pub routed: Vec<Mlp>,
    /// The shared expert: as wide as `n_shared_experts` routed ones.
    pub shared: Option<Mlp>,
}

impl Weights {
    /// Finds and checks every tensor of the model; nothing is copied but norms and the transposed key rows.
    ///
    /// # Errors
    /// A missing or misshapen tensor, an unsupported layout or model.
    pub fn load(checkpoint: &Checkpoint, plant: Option<Planted>) -> Result<Weights, Error> {
        let config = checkpoint.config();
        check_supported(config)?;
        let loader = Loader { checkpoint, config };
        let layers = (0..config.num_hidden_layers).map(|i| loader.layer(i)).collect::<Result<_, _>>()?;
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embed_tokens = loader.matrix("model.embed_tokens", vocab, hidden)?;
        let lm_head = match config.tie_word_embeddings {
            true => embed_tokens.clone(),
            false => loader.matrix("lm_head", vocab, hidden)?,
        };
        let norm = loader.vector("model.norm.weight", hidden)?;
        let mut weights = Weights { embed_tokens, layers, norm, lm_head };
        if let Some(planted) = plant {
            planted.change_weights(config, &mut weights)?;
        }
        Ok(weights)
    }

    /// Whether the GPU's kernels read every matrix as it is stored.
    ///
    /// # Errors
    /// The first matrix in a layout that only the CPU multiplies.
    pub fn check_gpu_layouts(&self) -> Result<(), Error> {
        let other = |matrix: &&Matrix| {
            use Layout::{Bf16, F8E4m3, F16, F32, Nvfp4};
            !matches!(matrix.layout(), F32 | F16 | Bf16 | F8E4m3 | Nvfp4)
        };
        match self.matrices().find(other) {
            None => Ok(()),
            Some(matrix) => Err(Error::Unsupported {
                what: format!("tensor {}, stored as {}, on a GPU", matrix.name, matrix.layout()),
                hint: "run it on the CPU, or use a checkpoint in NVFP4 or BF16",
            }),
        }
    }

    /// Every matrix, as the checkpoint holds them.
    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.layers.iter().flat_map(Layer::matrices).chain([&self.embed_tokens, &self.lm_head])
    }
}

impl Layer {
    fn matrices(&self) -> Vec<&Matrix> {
        let attention = &self.attention;
        let mut matrices = vec![&attention.kv_a, &attention.kv_b, &attention.k_b_transposed, &attention.o];
        match &attention.query {
            Query::Latent { q_a, q_b, .. } => matrices.extend([q_a, q_b]),
            Query::Direct(q) => matrices.push(q),
        }
        let mlps: Vec<&Mlp> = match &self.feed_forward {
            FeedForward::Dense(mlp) => vec![mlp],
            FeedForward::Experts(experts) => {
                matrices.push(&experts.router);
                experts.routed.iter().chain(&experts.shared).collect()
            }
        };
        matrices.extend(mlps.iter().flat_map(|mlp| [&mlp.gate, &mlp.up, &mlp.down]));
        matrices
    }
}

pub(crate) fn check_supported(config: &Config) -> Result<(), Error> {
    if config.indexer.is_some() {
        return Err(Error::Unsupported {
            what: format!("{} with its sparse-attention indexer", config.architecture),
            hint: "DeepSeek-V3 and Kimi-K2 / K2.5 checkpoints are",
        });
    }
    Ok(())
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Config,
}

impl Loader<'_> {
    fn matrix(&self, module: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        Ok(self.checkpoint.matrix(module, rows, cols)?)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        Ok(self.checkpoint.vector(name, len)?)
    }

    fn layer(&self, i: usize) -> Result<Layer, Error> {
        let hidden = self.config.hidden_size;
        let at = format!("model.layers.{i}");
        Ok(Layer {
            input_layernorm: self.vector(&format!("{at}.input_layernorm.weight"), hidden)?,
            attention: self.attention(&format!("{at}.self_attn"))?,
            post_attention_layernorm: self
                .vector(&format!("{at}.post_attention_layernorm.weight"), hidden)?,
            feed_forward: match self.config.moe.as_ref().filter(|_| self.config.is_moe_layer(i)) {
                Some(moe) => FeedForward::Experts(self.experts(&format!("{at}.mlp"), moe)?),
                None => FeedForward::Dense(self.mlp(&format!("{at}.mlp"), self.config.intermediate_size)?),
            },
        })
    }

    fn attention(&self, at: &str) -> Result<Attention, Error> {
        let config = self.config;
        let (hidden, heads, latent) = (config.hidden_size, config.num_attention_heads, config.kv_lora_rank);
        let (nope, rope, value) = (config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim);
        let query = match config.q_lora_rank {
            Some(rank) => Query::Latent {
                q_a: self.matrix(&format!("{at}.q_a_proj"), rank, hidden)?,
                q_a_norm: self.vector(&format!("{at}.q_a_layernorm.weight"), rank)?,
                q_b: self.matrix(&format!("{at}.q_b_proj"), heads * (nope + rope), rank)?,
            },
            None => Query::Direct(self.matrix(&format!("{at}.q_proj"), heads * (nope + rope), hidden)?),
        };
        let kv_b = narrow(self.matrix(&format!("{at}.kv_b_proj"), heads * (nope + value), latent)?);
        Ok(Attention {
            query,
            kv_a: self.matrix(&format!("{at}.kv_a_proj_with_mqa"), latent + rope, hidden)?,
            kv_a_norm: self.vector(&format!("{at}.kv_a_layernorm.weight"), latent)?,
            k_b_transposed: transpose_keys(&kv_b, heads, nope, value),
            kv_b,
            o: self.matrix(&format!("{at}.o_proj"), hidden, heads * value)?,
        })
    }

    fn mlp(&self, at: &str, width: usize) -> Result<Mlp, Error> {
        let hidden = self.config.hidden_size;
        Ok(Mlp {
            gate: self.matrix(&format!("{at}.gate_proj"), width, hidden)?,
            up: self.matrix(&format!("{at}.up_proj"), width, hidden)?,
            down: self.matrix(&format!("{at}.down_proj"), hidden, width)?,
        })
    }

    fn experts(&self, at: &str, moe: &MoE) -> Result<Experts, Error> {
        let width = moe.moe_intermediate_size;
        let bias_name = format!("{at}.gate.e_score_correction_bias");
        Ok(Experts {
            router: self.matrix(&format!("{at}.gate"), moe.n_routed_experts, self.config.hidden_size)?,
            bias: Some(self.vector(&bias_name, moe.n_routed_experts)?),
            bias_in_weights: false,
            routed: (0..moe.n_routed_experts)
                .map(|expert| self.mlp(&format!("{at}.experts.{expert}"), width))
                .collect::<Result<_, _>>()?,
            shared: match moe.n_shared_experts {
                0 => None,
                shared => Some(self.mlp(&format!("{at}.shared_experts"), shared * width)?),
            },
        })
    }
}

/// `[A (N + V), L]` to `[A L, N]`: per head the N key rows, transposed. bf16 where that is exact, else f32.
pub(crate) fn transpose_keys(kv_b: &Matrix, heads: usize, nope: usize, value: usize) -> Matrix {
    let latent = kv_b.cols;
    let mut row = vec![0f32; latent];
    let mut transposed = vec![0f32; heads * latent * nope];
    for head in 0..heads {
        for n in 0..nope {
            kv_b.decode_row(head * (nope + value) + n, &mut row);
            for (l, &x) in row.iter().enumerate() {
                transposed[(head * latent + l) * nope + n] = x;
            }
        }
    }
    let packed = pack_exactly(&transposed);
    Matrix { name: format!("{} (keys, transposed)", kv_b.name), rows: heads * latent, cols: nope, packed }
}

/// The values in bf16 if none loses a bit, else in f32. GGUF files hold the halves of `kv_b` apart, and they come joined as f32.
fn pack_exactly(values: &[f32]) -> Packed {
    if values.iter().all(|x| x.to_bits() & 0xffff == 0) {
        let high_half = |x: &f32| ((x.to_bits() >> 16) as u16).to_le_bytes();
        Packed::Bf16(Bytes::from(values.iter().flat_map(high_half).collect::<Vec<u8>>()))
    } else {
        Packed::F32(Bytes::from(values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()))
    }
}

/// f32 values that are bf16 numbers, as such: half the memory, and the tile unit multiplies them.
fn narrow(matrix: Matrix) -> Matrix {
    let Packed::F32(bytes) = &matrix.packed else { return matrix };
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
    Matrix { packed: pack_exactly(&values), ..matrix }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_that_lose_no_bit_become_bf16() {
        for (values, layout) in
            [([1.5f32, -0.0, 384.0, 0.25], Layout::Bf16), ([1.5, 0.1, 2.0, 0.25], Layout::F32)]
        {
            let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            let packed = Packed::F32(Bytes::from(bytes));
            let matrix = narrow(Matrix { name: "m".to_owned(), rows: 2, cols: 2, packed });
            assert_eq!(matrix.layout(), layout);
            let mut row = [0f32; 2];
            for (r, expected) in values.chunks(2).enumerate() {
                matrix.decode_row(r, &mut row);
                assert_eq!(row.map(f32::to_bits), [expected[0].to_bits(), expected[1].to_bits()]);
            }
        }
    }
}
