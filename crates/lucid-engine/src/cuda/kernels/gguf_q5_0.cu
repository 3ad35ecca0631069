// The kernels for weights in Q5_0. The widths are those that `widths_of_blocks` names.

MATMUL_FORMAT(q5_0, Q5Zero, 8, 2, 2, 3)
MATMUL_FORMAT(q5_0, Q5Zero, 32, 2, 2, 2)
MATMUL_PREFILL(Q5Zero, CHUNK, q5_0)
EXPERTS(Q5Zero, q5_0_8, 1, 2, 3, 3, 2, 2, 4)
EXPERTS(Q5Zero, q5_0_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS_WHOLE(Q5Zero, q5_0)
EXPERTS_PREFILL(Q5Zero, q5_0)
MATMUL_HOPPER(Q5Zero, CHUNK, q5_0, 96)
EXPERTS_HOPPER(Q5Zero, q5_0, 32)
EXPERTS_HOPPER(Q5Zero, q5_0, 64)
EXPERTS_HOPPER(Q5Zero, q5_0, 96)
