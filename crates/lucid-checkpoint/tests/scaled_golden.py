"""Makes scaled_golden.json: quantized matrices, unpacked by compressed-tensors and scaled by torch, in float32.

Run with Python that has torch and compressed-tensors (0.17.0 was used): python scaled_golden.py > scaled_golden.json
"""

import json

import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

torch.manual_seed(7)


def tensor(dtype, t):
    return {"dtype": dtype, "shape": list(t.shape), "hex": t.contiguous().view(torch.uint8).numpy().tobytes().hex()}


def case(rows, cols, tensors, values, block=None):
    assert values.dtype == torch.float32 and values.shape == (rows, cols)
    assert values.isfinite().all()
    # The bits of the values, row-major, little-endian: a whole matrix would be long as text, so a few rows.
    keep = sorted({0, 1, rows // 2, rows - 1})
    rows_hex = {str(r): values[r].contiguous().numpy().tobytes().hex() for r in keep}
    return {"rows": rows, "cols": cols, "block": block, "tensors": tensors, "values": rows_hex}


def int4(rows, cols, group, dtype, name):
    packed = torch.randint(-(2**31), 2**31 - 1, (rows, cols // 8), dtype=torch.int64).to(torch.int32)
    scale = (torch.rand(rows, cols // group) * 0.1 + 0.001).to(dtype)
    q = unpack_from_int32(packed, 4, torch.Size([rows, cols]))
    values = q.float() * scale.float().repeat_interleave(group, 1)
    shape = torch.tensor([rows, cols], dtype=torch.int64)
    return case(rows, cols, {"weight_packed": tensor("I32", packed), "weight_scale": tensor(name, scale),
                             "weight_shape": tensor("I64", shape)}, values)


def nvfp4(rows, cols):
    packed = torch.randint(0, 256, (rows, cols // 2), dtype=torch.int64).to(torch.uint8)
    scale = (torch.rand(rows, cols // 16) * 400 + 1).to(torch.float8_e4m3fn)
    g = torch.tensor([1234.5])
    q = unpack_fp4_from_uint8(packed, rows, cols, dtype=torch.float32)
    # The reciprocal first, as vLLM does at load; dividing would round once where this rounds twice.
    values = q * scale.float().repeat_interleave(16, 1) * (1.0 / g)
    return case(rows, cols, {"weight_packed": tensor("U8", packed), "weight_scale": tensor("F8_E4M3", scale),
                             "weight_global_scale": tensor("F32", g)}, values)


def fp8(rows, cols, block, dtype, name):
    # Every code but NaN.
    codes = torch.randint(0, 256, (rows, cols), dtype=torch.int64).to(torch.uint8)
    codes[(codes & 127) == 127] = 1
    grid = (-(-rows // block[0]), -(-cols // block[1]))
    if name == "F8_E8M0":
        raw = torch.randint(110, 130, grid, dtype=torch.int64).to(torch.uint8)
        scale, stored = raw.view(dtype).float(), raw
    else:
        stored = (torch.rand(grid) * 0.01 + 0.0001).to(dtype)
        scale = stored.float()
    full = scale.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :cols]
    values = codes.view(torch.float8_e4m3fn).float() * full
    return case(rows, cols, {"weight": tensor("F8_E4M3", codes), "weight_scale_inv": tensor(name, stored)}, values, block)


bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
print(json.dumps({
    "int4, groups of 32, BF16 scales": int4(3, 96, 32, bf16, "BF16"),
    "int4, groups of 128, F16 scales": int4(2, 256, 128, f16, "F16"),
    "int4, a row in one group, F32 scales": int4(4, 40, 40, f32, "F32"),
    "nvfp4 of compressed-tensors": nvfp4(3, 64),
    "fp8, 128x128, edge blocks, F32 scales": fp8(130, 133, [128, 128], f32, "F32"),
    "fp8, 16x32, BF16 scales": fp8(40, 70, [16, 32], bf16, "BF16"),
    "fp8, 128x128, E8M0 scales": fp8(5, 136, [128, 128], torch.float8_e8m0fnu, "F8_E8M0"),
}, indent=1))
