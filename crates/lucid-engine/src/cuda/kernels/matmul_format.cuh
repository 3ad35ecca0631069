// Products with weights in one form that read the same vectors.
// In tiles of 128 columns.
template <typename Format>
struct InFormat {
    static const int COLUMNS = 128, BYTES = Format::BYTES;
    template <int C>
    static constexpr int TABLES = TABLE_BYTES<Format, 1, C>;
    template <int NT, int S, int C>
    static __device__ __forceinline__ void multiply(Ring<S, 1, C * BYTES>& ring, Flags<S>& flags, Place<S>& place, u8* tables, const u8* const (&weights)[1],
                                                    const Columns<NT>& columns, u32 tiles, u32 first, u32 last, Accumulators<NT> (&acc)[1]) {
        accumulate<Format, NT, S, 1, C>(ring, flags, place, tables, weights, columns, tiles, first, last, acc);
    }
};
// f32 as three bf16 numbers that add up to it exactly, in tiles of 32 columns.
struct InParts {
    static const int COLUMNS = 32, PARTS = 3, BYTES = PARTS * BF16_TILE_BYTES;
    template <int C>
    static constexpr int TABLES = 0;
    template <int NT, int S, int C>
    static __device__ __forceinline__ void multiply(Ring<S, 1, C * BYTES>& ring, Flags<S>& flags, Place<S>& place, u8*, const u8* const (&weights)[1],
                                                    const Columns<NT>& columns, u32 tiles, u32 first, u32 last, Accumulators<NT> (&acc)[1]) {
        accumulate<NT, S, C, PARTS>(ring, flags, place, weights, columns, tiles, first, last, acc, [](u32) {});
    }
};

// `Way`: how weights are taken, COLUMNS of them in BYTES a tile of sixteen rows, C tiles a stage.
template <typename Way, int NT, int S, int C>
__device__ __forceinline__ void matmul_format(const Product& p, u32 block, u32 count) {
    typedef Ring<S, 1, C * Way::BYTES> FormatRing;
    union Memory {
        FormatRing ring;
        Partial<NT, 1> partial;
    };
    static_assert(sizeof(Memory) + Way::template TABLES<C> <= MATMUL_FORMAT_SHARED, "see kernels.rs");
    Memory& memory = *(Memory*)block_memory;
    u8* tables = block_memory + sizeof(Memory);
    __shared__ Flags<S> flags;
    const u32 capacity = NT * 8 / TERMS;
    u32 warp = threadIdx.x / 32, slices = p.slices, tiles_per_block = WARPS / slices, head = blockIdx.z;
    u32 first_row = (block * tiles_per_block + warp / slices) * 16;
    u32 across = p.cols / Way::COLUMNS, per_slice = (across + slices - 1) / slices;
    u32 first = warp % slices * per_slice, last = min(first + per_slice, across);
    u64 row_tile = (p.row_first + (u64)head * p.row_head + min(first_row, p.rows - 1)) / 16;
    const u8* const tiles[1] = {p.values + row_tile * across * Way::BYTES};
    Place<S> place = prepare(flags);
    for (u32 base = blockIdx.y * capacity; base < count; base += gridDim.y * capacity) {
        start<Way::BYTES, C>(memory.ring, flags, place, tiles, first, last);
        if (base == blockIdx.y * capacity) wait_for_previous();
        u32 here = min(capacity, count - base);
        Columns<NT> columns;
        find_columns(columns, here, p.x_width, [&](u32 v) {
            u64 at = p.gather ? p.gather[base + v] : base + v;
            return p.x + at * TERMS * p.x_width + head * p.x_head;
        });
        Accumulators<NT> acc[1];
        acc[0].clear();
        Way::template multiply<NT, S, C>(memory.ring, flags, place, tables, tiles, columns, TILES(here * TERMS), first, last, acc);
        __syncthreads();
        store_partial(memory.partial, slices, acc);
        __syncthreads();
        for (u32 i = threadIdx.x; i < tiles_per_block * 16 * here; i += blockDim.x) {
            u32 row = i % 16, tile = i / 16 % tiles_per_block, vector = i / 16 / tiles_per_block;
            u32 out = (block * tiles_per_block + tile) * 16 + row;
            if (out < p.rows)
                store_product(p, base + vector, head, out,
                              sum_partial(memory.partial, tile, slices, row, vector) * p.scale);
        }
        give_back();
    }
}
#define MATMUL_WAY(NAME, WAY, COLUMNS, S, C, BLOCKS)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                    \
        matmul_##NAME##_##COLUMNS(const __grid_constant__ Products products, u32 first_blocks, u32 count) {          \
        u32 second = blockIdx.x >= first_blocks;                                                                     \
        matmul_format<WAY, COLUMNS / 8, S, C>(products.of[second], blockIdx.x - (second ? first_blocks : 0), count); \
    }
#define MATMUL_FORMAT(NAME, FORMAT, COLUMNS, S, C, BLOCKS) MATMUL_WAY(NAME, InFormat<FORMAT>, COLUMNS, S, C, BLOCKS)
