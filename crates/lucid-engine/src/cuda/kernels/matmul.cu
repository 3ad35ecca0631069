// Products y = x Wᵀ of packed weights with vectors in split form.

// The plain version, for every layout and shape: a warp computes one row for one vector; lane i takes the columns
// i, i + 32, …, one chain of fused multiply-adds, and the lanes are added in a fixed tree.
// grid (rows / 8, vectors, heads), 256 threads.
extern "C" __global__ void matmul_plain(Product p, u32 count) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32, head = blockIdx.z;
    wait_for_previous();
    if (row >= p.rows) return;
    u64 weight_row = p.row_first + (u64)head * p.row_head + row;
    for (u32 vector = blockIdx.y; vector < count; vector += gridDim.y) {
        u64 at = p.gather ? p.gather[vector] : vector;
        const u16* x = p.x + at * TERMS * p.x_width + head * p.x_head;
        float sum = 0.0f;
        for (u32 k = threadIdx.x % 32; k < p.cols; k += 32)
            sum = fmaf(decode(p.layout, p.values, p.scales, weight_row, k, p.cols),
                       load_split(x, p.x_width, p.order, k), sum);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) store_product(p, vector, head, row, sum * p.scale);
    }
}

#define MATMUL_STAGES 2
#define MATMUL_BF16_TILES 4
#define MATMUL_NVFP4_TILES 3
// The ring's memory serves the partial sums afterwards.
template <int NT>
union MatmulMemory {
    Ring<MATMUL_STAGES, 1, MATMUL_NVFP4_TILES * Nvfp4::BYTES> nvfp4;
    Ring<MATMUL_STAGES, 1, MATMUL_BF16_TILES * BF16_TILE_BYTES> bf16;
    Partial<NT, 1> partial;
};

template <int NT>
__device__ __forceinline__ void matmul_block(const Product& p, u32 block, u32 count) {
    static_assert(sizeof(MatmulMemory<NT>) <= MATMUL_SHARED, "see kernels.rs");
    MatmulMemory<NT>& memory = *(MatmulMemory<NT>*)block_memory;
    __shared__ Flags<MATMUL_STAGES> flags;
    const u32 capacity = NT * 8 / TERMS;
    u32 warp = threadIdx.x / 32;
    u32 slices = p.slices, tiles_per_block = WARPS / slices;
    u32 head = blockIdx.z;
    u32 first_row = (block * tiles_per_block + warp / slices) * 16;
    bool nvfp4 = p.layout == NVFP4_TILED;
    // In tiles of columns.
    u32 across = p.cols / (nvfp4 ? 128 : 32), per_slice = (across + slices - 1) / slices;
    u32 first = warp % slices * per_slice, last = min(first + per_slice, across);
    // Rows past the end repeat the last tile and are not stored; heads begin at multiples of 16.
    u64 row_tile = (p.row_first + (u64)head * p.row_head + min(first_row, p.rows - 1)) / 16;
    const u8* const tiles[1] = {p.values + row_tile * across * (nvfp4 ? Nvfp4::BYTES : BF16_TILE_BYTES)};
    Place<MATMUL_STAGES> place = prepare(flags);
    for (u32 base = blockIdx.y * capacity; base < count; base += gridDim.y * capacity) {
        if (nvfp4)
            start<Nvfp4::BYTES, MATMUL_NVFP4_TILES>(memory.nvfp4, flags, place, tiles, first, last);
        else
            start<BF16_TILE_BYTES, MATMUL_BF16_TILES>(memory.bf16, flags, place, tiles, first, last);
        if (base == blockIdx.y * capacity) wait_for_previous();
        u32 here = min(capacity, count - base);
        Columns<NT> columns;
        find_columns(columns, here, p.x_width, [&](u32 v) {
            u64 at = p.gather ? p.gather[base + v] : base + v;
            return p.x + at * TERMS * p.x_width + head * p.x_head;
        });
        Accumulators<NT> acc[1];
        acc[0].clear();
        if (nvfp4)
            accumulate<Nvfp4, NT, MATMUL_STAGES, 1, MATMUL_NVFP4_TILES>(memory.nvfp4, flags, place, nullptr, tiles, columns,
                                                                        TILES(here * TERMS), first, last, acc);
        else
            accumulate<NT, MATMUL_STAGES, MATMUL_BF16_TILES, 1>(memory.bf16, flags, place, tiles, columns, TILES(here * TERMS),
                                                             first, last, acc, [](u32) {});
        __syncthreads();
        store_partial(memory.partial, slices, acc);
        __syncthreads();
        for (u32 i = threadIdx.x; i < tiles_per_block * 16 * here; i += blockDim.x) {
            u32 row = i % 16, tile = i / 16 % tiles_per_block, vector = i / 16 / tiles_per_block;
            u32 out = (block * tiles_per_block + tile) * 16 + row;
            if (out < p.rows) {
                float sum = sum_partial(memory.partial, tile, slices, row, vector);
                store_product(p, base + vector, head, out, sum * p.scale);
            }
        }
        give_back();
    }
}

// By the columns that a pass takes. grid (row blocks of the first, then of the second; vector groups; heads), 256 threads.
#define MATMUL(COLUMNS, BLOCKS)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                            \
        matmul_##COLUMNS(const __grid_constant__ Products products, u32 first_blocks, u32 count) {           \
        u32 second = blockIdx.x >= first_blocks;                                                             \
        matmul_block<COLUMNS / 8>(products.of[second], blockIdx.x - (second ? first_blocks : 0), count);     \
    }
MATMUL(8, 3)
MATMUL(24, 2)
MATMUL(32, 2)
MATMUL(64, 2)

// The same for up to eight columns and bf16 rows so long that eight slices share each, where the blocks above don't fill the GPU evenly:
// a block has one row tile, and W warps that take slices one after the other.
template <int W, int S>
__device__ __forceinline__ void matmul_row_tile(const Products& products, u32 first_tiles, u32 count) {
    const int C = MATMUL_BF16_TILES;
    struct Memory {
        Ring<S, 1, C * BF16_TILE_BYTES, W> ring;
        Partial<1, 1> partial;
    };
    Memory& memory = *(Memory*)block_memory;
    __shared__ Flags<S, W> flags;
    u32 second = blockIdx.x >= first_tiles, tile = blockIdx.x - (second ? first_tiles : 0), warp = threadIdx.x / 32;
    const Product& p = products.of[second];
    u32 across = p.cols / 32, per_slice = (across + WARPS - 1) / WARPS, slice = warp * (WARPS / W);
    u32 first = slice * per_slice, last = min(first + WARPS / W * per_slice, across), end_of_slice = first + per_slice;
    const u8* const tiles[1] = {p.values + ((u64)p.row_first / 16 + tile) * across * BF16_TILE_BYTES};
    Place<S> place = prepare(flags);
    start<BF16_TILE_BYTES, C>(memory.ring, flags, place, tiles, first, last);
    wait_for_previous();
    Columns<1> columns;
    find_columns(columns, count, p.x_width, [&](u32 v) {
        u64 at = p.gather ? p.gather[v] : v;
        return p.x + at * TERMS * p.x_width;
    });
    Accumulators<1> acc[1];
    acc[0].clear();
    accumulate<1, S, C, 1>(memory.ring, flags, place, tiles, columns, 1, first, last, acc, [&](u32 at) {
        if (at != end_of_slice) return;
        store_part(memory.partial, slice++, acc[0]);
        acc[0].clear();
        end_of_slice += per_slice;
    });
    store_part(memory.partial, slice, acc[0]);
    __syncthreads();
    for (u32 i = threadIdx.x; i < 16 * count; i += blockDim.x) {
        u32 row = i % 16, vector = i / 16, out = tile * 16 + row;
        if (out < p.rows) store_product(p, vector, 0, out, sum_partial(memory.partial, 0, WARPS, row, vector) * p.scale);
    }
}
// By where it is used: few row tiles, whose weights fit into the rings of one block a multiprocessor; or some more than three of the blocks
// above on each multiprocessor, of which four of these can be.
#define MATMUL_ROW_TILE(NAME, W, S, BLOCKS)                                                                           \
    extern "C" __global__ void __launch_bounds__(32 * W, BLOCKS)                                                      \
        matmul_##NAME(const __grid_constant__ Products products, u32 first_tiles, u32 count) {                        \
        matmul_row_tile<W, S>(products, first_tiles, count);                                                          \
    }
MATMUL_ROW_TILE(few, 8, 6, 1)
MATMUL_ROW_TILE(even, 4, 3, 4)

// Weights in one other form (see matmul_format.cuh).
MATMUL_FORMAT(int4, Int4, 8, 2, 3, 3)
MATMUL_FORMAT(int4, Int4, 32, 2, 3, 2)
MATMUL_FORMAT(f8, F8Blocks, 8, 2, 2, 3)
MATMUL_FORMAT(f8, F8Blocks, 32, 2, 2, 2)
MATMUL_WAY(f32, InParts, 8, 2, 1, 3)
MATMUL_WAY(f32, InParts, 32, 2, 1, 2)
