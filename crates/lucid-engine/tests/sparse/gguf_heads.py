"""GGUF headers of the tiny models, written by llama.cpp's own Python package; the test puts the weights behind them.

    python gguf_heads.py         # gguf 0.19, numpy; after goldens.py

For each model NAME.gguf-head is the file up to its data, and NAME.gguf.json says where which weights go: [offset, kind, names], where
kind is `f32` or `bf16`, or `keys` or `values`: the halves of kv_b_proj in bf16, keys transposed per head; or `zeros`; `end` is where the file ends.

Metadata is what `conversion/deepseek.py` and `conversion/glm.py` of llama.cpp write. gguf 0.19 has no name for two things that
llama.cpp itself has: the architecture `deepseek32`, whose tensors have the names of `glm-dsa`, and the key
`attention.indexer.types`.
"""

import json
import pathlib
import re

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent
BF16 = gguf.GGMLQuantizationType.BF16


def header_tensors(name):
    data = (HERE / f"{name}.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return json.loads(header["__metadata__"]["tensors"])


def metadata(writer, c, blocks, types):
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(blocks)
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    rope = c.get("rope_parameters", c)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(c["qk_rope_head_dim"])
    if yarn := c.get("rope_scaling"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(yarn["factor"])
        writer.add_rope_scaling_orig_ctx_len(yarn["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(yarn["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(yarn["beta_slow"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * yarn["mscale_all_dim"])
    writer.add_leading_dense_block_count(c["first_k_dense_replace"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_q_lora_rank(c["q_lora_rank"])
    writer.add_kv_lora_rank(c["kv_lora_rank"])
    writer.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    writer.add_value_length(c["kv_lora_rank"])
    writer.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    writer.add_value_length_mla(c["v_head_dim"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_expert_count(c["n_routed_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_shared_count(c["n_shared_experts"])
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    writer.add_expert_weights_norm(c["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_group_count(c["n_group"])
    writer.add_expert_group_used_count(c["topk_group"])
    if blocks > c["num_hidden_layers"]:
        writer.add_nextn_predict_layers(blocks - c["num_hidden_layers"])
    writer.add_indexer_head_count(c["index_n_heads"])
    writer.add_indexer_key_length(c["index_head_dim"])
    writer.add_indexer_top_k(c["index_topk"])
    if types:
        writer.add_array(f"{writer.arch}.attention.indexer.types", [t == "full" for t in c["indexer_types"]])


def write(name, arch, split, mtp, types):
    c = json.loads((HERE / f"{name}.json").read_text())
    blocks = c["num_hidden_layers"] + (1 if mtp else 0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GLM_DSA, blocks)
    path = HERE / f"{name}.gguf-head"
    writer = gguf.GGUFWriter(path, arch)
    metadata(writer, c, blocks, types)
    fill = []

    def add(hf, shape, kind, sources):
        """`shape` slowest first."""
        module, _, part = hf.rpartition(".")
        found = names.get_name(module) or names.get_name(hf)
        assert found, hf
        stored = np.zeros(shape, np.float32 if kind == "f32" else np.uint16)
        if kind == "f32":
            writer.add_tensor(f"{found}.{part}", stored)
        else:
            writer.add_tensor(f"{found}.{part}", stored.view(np.uint8), raw_dtype=BF16)
        fill.append([kind, sources])

    stacks = {}
    for hf, shape in header_tensors(name):
        if m := re.match(r"(.*\.mlp\.experts)\.(\d+)\.(\w+)\.weight", hf):
            stack = stacks.setdefault(f"{m[1]}.{m[3]}.weight", (shape, []))
            stack[1].append(hf)
        elif hf.endswith("kv_b_proj.weight") and split:
            heads, latent = c["num_attention_heads"], shape[1]
            k, v = (hf.replace("kv_b_proj", half) for half in ("k_b_proj", "v_b_proj"))
            add(k, [heads, latent, c["qk_nope_head_dim"]], "keys", [hf])
            add(v, [heads, c["v_head_dim"], latent], "values", [hf])
        elif hf.endswith("e_score_correction_bias"):
            add(hf.removesuffix("_bias") + ".bias", shape, "f32", [hf])
        else:
            # Converters keep vectors and the router in F32.
            add(hf, shape, "f32" if len(shape) == 1 or hf.endswith("mlp.gate.weight") else "bf16", [hf])
    for hf, (shape, experts) in stacks.items():
        add(hf, [len(experts), *shape], "bf16", experts)
    if mtp:
        at, h = f"model.layers.{blocks - 1}", c["hidden_size"]
        add(f"{at}.eh_proj.weight", [h, 2 * h], "zeros", [])
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            add(f"{at}.{norm}.weight", [h], "zeros", [])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    infos, fill = gguf_offsets(writer), [*fill, ["end", []]]
    data = path.read_bytes()
    path.write_bytes(data + bytes(-len(data) % 32))
    lines = ",\n".join(json.dumps([offset, *entry]) for offset, entry in zip(infos, fill))
    (HERE / f"{name}.gguf.json").write_text(f"[\n{lines}\n]\n")
    print(name, arch, path.stat().st_size, len(fill), names.get_name("model.layers.0.self_attn.indexer.weights_proj"))


def gguf_offsets(writer):
    """Where the writer puts the tensors, counted as it counts."""
    at, offsets = 0, []
    for info in writer.tensors[0].values():
        offsets.append(at)
        at += gguf.GGUFWriter.ggml_pad(info.nbytes, 32)
    return offsets + [at]


write("glm-5.2", "glm-dsa", split=True, mtp=True, types=True)
write("glm-5", "glm-dsa", split=False, mtp=False, types=False)
write("deepseek-v3.2", "deepseek32", split=True, mtp=False, types=False)
