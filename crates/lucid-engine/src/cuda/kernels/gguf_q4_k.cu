// The kernels for weights in Q4_K. The widths are those that `widths_of_blocks` names.

MATMUL_FORMAT(q4_k, Q4K, 8, 2, 2, 3)
MATMUL_FORMAT(q4_k, Q4K, 32, 2, 2, 2)
MATMUL_PREFILL(Q4K, CHUNK, q4_k)
EXPERTS(Q4K, q4_k_8, 1, 2, 3, 3, 2, 2, 4)
EXPERTS(Q4K, q4_k_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS_WHOLE(Q4K, q4_k)
EXPERTS_PREFILL(Q4K, q4_k)
MATMUL_HOPPER(Q4K, CHUNK, q4_k, 64)
EXPERTS_HOPPER(Q4K, q4_k, 32)
EXPERTS_HOPPER(Q4K, q4_k, 64)
