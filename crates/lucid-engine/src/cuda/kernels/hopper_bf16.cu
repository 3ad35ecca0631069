// The kernels for prompts on Hopper, for weights in bf16. The widths are those that `ExpertKernels` names.

MATMUL_HOPPER(Bf16Late, 32, bf16, 128)
EXPERTS_HOPPER(Bf16Late, bf16, 64)
EXPERTS_HOPPER(Bf16Late, bf16, 128)
