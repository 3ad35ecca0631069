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
            return x + (u64)token_of(visits, visit.first + base + v) * TERMS * cols;
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
// The lists are complete when `down` starts, for the kernel before it has waited for them: it fetches weights at once.
#define EXPERTS(FORMAT, SUFFIX, NT, UP_S, UP_C, UP_BLOCKS, DOWN_S, DOWN_C, DOWN_BLOCKS)                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, UP_BLOCKS)                                                   \
        experts_gate_up_##SUFFIX(ExpertWeight gate, ExpertWeight up, u32 rows, u32 cols, Visits visits, const u16* x,  \
                                 u16* activated, int out_order, u32 slices) {                                          \
        __shared__ Flags<UP_S> flags;                                                                                  \
        Visit visit;                                                                                                   \
        wait_for_previous();                                                                                           \
        if (!find_visit(visits, blockIdx.y, visit)) return;                                                            \
        if (NT == 1 || visit.count <= 8 / TERMS)                                                                       \
            gate_up_block<FORMAT, 1, UP_S, 1, UP_C>(flags, gate, up, rows, cols, visits, visit, x, activated,          \
                                                    out_order, slices);                                                \
        else                                                                                                           \
            gate_up_block<FORMAT, NT, UP_S, 1, UP_C>(flags, gate, up, rows, cols, visits, visit, x, activated,         \
                                                     out_order, slices);                                               \
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

// For serving, when there is work for the whole GPU: a warp has sixteen rows of gate and the same of up, or two tiles of down, and
// all their columns. It works alone from the first byte to the result, and never waits for its block. The parts of `slices` are
// added in the same order as above, so the bits are the same.
#define WIDE_STAGES 3
// Tiles of a stage: two to three KB.
template <typename Format>
struct WideMemory {
    static const int TILES_OF_STAGE = Format::BYTES > TILE_BYTES ? 1 : 2;
    Ring<WIDE_STAGES, 2, TILES_OF_STAGE * Format::BYTES> ring;
};

// Calls f(row in the tile, vector, two row tiles' sums).
template <typename Format, int NT, typename V, typename F>
__device__ __forceinline__ void wide_pass(const u8* const (&weights)[2], u32 across, u32 slices, u32 here, u32 cols,
                                          Flags<WIDE_STAGES>& flags, Place<WIDE_STAGES>& place, V vector, F f) {
    WideMemory<Format>& memory = *(WideMemory<Format>*)block_memory;
    Columns<NT> columns;
    find_columns(columns, here, cols, vector);
    Accumulators<NT> acc[2], total[2];
    acc[0].clear();
    acc[1].clear();
    u32 per_slice = (across + slices - 1) / slices, end_of_slice = per_slice;
    auto add_slice = [&]() {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < NT * 4; i++) {
                float part = (&acc[r].d[0][0])[i];
                float& sum = (&total[r].d[0][0])[i];
                sum = end_of_slice == per_slice ? part : sum + part;
            }
        acc[0].clear();
        acc[1].clear();
        end_of_slice += per_slice;
    };
    const int C = WideMemory<Format>::TILES_OF_STAGE;
    accumulate<Format, NT, WIDE_STAGES, 2, C>(memory.ring, flags, place, weights, columns, TILES(here), 0, across, acc,
                                              [&](u32 tile) {
                                                  if (tile == end_of_slice) add_slice();
                                              });
    add_slice();
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 row = lane / 4 + i / 2 * 8, v = n * 8 + lane % 4 * 2 + i % 2;
            if (v < here) f(row, v, total[0].d[n][i], total[1].d[n][i]);
        }
}

template <typename Format, int NT>
__device__ __forceinline__ void gate_up_wide(const ExpertWeight& gate, const ExpertWeight& up, u32 rows, u32 cols,
                                             const Visits& visits, const Visit& visit, const u16* x, u16* activated,
                                             int out_order, u32 slices, Flags<WIDE_STAGES>& flags) {
    WideMemory<Format>& memory = *(WideMemory<Format>*)block_memory;
    u32 row = (blockIdx.x * WARPS + threadIdx.x / 32) * 16;
    if (row >= rows) return;
    const u8* const weights[2] = {tiles_of<Format>(gate, visit.expert, rows, cols, row), tiles_of<Format>(up, visit.expert, rows, cols, row)};
    float gate_scale = gate.global_scales[visit.expert] * Format::unit(), up_scale = up.global_scales[visit.expert] * Format::unit();
    Place<WIDE_STAGES> place = prepare(flags);
    for (u32 base = 0; base < visit.count; base += NT * 8) {
        start<Format::BYTES, WideMemory<Format>::TILES_OF_STAGE>(memory.ring, flags, place, weights, 0, cols / 128);
        u32 first = visit.first + base;
        wide_pass<Format, NT>(
            weights, cols / 128, slices, min(NT * 8, visit.count - base), cols, flags, place,
            [&](u32 v) { return x + (u64)token_of(visits, first + v) * cols; },
            [&](u32 r, u32 v, float gated, float value) {
                if (row + r < rows)
                    store_split(activated + (u64)(first + v) * rows, rows, out_order, row + r,
                                silu(gated * gate_scale) * (value * up_scale));
            });
    }
}

template <typename Format, int NT>
__device__ __forceinline__ void down_wide(const ExpertWeight& down, u32 rows, u32 cols, const Visit& visit,
                                          const u16* activated, float* y, u32 slices, Flags<WIDE_STAGES>& flags) {
    WideMemory<Format>& memory = *(WideMemory<Format>*)block_memory;
    u32 row = (blockIdx.x * WARPS + threadIdx.x / 32) * 32;
    const u8* const weights[2] = {tiles_of<Format>(down, visit.expert, rows, cols, row),
                                  tiles_of<Format>(down, visit.expert, rows, cols, row + 16)};
    float scale = down.global_scales[visit.expert] * Format::unit();
    Place<WIDE_STAGES> place = prepare(flags);
    for (u32 base = 0; base < visit.count; base += NT * 8) {
        if (row < rows) start<Format::BYTES, WideMemory<Format>::TILES_OF_STAGE>(memory.ring, flags, place, weights, 0, cols / 128);
        if (base == 0) wait_for_previous();
        if (row >= rows) return;
        u32 first = visit.first + base;
        wide_pass<Format, NT>(
            weights, cols / 128, slices, min(NT * 8, visit.count - base), cols, flags, place,
            [&](u32 v) { return activated + (u64)(first + v) * cols; },
            [&](u32 r, u32 v, float low, float high) {
                float* to = y + (u64)(first + v) * rows + row + r;
                if (row + r < rows) to[0] = low * scale;
                if (row + 16 + r < rows) to[16] = high * scale;
            });
    }
}

template <typename Format>
__device__ __forceinline__ void gate_up_wide(const ExpertWeight& gate, const ExpertWeight& up, u32 rows, u32 cols,
                                             const Visits& visits, const u16* x, u16* activated, int out_order, u32 slices) {
#if TERMS == 1
    static_assert(sizeof(WideMemory<Format>) <= EXPERTS_WIDE_SHARED, "see kernels.rs");
    __shared__ Flags<WIDE_STAGES> flags;
    Visit visit;
    wait_for_previous();
    if (!find_visit(visits, blockIdx.y, visit)) return;
    if (visit.count <= 8)
        gate_up_wide<Format, 1>(gate, up, rows, cols, visits, visit, x, activated, out_order, slices, flags);
    else
        gate_up_wide<Format, 2>(gate, up, rows, cols, visits, visit, x, activated, out_order, slices, flags);
#endif
}
template <typename Format>
__device__ __forceinline__ void down_wide(const ExpertWeight& down, u32 rows, u32 cols, const Visits& visits,
                                          const u16* activated, float* y, u32 slices) {
#if TERMS == 1
    __shared__ Flags<WIDE_STAGES> flags;
    Visit visit;
    if (!find_visit(visits, blockIdx.y, visit)) {
        wait_for_previous();
        return;
    }
    if (visit.count <= 8)
        down_wide<Format, 1>(down, rows, cols, visit, activated, y, slices, flags);
    else
        down_wide<Format, 2>(down, rows, cols, visit, activated, y, slices, flags);
#endif
}
#define EXPERTS_WIDE(FORMAT, NAME)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                         \
        experts_gate_up_##NAME##_wide(ExpertWeight gate, ExpertWeight up, u32 rows, u32 cols, Visits visits,         \
                                      const u16* x, u16* activated, int out_order, u32 slices) {                     \
        gate_up_wide<FORMAT>(gate, up, rows, cols, visits, x, activated, out_order, slices);                         \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                         \
        experts_down_##NAME##_wide(ExpertWeight down, u32 rows, u32 cols, Visits visits, const u16* activated,       \
                                   float* y, u32 slices) {                                                           \
        down_wide<FORMAT>(down, rows, cols, visits, activated, y, slices);                                           \
    }
EXPERTS_WIDE(Nvfp4, nvfp4)
EXPERTS_WIDE(Int4, int4)
EXPERTS_WIDE(F8Blocks, f8)

// hidden += shared + Σ weight · expert, in the order of the routes; `=` if not `accumulate`. grid (width / 256, tokens).
// places null: one block without router; y[token] is added as it is. shared_first: where the shared expert's visits begin.
extern "C" __global__ void combine(const float* y, const u32* places, const float* weights, u32 per_token, int shared,
                                   u32 shared_first, u32 width, int accumulate, float* hidden) {
    u32 k = blockIdx.x * blockDim.x + threadIdx.x;
    u64 token = blockIdx.y;
    wait_for_previous();
    if (k >= width) return;
    float sum = shared ? y[(shared_first + token) * width + k] : 0.0f;
    for (u32 i = 0; i < per_token; i++)
        sum = fmaf(weights[token * per_token + i], y[(u64)places[token * per_token + i] * width + k], sum);
    float* out = hidden + token * width + k;
    *out = accumulate ? *out + sum : sum;
}
