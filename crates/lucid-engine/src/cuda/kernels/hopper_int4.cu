// The kernels for prompts on Hopper, for weights in INT4. The widths are those that `ExpertKernels` names.

MATMUL_HOPPER(Int4, CHUNK, int4, 96)
EXPERTS_HOPPER(Int4, int4, 32)
EXPERTS_HOPPER(Int4, int4, 64)
EXPERTS_HOPPER(Int4, int4, 96)
