// Experts: down · (silu(gate · x) ⊙ (up · x)), grouped by expert, so that an expert's weights are read once for all its visitors.

// The plain versions, for any layout: a warp computes one row for one visit. grid (rows / 8, slots), 256 threads.
// x: [tokens, 3, cols] in `order`; activated: [visits, 3, rows] in `out_order`.
extern "C" __global__ void experts_gate_up_plain(int layout, ExpertWeight gate, ExpertWeight up, u32 rows, u32 cols,
                                                 Visits visits, const u16* x, int order, u16* activated, int out_order) {
    Visit visit;
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
    wait_for_previous();
    if (!find_visit(visits, blockIdx.y, visit) || row >= rows) return;
    u64 e = visit.expert;
    for (u32 v = visit.first; v < visit.first + visit.count; v++) {
        const u16* vector = x + (u64)token_of(visits, v) * TERMS * cols;
        float g = 0.0f, u = 0.0f;
        for (u32 k = threadIdx.x % 32; k < cols; k += 32) {
            float value = load_split(vector, cols, order, k);
            const u8 *gate_scales = gate.scales + e * gate.scale_stride, *up_scales = up.scales + e * up.scale_stride;
            g = fmaf(decode(layout, gate.values + e * gate.value_stride, gate_scales, row, k, cols), value, g);
            u = fmaf(decode(layout, up.values + e * up.value_stride, up_scales, row, k, cols), value, u);
        }
        g = warp_sum(g) * gate.global_scales[e];
        u = warp_sum(u) * up.global_scales[e];
        if (threadIdx.x % 32 == 0) store_split(activated + (u64)v * TERMS * rows, rows, out_order, row, silu(g) * u);
    }
}

extern "C" __global__ void experts_down_plain(int layout, ExpertWeight down, u32 rows, u32 cols, Visits visits,
                                              const u16* activated, int order, float* y) {
    Visit visit;
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
    wait_for_previous();
    if (!find_visit(visits, blockIdx.y, visit) || row >= rows) return;
    u64 e = visit.expert;
    for (u32 v = visit.first; v < visit.first + visit.count; v++) {
        float sum = 0.0f;
        for (u32 k = threadIdx.x % 32; k < cols; k += 32)
            sum = fmaf(decode(layout, down.values + e * down.value_stride, down.scales + e * down.scale_stride, row, k, cols),
                       load_split(activated + (u64)v * TERMS * cols, cols, order, k), sum);
        sum = warp_sum(sum) * down.global_scales[e];
        if (threadIdx.x % 32 == 0) y[(u64)v * rows + row] = sum;
    }
}

// S stages of C tiles for each of R row tiles.
template <typename Format, int NT, int S, int R, int C>
union ExpertMemory {
    Ring<S, R, C * Format::BYTES> ring;
    Partial<NT, R> partial;
};

// Tiles of gate and of up take turns: 2 i is gate's sixteen rows i, 2 i + 1 up's. A warp computes R of them, `slices` warps
// share their columns. grid (row blocks, slots), 256 threads.
template <typename Format, int NT, int S, int R, int C>
__device__ __forceinline__ void gate_up_block(Flags<S>& flags, const ExpertWeight& gate, const ExpertWeight& up, u32 rows,
                                              u32 cols, const Visits& visits, const Visit& visit, const u16* x,
                                              u16* activated, int out_order, u32 slices) {
    typedef ExpertMemory<Format, NT, S, R, C> Memory;
    static_assert(sizeof(Memory) <= GATE_UP_SHARED, "see kernels.rs");
    Memory& memory = *(Memory*)block_memory;
    const u32 capacity = NT * 8 / TERMS;
    u32 warp = threadIdx.x / 32, pairs = WARPS * R / slices / 2;
    const u8* weights[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        u32 tile = row_tile<R>(slices, r);
        weights[r] = tiles_of<Format>(tile % 2 ? up : gate, visit.expert, rows, cols, (blockIdx.x * pairs + tile / 2) * 16);
    }
    u32 across = cols / 128, per_slice = (across + slices - 1) / slices;
    u32 first = warp % slices * per_slice, last = min(first + per_slice, across);
    Place<S> place = prepare(flags);
    for (u32 base = 0; base < visit.count; base += capacity) {
        start<Format::BYTES, C>(memory.ring, flags, place, weights, first, last);
        u32 here = min(capacity, visit.count - base);
        Columns<NT> columns;
        find_columns(columns, here, cols, [&](u32 v) {
            return x + (u64)(is_known(visits, blockIdx.y) ? base + v : token_of(visits, visit.first + base + v)) * TERMS * cols;
        });
        Accumulators<NT> acc[R];
#pragma unroll
        for (int r = 0; r < R; r++) acc[r].clear();
        accumulate<Format, NT, S, R, C>(memory.ring, flags, place, weights, columns, TILES(here * TERMS), first, last, acc);
        __syncthreads();
        store_partial(memory.partial, slices, acc);
        float gate_scale = gate.global_scales[visit.expert] * Format::unit();
        float up_scale = up.global_scales[visit.expert] * Format::unit();
        __syncthreads();
        for (u32 i = threadIdx.x; i < pairs * 16 * here; i += blockDim.x) {
            u32 row = i % 16, pair = i / 16 % pairs, vector = i / 16 / pairs;
            u32 out = (blockIdx.x * pairs + pair) * 16 + row;
            if (out < rows) {
                float gated = sum_partial(memory.partial, 2 * pair, slices, row, vector) * gate_scale;
                float value = sum_partial(memory.partial, 2 * pair + 1, slices, row, vector) * up_scale;
                store_split(activated + (u64)(visit.first + base + vector) * TERMS * rows, rows, out_order, out,
                            silu(gated) * value);
            }
        }
        give_back();
    }
}

// y: [visits, rows]. grid (row blocks, slots), 256 threads.
template <typename Format, int NT, int S, int R, int C>
__device__ __forceinline__ void down_block(Flags<S>& flags, const ExpertWeight& down, u32 rows, u32 cols, const Visit& visit,
                                           const u16* activated, float* y, u32 slices) {
    typedef ExpertMemory<Format, NT, S, R, C> Memory;
    static_assert(sizeof(Memory) <= (Format::BYTES > F8_TILE_BYTES ? GATE_UP_SHARED : DOWN_SHARED), "see kernels.rs");
    Memory& memory = *(Memory*)block_memory;
    const u32 capacity = NT * 8 / TERMS;
    u32 warp = threadIdx.x / 32, tiles = WARPS * R / slices;
    const u8* weights[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        u32 row = (blockIdx.x * tiles + row_tile<R>(slices, r)) * 16;
        weights[r] = tiles_of<Format>(down, visit.expert, rows, cols, row);
    }
    u32 across = cols / 128, per_slice = (across + slices - 1) / slices;
    u32 first = warp % slices * per_slice, last = min(first + per_slice, across);
    Place<S> place = prepare(flags);
    for (u32 base = 0; base < visit.count; base += capacity) {
        start<Format::BYTES, C>(memory.ring, flags, place, weights, first, last);
        if (base == 0) wait_for_previous();
        u32 here = min(capacity, visit.count - base);
        Columns<NT> columns;
        find_columns(columns, here, cols,
                     [&](u32 v) { return activated + (u64)(visit.first + base + v) * TERMS * cols; });
        Accumulators<NT> acc[R];
#pragma unroll
        for (int r = 0; r < R; r++) acc[r].clear();
        accumulate<Format, NT, S, R, C>(memory.ring, flags, place, weights, columns, TILES(here * TERMS), first, last, acc);
        __syncthreads();
        store_partial(memory.partial, slices, acc);
        float scale = down.global_scales[visit.expert] * Format::unit();
        __syncthreads();
        for (u32 i = threadIdx.x; i < tiles * 16 * here; i += blockDim.x) {
            u32 row = i % 16, tile = i / 16 % tiles, vector = i / 16 / tiles;
            u32 out = (blockIdx.x * tiles + tile) * 16 + row;
            if (out < rows)
                y[(u64)(visit.first + base + vector) * rows + out] =
                    sum_partial(memory.partial, tile, slices, row, vector) * scale;
        }
        give_back();
    }
}

// Kernels by what an expert with many visitors needs: NT tiles of columns. Experts with few, which most are even in large steps,
// take the path for one tile: there, vectors come a whole step ahead.
// The shared expert's gate and up need no lists, and the normalized vectors are complete when they start, for the router has waited for
// them: its blocks, which come first, wait when they are done.
// The lists are complete when `down` starts, for the kernel before it has waited for them: it fetches weights at once.
#define EXPERTS(FORMAT, SUFFIX, NT, UP_S, UP_C, UP_BLOCKS, DOWN_S, DOWN_C, DOWN_BLOCKS)                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, UP_BLOCKS)                                                   \
        experts_gate_up_##SUFFIX(ExpertWeight gate, ExpertWeight up, u32 rows, u32 cols, Visits visits, const u16* x,  \
                                 u16* activated, int out_order, u32 slices) {                                          \
        __shared__ Flags<UP_S> flags;                                                                                  \
        Visit visit;                                                                                                   \
        bool known = is_known(visits, blockIdx.y);                                                                     \
        if (known)                                                                                                     \
            visit = shared_visit(visits);                                                                              \
        else                                                                                                           \
            wait_for_previous();                                                                                       \
        if (!known && !find_visit(visits, blockIdx.y, visit)) return;                                                  \
        if (NT == 1 || visit.count <= 8 / TERMS)                                                                       \
            gate_up_block<FORMAT, 1, UP_S, 1, UP_C>(flags, gate, up, rows, cols, visits, visit, x, activated,          \
                                                    out_order, slices);                                                \
        else                                                                                                           \
            gate_up_block<FORMAT, NT, UP_S, 1, UP_C>(flags, gate, up, rows, cols, visits, visit, x, activated,         \
                                                     out_order, slices);                                               \
        if (known) wait_for_previous();                                                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, DOWN_BLOCKS)                                                 \
        experts_down_##SUFFIX(ExpertWeight down, u32 rows, u32 cols, Visits visits, const u16* activated, float* y,    \
                              u32 slices) {                                                                            \
        __shared__ Flags<DOWN_S> flags;                                                                                \
        Visit visit;                                                                                                   \
        if (!find_visit(visits, blockIdx.y, visit)) {                                                                  \
            wait_for_previous();                                                                                       \
            return;                                                                                                    \
        }                                                                                                              \
        if (NT == 1 || visit.count <= 8 / TERMS)                                                                       \
            down_block<FORMAT, 1, DOWN_S, 1, DOWN_C>(flags, down, rows, cols, visit, activated, y, slices);            \
        else                                                                                                           \
            down_block<FORMAT, NT, DOWN_S, 1, DOWN_C>(flags, down, rows, cols, visit, activated, y, slices);           \
    }
// Passes of 8 columns, and of up to 24.
EXPERTS(Nvfp4, nvfp4_8, 1, 2, 4, 3, 2, 3, 4)
EXPERTS(Nvfp4, nvfp4_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS(Int4, int4_8, 1, 2, 4, 3, 2, 3, 4)
EXPERTS(Int4, int4_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS(F8Blocks, f8_8, 1, 2, 2, 3, 3, 1, 4)
EXPERTS(F8Blocks, f8_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS(Bf16, bf16_8, 1, 2, 1, 3, 2, 1, 3)
EXPERTS(Bf16, bf16_24, 3, 2, 1, 2, 2, 1, 2)

// hidden += shared + Σ weight · expert, in the order of the routes; `=` if not `accumulate`. grid (width / 256, tokens).
// Experts of other ranks (`places` ELSEWHERE) are left out.
// places null: one block without router; y[token] is added as it is. shared_first: where the shared expert's visits begin.
extern "C" __global__ void combine(const float* y, const u32* places, const float* weights, u32 per_token, int shared,
                                   u32 shared_first, u32 width, int accumulate, float* hidden) {
    u32 k = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    u64 token = blockIdx.y;
    // The routes are older than the last kernel, so they are there.
    u32 place = 0;
    float weight = 0.0f;
    if (lane < per_token) {
        place = places[token * per_token + lane];
        weight = weights[token * per_token + lane];
    }
    wait_for_previous();
    float* out = hidden + token * width + k;
    bool mine = k < width;
    float before = mine && accumulate ? *out : 0.0f, sum = mine && shared ? y[(shared_first + token) * width + k] : 0.0f;
#pragma unroll 8
    for (u32 i = 0; i < per_token; i++) {
        u64 row = __shfl_sync(~0u, place, i);
        float share = __shfl_sync(~0u, weight, i);
        if (mine && row != ELSEWHERE) sum = fmaf(share, y[row * width + k], sum);
    }
    if (mine) *out = accumulate ? before + sum : sum;
}
