// All visits of a step in one kernel (see experts_whole.cuh), for forms of safetensors' checkpoints.

EXPERTS_WHOLE(Nvfp4, nvfp4)
EXPERTS_WHOLE(Int4, int4)
EXPERTS_WHOLE(F8Blocks, f8)
