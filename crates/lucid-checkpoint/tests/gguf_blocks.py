"""Makes gguf_blocks.json: random blocks of every type, decoded by llama.cpp's own Python package (gguf 0.18 or later).

python gguf_blocks.py > gguf_blocks.json
"""

import json

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

rng = np.random.default_rng(5)
TYPES = "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4".split()
out = {}
for name in TYPES:
    kind = T[name]
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = []
    while len(blocks) < max(2, 256 // elements):
        block = rng.integers(0, 256, size, dtype=np.uint8)
        values = dequantize(block[None, :], kind).astype(np.float32)
        # Scales may come out infinite or as no number; no quantizer writes those.
        if np.isfinite(values).all():
            blocks.append((block, values.ravel()))
    out[name] = {
        "id": int(kind),
        "elements": elements,
        "bytes": size,
        "blocks": b"".join(b.tobytes() for b, _ in blocks).hex(),
        "values": b"".join(v.astype("<f4").tobytes() for _, v in blocks).hex(),
    }
print(json.dumps(out, indent=1))
