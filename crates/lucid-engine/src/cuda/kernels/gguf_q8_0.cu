// The kernels for weights in Q8_0. The widths are those that `widths_of_blocks` names.

MATMUL_FORMAT(q8_0, Q8Zero, 8, 2, 2, 3)
MATMUL_FORMAT(q8_0, Q8Zero, 32, 2, 2, 2)
MATMUL_PREFILL(Q8Zero, CHUNK, q8_0)
EXPERTS(Q8Zero, q8_0_8, 1, 2, 2, 3, 3, 1, 4)
EXPERTS(Q8Zero, q8_0_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS_WHOLE(Q8Zero, q8_0)
EXPERTS_PREFILL(Q8Zero, q8_0)
MATMUL_HOPPER(Q8Zero, CHUNK, q8_0, 96)
EXPERTS_HOPPER(Q8Zero, q8_0, 32)
EXPERTS_HOPPER(Q8Zero, q8_0, 64)
EXPERTS_HOPPER(Q8Zero, q8_0, 96)
