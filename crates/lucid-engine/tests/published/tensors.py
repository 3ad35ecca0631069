"""Which tensors transformers' models have for the configs of published checkpoints: names, shapes, layers and experts.

    python tensors.py            # torch, transformers 5.24

Writes tensors.json: for every config.json in lucid-checkpoint's tests, [pattern, shape, layers, experts] with the layer's and the
expert's number replaced by `*`. The models are built without memory (torch's meta device) by transformers' own classes;
checkpoints hold the experts one by one, transformers in two stacks, which is undone here.
"""

import json
import pathlib
import re

import torch
import transformers

HERE = pathlib.Path(__file__).parent
CONFIGS = HERE / "../../../lucid-checkpoint/tests/configs"
# Kimi's text models are DeepSeek-V3 by another name.
MODEL_TYPES = {"kimi_k2": "deepseek_v3"}


def runs(numbers):
    """[0, 1, 2, 5] as "0-2 5"."""
    out = []
    for n in sorted(numbers):
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def tensors(model):
    for name, tensor in model.state_dict().items():
        shape = list(tensor.shape)
        if ".mlp.experts." not in name:
            yield name, shape
            continue
        at, _, part = name.rpartition(".")
        experts, rows, columns = shape
        for expert in range(experts):
            if part == "down_proj":
                yield f"{at}.{expert}.down_proj.weight", [rows, columns]
            else:
                yield f"{at}.{expert}.gate_proj.weight", [rows // 2, columns]
                yield f"{at}.{expert}.up_proj.weight", [rows // 2, columns]


def grouped(model):
    groups = {}
    for name, shape in tensors(model):
        layer = re.search(r"layers\.(\d+)\.", name)
        expert = re.search(r"experts\.(\d+)\.", name)
        pattern = re.sub(r"(layers|experts)\.\d+\.", r"\1.*.", name)
        layers, experts = groups.setdefault((pattern, tuple(shape)), (set(), set()))
        layers.update([int(layer[1])] if layer else [])
        experts.update([int(expert[1])] if expert else [])
    return [[p, list(s), runs(layers), runs(experts)] for (p, s), (layers, experts) in sorted(groups.items())]


def main():
    out = {}
    for path in sorted(CONFIGS.glob("*_config.json")):
        fields = json.loads(path.read_text())
        fields = fields.get("text_config", fields)
        model_type = fields.get("model_type")
        model_type = MODEL_TYPES.get(model_type, model_type)
        if model_type not in ("deepseek_v3", "deepseek_v32", "glm_moe_dsa"):
            print("passed over:", path.name)
            continue
        fields = {**fields, "model_type": model_type}
        fields.pop("quantization_config", None)
        config = transformers.AutoConfig.for_model(**fields)
        with torch.device("meta"):
            out[path.name] = grouped(transformers.AutoModelForCausalLM.from_config(config))
        print(path.name, len(out[path.name]))
    # A line a tensor, so that differences can be read; equal lists once.
    seen, lines = {}, []
    for name, groups in out.items():
        text = ",\n".join("  " + json.dumps(group) for group in groups)
        same = seen.setdefault(text, name)
        lines.append(f'"{name}": ' + (f"[\n{text}\n ]" if same == name else json.dumps(same)))
    (HERE / "tensors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
