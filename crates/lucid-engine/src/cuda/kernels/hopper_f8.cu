// The kernels for prompts on Hopper, for weights in FP8 blocks. The widths are those that `ExpertKernels` names.

MATMUL_HOPPER(F8Blocks, CHUNK, f8, 96)
EXPERTS_HOPPER(F8Blocks, f8, 32)
EXPERTS_HOPPER(F8Blocks, f8, 64)
EXPERTS_HOPPER(F8Blocks, f8, 96)
