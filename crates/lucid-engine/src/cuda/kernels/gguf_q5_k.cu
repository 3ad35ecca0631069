// The kernels for weights in Q5_K. The widths are those that `widths_of_blocks` names.

MATMUL_FORMAT(q5_k, Q5K, 8, 2, 2, 3)
MATMUL_FORMAT(q5_k, Q5K, 32, 2, 2, 2)
MATMUL_PREFILL(Q5K, CHUNK, q5_k)
EXPERTS(Q5K, q5_k_8, 1, 2, 2, 3, 2, 2, 4)
EXPERTS(Q5K, q5_k_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS_WHOLE(Q5K, q5_k)
EXPERTS_PREFILL(Q5K, q5_k)
MATMUL_HOPPER(Q5K, CHUNK, q5_k, 64)
EXPERTS_HOPPER(Q5K, q5_k, 32)
EXPERTS_HOPPER(Q5K, q5_k, 64)
