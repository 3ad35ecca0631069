//! A model of the full width of Kimi-K2.5 with random weights, on the GPU.

use lucid_checkpoint::Config;

use super::random::Random;
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::forward::CudaModel;
use crate::cuda::kernels::Kernels;
use crate::cuda::layout::Layout;
use crate::cuda::ranks::Ranks;
use crate::cuda::router::SharedVisits;
use crate::cuda::weights::{
    Attention, DeviceMatrix, ExpertMatrices, Experts, FeedForward, Layer, Mlps, Query, Weights,
};
use crate::kv_cache::{PAGE_TOKENS, PageId, PagePool};
use crate::parallel::{ExpertSharing, Rank, Shard};
use crate::{Semantics, SemanticsOptions};

pub const HIDDEN: usize = 7_168;
pub const WIDTH: usize = 2_048;
pub const EXPERTS: usize = 384;
pub const HEADS: usize = 64;
pub const VOCAB: usize = 163_840;
pub const CONTEXT: usize = 1_024;

/// Random values on the GPU, from which large buffers are filled.
pub struct Noise {
    pub bf16: Buffer,
    pub tiles: Buffer,
}

impl Noise {
    pub fn new(gpu: &Gpu) -> Noise {
        // Whole tiles; a length that no weight's is a multiple of, so that matrices differ.
        let len = 1_152 * 14_593;
        let mut random = Random::new(5);
        let spread = (3.0 / HIDDEN as f32).sqrt();
        let bf16: Vec<u16> =
            (0..len / 2).map(|_| ((random.number() * spread).to_bits() >> 16) as u16).collect();
        // Any code; scales from 0.5 to 1.9.
        let tiles: Vec<u8> = (0..len)
            .map(|i| if i % 1_152 < 1_024 { random.word() as u8 } else { 0x30 + (random.word() % 16) as u8 })
            .collect();
        Noise { bf16: gpu.upload(&bf16).unwrap(), tiles: gpu.upload(&tiles).unwrap() }
    }

    pub fn fill(&self, gpu: &Gpu, from: &Buffer, bytes: usize) -> Buffer {
        let buffer = gpu.allocate(bytes).unwrap();
        let mut at = 0;
        while at < bytes {
            let part = from.bytes().min(bytes - at);
            gpu.copy(from.address(), buffer.address().offset(at), part).unwrap();
            at += part;
        }
        buffer
    }

    pub fn bf16(&self, gpu: &Gpu, rows: usize, cols: usize) -> DeviceMatrix {
        DeviceMatrix {
            values: self.fill(gpu, &self.bf16, 2 * rows * cols),
            scales: None,
            global_scale: 1.0,
            layout: Layout::Bf16,
            rows,
            cols,
        }
    }

    /// Embeddings so large that no layer's sum hides them: tokens stay as different as those of a real text, and choose their
    /// experts for themselves.
    pub fn embeddings(&self, gpu: &Gpu) -> DeviceMatrix {
        let mut random = Random::new(6);
        let values: Vec<u16> =
            (0..14_593 * 512).map(|_| ((random.number() * 16.0).to_bits() >> 16) as u16).collect();
        let loud = gpu.upload(&values).unwrap();
        let values = self.fill(gpu, &loud, 2 * VOCAB * HIDDEN);
        gpu.synchronize().unwrap();
        DeviceMatrix {
            values,
            scales: None,
            global_scale: 1.0,
            layout: Layout::Bf16,
            rows: VOCAB,
            cols: HIDDEN,
        }
    }

    /// Tiles of one of GGUF's block types: any codes, scales so large that values have a size of about three, or two where minima spread them.
    fn tiles_of_blocks(gpu: &Gpu, layout: Layout) -> Buffer {
        let bytes = layout.tiled_bytes(16, 128);
        let mut random = Random::new(7);
        let mut tiles: Vec<u8> = (0..bytes * 14_593).map(|_| random.word() as u8).collect();
        for tile in tiles.chunks_exact_mut(bytes) {
            match layout {
                // Scales for 32 columns, by how many bits codes have.
                Layout::Q8_0 => halves(&mut tile[2_048..], &[0x2900]),
                Layout::Q5_0 => halves(&mut tile[1_280..], &[0x3400]),
                // With what takes their mean off.
                Layout::Q5_1 => halves(&mut tile[1_280..], &[0x3400, 0xc3c0]),
                // f32, 2^-5.
                Layout::Iq4Xs => halves(&mut tile[2_048..], &[0, 0x3d00]),
                // Six bits of scale and minimum; factors, so that values have no mean.
                Layout::Q4K | Layout::Q5K => {
                    let (codes, factors) = match layout {
                        Layout::Q4K => (1_024, [0x2400, 0x2f80]),
                        _ => (1_280, [0x2000, 0x2fc0]),
                    };
                    tile[codes..codes + 128].iter_mut().for_each(|byte| *byte &= 63);
                    halves(&mut tile[codes + 128..], &factors);
                }
                _ => halves(&mut tile[1_536 + 128..], &[0x1800]),
            }
        }
        gpu.upload(&tiles).unwrap()
    }

    pub fn experts(
        &self,
        gpu: &Gpu,
        layout: Layout,
        experts: usize,
        rows: usize,
        cols: usize,
    ) -> ExpertMatrices {
        // Codes have a standard deviation of 2.9, scales of about 1.1.
        let global = 1.0 / (3.2 * (cols as f32).sqrt());
        let value_stride = layout.tiled_bytes(rows, cols);
        let blocks = layout.block_kernels().map(|_| Noise::tiles_of_blocks(gpu, layout));
        ExpertMatrices {
            values: self.fill(gpu, blocks.as_ref().unwrap_or(&self.tiles), experts * value_stride),
            scales: gpu.allocate(0).unwrap(),
            global_scales: gpu.upload(&vec![global; experts]).unwrap(),
            value_stride,
            scale_stride: 0,
        }
    }

    pub fn mlps(&self, gpu: &Gpu, layout: Layout, experts: usize, width: usize) -> Mlps {
        self.mixed_mlps(gpu, (layout, layout), experts, width)
    }

    /// Gate and up in one form, down in the other.
    pub fn mixed_mlps(
        &self,
        gpu: &Gpu,
        (gate_layout, down_layout): (Layout, Layout),
        experts: usize,
        width: usize,
    ) -> Mlps {
        Mlps {
            gate: self.experts(gpu, gate_layout, experts, width, HIDDEN),
            up: self.experts(gpu, gate_layout, experts, width, HIDDEN),
            down: self.experts(gpu, down_layout, experts, HIDDEN, width),
            gate_layout,
            down_layout,
            width,
            hidden: HIDDEN,
        }
    }

    pub fn layer(&self, gpu: &Gpu) -> Layer {
        self.layer_in(gpu, Layout::Nvfp4)
    }

    /// A layer with experts in this form.
    pub fn layer_in(&self, gpu: &Gpu, experts: Layout) -> Layer {
        let ones = |len: usize| gpu.upload(&vec![1f32; len]).unwrap();
        Layer {
            input_layernorm: ones(HIDDEN),
            attention: Attention {
                query: Query::Latent {
                    q_a: self.bf16(gpu, 1_536, HIDDEN),
                    q_a_norm: ones(1_536),
                    q_b: self.bf16(gpu, HEADS * 192, 1_536),
                },
                kv_a: self.bf16(gpu, 576, HIDDEN),
                kv_a_norm: ones(512),
                kv_b: self.bf16(gpu, HEADS * 256, 512),
                k_b_transposed: self.bf16(gpu, HEADS * 512, 128),
                o: self.bf16(gpu, HIDDEN, HEADS * 128),
                indexer: None,
            },
            post_attention_layernorm: ones(HIDDEN),
            feed_forward: FeedForward::Experts(Box::new(Experts {
                router: self.bf16(gpu, EXPERTS, HIDDEN),
                bias: Some(gpu.upload(&vec![0f32; EXPERTS]).unwrap()),
                numbers: 0..EXPERTS,
                routed: self.mlps(gpu, experts, EXPERTS + 1, WIDTH),
                shared_visits: SharedVisits::All,
                shared: None,
            })),
        }
    }
}

/// Binary16 numbers with these bits, one after the other and again.
fn halves(bytes: &mut [u8], bits: &[u16]) {
    for (half, bits) in bytes.chunks_exact_mut(2).zip(bits.iter().cycle()) {
        half.copy_from_slice(&bits.to_le_bytes());
    }
}

/// `config.json` with LAYERS layers, all of them with experts.
pub const CONFIG: &str = r#"{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 163840,
    "hidden_size": 7168, "num_hidden_layers": LAYERS, "first_k_dense_replace": 0, "intermediate_size": 18432,
    "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
    "dtype": "bfloat16", "rope_theta": 50000.0, "n_routed_experts": 384, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": 1, "topk_group": 1,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 2.827,
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}"#;

pub fn config(layers: usize) -> Config {
    Config::from_json("config.json", CONFIG.replace("LAYERS", &layers.to_string()).as_bytes()).unwrap()
}

/// A model of these layers, with a cache of noise for 64 sequences of CONTEXT tokens: their pages.
pub fn model(
    gpu: &Gpu,
    kernels: Kernels,
    noise: &Noise,
    layers: Vec<Layer>,
) -> (CudaModel, Vec<Vec<PageId>>) {
    let config = config(layers.len());
    let semantics = Semantics::new(&config, &SemanticsOptions::default());
    let scales = vec![1.0; layers.len()];
    let weights = Weights {
        embed_tokens: noise.embeddings(gpu),
        layers,
        norm: gpu.upload(&vec![1f32; HIDDEN]).unwrap(),
        lm_head: Some(noise.bf16(gpu, VOCAB, HIDDEN)),
    };
    let mut model = CudaModel::assemble(
        gpu.clone(),
        kernels,
        Shard::new(&config, Rank::ALONE, ExpertSharing::Widths),
        (semantics, scales),
        weights,
        (4_096, 64),
        Ranks::Alone,
    )
    .unwrap();
    let mut pool = PagePool::new(64 * (CONTEXT + PAGE_TOKENS));
    model.set_cache(pool.total()).unwrap();
    model.fill_cache(|buffer, bytes| {
        let noise = noise.fill(gpu, &noise.bf16, bytes);
        gpu.copy(noise.address(), buffer, bytes).unwrap();
        gpu.synchronize().unwrap();
    });
    let tables = (0..64)
        .map(|_| {
            let mut pages = Vec::new();
            assert!(pool.extend(&mut pages, CONTEXT));
            pages
        })
        .collect();
    (model, tables)
}
