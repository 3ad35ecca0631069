// Experts: down · (silu(gate · x) ⊙ (up · x)), grouped by expert, so that an expert's weights are read once for all its visitors.
// For any form of weights; which kernels there are, say the files of the forms.

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
    static_assert(sizeof(Memory) + TABLE_BYTES<Format, R, C> <= GATE_UP_SHARED, "see kernels.rs");
    Memory& memory = *(Memory*)block_memory;
    u8* tables = block_memory + sizeof(Memory);
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
        accumulate<Format, NT, S, R, C>(memory.ring, flags, place, tables, weights, columns, TILES(here * TERMS), first, last, acc);
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
    static_assert(sizeof(Memory) + TABLE_BYTES<Format, R, C> <= (Format::BYTES == Bf16::BYTES ? GATE_UP_SHARED : DOWN_SHARED), "see kernels.rs");
    Memory& memory = *(Memory*)block_memory;
    u8* tables = block_memory + sizeof(Memory);
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
        accumulate<Format, NT, S, R, C>(memory.ring, flags, place, tables, weights, columns, TILES(here * TERMS), first, last, acc);
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
