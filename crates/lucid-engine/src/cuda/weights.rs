//! The weights in the GPU's memory, packed as the checkpoint stores them; copied once, at load.

use lucid_checkpoint::{Matrix, Packed};

use super::driver::{Address, Buffer, Gpu};
use super::kernels::{ExpertWeightArgs, Order};
use crate::Error;
use crate::weights::{self, FeedForward as HostFeedForward, Mlp as HostMlp, Query as HostQuery};

/// A weight matrix.
pub struct DeviceMatrix {
    /// `[rows, cols]` packed.
    pub values: Buffer,
    /// NVFP4's block scales.
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

/// How a matrix is stored; numbered as in `numerics.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)] // The checkpoint's layouts.
pub enum Layout {
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
    F8E4m3 = 3,
    Nvfp4 = 4,
}

impl Layout {
    /// Whether the tensor-core kernels take this layout with so many columns; else the plain ones do.
    #[must_use]
    pub fn is_fast(self, cols: usize) -> bool {
        match self {
            Layout::Bf16 => cols.is_multiple_of(32),
            Layout::Nvfp4 => cols.is_multiple_of(128),
            _ => false,
        }
    }

    /// The order in which products with such a matrix take their vectors.
    #[must_use]
    pub fn order(self, cols: usize) -> Order {
        if self == Layout::Nvfp4 && self.is_fast(cols) { Order::Nvfp4 } else { Order::Natural }
    }

    /// Warps that share a row: a power of two, by shape alone, so that the order of sums is too.
    #[must_use]
    pub fn slices(self, cols: usize) -> usize {
        let (step, steps_per_warp) = if self == Layout::Nvfp4 { (128, 4) } else { (32, 8) };
        let wanted = (cols / step / steps_per_warp).clamp(1, 8);
        1 << wanted.ilog2()
    }
}

/// The stored bytes of a matrix.
struct Stored<'a> {
    layout: Layout,
    values: &'a [u8],
    scales: &'a [u8],
    global_scale: f32,
}

fn stored(matrix: &Matrix) -> Stored<'_> {
    let plain = |layout, values| Stored { layout, values, scales: &[], global_scale: 1.0 };
    match &matrix.packed {
        Packed::F32(values) => plain(Layout::F32, values),
        Packed::F16(values) => plain(Layout::F16, values),
        Packed::Bf16(values) => plain(Layout::Bf16, values),
        Packed::F8E4m3(values) => plain(Layout::F8E4m3, values),
        Packed::Nvfp4 { codes, scales, global_scale, .. } => {
            Stored { layout: Layout::Nvfp4, values: codes, scales, global_scale: *global_scale }
        }
        other => unreachable!("{other:?} was refused by Weights::check_gpu_layouts"),
    }
}

impl DeviceMatrix {
    /// Copies a matrix to the GPU.
    ///
    /// # Errors
    /// When it doesn't fit.
    pub fn upload(gpu: &Gpu, matrix: &Matrix) -> Result<DeviceMatrix, Error> {
        let stored = stored(matrix);
        Ok(DeviceMatrix {
            values: gpu.upload(stored.values)?,
            scales: if stored.scales.is_empty() { None } else { Some(gpu.upload(stored.scales)?) },
            global_scale: stored.global_scale,
            layout: stored.layout,
            rows: matrix.rows,
            cols: matrix.cols,
        })
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

impl ExpertMatrices {
    fn upload(gpu: &Gpu, matrices: &[&Matrix], layout: Layout) -> Result<ExpertMatrices, Error> {
        let parts: Vec<Stored<'_>> = matrices.iter().map(|matrix| stored(matrix)).collect();
        if let Some((odd, _)) = matrices.iter().zip(&parts).find(|(_, part)| part.layout != layout) {
            return Err(Error::Unsupported {
                what: format!("{} in another layout than its neighbours, on a GPU,", odd.name),
                hint: "all routed experts of a layer must be stored alike, or run it on the processor",
            });
        }
        // Starts of rows stay multiples of 16 bytes.
        let stride = |len: usize| len.next_multiple_of(16);
        let value_stride = stride(parts.first().map_or(0, |part| part.values.len()));
        let scale_stride = stride(parts.first().map_or(0, |part| part.scales.len()));
        let values = gpu.allocate(value_stride * parts.len())?;
        let scales = gpu.allocate(scale_stride * parts.len())?;
        for (i, part) in parts.iter().enumerate() {
            gpu.write(values.address().offset(i * value_stride), part.values)?;
            gpu.write(scales.address().offset(i * scale_stride), part.scales)?;
        }
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
    pub fn upload(gpu: &Gpu, mlps: &[&HostMlp]) -> Result<Mlps, Error> {
        let Some(first) = mlps.first() else {
            return Err(Error::Unsupported {
                what: "a layer without experts".into(),
                hint: "check config.json",
            });
        };
        let (gate_layout, down_layout) = (stored(&first.gate).layout, stored(&first.down).layout);
        let all = |of: fn(&HostMlp) -> &Matrix| mlps.iter().map(|mlp| of(mlp)).collect::<Vec<_>>();
        Ok(Mlps {
            gate: ExpertMatrices::upload(gpu, &all(|mlp| &mlp.gate), gate_layout)?,
            up: ExpertMatrices::upload(gpu, &all(|mlp| &mlp.up), gate_layout)?,
            down: ExpertMatrices::upload(gpu, &all(|mlp| &mlp.down), down_layout)?,
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
}

/// A mixture of experts.
pub struct Experts {
    /// `[experts, hidden]`
    pub router: DeviceMatrix,
    /// `[experts]`
    pub bias: Option<Buffer>,
    /// The routed experts, and after them the shared one if it is stored alike.
    pub routed: Mlps,
    /// Whether the shared expert is the last of `routed`.
    pub shared_joined: bool,
    /// The shared expert if it isn't.
    pub shared: Option<Mlps>,
}

/// The second half of a layer.
pub enum FeedForward {
    /// One MLP.
    Dense(Mlps),
    /// A router and its experts.
    Experts(Experts),
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
    /// Copies all weights to the GPU.
    ///
    /// # Errors
    /// When they don't fit, or are stored in a way that the kernels can't read.
    pub fn upload(gpu: &Gpu, host: &weights::Weights, tied: bool) -> Result<Weights, Error> {
        host.check_gpu_layouts()?;
        Ok(Weights {
            embed_tokens: DeviceMatrix::upload(gpu, &host.embed_tokens)?,
            layers: host.layers.iter().map(|layer| upload_layer(gpu, layer)).collect::<Result<_, _>>()?,
            norm: gpu.upload(&host.norm)?,
            lm_head: if tied { None } else { Some(DeviceMatrix::upload(gpu, &host.lm_head)?) },
        })
    }

    /// `[vocab_size, hidden]`
    #[must_use]
    pub fn lm_head(&self) -> &DeviceMatrix {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }
}

fn upload_layer(gpu: &Gpu, layer: &weights::Layer) -> Result<Layer, Error> {
    let attention = &layer.attention;
    let matrix = |host: &Matrix| DeviceMatrix::upload(gpu, host);
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
            kv_b: matrix(&attention.kv_b)?,
            k_b_transposed: matrix(&attention.k_b_transposed)?,
            o: matrix(&attention.o)?,
        },
        post_attention_layernorm: gpu.upload(&layer.post_attention_layernorm)?,
        feed_forward: match &layer.feed_forward {
            HostFeedForward::Dense(mlp) => FeedForward::Dense(Mlps::upload(gpu, &[mlp])?),
            HostFeedForward::Experts(experts) => FeedForward::Experts(upload_experts(gpu, experts)?),
        },
    })
}

pub(super) fn upload_experts(gpu: &Gpu, experts: &weights::Experts) -> Result<Experts, Error> {
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
        router: DeviceMatrix::upload(gpu, &experts.router)?,
        bias: experts.bias.as_ref().map(|bias| gpu.upload(bias)).transpose()?,
        routed: Mlps::upload(gpu, &all)?,
        shared_joined,
        shared: alone.map(|mlp| Mlps::upload(gpu, &[mlp])).transpose()?,
    })
}
