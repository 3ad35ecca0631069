// Sixteen rows of a packed weight times up to NT * 8 bf16 columns, on tensor cores, for one warp.
//
// The weight is operand A of mma.m16n8k16, straight from device memory: each thread reads sixteen bytes of row g and of row
// g + 8 (g = lane / 4) and unpacks them in registers. The order in which A's columns are taken is free as long as B's are taken
// in the same order, so a thread's sixteen bytes simply become its part of several products in a row.
// A column of B is one term of one vector (see numerics.cuh). Columns don't mix, and k runs in the same order for any number of
// them: a vector's result does not depend on its neighbours.

// Weights pass once: they must not push the vectors, which all warps read, out of the first-level cache.
__device__ __forceinline__ uint4 load_weight(const u8* at) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

__device__ __forceinline__ u32 load_scales(const u8* at) {
    u16 v;
    asm("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(at));
    return v;
}

__device__ __forceinline__ void mma(float d[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The product of bf16 pairs, exact wherever we use it. sm_80 has no bf16 multiply, so it is a sum with -0.
__device__ __forceinline__ u32 multiply_pairs(u32 a, u32 b) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
    return d;
}

// Nibbles i and i + 4 of a word as a bf16 pair, times 2^-126: sign to bit 15, the three others to bits 8 to 6.
template <int I>
__device__ __forceinline__ u32 e2m1_pair(u32 word) {
    u32 sign = word << (12 - 4 * I);
    u32 magnitude = 12 - 4 * I >= 6 ? word << (6 - 4 * I & 31) : word >> (4 * I - 6 & 31);
    return (sign & 0x80008000u) | (magnitude & 0x01c001c0u);
}

// Two E4M3 scales as a bf16 pair, times 2^119: exact, and NaN stays NaN.
__device__ __forceinline__ u32 scale_pair(u32 codes) {
    u32 low = codes & 0xff, high = codes >> 8;
    u32 both = low | high << 16;
    u32 pair = multiply_pairs((both & 0x7f007fu) << 4, 0x7b807b80u);  // 2^120: the plain value
    pair = multiply_pairs(pair, 0x7b007b00u);                         // 2^119
    pair |= (both & 0x800080u) << 8;
    if ((low & 0x7f) == 0x7f) pair |= 0x7fc0u;
    if ((high & 0x7f) == 0x7f) pair |= 0x7fc00000u;
    return pair;
}
// What the sum is multiplied with in the end.
#define NVFP4_UNIT 128.0f

// The vectors that a warp multiplies with: column g of each tile, or null for a column of zeros.
template <int NT>
struct Columns {
    const u16* x[NT];
};

__device__ __forceinline__ uint4 load_column(const u16* x, u32 at) {
    return x ? __ldg((const uint4*)(x + at)) : make_uint4(0, 0, 0, 0);
}

// Tiles of eight columns that `columns` columns need.
#define TILES(columns) (((columns) + 7) / 8)

// MT weights (gate and up share their vectors), NT tiles of columns.
template <int MT, int NT>
struct Accumulators {
    float d[MT][NT][4];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < MT * NT * 4; i++) (&d[0][0][0])[i] = 0.0f;
    }
};

// Where a warp's rows g and g + 8 of one weight begin.
struct Rows {
    const u8 *low, *high, *low_scales, *high_scales;
};

// NVFP4, columns [first, last) in steps of 128. A thread's part of a step is 32 columns of each row: two blocks.
template <int MT, int NT, int UNROLL>
__device__ __forceinline__ void accumulate_nvfp4(const Rows rows[MT], const Columns<NT>& columns, u32 tiles, u32 first,
                                                 u32 last, Accumulators<MT, NT>& acc) {
    u32 thread = threadIdx.x % 4;
    for (u32 k = first; k < last; k += 128 * UNROLL) {
        uint4 low[UNROLL][MT], high[UNROLL][MT];
        u32 low_scales[UNROLL][MT], high_scales[UNROLL][MT];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (UNROLL == 1 || k + 128 * u < last) {
                u32 at = k + 128 * u + 32 * thread;
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    low[u][m] = load_weight(rows[m].low + at / 2);
                    high[u][m] = load_weight(rows[m].high + at / 2);
                    low_scales[u][m] = load_scales(rows[m].low_scales + at / 16);
                    high_scales[u][m] = load_scales(rows[m].high_scales + at / 16);
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (UNROLL > 1 && k + 128 * u >= last) break;
            u32 low_pair[MT], high_pair[MT];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                low_pair[m] = scale_pair(low_scales[u][m]);
                high_pair[m] = scale_pair(high_scales[u][m]);
            }
#pragma unroll
            for (int word = 0; word < 4; word++) {
                u32 a[MT][8];
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    u32 l = (&low[u][m].x)[word], h = (&high[u][m].x)[word];
                    u32 select = word < 2 ? 0x1010 : 0x3232;
                    u32 low_scale = __byte_perm(low_pair[m], 0, select);
                    u32 high_scale = __byte_perm(high_pair[m], 0, select);
                    a[m][0] = multiply_pairs(e2m1_pair<0>(l), low_scale);
                    a[m][1] = multiply_pairs(e2m1_pair<0>(h), high_scale);
                    a[m][2] = multiply_pairs(e2m1_pair<1>(l), low_scale);
                    a[m][3] = multiply_pairs(e2m1_pair<1>(h), high_scale);
                    a[m][4] = multiply_pairs(e2m1_pair<2>(l), low_scale);
                    a[m][5] = multiply_pairs(e2m1_pair<2>(h), high_scale);
                    a[m][6] = multiply_pairs(e2m1_pair<3>(l), low_scale);
                    a[m][7] = multiply_pairs(e2m1_pair<3>(h), high_scale);
                }
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    if (n > 0 && n >= tiles) break;
                    uint4 b = load_column(columns.x[n], k + 128 * u + 32 * word + 8 * thread);
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        mma(acc.d[m][n], a[m][0], a[m][1], a[m][2], a[m][3], b.x, b.y);
                        mma(acc.d[m][n], a[m][4], a[m][5], a[m][6], a[m][7], b.z, b.w);
                    }
                }
            }
        }
    }
}

// bf16, columns [first, last) in steps of 32: eight columns of each row a thread.
template <int NT, int UNROLL>
__device__ __forceinline__ void accumulate_bf16(const Rows& rows, const Columns<NT>& columns, u32 tiles, u32 first, u32 last,
                                                Accumulators<1, NT>& acc) {
    u32 thread = threadIdx.x % 4;
    for (u32 k = first; k < last; k += 32 * UNROLL) {
        uint4 low[UNROLL], high[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (UNROLL == 1 || k + 32 * u < last) {
                u32 at = k + 32 * u + 8 * thread;
                low[u] = load_weight(rows.low + 2 * at);
                high[u] = load_weight(rows.high + 2 * at);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (UNROLL > 1 && k + 32 * u >= last) break;
#pragma unroll
            for (int n = 0; n < NT; n++) {
                if (n > 0 && n >= tiles) break;
                uint4 b = load_column(columns.x[n], k + 32 * u + 8 * thread);
                mma(acc.d[0][n], low[u].x, high[u].x, low[u].y, high[u].y, b.x, b.y);
                mma(acc.d[0][n], low[u].z, high[u].z, low[u].w, high[u].w, b.z, b.w);
            }
        }
    }
}

// A block is eight warps: `slices` of them (a power of two) share sixteen rows and cut the columns among them, and their
// parts are added in order. `slices` depends on the weight's shape alone.
#define WARPS 8
template <int MT, int NT>
struct Partial {
    float d[WARPS][MT][16][NT * 8 + 1];  // + 1: spreads the rows over the banks
};

template <int MT, int NT>
__device__ __forceinline__ void store_partial(Partial<MT, NT>& partial, const Accumulators<MT, NT>& acc) {
    u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) partial.d[warp][m][g + i / 2 * 8][n * 8 + pair + i % 2] = acc.d[m][n][i];
}

// The result for one row and one vector: slices in order, then the terms, small ones first.
template <int MT, int NT>
__device__ __forceinline__ float sum_partial(const Partial<MT, NT>& partial, u32 first_warp, u32 slices, int m, u32 row,
                                             u32 vector) {
    float terms[TERMS];
#pragma unroll
    for (int term = 0; term < TERMS; term++) {
        terms[term] = partial.d[first_warp][m][row][vector * TERMS + term];
        for (u32 slice = 1; slice < slices; slice++)
            terms[term] += partial.d[first_warp + slice][m][row][vector * TERMS + term];
    }
    return terms[0] + (terms[1] + terms[2]);
}
