// Products for many vectors, as prompts have them: a block multiplies 256 rows with 64 vectors, which come to shared memory once
// for its eight warps. A warp has two row tiles, whose packed weights come through its own ring and are unpacked in registers.
//
// Order of the sums, tile by tile and slice by slice, and the instruction are those of decoding (mma.cuh), so the bits are the
// same: a prompt may be cut anywhere. bf16 activations only, and from Hopper on.

#define PREFILL_VECTORS 64    // of a block
#define PREFILL_TILES (PREFILL_VECTORS / 8)
#define VECTOR_PITCH 320      // bytes of a chunk of a vector: two neighbours' four pieces lie in different banks
#define VECTOR_STAGES 3

template <typename Format>
struct PrefillMemory {
    static const int STAGES = Format::BYTES > F8_TILE_BYTES ? 2 : Format::BYTES > TILE_BYTES ? 3 : 4;
    Ring<STAGES, 2, Format::BYTES> ring;
    u8 vectors[VECTOR_STAGES][PREFILL_VECTORS * VECTOR_PITCH];
};

// As `load_word` of mma.cuh.
template <typename Format>
__device__ __forceinline__ uint4 word_at(const u8* vector) {
    if constexpr (Format::SIXTEENS) {
        uint2 first = *(const uint2*)vector, second = *(const uint2*)(vector + 32);
        return make_uint4(first.x, first.y, second.x, second.y);
    } else {
        return *(const uint4*)vector;
    }
}

// Two row tiles times a chunk of the vectors. A slice of the columns is a whole number of parts of COLUMNS columns; `before_part`
// is called with the number of each.
template <int COLUMNS, typename Format, typename F>
__device__ __forceinline__ void multiply_chunk(const u8* const (&stage)[2], const u8* vectors, u32 tiles, u32 chunk,
                                               Accumulators<PREFILL_TILES> (&acc)[2], F before_part) {
    u32 lane = threadIdx.x % 32;
    const Factors by;
    if (COLUMNS == CHUNK) before_part(chunk);
    Format loaded[2];
    loaded[0].load(stage[0], lane);
    loaded[1].load(stage[1], lane);
    const u8* vector = vectors + lane / 4 * VECTOR_PITCH + lane % 4 * (Format::SIXTEENS ? 8 : 16);
#pragma unroll
    for (int word = 0; word < 4; word++) {
        if (COLUMNS < CHUNK) before_part(4 * chunk + word);
        uint4 b[PREFILL_TILES];
#pragma unroll
        for (int n = 0; n < PREFILL_TILES; n++) b[n] = word_at<Format>(vector + n * 8 * VECTOR_PITCH + 64 * word);
        float2 sums[PREFILL_TILES];
#pragma unroll
        for (int n = 0; n < PREFILL_TILES; n++) sums[n] = sum_columns<Format>(b[n]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 a[8];
            loaded[r].unpack(a, word, by);
            const WordScales scales = scales_of(loaded[r], word, by);
#pragma unroll
            for (int n = 0; n < PREFILL_TILES; n++)
                if (n < tiles) multiply_word<Format>(scales, a, b[n], sums[n], acc[r].d[n]);
        }
    }
}

// `here` vectors, number v at `vector(v)`; calls f(row in the tile, v, two row tiles' sums). Weights of this warp's row tiles.
template <typename Format, int COLUMNS, typename V, typename F>
__device__ __forceinline__ void prefill_block(const u8* const (&weights)[2], u32 cols, u32 slices, u32 here, bool early,
                                              V vector, F f) {
    typedef PrefillMemory<Format> Memory;
    static_assert(sizeof(Memory) <= PREFILL_SHARED, "see kernels.rs");
    Memory& memory = *(Memory*)block_memory;
    const int STAGES = Memory::STAGES, STEP = Format::BYTES;
    __shared__ Flags<STAGES> flags;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = cols / CHUNK;
    Place<STAGES> place = prepare(flags);
    start<STEP, 1>(memory.ring, flags, place, weights, 0, chunks);
    if (early) wait_for_previous();
    // A thread copies a sixteenth of four vectors' chunks.
    const u8* from[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        from[i] = (const u8*)vector(min(threadIdx.x / 16 + 16 * i, here - 1)) + threadIdx.x % 16 * 16;
    auto fetch_vectors = [&](u32 chunk) {
        if (chunk < chunks) {
            u8* to = memory.vectors[chunk % VECTOR_STAGES] + threadIdx.x / 16 * VECTOR_PITCH + threadIdx.x % 16 * 16;
#pragma unroll
            for (int i = 0; i < 4; i++) copy_16(to + 16 * i * VECTOR_PITCH, from[i] + (u64)chunk * CHUNK * 2);
        }
        end_copies();
    };
    fetch_vectors(0);
    fetch_vectors(1);
    Accumulators<PREFILL_TILES> acc[2], total[2];
    acc[0].clear();
    acc[1].clear();
    u32 across = cols / COLUMNS, per_slice = (across + slices - 1) / slices, end_of_slice = per_slice;
    auto add_slice = [&]() {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < PREFILL_TILES * 4; i++) {
                float part = (&acc[r].d[0][0])[i];
                float& sum = (&total[r].d[0][0])[i];
                sum = end_of_slice == per_slice ? part : sum + part;
            }
        acc[0].clear();
        acc[1].clear();
        end_of_slice += per_slice;
    };
    u32 tiles = TILES(here);
#pragma unroll 1
    for (u32 chunk = 0; chunk < chunks; chunk++) {
        wait_copies<1>();
        // The chunk is here for all, and all are done with the one before, whose place the next but one takes.
        __syncthreads();
        fetch_vectors(chunk + 2);
        wait(flags, place);
        const u8* const stage[2] = {memory.ring.bytes[warp][place.stage][0], memory.ring.bytes[warp][place.stage][1]};
        fetch<STEP, 1>(memory.ring, flags, before(place), weights, chunk + STAGES - 1, chunks);
        next(place);
        multiply_chunk<COLUMNS, Format>(stage, memory.vectors[chunk % VECTOR_STAGES], tiles, chunk, acc, [&](u32 part) {
            if (part == end_of_slice) add_slice();
        });
    }
    add_slice();
#pragma unroll
    for (int n = 0; n < PREFILL_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 row = lane / 4 + i / 2 * 8, v = n * 8 + lane % 4 * 2 + i % 2;
            if (v < here) f(row, v, total[0].d[n][i], total[1].d[n][i]);
        }
}

// The expert and the first visit of group `group` of up to 64 visits: groups stand by slot. Every thread gets it.
__device__ __forceinline__ bool find_group(const Visits& visits, u32 slots, u32 group, Visit& visit, u32& base) {
    __shared__ uint4 found;
    __shared__ u32 found_base;
    if (!visits.slots) {
        visit = Visit{0, 0, visits.count, 0};
        base = group * PREFILL_VECTORS;
        return base < visits.count;
    }
    if (threadIdx.x == 0) found = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (threadIdx.x < 32) {
        u32 before = 0;
        for (u32 first = 0; first < slots && before <= group; first += 32) {
            u32 slot = first + threadIdx.x;
            uint4 words = slot < slots ? __ldcg(visits.slots + slot) : make_uint4(0, 0, 0, 0);
            u32 mine = (words.z + PREFILL_VECTORS - 1) / PREFILL_VECTORS, sum = mine;
#pragma unroll
            for (u32 step = 1; step < 32; step *= 2) {
                u32 left = __shfl_up_sync(~0u, sum, step);
                if (threadIdx.x >= step) sum += left;
            }
            u32 start = before + sum - mine;
            if (group >= start && group < start + mine) {
                found = words;
                found_base = (group - start) * PREFILL_VECTORS;
            }
            before += __shfl_sync(~0u, sum, 31);
        }
    }
    __syncthreads();
    visit = Visit{found.x, found.y, found.z, 0};
    base = found_base;
    return found.z > 0;
}

// grid (rows / 128, groups of visits), 256 threads.
template <typename Format>
__device__ __forceinline__ void gate_up_prefill(const ExpertWeight& gate, const ExpertWeight& up, u32 rows, u32 cols,
                                                const Visits& visits, u32 slots, const u16* x, u16* activated,
                                                int out_order, u32 slices) {
#if BULK_COPIES && TERMS == 1
    Visit visit;
    u32 base;
    wait_for_previous();
    if (!find_group(visits, slots, blockIdx.y, visit, base)) return;
    u32 row = (blockIdx.x * WARPS + threadIdx.x / 32) * 16, first = visit.first + base;
    const u8* const weights[2] = {tiles_of<Format>(gate, visit.expert, rows, cols, row), tiles_of<Format>(up, visit.expert, rows, cols, row)};
    float gate_scale = gate.global_scales[visit.expert] * Format::unit(), up_scale = up.global_scales[visit.expert] * Format::unit();
    prefill_block<Format, CHUNK>(
        weights, cols, slices, min(PREFILL_VECTORS, visit.count - base), false,
        [&](u32 v) { return x + (u64)token_of(visits, first + v) * cols; },
        [&](u32 r, u32 v, float gated, float value) {
            if (row + r < rows)
                store_split(activated + (u64)(first + v) * rows, rows, out_order, row + r,
                            silu(gated * gate_scale) * (value * up_scale));
        });
#endif
}

// grid (rows / 256, groups of visits), 256 threads.
template <typename Format>
__device__ __forceinline__ void down_prefill(const ExpertWeight& down, u32 rows, u32 cols, const Visits& visits, u32 slots,
                                             const u16* activated, float* y, u32 slices) {
#if BULK_COPIES && TERMS == 1
    Visit visit;
    u32 base;
    // The lists are complete (see experts.cuh).
    if (!find_group(visits, slots, blockIdx.y, visit, base)) {
        wait_for_previous();
        return;
    }
    u32 row = (blockIdx.x * WARPS + threadIdx.x / 32) * 32, first = visit.first + base;
    const u8* const weights[2] = {tiles_of<Format>(down, visit.expert, rows, cols, row),
                                  tiles_of<Format>(down, visit.expert, rows, cols, row + 16)};
    float scale = down.global_scales[visit.expert] * Format::unit();
    prefill_block<Format, CHUNK>(
        weights, cols, slices, min(PREFILL_VECTORS, visit.count - base), true,
        [&](u32 v) { return activated + (u64)(first + v) * cols; },
        [&](u32 r, u32 v, float low, float high) {
            float* to = y + (u64)(first + v) * rows + row + r;
            if (row + r < rows) to[0] = low * scale;
            if (row + 16 + r < rows) to[16] = high * scale;
        });
#endif
}

#define EXPERTS_PREFILL(FORMAT, NAME)                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                           \
        experts_gate_up_##NAME##_prefill(ExpertWeight gate, ExpertWeight up, u32 rows, u32 cols, Visits visits,        \
                                         u32 slots, const u16* x, u16* activated, int out_order, u32 slices) {         \
        gate_up_prefill<FORMAT>(gate, up, rows, cols, visits, slots, x, activated, out_order, slices);                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                           \
        experts_down_##NAME##_prefill(ExpertWeight down, u32 rows, u32 cols, Visits visits, u32 slots,                 \
                                      const u16* activated, float* y, u32 slices) {                                    \
        down_prefill<FORMAT>(down, rows, cols, visits, slots, activated, y, slices);                                   \
    }

// grid (rows / 256, groups of vectors, heads), 256 threads. bf16 is cut into slices by 32 columns, as in decoding (matmul.cu).
template <typename Format, int COLUMNS>
__device__ __forceinline__ void matmul_prefill(const Product& p, u32 count) {
#if BULK_COPIES && TERMS == 1
    u32 head = blockIdx.z, row = (blockIdx.x * WARPS + threadIdx.x / 32) * 32, base = blockIdx.y * PREFILL_VECTORS;
    u64 head_row = p.row_first + (u64)head * p.row_head;
    u64 row_bytes = (u64)p.cols / CHUNK * Format::BYTES;
    const u8* const weights[2] = {p.values + (head_row + min(row, p.rows - 1)) / 16 * row_bytes,
                                  p.values + (head_row + min(row + 16, p.rows - 1)) / 16 * row_bytes};
    prefill_block<Format, COLUMNS>(
        weights, p.cols, p.slices, min(PREFILL_VECTORS, count - base), true,
        [&](u32 v) {
            u64 at = p.gather ? p.gather[base + v] : base + v;
            return p.x + at * p.x_width + head * p.x_head;
        },
        [&](u32 r, u32 v, float low, float high) {
            if (row + r < p.rows) store_product(p, base + v, head, row + r, low * p.scale);
            if (row + 16 + r < p.rows) store_product(p, base + v, head, row + 16 + r, high * p.scale);
        });
#endif
}
#define MATMUL_PREFILL(FORMAT, COLUMNS, NAME)                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                 \
        matmul_prefill_##NAME(const __grid_constant__ Product p, u32 count) { \
        matmul_prefill<FORMAT, COLUMNS>(p, count);                           \
    }
