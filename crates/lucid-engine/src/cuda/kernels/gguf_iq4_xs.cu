// The kernels for weights in IQ4_XS. The widths are those that `widths_of_blocks` names.

MATMUL_FORMAT(iq4_xs, Iq4Xs, 8, 3, 1, 3)
MATMUL_FORMAT(iq4_xs, Iq4Xs, 32, 3, 1, 2)
MATMUL_PREFILL(Iq4Xs, CHUNK, iq4_xs)
EXPERTS(Iq4Xs, iq4_xs_8, 1, 2, 2, 3, 3, 1, 4)
EXPERTS(Iq4Xs, iq4_xs_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS_WHOLE(Iq4Xs, iq4_xs)
EXPERTS_PREFILL(Iq4Xs, iq4_xs)
MATMUL_HOPPER(Iq4Xs, CHUNK, iq4_xs, 96)
EXPERTS_HOPPER(Iq4Xs, iq4_xs, 32)
EXPERTS_HOPPER(Iq4Xs, iq4_xs, 64)
EXPERTS_HOPPER(Iq4Xs, iq4_xs, 96)
