// Sixteen rows of a packed weight times up to NT * 8 bf16 columns, on tensor cores, for one warp.
//
// The weight is operand A of mma.m16n8k16: each thread reads sixteen bytes of row g and of row g + 8 (g = lane / 4) and unpacks
// them in registers. The order in which A's columns are taken is free as long as B's are taken in the same order, so a thread's
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

// Copies to shared memory that run on while the warp computes.
__device__ __forceinline__ void copy_16(void* to, const u8* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void copy_4(void* to, const u8* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
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

// The vectors that a warp multiplies with: column g of each tile. Columns that nobody asks for are some other vector's: they
// cost nothing, and their results are not looked at.
template <int NT>
struct Columns {
    const u16* x[NT];
};

__device__ __forceinline__ uint4 load_column(const u16* x, u32 at) {
    uint4 v;
    asm("ld.global.nc.L1::evict_last.v4.u32 {%0,%1,%2,%3}, [%4];"
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

// Where a thread's rows g and g + 8 of a bf16 weight begin.
struct Rows {
    const u8 *low, *high;
};

#define WARPS 8
#define THREADS (WARPS * 32)

// The weights on their way: every thread has its own places in shared memory, which it alone fills and reads, so no barrier is
// needed and the bytes in flight don't cost registers. All stages but one are on their way while that one is computed.
#define BF16_STAGES 4
// S stages; R tiles a step, of R times sixteen rows, which meet the same vectors.
template <int S, int R>
struct Nvfp4Ring {
    uint4 codes[S][R][2][THREADS];
    u32 scales[S][R][THREADS];
};
struct Bf16Ring {
    uint4 values[BF16_STAGES][2][THREADS];
};

// NVFP4 in steps of 128 columns: a tile. `tiles` are where those of each sixteen rows begin.
template <int S, int R>
__device__ __forceinline__ void fetch(Nvfp4Ring<S, R>& ring, u32 stage, const u8* const (&tiles)[R], u32 k, u32 last) {
    u32 lane = threadIdx.x % 32;
    if (k < last) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            const u8* tile = tiles[r] + k / 128 * TILE_BYTES;
            copy_16(&ring.codes[stage][r][0][threadIdx.x], tile + 16 * lane);
            copy_16(&ring.codes[stage][r][1][threadIdx.x], tile + 512 + 16 * lane);
            copy_4(&ring.scales[stage][r][threadIdx.x], tile + 1024 + 4 * lane);
        }
    }
    end_copies();
}

// bf16 in steps of 32 columns, eight of each row a thread.
__device__ __forceinline__ void fetch(Bf16Ring& ring, u32 stage, const Rows& rows, u32 k, u32 last) {
    u32 at = k + 8 * (threadIdx.x % 4);
    if (k < last) {
        copy_16(&ring.values[stage][0][threadIdx.x], rows.low + 2 * at);
        copy_16(&ring.values[stage][1][threadIdx.x], rows.high + 2 * at);
    }
    end_copies();
}

// Sends the first steps of columns [first, last) on their way: as early as the rows are known.
template <int S, int R>
__device__ __forceinline__ void start(Nvfp4Ring<S, R>& ring, const u8* const (&tiles)[R], u32 first, u32 last) {
#pragma unroll
    for (u32 stage = 0; stage < S - 1; stage++) fetch(ring, stage, tiles, first + 128 * stage, last);
}
__device__ __forceinline__ void start(Bf16Ring& ring, const Rows& rows, u32 first, u32 last) {
#pragma unroll
    for (u32 stage = 0; stage < BF16_STAGES - 1; stage++) fetch(ring, stage, rows, first + 32 * stage, last);
}

// The rest of the steps, and all products. Vectors are read up to a step past their end (see `Gpu::allocate`).
template <int NT, int S, int R>
__device__ __forceinline__ void accumulate(Nvfp4Ring<S, R>& ring, const u8* const (&weights)[R], const Columns<NT>& columns,
                                           u32 tiles, u32 first, u32 last, Accumulators<NT> (&acc)[R]) {
    // Vectors come this many words before they are used: a whole step if they are few, else as many as there are registers for.
    const int AHEAD = NT == 1 ? 4 : R == 2 ? 2 : 1;
    const Factors by;
    const u16* x[NT];
    uint4 b[AHEAD][NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        x[n] = columns.x[n] + min(first, last) + 8 * (threadIdx.x % 4);
#pragma unroll
        for (int word = 0; word < AHEAD; word++)
            if (n == 0 || n < tiles) b[word][n] = load_column(x[n], 32 * word);
    }
    u32 stage = 0;
#pragma unroll 1
    for (u32 k = first; k < last; k += 128) {
        wait_copies<S - 2>();
        uint4 low[R], high[R];
        u32 low_pair[R], high_pair[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            low[r] = ring.codes[stage][r][0][threadIdx.x];
            high[r] = ring.codes[stage][r][1][threadIdx.x];
            // Two bytes for each row, brought to bits 0 and 16.
            u32 scales = ring.scales[stage][r][threadIdx.x];
            low_pair[r] = scale_pair(__byte_perm(scales, 0, 0x4140));
            high_pair[r] = scale_pair(__byte_perm(scales, 0, 0x4342));
        }
        // The stage that the last step has read.
        fetch(ring, stage == 0 ? S - 1 : stage - 1, weights, k + 128 * (S - 1), last);
        stage = stage == S - 1 ? 0 : stage + 1;
#pragma unroll
        for (int word = 0; word < 4; word++) {
            u32 broadcast = word < 2 ? 0x1010 : 0x3232;
#pragma unroll
            for (int r = 0; r < R; r++) {
                u32 l = (&low[r].x)[word], h = (&high[r].x)[word];
                u32 low_scale = __byte_perm(low_pair[r], 0, broadcast);
                u32 high_scale = __byte_perm(high_pair[r], 0, broadcast);
                u32 a[8];
                a[0] = multiply_pairs(e2m1_pair<0>(l, by), low_scale);
                a[1] = multiply_pairs(e2m1_pair<0>(h, by), high_scale);
                a[2] = multiply_pairs(e2m1_pair<1>(l, by), low_scale);
                a[3] = multiply_pairs(e2m1_pair<1>(h, by), high_scale);
                a[4] = multiply_pairs(e2m1_pair<2>(l, by), low_scale);
                a[5] = multiply_pairs(e2m1_pair<2>(h, by), high_scale);
                a[6] = multiply_pairs(e2m1_pair<3>(l, by), low_scale);
                a[7] = multiply_pairs(e2m1_pair<3>(h, by), high_scale);
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
    wait_copies<0>();
}

template <int NT>
__device__ __forceinline__ void accumulate(Bf16Ring& ring, const Rows& rows, const Columns<NT>& columns, u32 tiles,
                                           u32 first, u32 last, Accumulators<NT> (&acc)[1]) {
    const u16* x[NT];
    uint4 b[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        x[n] = columns.x[n] + min(first, last) + 8 * (threadIdx.x % 4);
        if (n == 0 || n < tiles) b[n] = load_column(x[n], 0);
    }
    u32 stage = 0;
#pragma unroll 1
    for (u32 k = first; k < last; k += 32) {
        wait_copies<BF16_STAGES - 2>();
        uint4 low = ring.values[stage][0][threadIdx.x], high = ring.values[stage][1][threadIdx.x];
        fetch(ring, (stage + BF16_STAGES - 1) % BF16_STAGES, rows, k + 32 * (BF16_STAGES - 1), last);
        stage = (stage + 1) % BF16_STAGES;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            if (n == 0 || n < tiles) {
                mma(acc[0].d[n], low.x, high.x, low.y, high.y, b[n].x, b[n].y);
                mma(acc[0].d[n], low.z, high.z, low.w, high.w, b[n].z, b[n].w);
                b[n] = load_column(x[n], 32);
            }
            x[n] += 32;
        }
    }
    wait_copies<0>();
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
    float terms[TERMS];
#pragma unroll
    for (int term = 0; term < TERMS; term++) {
        terms[term] = partial.d[first][row][vector * TERMS + term];
        for (u32 slice = 1; slice < slices; slice++)
            terms[term] += partial.d[first + slice][row][vector * TERMS + term];
    }
    return terms[0] + (terms[1] + terms[2]);
}
