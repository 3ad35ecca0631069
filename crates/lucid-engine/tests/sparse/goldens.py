"""What transformers computes for tiny models with DeepSeek sparse attention, whose weights come from a formula.

    python goldens.py            # torch (CPU), transformers 5.24, numpy, safetensors

For every NAME.json here (a config as checkpoints have it) writes NAME.safetensors:

    logits    [tokens, vocab] f32
    selected  [full layers, tokens, index_topk] i32: what each full layer's indexer chose, ascending, -1 where there is less

and, as metadata, `tensors`: the model's tensors by the names that checkpoints have, with their shapes.

All in float32, by transformers' own modules. A golden is written only if no choice is a near-tie that rounding could turn, and if
it notices the mistakes it is there to notice: dense attention, and RoPE of the other pairing in the indexer.

The formula: element i of tensor NAME is 64 bits of SplitMix64's finalizer of (FNV-1a of NAME, begun at its usual start plus the
config's `_seed`) + (i + 1) * golden ratio, of which the top eight make a number k from -128 to 127. Matrices are k / 128 * 2^-e with
e = (bits of the number of columns - 2) / 2, rounded down; the embedding is k / 128; weights of norms are 1 + (k >> 2) / 128; other
vectors are k / 512. All are bf16 numbers. Token i is (bits of "tokens") mod vocab.
"""

import json
import math
import pathlib

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as deepseek
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm

HERE = pathlib.Path(__file__).parent
TOKENS = 150
MARGIN = 2e-5  # of scores that are about 1: rounding moves them by 1e-6
SEED = 0  # of the model at hand


def bits(name, count):
    """`count` 64-bit words of a name."""
    hash = 0xCBF29CE484222325 + SEED
    for byte in name.encode():
        hash = (hash ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(hash) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def values(name, shape):
    k = (bits(name, math.prod(shape)) >> np.uint64(56)).astype(np.int64) - 128
    if name == "model.embed_tokens.weight":
        flat = k / 128
    elif len(shape) == 2:
        flat = k / 128 * 2.0 ** -((shape[1].bit_length() - 2) // 2)
    elif name.endswith("norm.weight"):
        flat = 1 + (k >> 2) / 128
    else:
        flat = k / 512
    return torch.from_numpy(flat.astype(np.float32).reshape(shape))


def build(config):
    """The model, and its tensors as checkpoints have them: transformers holds a layer's experts in two stacks."""
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    tensors = []

    def one(name, *shape):
        tensors.append([name, shape])
        return values(name, shape)

    def expert(at, part, rows, columns):
        if part == "down_proj":
            return one(f"{at}.down_proj.weight", rows, columns)
        return torch.cat([one(f"{at}.{p}.weight", rows // 2, columns) for p in ("gate_proj", "up_proj")])

    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            at, _, part = name.rpartition(".")
            if at.endswith(".mlp.experts"):
                experts, rows, columns = tensor.shape
                tensor.copy_(torch.stack([expert(f"{at}.{i}", part, rows, columns) for i in range(experts)]))
            else:
                tensor.copy_(one(name, *tensor.shape))
    return model.eval(), tensors


class Watch:
    """Keeps what the indexers chose, and the smallest distance of a chosen score from one that was not."""

    def __init__(self, model):
        self.chosen, self.margins = {}, {}
        for i, layer in enumerate(model.model.layers):
            indexer = layer.self_attn.indexer
            if indexer is not None:
                indexer.register_forward_hook(lambda _, __, out, i=i: self.chosen.__setitem__(i, out[0]))

    def topk(self, real):
        def topk(scores, k, **rest):
            if k < scores.shape[-1]:
                ordered = scores.sort(-1, descending=True).values
                gaps = ordered[..., k - 1] - ordered[..., k]
                # A row of the indexer that sees no more than k chooses among masked positions too.
                gaps = gaps[ordered[..., k] > -1e30]
                kind = "indexer" if scores.dim() == 3 and scores.shape[-1] == TOKENS else f"router {tuple(scores.shape)}"
                self.margins[kind] = min(self.margins.get(kind, math.inf), gaps.min().item())
            return real(scores, k, **rest)

        return topk


def run(config, tokens):
    model, tensors = build(config)
    watch = Watch(model)
    torch_topk, tensor_topk = torch.topk, torch.Tensor.topk
    torch.topk, torch.Tensor.topk = watch.topk(torch_topk), watch.topk(tensor_topk)
    try:
        with torch.no_grad():
            logits = model(tokens, use_cache=False).logits[0]
    finally:
        torch.topk, torch.Tensor.topk = torch_topk, tensor_topk
    return logits, watch, tensors


def other_pairing():
    """Swaps the two functions that rotate the indexers' queries and keys; the attention's own have another call."""
    swapped = []
    halves, neighbours = deepseek.apply_rotary_pos_emb, deepseek.apply_rotary_pos_emb_interleave
    for module, name in ((deepseek, "apply_rotary_pos_emb"), (glm, "apply_rotary_pos_emb_interleave")):
        real = getattr(module, name)
        other = neighbours if module is deepseek else halves

        def rotate(q, k, cos, sin, unsqueeze_dim=1, real=real, other=other):
            return (other if unsqueeze_dim == 2 else real)(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)

        setattr(module, name, rotate)
        swapped.append((module, name, real))
    return swapped


def main():
    for path in sorted(HERE.glob("*.json")):
        fields = json.loads(path.read_text())
        global SEED
        SEED = fields.pop("_seed")
        read = lambda **change: transformers.AutoConfig.for_model(**{**fields, **change})
        config = read()
        tokens = (bits("tokens", TOKENS) % np.uint64(config.vocab_size)).astype(np.int64)
        tokens = torch.from_numpy(tokens)[None]
        logits, watch, tensors = run(config, tokens)
        # The groups' two best experts are added up: which of them comes third doesn't matter.
        margin = min(margin for kind, margin in watch.margins.items() if not kind.startswith("router (150, 2, "))
        assert margin > MARGIN, f"{path.name}: a near-tie, {watch.margins}"
        difference = lambda other: (other.log_softmax(-1) - logits.log_softmax(-1)).abs().max().item()
        dense = difference(run(read(index_topk=TOKENS), tokens)[0])
        swapped = other_pairing()
        turned = difference(run(config, tokens)[0])
        for module, name, real in swapped:
            setattr(module, name, real)
        assert dense > 0.05 and turned > 0.05, f"{path.name}: dense {dense}, other pairing {turned}"
        selected = np.full((len(watch.chosen), TOKENS, config.index_topk), -1, np.int32)
        for out, chosen in zip(selected, watch.chosen.values()):
            for row, positions in enumerate(chosen):
                seen = sorted(p for p in positions.tolist() if p <= row)
                out[row, : len(seen)] = seen
        golden = {"logits": logits.numpy(), "selected": selected}
        save_file(golden, path.with_suffix(".safetensors"), metadata={"tensors": json.dumps(tensors)})
        spread = logits.std().item()
        print(f"{path.stem}: margin {margin:.1e}, dense {dense:.2f}, other pairing {turned:.2f}, logits' spread {spread:.2f}")


main()
