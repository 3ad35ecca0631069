"""Writes the seeds beside it: small files by the formats' own Python packages, and damaged ones made from them.

    pip install numpy gguf==0.19.0 safetensors==0.8.0 && python seeds/make.py

The same bytes on every run.
"""

import json
import struct
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RANDOM = np.random.default_rng(3)
# In the order of the target's list.
BLOCKS = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4".split()


def write(target, name, content):
    (HERE / target).mkdir(exist_ok=True)
    (HERE / target / name).write_bytes(content)


def changed(content, at, new):
    return content[:at] + new + content[at + len(new) :]


def safetensors():
    bytes_of = lambda *shape: RANDOM.integers(0, 127, shape, np.uint8)
    f32 = lambda *shape: RANDOM.random(shape, np.float32)
    tensors = {
        "model.norm.weight": ("BF16", bytes_of(8, 2)),
        "lm_head.weight": ("F16", bytes_of(2, 8, 2)),
        "model.embed_tokens.weight": ("F32", f32(2, 8)),
        "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", bytes_of(2, 8)),
        # ModelOpt NVFP4
        "model.layers.0.mlp.gate_proj.weight": ("U8", bytes_of(2, 16)),
        "model.layers.0.mlp.gate_proj.weight_scale": ("F8_E4M3", bytes_of(2, 2)),
        "model.layers.0.mlp.gate_proj.weight_scale_2": ("F32", f32()),
        "model.layers.0.mlp.gate_proj.input_scale": ("F32", f32()),
        # compressed-tensors NVFP4
        "model.layers.1.mlp.gate_proj.weight_packed": ("U8", bytes_of(2, 16)),
        "model.layers.1.mlp.gate_proj.weight_scale": ("F8_E4M3", bytes_of(2, 2)),
        "model.layers.1.mlp.gate_proj.weight_global_scale": ("F32", f32(1)),
        # compressed-tensors INT4
        "model.layers.1.mlp.up_proj.weight_packed": ("I32", bytes_of(2, 8, 4)),
        "model.layers.1.mlp.up_proj.weight_scale": ("BF16", bytes_of(2, 2, 2)),
        "model.layers.1.mlp.up_proj.weight_shape": ("I64", np.array([2, 64], np.int64)),
        # DeepSeek FP8 blocks
        "language_model.model.layers.2.mlp.up_proj.weight": ("F8_E4M3", bytes_of(3, 130)),
        "language_model.model.layers.2.mlp.up_proj.weight_scale_inv": ("F32", f32(1, 2)),
        # Without a meaning here
        "model.layers.3.mlp.up_proj.qweight": ("I32", bytes_of(1, 4, 4)),
        "vision_tower.patch_embed.bias": ("F8_E8M0", bytes_of(4)),
    }
    widths = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I32": 4, "I64": 8}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, values) in tensors.items():
        raw = values.tobytes()
        shape = list(values.shape)
        if values.itemsize == 1 and widths[dtype] > 1:
            shape = shape[:-1]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = lambda header: json.dumps(header, separators=(",", ":")).encode()
    file = lambda text, data: struct.pack("<Q", len(text)) + text + data
    whole = file(text(header), data)
    # The format's own reader takes the file.
    from safetensors import deserialize

    assert len(deserialize(whole)) == len(tensors)
    write("safetensors", "layouts.safetensors", whole)
    write("safetensors", "truncated.safetensors", whole[:-40])
    write("safetensors", "cut-header.safetensors", whole[:200])
    write("safetensors", "long-header.safetensors", changed(whole, 0, struct.pack("<Q", 100_000_001)))
    write("safetensors", "git-lfs.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n")
    small = {"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}, "b": {"dtype": "U8", "shape": [8], "data_offsets": [8, 16]}}
    write("safetensors", "small.safetensors", file(text(small), bytes(16)))
    damages = {
        "overlap": {"b": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]}},
        "backwards": {"b": {"dtype": "U8", "shape": [8], "data_offsets": [16, 8]}},
        "huge-shape": {"b": {"dtype": "U8", "shape": [2**33, 2**33], "data_offsets": [8, 16]}},
        "end-of-u64": {"b": {"dtype": "U8", "shape": [8], "data_offsets": [2**64 - 9, 2**64 - 1]}},
    }
    for name, change in damages.items():
        write("safetensors", f"{name}.safetensors", file(text(small | change), bytes(16)))
    twice = text(small).replace(b'"b"', b'"a"')
    write("safetensors", "twice.safetensors", file(twice, bytes(16)))

    index = {"metadata": {"total_size": len(data)}, "weight_map": dict.fromkeys(tensors, "model.safetensors")}
    write("safetensors_index", "right.json", text(index))
    index["weight_map"] |= {"gone.weight": "model.safetensors", "lm_head.weight": "model-00002-of-00002.safetensors"}
    del index["weight_map"]["model.norm.weight"]
    write("safetensors_index", "outdated.json", text(index))
    write("safetensors_index", "types.json", b'{"weight_map": {"lm_head.weight": [7, null]}, "metadata": 3}')
    write("safetensors_index", "no-map.json", b'{"weight_map": []}')
    write("safetensors_index", "cut.json", text(index)[:100])
    write("safetensors_index", "deep.json", b"[" * 300)


def configs():
    canary = ROOT / "models" / "canary"
    names = ["config.json", "generation_config.json", "hf_quant_config.json"]
    compact = [json.dumps(json.loads((canary / name).read_text()), separators=(",", ":")).encode() for name in names]
    write("config", "canary", b"\0".join(compact))
    write("config", "config-only", compact[0])
    blocks = json.loads(compact[0]) | {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [1, 1]}}
    write("config", "fp8-blocks", json.dumps(blocks).encode())
    write("config", "cut", compact[0][:300])


def gguf_file(architecture, tensors, more=(), vocabulary=("a", "b", "ab", "<|im_end|>")):
    path = HERE / "seed.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 2,
        "attention.q_lora_rank": 32,
        "attention.kv_lora_rank": 32,
        "attention.key_length_mla": 48,
        "attention.value_length_mla": 32,
        "rope.dimension_count": 16,
        "leading_dense_block_count": 1,
        "vocab_size": 4,
        "expert_count": 2,
        "expert_used_count": 1,
        "expert_shared_count": 1,
        "expert_feed_forward_length": 32,
        "expert_gating_func": 2,
        **dict(more),
    }.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{architecture}.expert_weights_scale", 2.5)
    writer.add_bool(f"{architecture}.expert_weights_norm", True)
    writer.add_file_type(15)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("kimi-k2")
    writer.add_token_list(list(vocabulary))
    writer.add_token_types([1] * (len(vocabulary) - 1) + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    for name, (kind, values) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    content = path.read_bytes()
    path.unlink()
    return content


def packed(kind, *shape):
    """Values of a block type; quantized where the package can, else any codes under a scale of 1."""
    elements, size = gguf.GGML_QUANT_SIZES[Q[kind]]
    rows = shape[:-1]
    try:
        return Q[kind], gguf.quants.quantize(RANDOM.standard_normal(shape, np.float32), Q[kind])
    except NotImplementedError:
        blocks = RANDOM.integers(0, 60, (*rows, shape[-1] // elements * size), np.uint8)
        return Q[kind], blocks


def ggufs():
    f32 = lambda *shape: (Q.F32, RANDOM.standard_normal(shape, np.float32))
    blocks = {f"blk.0.{kind.lower()}.weight": packed(kind, 2, gguf.GGML_QUANT_SIZES[Q[kind]][0]) for kind in BLOCKS}
    write("gguf", "block-types.gguf", gguf_file("deepseek2", {"output_norm.weight": f32(64), **blocks}))
    experts = gguf_file(
        "deepseek2",
        {
            "blk.1.ffn_up_exps.weight": packed("Q8_0", 2, 2, 32),
            "blk.1.ffn_gate_exps.weight": packed("Q4_0", 2, 2, 32),
            "blk.1.ffn_down_exps.weight": packed("NVFP4", 2, 1, 64),
            "blk.1.ffn_down_exps.scale": f32(2),
            "blk.1.exp_probs_b.bias": f32(2),
            "output.weight": (Q.F16, np.ones((2, 8), np.float16)),
        },
    )
    write("gguf", "experts.gguf", experts)
    halves = gguf_file("deepseek2", {"blk.0.attn_k_b.weight": packed("Q4_0", 2, 32, 32), "blk.0.attn_v_b.weight": packed("Q5_0", 2, 32, 32)})
    write("gguf", "key-value-halves.gguf", halves)
    indexer = {"attention.indexer.head_count": 2, "attention.indexer.key_length": 32, "attention.indexer.top_k": 8, "nextn_predict_layers": 1}
    sparse = gguf_file("glm-dsa", {"blk.0.indexer.attn_k.weight": packed("Q8_0", 2, 32), "blk.1.nextn.eh_proj.weight": f32(2, 2)}, indexer.items())
    write("gguf", "glm-dsa.gguf", sparse)
    write("gguf", "truncated.gguf", experts[:-40])
    write("gguf", "cut-metadata.gguf", experts[:400])
    write("gguf", "version-2.gguf", changed(halves, 4, struct.pack("<I", 2)))
    write("gguf", "version-1.gguf", changed(experts[:64], 4, struct.pack("<I", 1)))
    write("gguf", "big-endian.gguf", changed(experts[:64], 4, struct.pack(">I", 3)))
    write("gguf", "tensors-without-end.gguf", changed(experts, 8, struct.pack("<Q", 2**64 - 1)))
    write("gguf", "values-without-end.gguf", changed(experts, 16, struct.pack("<Q", 2**64 - 1)))
    write("gguf", "key-without-end.gguf", changed(experts[:64], 24, struct.pack("<Q", 2**64 - 1)))
    at = experts.index(b"blk.1.ffn_up_exps.weight") + 24 + 4
    write("gguf", "experts-without-rows.gguf", changed(experts, at + 8, struct.pack("<Q", 0)))
    write("gguf", "experts-without-number.gguf", changed(experts, at + 16, struct.pack("<Q", 2**62)))
    lists = b"".join(struct.pack("<IQ", 9, 1) for _ in range(50))
    deep = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"x" + struct.pack("<I", 9) + lists
    write("gguf", "lists-in-lists.gguf", deep)


def blocks():
    for number, kind in enumerate(BLOCKS):
        elements, _ = gguf.GGML_QUANT_SIZES[Q[kind]]
        write("gguf_blocks", kind, bytes([number]) + packed(kind, 2, elements)[1].tobytes())


safetensors()
configs()
ggufs()
blocks()
