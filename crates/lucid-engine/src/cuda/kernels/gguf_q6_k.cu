// The kernels for weights in Q6_K. The widths are those that `widths_of_blocks` names.

MATMUL_FORMAT(q6_k, Q6K, 8, 2, 2, 3)
MATMUL_FORMAT(q6_k, Q6K, 32, 2, 2, 2)
MATMUL_PREFILL(Q6K, CHUNK, q6_k)
EXPERTS(Q6K, q6_k_8, 1, 2, 2, 3, 2, 2, 4)
EXPERTS(Q6K, q6_k_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS_WHOLE(Q6K, q6_k)
// As llama.cpp's mixtures have it in many layers: down in more bits than gate and up.
EXPERTS_WHOLE_OF(Q4K, Q6K, q4_k_q6_k)
EXPERTS_WHOLE_OF(Q5K, Q6K, q5_k_q6_k)
EXPERTS_PREFILL(Q6K, q6_k)
MATMUL_HOPPER(Q6K, CHUNK, q6_k, 64)
EXPERTS_HOPPER(Q6K, q6_k, 32)
EXPERTS_HOPPER(Q6K, q6_k, 64)
