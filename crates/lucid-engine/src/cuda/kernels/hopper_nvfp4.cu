// The kernels for prompts on Hopper, for weights in NVFP4. The widths are those that `ExpertKernels` names.

MATMUL_HOPPER(Nvfp4, CHUNK, nvfp4, 128)
EXPERTS_HOPPER(Nvfp4, nvfp4, 32)
EXPERTS_HOPPER(Nvfp4, nvfp4, 64)
EXPERTS_HOPPER(Nvfp4, nvfp4, 128)
EXPERTS_HOPPER(Nvfp4, nvfp4, 192)
