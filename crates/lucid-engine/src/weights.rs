//! What the checkpoint holds, by the model's structure: still packed, every shape checked.

mod gather;
mod indexer;
mod keys_values;
#[cfg(test)]
mod listing;
#[cfg(test)]
mod published;

use lucid_checkpoint::{Bytes, Checkpoint, Config, Matrix, MoE, Packed};

use crate::backend::Load;
use crate::parallel::Rank;
use crate::{Error, KvCacheDtype, KvScales, Planted, Semantics};
pub use indexer::Indexer;
pub use keys_values::KeysAndValues;

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
    /// From the latent to every head's keys and values.
    pub keys_values: KeysAndValues,
    /// The sparse-attention indexer, in models that have one, in layers that choose for themselves.
    pub indexer: Option<Indexer>,
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
#[derive(Clone)]
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
    Dense(Box<Mlp>),
    /// A router and its experts.
    Experts(Box<Experts>),
}

/// A mistake of the router that no weights can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterMistake {
    /// The bias goes into the experts' weights too.
    BiasInWeights,
    /// Logits have so many significant bits: 8 in bfloat16, 11 in float16, 4 and 3 in FP8.
    LogitBits(u32),
}

/// A mixture of experts.
#[derive(Clone)]
pub struct Experts {
    /// `[experts, hidden_size]`
    pub router: Matrix,
    /// `e_score_correction_bias` `[experts]`
    pub bias: Option<Vec<f32>>,
    /// What the router does wrongly: nothing, but for a planted fault.
    pub mistake: Option<RouterMistake>,
    /// The number of the first routed expert that is here: 0, but on ranks that have only some.
    pub first: usize,
    /// The routed experts, or a rank's, in the order of their numbers.
    pub routed: Vec<Mlp>,
    /// The shared expert: as wide as `n_shared_experts` routed ones.
    pub shared: Option<Mlp>,
    /// One of several ranks that have the shared expert whole: it is visited here by the tokens that [`rank_of_shared`] sends here. `None`:
    /// by all tokens.
    ///
    /// [`rank_of_shared`]: crate::parallel::rank_of_shared
    pub shared_by: Option<Rank>,
}

impl Experts {
    /// Those that some tokens visit: the routed ones, and after them the shared one, if it is visited by some.
    pub fn of_some(&self) -> impl Iterator<Item = &Mlp> {
        self.routed.iter().chain(self.shared.iter().filter(|_| self.shared_by.is_some()))
    }

    /// The shared one, if it is visited by all.
    pub fn of_all(&self) -> Option<&Mlp> {
        self.shared.as_ref().filter(|_| self.shared_by.is_none())
    }
}

impl Mlp {
    /// The same, in memory of its own.
    ///
    /// # Errors
    /// When a file can't be read.
    pub fn read(&self) -> Result<Mlp, Error> {
        Ok(Mlp { gate: self.gate.read()?, up: self.up.read()?, down: self.down.read()? })
    }

    /// Bytes that it takes as it is stored.
    pub fn stored_bytes(&self) -> usize {
        [&self.gate, &self.up, &self.down].into_iter().map(Matrix::stored_bytes).sum()
    }
}

/// Reads one layer into memory; its routed experts stay mapped.
///
/// # Errors
/// A missing or misshapen tensor, an unsupported layout, a file that can't be read.
pub fn read_layer(checkpoint: &Checkpoint, i: usize) -> Result<Layer, Error> {
    Loader { tensors: &Read(checkpoint), config: checkpoint.config() }.layer(i)
}

impl Weights {
    /// All but the layers: embedding, last norm and output matrix, mapped.
    ///
    /// # Errors
    /// As [`Weights::load`].
    pub fn without_layers(checkpoint: &Checkpoint) -> Result<Weights, Error> {
        Loader { tensors: checkpoint, config: checkpoint.config() }.without_layers()
    }

    /// Finds and checks every tensor of the model; nothing is copied but norms and the transposed key rows.
    ///
    /// # Errors
    /// A missing or misshapen tensor, or an unsupported layout.
    pub fn load(checkpoint: &Checkpoint, plant: Option<Planted>) -> Result<Weights, Error> {
        let config = checkpoint.config();
        let mut weights = Loader { tensors: checkpoint, config }.weights()?;
        if let Some(planted) = plant {
            planted.change_weights(config, &mut weights)?;
        }
        Ok(weights)
    }

    /// Whether activations can be rounded to NVFP4 for every matrix that is NVFP4.
    ///
    /// # Errors
    /// When none is, or one has no usable `input_scale`.
    pub fn check_w4a4(&self) -> Result<(), Error> {
        let mut found = false;
        for layer in &self.layers {
            found |= layer.check_w4a4()?;
        }
        if found { Ok(()) } else { Err(nothing_for_w4a4()) }
    }

    /// Every matrix, as the checkpoint holds them.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.layers.iter().flat_map(Layer::matrices).chain([&self.embed_tokens, &self.lm_head])
    }
}

/// Why a checkpoint has no W4A4.
pub(crate) fn nothing_for_w4a4() -> Error {
    Error::Unsupported {
        what: "W4A4 on a checkpoint without NVFP4 weights".to_owned(),
        hint: "its activations were never meant to be quantized; compute W4A16",
    }
}

impl Layer {
    /// Whether the layer has NVFP4 matrices, each with an `input_scale` that activations can be rounded with.
    ///
    /// # Errors
    /// When one has none: weight-only checkpoints have none at all, and calibration may not have reached an expert.
    pub fn check_w4a4(&self) -> Result<bool, Error> {
        let mut found = false;
        for matrix in self.matrices() {
            let Packed::Nvfp4 { input_scale, .. } = matrix.packed else { continue };
            found = true;
            // The absorbed form multiplies `kv_b` with queries and sums, which are no activations of its own.
            let absorbed = self.attention.keys_values.matrices().iter().any(|one| std::ptr::eq(matrix, *one));
            if !absorbed && !input_scale.is_some_and(|scale| scale.is_finite() && scale > 0.0) {
                return Err(Error::Unsupported {
                    what: match input_scale {
                        Some(scale) => {
                            format!("W4A4 for tensor {}, whose input_scale is {scale},", matrix.name)
                        }
                        None => format!("W4A4 for tensor {}, which has no input_scale,", matrix.name),
                    },
                    hint: "its activations were not calibrated; compute W4A16",
                });
            }
        }
        Ok(found)
    }

    fn matrices(&self) -> Vec<&Matrix> {
        let attention = &self.attention;
        let mut matrices = vec![&attention.kv_a, &attention.o];
        matrices.extend(attention.keys_values.matrices());
        match &attention.query {
            Query::Latent { q_a, q_b, .. } => matrices.extend([q_a, q_b]),
            Query::Direct(q) => matrices.push(q),
        }
        matrices.extend(attention.indexer.iter().flat_map(Indexer::matrices));
        let mlps: Vec<&Mlp> = match &self.feed_forward {
            FeedForward::Dense(mlp) => vec![&**mlp],
            FeedForward::Experts(experts) => {
                matrices.push(&experts.router);
                experts.routed.iter().chain(&experts.shared).collect()
            }
        };
        matrices.extend(mlps.iter().flat_map(|mlp| [&mlp.gate, &mlp.up, &mlp.down]));
        matrices
    }

    /// The same, in the order in which a step reads them.
    fn matrices_mut(&mut self) -> Vec<&mut Matrix> {
        let attention = &mut self.attention;
        let mut matrices = vec![&mut attention.kv_a];
        match &mut attention.query {
            Query::Latent { q_a, q_b, .. } => matrices.extend([q_a, q_b]),
            Query::Direct(q) => matrices.push(q),
        }
        matrices.extend(attention.indexer.iter_mut().flat_map(Indexer::matrices_mut));
        matrices.extend(attention.keys_values.matrices_mut());
        matrices.push(&mut attention.o);
        let mlps: Vec<&mut Mlp> = match &mut self.feed_forward {
            FeedForward::Dense(mlp) => vec![&mut **mlp],
            FeedForward::Experts(experts) => {
                matrices.push(&mut experts.router);
                experts.routed.iter_mut().chain(&mut experts.shared).collect()
            }
        };
        matrices.extend(mlps.into_iter().flat_map(|mlp| [&mut mlp.gate, &mut mlp.up, &mut mlp.down]));
        matrices
    }
}

/// Where the loader finds tensors: a checkpoint, or (in tests) a list that it is to write.
trait Tensors {
    fn matrix(&self, module: &str, rows: usize, cols: usize) -> Result<Matrix, Error>;
    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Error>;

    /// Where routed experts are found.
    fn of_experts(&self) -> &dyn Tensors;

    /// Keys `[A L, N]` and values `[A V, L]` of the attention at `at`, where they are stored apart and quantized.
    fn keys_and_values(&self, at: &str) -> Result<Option<[Matrix; 2]>, Error>;

    /// One matrix of both.
    fn joined(&self, kv_b: Matrix, heads: usize, nope: usize, value: usize) -> KeysAndValues {
        KeysAndValues::joined(kv_b, heads, nope, value)
    }
}

/// A checkpoint whose matrices come into memory of their own, but for routed experts.
struct Read<'a>(&'a Checkpoint);

impl Tensors for Read<'_> {
    fn matrix(&self, module: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        Ok(self.0.matrix(module, rows, cols)?.read()?)
    }

    fn keys_and_values(&self, at: &str) -> Result<Option<[Matrix; 2]>, Error> {
        let Some([keys, values]) = self.0.quantized_keys_and_values(at)? else { return Ok(None) };
        Ok(Some([keys.read()?, values.read()?]))
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        Tensors::vector(self.0, name, len)
    }

    fn of_experts(&self) -> &dyn Tensors {
        self.0
    }
}

impl Tensors for Checkpoint {
    fn matrix(&self, module: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        Ok(self.matrix(module, rows, cols)?)
    }

    fn keys_and_values(&self, at: &str) -> Result<Option<[Matrix; 2]>, Error> {
        Ok(self.quantized_keys_and_values(at)?)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        Ok(self.vector(name, len)?)
    }

    fn of_experts(&self) -> &dyn Tensors {
        self
    }
}

/// What the KV cache multiplies by in each layer, 1 unless it is fp8; `semantics` gets a sentence about it.
///
/// # Errors
/// A scale that is none, or scales that are to be lost and are not there.
pub(crate) fn cache_scales(
    load: &Load<'_>,
    layers: usize,
    semantics: &mut Semantics,
) -> Result<Vec<f32>, Error> {
    if semantics.kv_cache != KvCacheDtype::Fp8E4m3 {
        return Ok(vec![1.0; layers]);
    }
    let (scales, text) = kv_scales(load.checkpoint, layers)?;
    let (scales, text) = match load.semantics.kv_scales {
        KvScales::Checkpoint => (scales, text),
        KvScales::Lost if scales.iter().any(|scale| *scale != 1.0) => {
            (vec![1.0; layers], "scale 1, k_scale is lost".to_owned())
        }
        KvScales::Lost => {
            return Err(Error::Unsupported {
                what: "losing the scales of an fp8 KV cache that has none".to_owned(),
                hint: "compute with the checkpoint's scales",
            });
        }
    };
    semantics.kv_scales = Some(text);
    Ok(scales)
}

/// What an fp8 KV cache divides by in each layer, and a sentence about it: the layer's `k_scale`, 1 where there is none.
///
/// MLA's cache holds one entry for keys and values, and vLLM divides all of it by `k_scale` (`concat_and_cache_mla`). A
/// `v_scale` counts only where it stands alone (vLLM `quantization/kv_cache.py`). ModelOpt writes the scales under the names
/// of projections that an MLA model doesn't have.
///
/// # Errors
/// A scale that is no single F32, not finite, or not greater than zero.
fn kv_scales(checkpoint: &Checkpoint, layers: usize) -> Result<(Vec<f32>, String), Error> {
    const KEY: [&str; 4] = ["k_proj.k_scale", "attn.k_scale", "k_scale", "kv_scale"];
    const VALUE: [&str; 3] = ["v_proj.v_scale", "attn.v_scale", "v_scale"];
    let mut scales = Vec::with_capacity(layers);
    let mut found = 0;
    for layer in 0..layers {
        let mut scale = None;
        for name in KEY.iter().chain(&VALUE) {
            let name = format!("model.layers.{layer}.self_attn.{name}");
            scale = checkpoint.scalar(&name)?;
            match scale {
                None => continue,
                Some(scale) if scale.is_finite() && scale > 0.0 => break,
                Some(scale) => {
                    return Err(Error::Unsupported {
                        what: format!("an fp8 KV cache with {name} = {scale}"),
                        hint: "a scale is finite and greater than zero; use a bf16 KV cache",
                    });
                }
            }
        }
        found += usize::from(scale.is_some());
        scales.push(scale.unwrap_or(1.0));
    }
    let text = match found {
        0 => "the checkpoint has no k_scale: scale 1".to_owned(),
        all if all == layers => "k_scale of the checkpoint".to_owned(),
        some => format!("k_scale of the checkpoint in {some} of {layers} layers, else 1"),
    };
    Ok((scales, text))
}

struct Loader<'a> {
    tensors: &'a dyn Tensors,
    config: &'a Config,
}

impl Loader<'_> {
    fn matrix(&self, module: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        self.tensors.matrix(module, rows, cols)
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        self.tensors.vector(name, len)
    }

    fn weights(&self) -> Result<Weights, Error> {
        let layers = (0..self.config.num_hidden_layers).map(|i| self.layer(i)).collect::<Result<_, _>>()?;
        Ok(Weights { layers, ..self.without_layers()? })
    }

    fn without_layers(&self) -> Result<Weights, Error> {
        let config = self.config;
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embed_tokens = self.matrix("model.embed_tokens", vocab, hidden)?;
        let lm_head = match config.tie_word_embeddings {
            true => embed_tokens.clone(),
            false => self.matrix("lm_head", vocab, hidden)?,
        };
        let norm = self.vector("model.norm.weight", hidden)?;
        Ok(Weights { embed_tokens, layers: Vec::new(), norm, lm_head })
    }

    fn layer(&self, i: usize) -> Result<Layer, Error> {
        let hidden = self.config.hidden_size;
        let at = format!("model.layers.{i}");
        Ok(Layer {
            input_layernorm: self.vector(&format!("{at}.input_layernorm.weight"), hidden)?,
            attention: self.attention(i, &format!("{at}.self_attn"))?,
            post_attention_layernorm: self
                .vector(&format!("{at}.post_attention_layernorm.weight"), hidden)?,
            feed_forward: match self.config.moe.as_ref().filter(|_| self.config.is_moe_layer(i)) {
                Some(moe) => FeedForward::Experts(Box::new(self.experts(&format!("{at}.mlp"), moe)?)),
                None => FeedForward::Dense(Box::new(
                    self.mlp(&format!("{at}.mlp"), self.config.intermediate_size)?,
                )),
            },
        })
    }

    fn attention(&self, i: usize, at: &str) -> Result<Attention, Error> {
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
        let keys_values = match self.tensors.keys_and_values(at)? {
            Some([keys, values]) => KeysAndValues::Split { keys, values },
            None => {
                let kv_b = self.matrix(&format!("{at}.kv_b_proj"), heads * (nope + value), latent)?;
                self.tensors.joined(narrow(kv_b), heads, nope, value)
            }
        };
        Ok(Attention {
            query,
            kv_a: self.matrix(&format!("{at}.kv_a_proj_with_mqa"), latent + rope, hidden)?,
            kv_a_norm: self.vector(&format!("{at}.kv_a_layernorm.weight"), latent)?,
            keys_values,
            indexer: self.indexer(i, at)?,
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

    fn expert(&self, at: &str, width: usize) -> Result<Mlp, Error> {
        Loader { tensors: self.tensors.of_experts(), config: self.config }.mlp(at, width)
    }

    fn experts(&self, at: &str, moe: &MoE) -> Result<Experts, Error> {
        let width = moe.moe_intermediate_size;
        let bias_name = format!("{at}.gate.e_score_correction_bias");
        Ok(Experts {
            router: self.matrix(&format!("{at}.gate"), moe.n_routed_experts, self.config.hidden_size)?,
            bias: Some(self.vector(&bias_name, moe.n_routed_experts)?),
            mistake: None,
            first: 0,
            routed: (0..moe.n_routed_experts)
                .map(|expert| self.expert(&format!("{at}.experts.{expert}"), width))
                .collect::<Result<_, _>>()?,
            shared: match moe.n_shared_experts {
                0 => None,
                shared => Some(self.mlp(&format!("{at}.shared_experts"), shared * width)?),
            },
            shared_by: None,
        })
    }
}

/// The values in bf16 if none loses a bit, else in f32.
fn pack_exactly(values: &[f32]) -> Packed {
    if values.iter().all(|x| x.to_bits() & 0xffff == 0) {
        let high_half = |x: &f32| ((x.to_bits() >> 16) as u16).to_le_bytes();
        Packed::Bf16(Bytes::from(values.iter().flat_map(high_half).collect::<Vec<u8>>()))
    } else {
        Packed::F32(Bytes::from(values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()))
    }
}

/// f32 values that are bf16 numbers, as such: half the memory, and tile units multiply them.
pub(crate) fn narrow(matrix: Matrix) -> Matrix {
    let Packed::F32(bytes) = &matrix.packed else { return matrix };
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
    Matrix { packed: pack_exactly(&values), ..matrix }
}

#[cfg(test)]
mod tests {
    use lucid_checkpoint::Layout;

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
