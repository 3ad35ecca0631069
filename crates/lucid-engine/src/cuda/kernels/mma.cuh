extern __shared__ __align__(128) u8 block_memory[];

// Sixteen rows of a packed weight times up to NT * 8 bf16 columns, on tensor cores, for one warp.
//
// The weight is operand A of mma.m16n8k16: each thread takes sixteen bytes of row g and of row g + 8 (g = lane / 4) from the
// warp's ring (see ring.cuh) and unpacks them in registers. The order in which A's columns are taken is free as long as B's are taken in the same order, so a thread's
// sixteen bytes simply become its part of several products in a row.
// A column of B is one term of one vector (see numerics.cuh). Columns don't mix, and k runs in the same order for any number of
// them: a vector's result does not depend on its neighbours.

// Weights pass once: they must not push the vectors, which all warps read, out of the first-level cache.
__device__ __forceinline__ uint4 load_weight(const u8* at) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
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

// Left shifts as products: they run on a pipe that has nothing else to do. The compiler would turn them back into shifts if it
// knew the factors, so they come from the block's size, which is 256.
struct Factors {
    u32 two = blockDim.x / 128, eight = blockDim.x / 32, sixty_four = blockDim.x / 4;
};

// Codes i and i + 4 of an interleaved word (see numerics.cuh) as a bf16 pair, times 2^-126: the sign in bit 15, the three
// others in bits 8 to 6.
template <int I>
__device__ __forceinline__ u32 e2m1_pair(u32 word, const Factors& by) {
    if (I == 0) return word & 0x81c081c0u;
    if (I == 1) return word * by.eight & 0x81c081c0u;
    if (I == 2) return word * by.sixty_four & 0x81c081c0u;
    return (word * by.two & 0x80008000u) | (word >> 5 & 0x01000100u) | (word >> 4 & 0x00c000c0u);
}

// Two E4M3 scales, in bits 0 to 7 and 16 to 23, as a bf16 pair, times 2^119: exact, and NaN stays NaN.
__device__ __forceinline__ u32 scale_pair(u32 codes) {
    u32 magnitude = codes & 0x007f007fu;
    u32 pair = multiply_pairs(magnitude * 16, 0x7b807b80u);  // 2^120: the plain value
    pair = multiply_pairs(pair, 0x7b007b00u);                // 2^119
    // 0x7f + 1 carries into bit 7; times 255 that is all ones in bits 7 to 14.
    u32 nan = (magnitude + 0x00010001u & 0x00800080u) * 255;
    return pair | (codes & 0x00800080u) * 256 | nan;
}
// What the sum is multiplied with in the end.
#define NVFP4_UNIT 128.0f

// A word of row g and one of row g + 8, decoded and scaled, as operand A of two products.
__device__ __forceinline__ void unpack(u32 (&a)[8], u32 low, u32 high, u32 low_scale, u32 high_scale, const Factors& by) {
    a[0] = multiply_pairs(e2m1_pair<0>(low, by), low_scale);
    a[1] = multiply_pairs(e2m1_pair<0>(high, by), high_scale);
    a[2] = multiply_pairs(e2m1_pair<1>(low, by), low_scale);
    a[3] = multiply_pairs(e2m1_pair<1>(high, by), high_scale);
    a[4] = multiply_pairs(e2m1_pair<2>(low, by), low_scale);
    a[5] = multiply_pairs(e2m1_pair<2>(high, by), high_scale);
    a[6] = multiply_pairs(e2m1_pair<3>(low, by), low_scale);
    a[7] = multiply_pairs(e2m1_pair<3>(high, by), high_scale);
}

// The vectors that a warp multiplies with: column g of each tile. Columns that nobody asks for are some other vector's: they
// cost nothing, and their results are not looked at.
template <int NT>
struct Columns {
    const u16* x[NT];
};

// Volatile: the compiler must not move it before `wait_for_previous`.
__device__ __forceinline__ uint4 load_column(const u16* x, u32 at) {
    uint4 v;
    asm volatile("ld.global.L1::evict_last.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(x + at));
    return v;
}

// Columns of a pass over `here` vectors: vector v is at `vector(v)`, its terms `width` apart.
template <int NT, typename F>
__device__ __forceinline__ void find_columns(Columns<NT>& columns, u32 here, u32 width, F vector) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
        u32 column = n * 8 + threadIdx.x % 32 / 4;
        columns.x[n] = vector(min(column / TERMS, here - 1)) + column % TERMS * width;
    }
}

// Tiles of eight columns that `columns` columns need.
#define TILES(columns) (((columns) + 7) / 8)

template <int NT>
struct Accumulators {
    float d[NT][4];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < NT * 4; i++) (&d[0][0])[i] = 0.0f;
    }
};

#define WARPS 8
#define THREADS (WARPS * 32)

// The rest of the steps, and all products. Vectors are read up to a step past their end (see `Gpu::allocate`).
// `before_tile` is called with the number of each tile before it is added.
template <int NT, int S, int R, int C, typename F>
__device__ __forceinline__ void accumulate(Ring<S, R, C * TILE_BYTES>& ring, Flags<S>& flags, Place<S>& place,
                                           const u8* const (&weights)[R], const Columns<NT>& columns, u32 tiles, u32 first,
                                           u32 last, Accumulators<NT> (&acc)[R], F before_tile) {
    // Vectors come this many words before they are used: a whole step if they are few, else as many as there are registers for.
    const int AHEAD = NT == 1 ? 4 : NT <= 4 && R == 2 ? 2 : 1;
    const Factors by;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u16* x[NT];
    uint4 b[AHEAD][NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        x[n] = columns.x[n] + 128 * min(first, last) + 8 * (lane % 4);
#pragma unroll
        for (int word = 0; word < AHEAD; word++)
            if (n == 0 || n < tiles) b[word][n] = load_column(x[n], 32 * word);
    }
#pragma unroll 1
    for (u32 at = first; at < last; at += C) {
        wait(flags, place);
        const u8* stage = ring.bytes[warp][place.stage][0];
        fetch<TILE_BYTES, C>(ring, flags, before(place), weights, at + C * (S - 1), last);
        next(place);
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (c > 0 && at + c >= last) break;
            before_tile(at + c);
            uint4 low[R], high[R];
            u32 low_pair[R], high_pair[R];
#pragma unroll
            for (int r = 0; r < R; r++) {
                const u8* tile = stage + (r * C + c) * TILE_BYTES;
                low[r] = ((const uint4*)tile)[lane];
                high[r] = ((const uint4*)(tile + 512))[lane];
                // Two bytes for each row, brought to bits 0 and 16.
                u32 scales = ((const u32*)(tile + 1024))[lane];
                low_pair[r] = scale_pair(__byte_perm(scales, 0, 0x4140));
                high_pair[r] = scale_pair(__byte_perm(scales, 0, 0x4342));
            }
#pragma unroll
            for (int word = 0; word < 4; word++) {
                u32 broadcast = word < 2 ? 0x1010 : 0x3232;
#pragma unroll
                for (int r = 0; r < R; r++) {
                    u32 l = (&low[r].x)[word], h = (&high[r].x)[word];
                    u32 low_scale = __byte_perm(low_pair[r], 0, broadcast);
                    u32 high_scale = __byte_perm(high_pair[r], 0, broadcast);
                    u32 a[8];
                    unpack(a, l, h, low_scale, high_scale, by);
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        if (n == 0 || n < tiles) {
                            uint4& v = b[word % AHEAD][n];
                            mma(acc[r].d[n], a[0], a[1], a[2], a[3], v.x, v.y);
                            mma(acc[r].d[n], a[4], a[5], a[6], a[7], v.z, v.w);
                            // Into the same registers: a copy at the end of the step would wait for the load.
                            if (r == R - 1) v = load_column(x[n], 32 * (word + AHEAD));
                        }
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < NT; n++) x[n] += 128;
        }
    }
}

template <int NT, int S, int R, int C>
__device__ __forceinline__ void accumulate(Ring<S, R, C * TILE_BYTES>& ring, Flags<S>& flags, Place<S>& place,
                                           const u8* const (&weights)[R], const Columns<NT>& columns, u32 tiles, u32 first,
                                           u32 last, Accumulators<NT> (&acc)[R]) {
    accumulate<NT, S, R, C>(ring, flags, place, weights, columns, tiles, first, last, acc, [](u32) {});
}

template <int NT, int S, int C>
__device__ __forceinline__ void accumulate(Ring<S, 1, C * BF16_TILE_BYTES>& ring, Flags<S>& flags, Place<S>& place,
                                           const u8* const (&weights)[1], const Columns<NT>& columns, u32 tiles, u32 first,
                                           u32 last, Accumulators<NT> (&acc)[1]) {
    // As many steps ahead as there are registers for.
    const int AHEAD = NT == 1 || NT == 4 ? C : NT <= 3 ? 2 : 1;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u16* x[NT];
    uint4 b[AHEAD][NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        x[n] = columns.x[n] + 32 * min(first, last) + 8 * (lane % 4);
#pragma unroll
        for (int c = 0; c < AHEAD; c++)
            if (n == 0 || n < tiles) b[c][n] = load_column(x[n], 32 * c);
    }
#pragma unroll 1
    for (u32 at = first; at < last; at += C) {
        wait(flags, place);
        const u8* stage = ring.bytes[warp][place.stage][0];
        fetch<BF16_TILE_BYTES, C>(ring, flags, before(place), weights, at + C * (S - 1), last);
        next(place);
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (c > 0 && at + c >= last) break;
            uint4 low = ((const uint4*)(stage + c * BF16_TILE_BYTES))[lane];
            uint4 high = ((const uint4*)(stage + c * BF16_TILE_BYTES + 512))[lane];
#pragma unroll
            for (int n = 0; n < NT; n++) {
                if (n == 0 || n < tiles) {
                    uint4& v = b[c % AHEAD][n];
                    mma(acc[0].d[n], low.x, high.x, low.y, high.y, v.x, v.y);
                    mma(acc[0].d[n], low.z, high.z, low.w, high.w, v.z, v.w);
                    v = load_column(x[n], 32 * AHEAD);
                }
                x[n] += 32;
            }
        }
    }
}

// `slices` warps of a block (a power of two) share sixteen rows and cut the columns among them, and their parts are added in
// order. `slices` depends on the weight's shape alone.
// A warp with R times sixteen rows stores as R warps would.
template <int NT, int R>
struct Partial {
    float d[WARPS * R][16][NT * 8 + 1];  // + 1: spreads the rows over the banks
};

// The sixteen rows, counted in the block, that are row tile r of this warp.
template <int R>
__device__ __forceinline__ u32 row_tile(u32 slices, int r) {
    return threadIdx.x / 32 / slices * R + r;
}

template <int NT, int R>
__device__ __forceinline__ void store_partial(Partial<NT, R>& partial, u32 slices, const Accumulators<NT> (&acc)[R]) {
    u32 slice = threadIdx.x / 32 % slices, g = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                partial.d[row_tile<R>(slices, r) * slices + slice][g + i / 2 * 8][n * 8 + pair + i % 2] = acc[r].d[n][i];
}

// The result for one row of a tile and one vector: slices in order, then the terms, small ones first.
template <int NT, int R>
__device__ __forceinline__ float sum_partial(const Partial<NT, R>& partial, u32 tile, u32 slices, u32 row, u32 vector) {
    u32 first = tile * slices;
    float sum = 0.0f;
#pragma unroll
    for (int term = TERMS - 1; term >= 0; term--) {
        float part = partial.d[first][row][vector * TERMS + term];
        for (u32 slice = 1; slice < slices; slice++) part += partial.d[first + slice][row][vector * TERMS + term];
        sum = term == TERMS - 1 ? part : part + sum;
    }
    return sum;
}
