// The merge of a few rows' spans, and the product with W_UV that follows it, in one kernel: a block has a head, whose weights come while
// attention runs. The bits are those of merge_units and of the products in matmul.cu: the same slices of the columns, added in order.
#define VALUE_ROWS 8  // of a step, at the most: operand B's columns
#define LATENT_TILES (LATENT / 32)

struct ValuesMemory {
    Ring<1, 1, LATENT_TILES * BF16_TILE_BYTES> weights;
    u16 vectors[VALUE_ROWS][LATENT];
};

// partial: as merge_units has it, of spans. p: a product for each head, of bf16 weights in tiles with LATENT columns, p.rows of them a head; its
// vectors are the merged sums. grid (heads, row tiles / 8), 256 threads: a warp has sixteen rows.
extern "C" __global__ void __launch_bounds__(THREADS)
    merge_values(const float* partial, u32 heads, u32 units, const Row* rows, Choices choices, const __grid_constant__ Product p, u32 count) {
#if TERMS == 1 && BULK_COPIES && LATENT == 512
    static_assert(MERGE_THREADS == THREADS && sizeof(ValuesMemory) <= VALUES_SHARED, "see kernels.rs");
    // A product follows.
    let_next_start();
    ValuesMemory& memory = *(ValuesMemory*)block_memory;
    __shared__ Flags<1> flags;
    __shared__ MergeMemory merging;
    u32 head = blockIdx.x, lane = threadIdx.x % 32, tile = blockIdx.y * WARPS + threadIdx.x / 32;
    u32 last_tile = (p.rows - 1) / 16;
    u64 first_tile = (p.row_first + (u64)head * p.row_head) / 16;
    const u8* const weights[1] = {p.values + (first_tile + min(tile, last_tile)) * (LATENT_TILES * BF16_TILE_BYTES)};
    Place<1> place = prepare(flags);
    fetch<BF16_TILE_BYTES, LATENT_TILES>(memory.weights, flags, 0, weights, 0, LATENT_TILES);
    u32 counts = lane < count ? units_of_row(rows, choices, lane, 0) : 0;
    wait_for_previous();
    for (u32 row = 0; row < count; row++) {
        const float* sums = partial + ((u64)row * heads + head) * units * PARTIAL;
        float2 both = merge_columns(sums, __shfl_sync(~0u, counts, row), merging);
        *(u32*)(memory.vectors[row] + 2 * threadIdx.x) = pack_bf16(both.x, both.y);
    }
    __syncthreads();
    wait(flags, place);
    const u8* tiles = memory.weights.bytes[threadIdx.x / 32][0][0];
    const u16* vector = memory.vectors[min(lane / 4, count - 1)] + 8 * (lane % 4);
    u32 per_slice = (LATENT_TILES + p.slices - 1) / p.slices;
    float sum[4];
    for (u32 first = 0; first < LATENT_TILES; first += per_slice) {
        float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
        for (u32 at = first; at < min(first + per_slice, LATENT_TILES); at++) {
            const u8* of_columns = tiles + at * BF16_TILE_BYTES;
            uint4 low = ((const uint4*)of_columns)[lane], high = ((const uint4*)(of_columns + 512))[lane];
            uint4 v = *(const uint4*)(vector + 32 * at);
            mma(part, low.x, high.x, low.y, high.y, v.x, v.y);
            mma(part, low.z, high.z, low.w, high.w, v.z, v.w);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] = first == 0 ? part[i] : sum[i] + part[i];
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 row = 16 * tile + lane / 4 + i / 2 * 8, of = lane % 4 * 2 + i % 2;
        if (row < p.rows && of < count) store_product(p, of, head, row, sum[i] * p.scale);
    }
#endif
}
