// Experts: down · (silu(gate · x) ⊙ (up · x)), grouped by expert, so that an expert's weights are read once for all its visitors.

struct ExpertWeight {
    const u8* values;  // [experts, rows, cols] as stored
    const u8* scales;
    const float* global_scales;  // [experts]
    u64 value_stride;            // bytes from one expert to the next
    u64 scale_stride;
};

// Who visits whom (see router.cu). `active` null: one expert, number 0, and every token visits it.
struct Visits {
    const u32 *first, *visitors, *active, *tokens;
    u32 count;
};

struct Visit {
    u32 expert, first, count;
};

__device__ __forceinline__ bool find_visit(const Visits& visits, u32 slot, Visit& visit) {
    if (!visits.active) {
        visit = Visit{0, 0, visits.count};
        return true;
    }
    if (slot >= visits.active[0]) return false;
    visit.expert = visits.active[1 + slot];
    visit.first = visits.first[visit.expert];
    visit.count = visits.visitors[visit.expert];
    return true;
}

__device__ __forceinline__ u32 token_of(const Visits& visits, u32 visit) {
    return visits.tokens ? visits.tokens[visit] : visit;
}

__device__ __forceinline__ float unit(int layout) { return layout == NVFP4 ? NVFP4_UNIT : 1.0f; }

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
            u64 at = (u64)row * cols + k;
            float value = load_split(vector, cols, order, k);
            g = fmaf(decode(layout, gate.values + e * gate.value_stride, gate.scales + e * gate.scale_stride, at), value, g);
            u = fmaf(decode(layout, up.values + e * up.value_stride, up.scales + e * up.scale_stride, at), value, u);
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
            sum = fmaf(decode(layout, down.values + e * down.value_stride, down.scales + e * down.scale_stride,
                              (u64)row * cols + k),
                       load_split(activated + (u64)v * TERMS * cols, cols, order, k), sum);
        sum = warp_sum(sum) * down.global_scales[e];
        if (threadIdx.x % 32 == 0) y[(u64)v * rows + row] = sum;
    }
}

__device__ __forceinline__ Rows nvfp4_rows(const ExpertWeight& w, u64 expert, u32 cols, u32 low, u32 high) {
    const u8* values = w.values + expert * w.value_stride;
    const u8* scales = w.scales + expert * w.scale_stride;
    return Rows{values + (u64)low * (cols / 2), values + (u64)high * (cols / 2), scales + (u64)low * (cols / 16),
                scales + (u64)high * (cols / 16)};
}

// Gate and up of sixteen rows side by side; they share the vectors. grid (row blocks, slots), 256 threads.
template <int NT>
__device__ __forceinline__ void gate_up_block(const ExpertWeight& gate, const ExpertWeight& up, u32 rows, u32 cols,
                                              const Visits& visits, const u16* x, u16* activated, int out_order,
                                              u32 slices) {
    __shared__ Partial<2, NT> partial;
    Visit visit;
    if (!find_visit(visits, blockIdx.y, visit)) return;
    const u32 capacity = NT * 8 / TERMS;
    u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    u32 tiles_per_block = WARPS / slices;
    u32 first_row = (blockIdx.x * tiles_per_block + warp / slices) * 16;
    u32 low = min(first_row + g, rows - 1), high = min(first_row + g + 8, rows - 1);
    Rows both[2] = {nvfp4_rows(gate, visit.expert, cols, low, high), nvfp4_rows(up, visit.expert, cols, low, high)};
    u32 per_slice = (cols / 128 + slices - 1) / slices * 128;
    u32 first = warp % slices * per_slice, last = min(first + per_slice, cols);
    float gate_scale = gate.global_scales[visit.expert] * NVFP4_UNIT, up_scale = up.global_scales[visit.expert] * NVFP4_UNIT;
    for (u32 base = 0; base < visit.count; base += capacity) {
        u32 here = min(capacity, visit.count - base);
        Columns<NT> columns;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            u32 column = n * 8 + g, vector = column / TERMS;
            columns.x[n] = 0;
            if (vector < here)
                columns.x[n] =
                    x + ((u64)token_of(visits, visit.first + base + vector) * TERMS + column % TERMS) * cols;
        }
        Accumulators<2, NT> acc;
        acc.clear();
        accumulate_nvfp4<2, NT, 2>(both, columns, TILES(here * TERMS), first, last, acc);
        store_partial(partial, acc);
        __syncthreads();
        for (u32 i = threadIdx.x; i < tiles_per_block * 16 * here; i += blockDim.x) {
            u32 row = i % 16, tile = i / 16 % tiles_per_block, vector = i / 16 / tiles_per_block;
            u32 out = (blockIdx.x * tiles_per_block + tile) * 16 + row;
            if (out < rows) {
                float gated = sum_partial(partial, tile * slices, slices, 0, row, vector) * gate_scale;
                float value = sum_partial(partial, tile * slices, slices, 1, row, vector) * up_scale;
                store_split(activated + (u64)(visit.first + base + vector) * TERMS * rows, rows, out_order, out,
                            silu(gated) * value);
            }
        }
        __syncthreads();
    }
}

// y: [visits, rows]. grid (row blocks, slots), 256 threads.
template <int NT>
__device__ __forceinline__ void down_block(const ExpertWeight& down, u32 rows, u32 cols, const Visits& visits,
                                           const u16* activated, float* y, u32 slices) {
    __shared__ Partial<1, NT> partial;
    Visit visit;
    if (!find_visit(visits, blockIdx.y, visit)) return;
    const u32 capacity = NT * 8 / TERMS;
    u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    u32 tiles_per_block = WARPS / slices;
    u32 first_row = (blockIdx.x * tiles_per_block + warp / slices) * 16;
    Rows weight = nvfp4_rows(down, visit.expert, cols, min(first_row + g, rows - 1), min(first_row + g + 8, rows - 1));
    u32 per_slice = (cols / 128 + slices - 1) / slices * 128;
    u32 first = warp % slices * per_slice, last = min(first + per_slice, cols);
    float scale = down.global_scales[visit.expert] * NVFP4_UNIT;
    for (u32 base = 0; base < visit.count; base += capacity) {
        u32 here = min(capacity, visit.count - base);
        Columns<NT> columns;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            u32 column = n * 8 + g, vector = column / TERMS;
            columns.x[n] = 0;
            if (vector < here)
                columns.x[n] = activated + ((u64)(visit.first + base + vector) * TERMS + column % TERMS) * cols;
        }
        Accumulators<1, NT> acc;
        acc.clear();
        accumulate_nvfp4<1, NT, 2>(&weight, columns, TILES(here * TERMS), first, last, acc);
        store_partial(partial, acc);
        __syncthreads();
        for (u32 i = threadIdx.x; i < tiles_per_block * 16 * here; i += blockDim.x) {
            u32 row = i % 16, tile = i / 16 % tiles_per_block, vector = i / 16 / tiles_per_block;
            u32 out = (blockIdx.x * tiles_per_block + tile) * 16 + row;
            if (out < rows)
                y[(u64)(visit.first + base + vector) * rows + out] =
                    sum_partial(partial, tile * slices, slices, 0, row, vector) * scale;
        }
        __syncthreads();
    }
}

#define EXPERTS(SUFFIX, NT, BLOCKS)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                           \
        experts_gate_up_##SUFFIX(ExpertWeight gate, ExpertWeight up, u32 rows, u32 cols, Visits visits, const u16* x,   \
                                 u16* activated, int out_order, u32 slices) {                                           \
        gate_up_block<NT>(gate, up, rows, cols, visits, x, activated, out_order, slices);                               \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                           \
        experts_down_##SUFFIX(ExpertWeight down, u32 rows, u32 cols, Visits visits, const u16* activated, float* y,     \
                              u32 slices) {                                                                             \
        down_block<NT>(down, rows, cols, visits, activated, y, slices);                                                 \
    }
EXPERTS(2, 1, 3)  // up to 2 visitors at a time
EXPERTS(8, 3, 2)  // up to 8

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
