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

// What a thread takes of a word's columns, from its first one on: eight in a row, or four of each sixteen.
template <typename Format>
__device__ __forceinline__ uint4 load_word(const u16* x, u32 at) {
    if constexpr (Format::SIXTEENS) {
        uint4 v;
        asm volatile("ld.global.L1::evict_last.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(x + at));
        asm volatile("ld.global.L1::evict_last.v2.u32 {%0,%1}, [%2];" : "=r"(v.z), "=r"(v.w) : "l"(x + at + 16));
        return v;
    } else {
        return load_column(x, at);
    }
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

// A form of weights as decoding takes it: where each row has scales and minima, they are computed once for all lanes, a third of the work
// otherwise, and stand in shared memory. Bytes of a block's tables for stages of C times R tiles:
template <typename Format, int R, int C>
constexpr int TABLE_BYTES = Format::WITH_MINIMA ? WARPS * R * C * 512 : 0;
template <typename Format, bool WITH_TABLE = Format::WITH_MINIMA>
struct Taken : Format {
    __device__ __forceinline__ void load(const u8* tile, u32 lane, const float2*) { Format::load(tile, lane); }
};
template <typename Format>
struct Taken<Format, true> : Format::Base {
    static const bool WITH_MINIMA = true;
    u32 row;  // where row g of the table begins
    __device__ __forceinline__ void load(const u8* tile, u32 lane, const float2* table) {
        Format::Base::load_codes(tile, 0, tile, 1, lane);
        row = shared_address(table + lane / 4 * 4);
    }
    // Volatile: they must not come before they are used, where registers are few.
    __device__ __forceinline__ void both(int word, const Factors&, float2& scale, float2& minimum) const {
        asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(scale.x), "=f"(minimum.x) : "r"(row + 8 * word));
        asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(scale.y), "=f"(minimum.y) : "r"(row + 8 * word + 256));
    }
};

// The rest of the steps, and all products, for weights in tiles of 128 columns (see formats.cuh). Vectors are read up to a step past
// their end (see `Gpu::allocate`). `refill` is called with a stage that is free again and the first tile of the stage that is read
// meanwhile, `before_tile` with the number of each tile before it is added. `tables`: TABLE_BYTES of the block's shared memory.
template <typename Format, int NT, int S, int R, int C, int BYTES, int W, typename G, typename F>
__device__ __forceinline__ void accumulate_stages(Ring<S, R, BYTES, W>& ring, Flags<S, W>& flags, Place<S>& place, const Factors& by,
                                                  u8* tables, const Columns<NT>& columns, u32 tiles, u32 first, u32 last,
                                                  Accumulators<NT> (&acc)[R], G refill, F before_tile) {
    // Vectors come this many words before they are used: a whole step if they are few, else as many as there are registers for.
    const int AHEAD = NT == 1 ? 4 : NT <= 4 && R == 2 ? 2 : 1;
    // Tiles of a stage whose tables are computed at once: all, where there is room.
    const int AT_ONCE = R == 1 ? C : 1;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u16* x[NT];
    uint4 b[AHEAD][NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        x[n] = columns.x[n] + 128 * min(first, last) + (Format::SIXTEENS ? 4 : 8) * (lane % 4);
#pragma unroll
        for (int word = 0; word < AHEAD; word++)
            if (n == 0 || n < tiles) b[word][n] = load_word<Format>(x[n], 32 * word);
    }
#pragma unroll 1
    for (u32 at = first; at < last; at += C) {
        wait(flags, place);
        const u8* stage = ring.bytes[warp][place.stage][0];
        auto prepare_tables = [&](int c, float2* table) {
            if constexpr (Format::WITH_MINIMA) {
                if (AT_ONCE == 1 || c == 0) __syncwarp();
#pragma unroll
                for (int r = 0; r < R; r++) Format::prepare(stage + r * BYTES + c * Format::BYTES, lane, by, table + 64 * r);
                if (AT_ONCE == 1 || c == C - 1) __syncwarp();
            }
        };
        // Of tiles past the last, too: nobody reads those.
        float2* all_tables = (float2*)(tables + warp * R * 512 * AT_ONCE);
        if (AT_ONCE > 1) {
#pragma unroll
            for (int c = 0; c < C; c++) prepare_tables(c, all_tables + c * R * 64);
        }
        refill(before(place), at);
        next(place);
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (c > 0 && at + c >= last) break;
            before_tile(at + c);
            float2* table = all_tables + (AT_ONCE == 1 ? 0 : c * R * 64);
            if (AT_ONCE == 1) prepare_tables(c, table);
            Taken<Format> loaded[R];
#pragma unroll
            for (int r = 0; r < R; r++) loaded[r].load(stage + r * BYTES + c * Format::BYTES, lane, table + 64 * r);
#pragma unroll
            for (int word = 0; word < 4; word++) {
                float2 sums[NT];
#pragma unroll
                for (int n = 0; n < NT; n++) sums[n] = sum_columns<Format>(b[word % AHEAD][n]);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    u32 a[8];
                    loaded[r].unpack(a, word, by);
                    const WordScales scales = scales_of(loaded[r], word, by);
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        if (n == 0 || n < tiles) {
                            uint4& v = b[word % AHEAD][n];
                            multiply_word<Format>(scales, a, v, sums[n], acc[r].d[n]);
                            // Into the same registers: a copy at the end of the step would wait for the load.
                            if (r == R - 1) v = load_word<Format>(x[n], 32 * (word + AHEAD));
                        }
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < NT; n++) x[n] += 128;
        }
    }
}

// The same for one stretch of tiles: the ring holds nothing behind `last`.
template <typename Format, int NT, int S, int R, int C>
__device__ __forceinline__ void accumulate(Ring<S, R, C * Format::BYTES>& ring, Flags<S>& flags, Place<S>& place,
                                           u8* tables, const u8* const (&weights)[R], const Columns<NT>& columns, u32 tiles, u32 first,
                                           u32 last, Accumulators<NT> (&acc)[R]) {
    accumulate_stages<Format, NT, S, R, C>(
        ring, flags, place, Factors(), tables, columns, tiles, first, last, acc,
        [&](u32 stage, u32 at) { fetch<Format::BYTES, C>(ring, flags, stage, weights, at + C * (S - 1), last); },
        [](u32) {});
}

// bf16 in tiles of 32 columns, which products of any width have; or f32 in PARTS such tiles that are added up, small ones first.
template <int NT, int S, int C, int PARTS, int W, typename F>
__device__ __forceinline__ void accumulate(Ring<S, 1, C * PARTS * BF16_TILE_BYTES, W>& ring, Flags<S, W>& flags, Place<S>& place,
                                           const u8* const (&weights)[1], const Columns<NT>& columns, u32 tiles, u32 first,
                                           u32 last, Accumulators<NT> (&acc)[1], F before_tile) {
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
        fetch<PARTS * BF16_TILE_BYTES, C>(ring, flags, before(place), weights, at + C * (S - 1), last);
        next(place);
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (c > 0 && at + c >= last) break;
            before_tile(at + c);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const u8* tile = stage + (c * PARTS + part) * BF16_TILE_BYTES;
                uint4 low = ((const uint4*)tile)[lane], high = ((const uint4*)(tile + 512))[lane];
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    if (n == 0 || n < tiles) {
                        uint4& v = b[c % AHEAD][n];
                        mma(acc[0].d[n], low.x, high.x, low.y, high.y, v.x, v.y);
                        mma(acc[0].d[n], low.z, high.z, low.w, high.w, v.z, v.w);
                        if (part == PARTS - 1) v = load_column(x[n], 32 * AHEAD);
                    }
                    if (part == PARTS - 1) x[n] += 32;
                }
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

// Part `part` of a row tile, which this warp has.
template <int NT, int R>
__device__ __forceinline__ void store_part(Partial<NT, R>& partial, u32 part, const Accumulators<NT>& acc) {
    u32 g = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) partial.d[part][g + i / 2 * 8][n * 8 + pair + i % 2] = acc.d[n][i];
}

template <int NT, int R>
__device__ __forceinline__ void store_partial(Partial<NT, R>& partial, u32 slices, const Accumulators<NT> (&acc)[R]) {
#pragma unroll
    for (int r = 0; r < R; r++)
        store_part(partial, row_tile<R>(slices, r) * slices + threadIdx.x / 32 % slices, acc[r]);
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
