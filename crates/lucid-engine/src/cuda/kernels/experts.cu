// Experts: down · (silu(gate · x) ⊙ (up · x)), grouped by expert, so that an expert's weights are read once for all its visitors.

struct ExpertWeight {
    const u8* values;  // [experts, rows, cols] as stored, or tiled with the scales inside
    const u8* scales;
    const float* global_scales;  // [experts]
    u64 value_stride;            // bytes from one expert to the next
    u64 scale_stride;
};

// An expert and its visits: count of them, from `first` on.
struct Visit {
    u32 expert, first, count, unused;
};

// Who visits whom (see router.cu). `slots` null: one expert, number 0, and every token visits it.
struct Visits {
    const uint4* slots;
    const u32* tokens;
    u32 count;
};

__device__ __forceinline__ bool find_visit(const Visits& visits, u32 slot, Visit& visit) {
    if (!visits.slots) {
        visit = Visit{0, 0, visits.count, 0};
        return true;
    }
    // One load: everything else waits for it.
    uint4 words = visits.slots[slot];
    visit = Visit{words.x, words.y, words.z, 0};
    return visit.count > 0;
}

__device__ __forceinline__ u32 token_of(const Visits& visits, u32 visit) {
    return visits.tokens ? visits.tokens[visit] : visit;
}

// The plain versions, for any layout: a warp computes one row for one visit. grid (rows / 8, slots), 256 threads.
// x: [tokens, 3, cols] in `order`; activated: [visits, 3, rows] in `out_order`.
extern "C" __global__ void experts_gate_up_plain(int layout, ExpertWeight gate, ExpertWeight up, u32 rows, u32 cols,
                                                 Visits visits, const u16* x, int order, u16* activated, int out_order) {
    Visit visit;
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
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

// The tiles of sixteen rows from `row` on; rows past the end repeat the last tile and are not stored.
__device__ __forceinline__ const u8* tiles_of(const ExpertWeight& w, u64 expert, u32 rows, u32 cols, u32 row) {
    return w.values + expert * w.value_stride + (u64)(min(row, rows - 1) / 16) * (cols / 128) * TILE_BYTES;
}

template <int NT, int R>
union ExpertMemory {
    Nvfp4Ring<R == 1 && NT == 1 ? 3 : 2, R> ring;
    Partial<NT, R> partial;
};

// Tiles of gate and of up take turns: 2 i is gate's sixteen rows i, 2 i + 1 up's. A warp computes R of them, `slices` warps
// share their columns. grid (row blocks, slots), 256 threads.
template <int NT, int R>
__device__ __forceinline__ void gate_up_block(ExpertMemory<NT, R>& memory, const ExpertWeight& gate, const ExpertWeight& up,
                                              u32 rows, u32 cols, const Visits& visits, const Visit& visit, const u16* x,
                                              u16* activated, int out_order, u32 slices) {
    const u32 capacity = NT * 8 / TERMS;
    u32 warp = threadIdx.x / 32, pairs = WARPS * R / slices / 2;
    const u8* weights[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        u32 tile = row_tile<R>(slices, r);
        weights[r] = tiles_of(tile % 2 ? up : gate, visit.expert, rows, cols, (blockIdx.x * pairs + tile / 2) * 16);
    }
    u32 per_slice = (cols / 128 + slices - 1) / slices * 128;
    u32 first = warp % slices * per_slice, last = min(first + per_slice, cols);
    for (u32 base = 0; base < visit.count; base += capacity) {
        start(memory.ring, weights, first, last);
        u32 here = min(capacity, visit.count - base);
        Columns<NT> columns;
        find_columns(columns, here, cols, [&](u32 v) {
            return x + (u64)token_of(visits, visit.first + base + v) * TERMS * cols;
        });
        Accumulators<NT> acc[R];
#pragma unroll
        for (int r = 0; r < R; r++) acc[r].clear();
        accumulate(memory.ring, weights, columns, TILES(here * TERMS), first, last, acc);
        __syncthreads();
        store_partial(memory.partial, slices, acc);
        float gate_scale = gate.global_scales[visit.expert] * NVFP4_UNIT;
        float up_scale = up.global_scales[visit.expert] * NVFP4_UNIT;
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
        __syncthreads();
    }
}

// y: [visits, rows]. grid (row blocks, slots), 256 threads.
template <int NT, int R>
__device__ __forceinline__ void down_block(ExpertMemory<NT, R>& memory, const ExpertWeight& down, u32 rows, u32 cols,
                                           const Visit& visit, const u16* activated, float* y, u32 slices) {
    const u32 capacity = NT * 8 / TERMS;
    u32 warp = threadIdx.x / 32, tiles = WARPS * R / slices;
    const u8* weights[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        u32 row = (blockIdx.x * tiles + row_tile<R>(slices, r)) * 16;
        weights[r] = tiles_of(down, visit.expert, rows, cols, row);
    }
    u32 per_slice = (cols / 128 + slices - 1) / slices * 128;
    u32 first = warp % slices * per_slice, last = min(first + per_slice, cols);
    for (u32 base = 0; base < visit.count; base += capacity) {
        start(memory.ring, weights, first, last);
        u32 here = min(capacity, visit.count - base);
        Columns<NT> columns;
        find_columns(columns, here, cols,
                     [&](u32 v) { return activated + (u64)(visit.first + base + v) * TERMS * cols; });
        Accumulators<NT> acc[R];
#pragma unroll
        for (int r = 0; r < R; r++) acc[r].clear();
        accumulate(memory.ring, weights, columns, TILES(here * TERMS), first, last, acc);
        __syncthreads();
        store_partial(memory.partial, slices, acc);
        float scale = down.global_scales[visit.expert] * NVFP4_UNIT;
        __syncthreads();
        for (u32 i = threadIdx.x; i < tiles * 16 * here; i += blockDim.x) {
            u32 row = i % 16, tile = i / 16 % tiles, vector = i / 16 / tiles;
            u32 out = (blockIdx.x * tiles + tile) * 16 + row;
            if (out < rows)
                y[(u64)(visit.first + base + vector) * rows + out] =
                    sum_partial(memory.partial, tile, slices, row, vector) * scale;
        }
        __syncthreads();
    }
}

// Kernels by what an expert with many visitors needs: NT tiles of columns. `few` are for experts with at most two, as most
// are even in large steps: there, vectors come a whole step ahead.
template <int NT, int R>
union ExpertMemories {
    ExpertMemory<1, R> few;
    ExpertMemory<NT, R> many;
};

#define EXPERTS(SUFFIX, NT, R, BLOCKS)                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                       \
        experts_gate_up_##SUFFIX(ExpertWeight gate, ExpertWeight up, u32 rows, u32 cols, Visits visits, const u16* x,   \
                                 u16* activated, int out_order, u32 slices) {                                           \
        __shared__ ExpertMemories<NT, R> memory;                                                                        \
        Visit visit;                                                                                                    \
        if (!find_visit(visits, blockIdx.y, visit)) return;                                                             \
        if (NT == 1 || visit.count <= 2)                                                                                \
            gate_up_block<1, R>(memory.few, gate, up, rows, cols, visits, visit, x, activated, out_order, slices);      \
        else                                                                                                            \
            gate_up_block<NT, R>(memory.many, gate, up, rows, cols, visits, visit, x, activated, out_order, slices);    \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                       \
        experts_down_##SUFFIX(ExpertWeight down, u32 rows, u32 cols, Visits visits, const u16* activated, float* y,     \
                              u32 slices) {                                                                             \
        __shared__ ExpertMemories<NT, R> memory;                                                                        \
        Visit visit;                                                                                                    \
        if (!find_visit(visits, blockIdx.y, visit)) return;                                                             \
        if (NT == 1 || visit.count <= 2)                                                                                \
            down_block<1, R>(memory.few, down, rows, cols, visit, activated, y, slices);                                \
        else                                                                                                            \
            down_block<NT, R>(memory.many, down, rows, cols, visit, activated, y, slices);                              \
    }
EXPERTS(2, 1, 1, 4)       // up to 2 visitors at a time
EXPERTS(8, 3, 1, 3)       // up to 8
EXPERTS(8_wide, 3, 2, 2)  // up to 8, two row tiles a warp: vectors are read half as often, by half as many blocks

// hidden += shared + Σ weight · expert, in the order of the routes. grid (width / 256, tokens).
// places null: one block without router; y[token] is added as it is. shared_first: where the shared expert's visits begin.
extern "C" __global__ void combine(const float* y, const u32* places, const float* weights, u32 per_token, int shared,
                                   u32 shared_first, u32 width, float* hidden) {
    u32 k = blockIdx.x * blockDim.x + threadIdx.x;
    u64 token = blockIdx.y;
    if (k >= width) return;
    float sum = shared ? y[(shared_first + token) * width + k] : 0.0f;
    for (u32 i = 0; i < per_token; i++)
        sum = fmaf(weights[token * per_token + i], y[(u64)places[token * per_token + i] * width + k], sum);
    hidden[token * width + k] += sum;
}
