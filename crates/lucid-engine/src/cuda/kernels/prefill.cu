// Products for many vectors (see prefill.cuh), for forms of safetensors' checkpoints.

EXPERTS_PREFILL(Nvfp4, nvfp4)
EXPERTS_PREFILL(Int4, int4)
EXPERTS_PREFILL(F8Blocks, f8)
EXPERTS_PREFILL(Bf16, bf16)

MATMUL_PREFILL(Bf16, 32, bf16)
MATMUL_PREFILL(Nvfp4, CHUNK, nvfp4)
MATMUL_PREFILL(Int4, CHUNK, int4)
MATMUL_PREFILL(F8Blocks, CHUNK, f8)
