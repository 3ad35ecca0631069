//! The weights in the GPU's memory, with the bits that the checkpoint stores; copied once, at load.

use std::ops::Range;

use lucid_checkpoint::Matrix;
use lucid_checkpoint::gguf::BlockType;

use super::arguments::{ExpertWeightArgs, Order};
use super::driver::{Address, Buffer, Gpu, launch};
use super::indexer::IndexerWeights;
use super::kernels::Kernels;
use super::layout::{Layout, Stored, check_layout, stored};
use super::router::SharedVisits;
use crate::Error;
use crate::parallel::Shard;
use crate::weights::{self, FeedForward as HostFeedForward, Mlp as HostMlp, Query as HostQuery};

/// A weight matrix.
pub struct DeviceMatrix {
    /// `[rows, cols]` packed as stored; what the tensor-core kernels take: in tiles, with the scales inside.
    pub values: Buffer,
    /// Scales of groups or blocks, if they are apart.
    pub scales: Option<Buffer>,
    /// What sums are multiplied with.
    pub global_scale: f32,
    /// How it is stored.
    pub layout: Layout,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

impl DeviceMatrix {
    /// Copies a matrix to the GPU.
    ///
    /// # Errors
    /// When it doesn't fit.
    pub fn upload(gpu: &Gpu, kernels: &Kernels, matrix: &Matrix) -> Result<DeviceMatrix, Error> {
        // GGUF stores routers in f32, many of them with values that bf16 holds.
        let matrix = &weights::narrow(matrix.clone());
        let stored = stored(matrix);
        let (layout, rows, cols) = (stored.layout, matrix.rows, matrix.cols);
        kernels.prepare(gpu, [layout])?;
        let mut values = gpu.upload(stored.values)?;
        let mut scales = if stored.scales.is_empty() { None } else { Some(gpu.upload(&stored.scales)?) };
        if layout.is_fast(cols) {
            let tiles = gpu.allocate(layout.tiled_bytes(rows, cols))?;
            let given = scales.take();
            let form = (layout, stored.repacked);
            tile(gpu, kernels, form, &values, given.as_ref(), (rows, cols), tiles.address())?;
            gpu.synchronize()?;
            values = tiles;
        }
        Ok(DeviceMatrix { values, scales, global_scale: stored.global_scale, layout, rows, cols })
    }

    /// The order in which its products take their vectors.
    #[must_use]
    pub fn order(&self) -> Order {
        self.layout.order(self.cols)
    }

    /// Where the scales begin, if there are any.
    #[must_use]
    pub fn scales_address(&self) -> Address {
        self.scales.as_ref().map_or(Address::NULL, Buffer::address)
    }
}

/// The same matrix of several experts, one after the other.
pub struct ExpertMatrices {
    pub(super) values: Buffer,
    pub(super) scales: Buffer,
    pub(super) global_scales: Buffer,
    pub(super) value_stride: usize,
    pub(super) scale_stride: usize,
}

/// Queues the tiling of a matrix with its scales: the same bits in another order.
fn tile(
    gpu: &Gpu,
    kernels: &Kernels,
    (layout, repacked): (Layout, Option<BlockType>),
    values: &Buffer,
    scales: Option<&Buffer>,
    (rows, cols): (usize, usize),
    tiles: Address,
) -> Result<(), Error> {
    let blocks = (rows * cols / 8).div_ceil(256).clamp(1, 65_535);
    let (values, rows, cols) = (values.address(), rows as u32, cols as u32);
    let scales = scales.map_or(Address::NULL, Buffer::address);
    let kernel = match layout {
        _ if repacked == Some(BlockType::Q4_0) => kernels.tile_q4_0,
        _ if repacked == Some(BlockType::IQ4_NL) => kernels.tile_iq4_nl,
        _ if repacked == Some(BlockType::Q3_K) => kernels.tile_q3_k,
        _ if repacked == Some(BlockType::Q4_1) => kernels.tile_q4_1,
        _ if repacked == Some(BlockType::MXFP4) => kernels.tile_mxfp4,
        _ if repacked == Some(BlockType::NVFP4) => kernels.tile_nvfp4_blocks,
        Layout::Nvfp4 => kernels.tile_nvfp4,
        Layout::Int4 => kernels.tile_int4,
        Layout::F8Blocks => kernels.tile_f8,
        Layout::F32 => kernels.tile_f32,
        Layout::Q8_0 => kernels.tile_q8_0,
        Layout::Q5_0 => kernels.tile_q5_0,
        Layout::Q4K => kernels.tile_q4_k,
        Layout::Q5K => kernels.tile_q5_k,
        Layout::Q6K => kernels.tile_q6_k,
        Layout::Q5_1 => kernels.tile_q5_1,
        Layout::Iq4Xs => kernels.tile_iq4_xs,
        _ => return launch!(gpu, kernels.tile_bf16, (blocks, 1, 1), 256, 0; values, rows, cols, tiles),
    };
    launch!(gpu, kernel, (blocks, 1, 1), 256, 0; values, scales, rows, cols, tiles)
}

impl ExpertMatrices {
    fn upload(
        gpu: &Gpu,
        kernels: &Kernels,
        matrices: &[&Matrix],
        layout: Layout,
    ) -> Result<ExpertMatrices, Error> {
        let parts: Vec<Stored<'_>> = matrices.iter().map(|matrix| stored(matrix)).collect();
        if let Some((odd, _)) = matrices.iter().zip(&parts).find(|(_, part)| part.layout != layout) {
            return Err(Error::Unsupported {
                what: format!("{} in another layout than its neighbours, on a GPU,", odd.name),
                hint: "all routed experts of a layer must be stored alike, or run it on the processor",
            });
        }
        kernels.prepare(gpu, [layout])?;
        let (rows, cols) = matrices.first().map_or((0, 0), |matrix| (matrix.rows, matrix.cols));
        let tiled = layout.is_fast(cols);
        // Starts of rows stay multiples of 16 bytes.
        let stride = |len: usize| len.next_multiple_of(16);
        let largest = |len: fn(&Stored<'_>) -> usize| parts.iter().map(len).max().unwrap_or(0);
        let stored_len = (largest(|part| part.values.len()), largest(|part| part.scales.len()));
        let (value_stride, scale_stride) = if tiled {
            (layout.tiled_bytes(rows, cols), 0)
        } else {
            (stride(stored_len.0), stride(stored_len.1))
        };
        let values = gpu.allocate(value_stride * parts.len())?;
        let scales = gpu.allocate(scale_stride * parts.len())?;
        let staging = if tiled { stored_len } else { (0, 0) };
        let staging = (gpu.allocate(staging.0)?, gpu.allocate(staging.1)?);
        for (i, part) in parts.iter().enumerate() {
            let place = values.address().offset(i * value_stride);
            if tiled {
                gpu.write(staging.0.address(), part.values)?;
                gpu.write(staging.1.address(), &part.scales)?;
                let form = (layout, part.repacked);
                tile(gpu, kernels, form, &staging.0, Some(&staging.1), (rows, cols), place)?;
            } else {
                gpu.write(place, part.values)?;
                gpu.write(scales.address().offset(i * scale_stride), &part.scales)?;
            }
        }
        gpu.synchronize()?;
        let global_scales: Vec<f32> = parts.iter().map(|part| part.global_scale).collect();
        Ok(ExpertMatrices {
            values,
            scales,
            global_scales: gpu.upload(&global_scales)?,
            value_stride,
            scale_stride,
        })
    }

    /// As the kernels take them.
    #[must_use]
    pub fn args(&self) -> ExpertWeightArgs {
        ExpertWeightArgs {
            values: self.values.address(),
            scales: self.scales.address(),
            global_scales: self.global_scales.address(),
            value_stride: self.value_stride as u64,
            scale_stride: self.scale_stride as u64,
        }
    }
}

/// SwiGLU blocks of one shape: the routed experts of a layer, or one block alone.
pub struct Mlps {
    /// `[experts][width, hidden]`
    pub gate: ExpertMatrices,
    /// `[experts][width, hidden]`
    pub up: ExpertMatrices,
    /// `[experts][hidden, width]`
    pub down: ExpertMatrices,
    /// How gate and up are stored.
    pub gate_layout: Layout,
    /// How down is stored.
    pub down_layout: Layout,
    /// Rows of gate and up.
    pub width: usize,
    /// Rows of down.
    pub hidden: usize,
}

impl Mlps {
    /// Copies blocks to the GPU.
    ///
    /// # Errors
    /// When they don't fit, or are stored differently.
    pub fn upload(gpu: &Gpu, kernels: &Kernels, mlps: &[&HostMlp]) -> Result<Mlps, Error> {
        let Some(first) = mlps.first() else {
            return Err(Error::Unsupported {
                what: "a layer without experts".into(),
                hint: "check config.json",
            });
        };
        let (gate_layout, down_layout) = (stored(&first.gate).layout, stored(&first.down).layout);
        let all = |of: fn(&HostMlp) -> &Matrix| mlps.iter().map(|mlp| of(mlp)).collect::<Vec<_>>();
        Ok(Mlps {
            gate: ExpertMatrices::upload(gpu, kernels, &all(|mlp| &mlp.gate), gate_layout)?,
            up: ExpertMatrices::upload(gpu, kernels, &all(|mlp| &mlp.up), gate_layout)?,
            down: ExpertMatrices::upload(gpu, kernels, &all(|mlp| &mlp.down), down_layout)?,
            gate_layout,
            down_layout,
            width: first.gate.rows,
            hidden: first.down.rows,
        })
    }
}

/// The projection of queries.
pub enum Query {
    /// Through a latent.
    Latent {
        /// `[Q, hidden]`
        q_a: DeviceMatrix,
        /// `[Q]`
        q_a_norm: Buffer,
        /// `[A (N + R), Q]`
        q_b: DeviceMatrix,
    },
    /// `[A (N + R), hidden]`
    Direct(DeviceMatrix),
}

/// Multi-head latent attention; shapes as in [`weights::Attention`].
#[allow(missing_docs)]
pub struct Attention {
    pub query: Query,
    pub kv_a: DeviceMatrix,
    pub kv_a_norm: Buffer,
    pub kv_b: DeviceMatrix,
    pub k_b_transposed: DeviceMatrix,
    pub o: DeviceMatrix,
    pub indexer: Option<IndexerWeights>,
}

impl Attention {
    /// The orders in which it takes its vectors.
    #[must_use]
    pub fn orders(&self) -> Vec<Order> {
        let query = match &self.query {
            Query::Latent { q_a, .. } => q_a,
            Query::Direct(q) => q,
        };
        let of_indexer = self.indexer.iter().flat_map(IndexerWeights::orders);
        [query.order(), self.kv_a.order()].into_iter().chain(of_indexer).collect()
    }
}

/// A mixture of experts.
pub struct Experts {
    /// `[experts, hidden]`
    pub router: DeviceMatrix,
    /// `[experts]`
    pub bias: Option<Buffer>,
    /// The numbers of the routed experts that are here.
    pub numbers: Range<usize>,
    /// They, and after them the shared one if it is stored alike.
    pub routed: Mlps,
    /// Which tokens visit the shared expert as the last of `routed`.
    pub shared_visits: SharedVisits,
    /// The shared expert if it isn't.
    pub shared: Option<Mlps>,
}

/// The second half of a layer.
pub enum FeedForward {
    /// One MLP.
    Dense(Box<Mlps>),
    /// A router and its experts.
    Experts(Box<Experts>),
}

impl FeedForward {
    /// The orders in which it takes its vectors.
    #[must_use]
    pub fn orders(&self) -> Vec<Order> {
        let mlp = |mlps: &Mlps| mlps.gate_layout.order(mlps.hidden);
        match self {
            FeedForward::Dense(mlps) => vec![mlp(mlps)],
            FeedForward::Experts(experts) => {
                let shared = experts.shared.as_ref().map(mlp);
                [experts.router.order(), mlp(&experts.routed)].into_iter().chain(shared).collect()
            }
        }
    }
}

/// One decoder layer.
#[allow(missing_docs)]
pub struct Layer {
    pub input_layernorm: Buffer,
    pub attention: Attention,
    pub post_attention_layernorm: Buffer,
    pub feed_forward: FeedForward,
}

/// All weights.
#[allow(missing_docs)]
pub struct Weights {
    pub embed_tokens: DeviceMatrix,
    pub layers: Vec<Layer>,
    pub norm: Buffer,
    /// `None`: the embedding, tied.
    pub lm_head: Option<DeviceMatrix>,
}

impl Weights {
    /// Copies a rank's part of all weights to its GPU; `progress` is told after each layer.
    ///
    /// # Errors
    /// When they don't fit, can't be dealt out, or are stored in a way that the kernels can't read.
    pub fn upload(
        gpu: &Gpu,
        kernels: &Kernels,
        host: &weights::Weights,
        tied: bool,
        shard: Shard<'_>,
        progress: Option<fn(usize, usize)>,
    ) -> Result<Weights, Error> {
        host.matrices().try_for_each(check_layout)?;
        // Once for all, for then they are compiled side by side.
        kernels.prepare(gpu, host.matrices().map(|matrix| stored(matrix).layout))?;
        let part = |matrix| DeviceMatrix::upload(gpu, kernels, &shard.vocabulary_rows(matrix)?);
        let upload = |(i, layer)| {
            let uploaded = upload_layer(gpu, kernels, &shard.layer(layer)?)?;
            if let Some(progress) = progress {
                progress(i + 1, host.layers.len());
            }
            Ok(uploaded)
        };
        Ok(Weights {
            embed_tokens: part(&host.embed_tokens)?,
            layers: host.layers.iter().enumerate().map(upload).collect::<Result<_, Error>>()?,
            norm: gpu.upload(&host.norm)?,
            lm_head: if tied { None } else { Some(part(&host.lm_head)?) },
        })
    }

    /// `[vocab_size, hidden]`
    #[must_use]
    pub fn lm_head(&self) -> &DeviceMatrix {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }
}

fn upload_layer(gpu: &Gpu, kernels: &Kernels, layer: &weights::Layer) -> Result<Layer, Error> {
    let attention = &layer.attention;
    let matrix = |host: &Matrix| DeviceMatrix::upload(gpu, kernels, host);
    let (kv_b, keys) = attention.keys_values.to_joined_with_keys();
    Ok(Layer {
        input_layernorm: gpu.upload(&layer.input_layernorm)?,
        attention: Attention {
            query: match &attention.query {
                HostQuery::Latent { q_a, q_a_norm, q_b } => {
                    Query::Latent { q_a: matrix(q_a)?, q_a_norm: gpu.upload(q_a_norm)?, q_b: matrix(q_b)? }
                }
                HostQuery::Direct(q) => Query::Direct(matrix(q)?),
            },
            kv_a: matrix(&attention.kv_a)?,
            kv_a_norm: gpu.upload(&attention.kv_a_norm)?,
            kv_b: matrix(&kv_b)?,
            k_b_transposed: matrix(&keys)?,
            o: matrix(&attention.o)?,
            indexer: attention
                .indexer
                .as_ref()
                .map(|indexer| IndexerWeights::upload(gpu, kernels, indexer))
                .transpose()?,
        },
        post_attention_layernorm: gpu.upload(&layer.post_attention_layernorm)?,
        feed_forward: match &layer.feed_forward {
            HostFeedForward::Dense(mlp) => FeedForward::Dense(Box::new(Mlps::upload(gpu, kernels, &[mlp])?)),
            HostFeedForward::Experts(experts) => {
                FeedForward::Experts(Box::new(upload_experts(gpu, kernels, experts)?))
            }
        },
    })
}

pub(super) fn upload_experts(
    gpu: &Gpu,
    kernels: &Kernels,
    experts: &weights::Experts,
) -> Result<Experts, Error> {
    let mut all: Vec<&HostMlp> = experts.routed.iter().collect();
    let like_routed = |shared: &HostMlp| {
        all.first().is_some_and(|routed| {
            let alike = |a: &Matrix, b: &Matrix| {
                (a.rows, a.cols, stored(a).layout) == (b.rows, b.cols, stored(b).layout)
            };
            alike(&routed.gate, &shared.gate)
                && alike(&routed.up, &shared.up)
                && alike(&routed.down, &shared.down)
        })
    };
    let shared_joined = experts.shared.as_ref().is_some_and(like_routed);
    let alone = experts.shared.as_ref().filter(|_| !shared_joined);
    all.extend(experts.shared.as_ref().filter(|_| shared_joined));
    Ok(Experts {
        router: DeviceMatrix::upload(gpu, kernels, &experts.router)?,
        bias: experts.bias.as_ref().map(|bias| gpu.upload(bias)).transpose()?,
        numbers: experts.first..experts.first + experts.routed.len(),
        routed: Mlps::upload(gpu, kernels, &all)?,
        shared_visits: match experts.shared_by {
            _ if !shared_joined => SharedVisits::Unlisted,
            Some(rank) => SharedVisits::Of(rank),
            None => SharedVisits::All,
        },
        shared: alone.map(|mlp| Mlps::upload(gpu, kernels, &[mlp])).transpose()?,
    })
}
