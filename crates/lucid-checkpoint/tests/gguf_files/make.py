"""Writes split-0000?-of-0000?.gguf, a small model in several files by llama.cpp's own Python package, and values.json: every matrix in it as
that package decodes it.

    pip install numpy gguf==0.19.0 && python make.py

Layer 0 has the key-value matrix in halves, layer 1 the same matrix whole, as older converters wrote it. The halves are cut as
`conversion/deepseek.py: modify_tensors` of llama.cpp cuts them.
"""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf.quants import dequantize, quantize

HERE = Path(__file__).parent
RANDOM = np.random.default_rng(11)
HEADS, NOPE, VALUE, LATENT, EXPERTS = 2, 32, 32, 32, 2

values = {}


def bits(array):
    return np.ascontiguousarray(array, np.float32).tobytes().hex()


def remember(module, decoded):
    rows, cols = decoded.shape
    values[module] = {"rows": rows, "cols": cols, "values": bits(decoded)}


for old in HERE.glob("split-*.gguf"):
    old.unlink()
writer = gguf.GGUFWriter(HERE / "split.gguf", "deepseek2", split_max_tensors=5)
for key, value in {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": HEADS,
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": LATENT,
    "attention.key_length_mla": NOPE + 16,
    "attention.value_length_mla": VALUE,
    "rope.dimension_count": 16,
    "leading_dense_block_count": 1,
    "vocab_size": 10,
    "expert_count": EXPERTS,
    "expert_used_count": 1,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 32,
    "expert_gating_func": 2,
}.items():
    writer.add_uint32(f"deepseek2.{key}", value)
writer.add_float32("deepseek2.rope.freq_base", 10000.0)
writer.add_float32("deepseek2.attention.layer_norm_rms_epsilon", 1e-6)
writer.add_float32("deepseek2.expert_weights_scale", 2.5)


def random(*shape):
    return RANDOM.standard_normal(shape, np.float32)


def add(name, module, kind, content):
    """Quantizes and adds a matrix; remembers what the package decodes."""
    packed = quantize(content, Q[kind])
    writer.add_tensor(name, packed, raw_dtype=Q[kind])
    if module:
        remember(module, dequantize(packed, Q[kind]).astype(np.float32))


add("token_embd.weight", "model.embed_tokens", "F16", random(10, 64))
add("output.weight", "lm_head", "BF16", random(10, 64))
writer.add_tensor("output_norm.weight", random(64))
add("blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj", "F32", random(3, 64))

# kv_b [A (N + V), L]; k_b [A, L, N], v_b [A, V, L]
kv_b = random(HEADS * (NOPE + VALUE), LATENT)
k_b, v_b = np.split(kv_b.reshape(HEADS, NOPE + VALUE, LATENT), [NOPE], axis=1)
k_b = np.ascontiguousarray(np.transpose(k_b, (0, 2, 1)))
add("blk.0.attn_k_b.weight", None, "F32", k_b)
add("blk.0.attn_v_b.weight", None, "F32", np.ascontiguousarray(v_b))
remember("model.layers.0.self_attn.kv_b_proj", kv_b)
add("blk.1.attn_kv_b.weight", "model.layers.1.self_attn.kv_b_proj", "F32", kv_b)

# Expert stacks; NVFP4's scales of experts are a tensor of their own.
for base, projections, kind, shape in [
    ("ffn_up_exps", ["up_proj"], "Q8_0", (EXPERTS, 2, 64)),
    ("ffn_gate_exps", ["gate_proj"], "Q5_1", (EXPERTS, 3, 64)),
]:
    packed = quantize(random(*shape), Q[kind])
    writer.add_tensor(f"blk.1.{base}.weight", packed, raw_dtype=Q[kind])
    for expert in range(EXPERTS):
        remember(f"model.layers.1.mlp.experts.{expert}.{projections[0]}", dequantize(packed[expert], Q[kind]).astype(np.float32))
elements, size = gguf.GGML_QUANT_SIZES[Q.NVFP4]
packed = RANDOM.integers(0, 0x70, (EXPERTS, 2, 128 // elements * size), np.uint8)
scales = np.array([0.37, 1.25e-4], np.float32)
writer.add_tensor("blk.1.ffn_down_exps.weight", packed, raw_dtype=Q.NVFP4)
writer.add_tensor("blk.1.ffn_down_exps.scale", scales)
for expert in range(EXPERTS):
    decoded = dequantize(packed[expert], Q.NVFP4).astype(np.float32) * scales[expert]
    remember(f"model.layers.1.mlp.experts.{expert}.down_proj", decoded)

writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
(HERE / "values.json").write_text(json.dumps(values, indent=1) + "\n")
