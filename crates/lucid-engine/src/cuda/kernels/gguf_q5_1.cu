// The kernels for weights in Q5_1. The widths are those that `widths_of_blocks` names.

MATMUL_FORMAT(q5_1, Q5One, 8, 2, 2, 3)
MATMUL_FORMAT(q5_1, Q5One, 32, 2, 2, 2)
MATMUL_PREFILL(Q5One, CHUNK, q5_1)
EXPERTS(Q5One, q5_1_8, 1, 2, 2, 3, 3, 1, 4)
EXPERTS(Q5One, q5_1_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS_WHOLE(Q5One, q5_1)
EXPERTS_PREFILL(Q5One, q5_1)
MATMUL_HOPPER(Q5One, CHUNK, q5_1, 64)
EXPERTS_HOPPER(Q5One, q5_1, 32)
EXPERTS_HOPPER(Q5One, q5_1, 64)
