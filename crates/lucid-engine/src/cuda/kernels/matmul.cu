// Products y = x Wᵀ of packed weights with vectors in split form.

struct Product {
    const u8* values;
    const u8* scales;
    float scale;  // the global scale, and the unit of the layout
    int layout;
    int order;     // of x
    u32 rows;      // rows of one product
    u32 cols;      // columns of the weight
    u32 row_first; // first row of head 0
    u32 row_head;  // rows from one head to the next
    const u16* x;  // [vectors, 3, x_width]
    u32 x_width;
    u32 x_head;          // columns of x from one head to the next
    const u32* gather;   // vector i is x[gather[i]]; null: x[i]
    float* y;            // [vectors, y_width], or null
    u16* y_split;        // the same in split form, or null
    int y_order;         // of y_split
    u32 y_width;
    u32 y_head;
    int accumulate;      // y += instead of y =
    u32 slices;
};

__device__ __forceinline__ void store_product(const Product& p, u32 vector, u32 head, u32 row, float value) {
    u32 column = head * p.y_head + row;
    if (p.y) {
        float* y = p.y + (u64)vector * p.y_width + column;
        *y = p.accumulate ? *y + value : value;
    }
    if (p.y_split) store_split(p.y_split + (u64)vector * TERMS * p.y_width, p.y_width, p.y_order, column, value);
}

// The plain version, for every layout and shape: a warp computes one row for one vector; lane i takes the columns
// i, i + 32, …, one chain of fused multiply-adds, and the lanes are added in a fixed tree.
// grid (rows / 8, vectors, heads), 256 threads.
extern "C" __global__ void matmul_plain(Product p, u32 count) {
    u32 row = blockIdx.x * 8 + threadIdx.x / 32, head = blockIdx.z;
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

// The ring's memory serves the partial sums afterwards.
template <int NT>
union MatmulMemory {
    Nvfp4Ring<3, 1> nvfp4;
    Bf16Ring bf16;
    Partial<NT, 1> partial;
};

template <int NT>
__device__ __forceinline__ void matmul_block(const Product& p, u32 block, u32 count) {
    __shared__ MatmulMemory<NT> memory;
    const u32 capacity = NT * 8 / TERMS;
    u32 warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    u32 slices = p.slices, tiles_per_block = WARPS / slices;
    u32 head = blockIdx.z;
    u32 first_row = (block * tiles_per_block + warp / slices) * 16;
    bool nvfp4 = p.layout == NVFP4_TILED;
    u32 step = nvfp4 ? 128 : 32;
    u32 per_slice = (p.cols / step + slices - 1) / slices * step;
    u32 first = warp % slices * per_slice, last = min(first + per_slice, p.cols);
    // Rows past the end repeat the last one and are not stored; heads of tiled weights begin at multiples of 16.
    u64 head_row = p.row_first + (u64)head * p.row_head;
    u64 low = head_row + min(first_row + g, p.rows - 1), high = head_row + min(first_row + g + 8, p.rows - 1);
    Rows rows{p.values + low * p.cols * 2, p.values + high * p.cols * 2};
    const u8* const tiles[1] = {p.values + (head_row + min(first_row, p.rows - 1)) / 16 * (p.cols / 128) * TILE_BYTES};
    for (u32 base = blockIdx.y * capacity; base < count; base += gridDim.y * capacity) {
        if (nvfp4)
            start(memory.nvfp4, tiles, first, last);
        else
            start(memory.bf16, rows, first, last);
        u32 here = min(capacity, count - base);
        Columns<NT> columns;
        find_columns(columns, here, p.x_width, [&](u32 v) {
            u64 at = p.gather ? p.gather[base + v] : base + v;
            return p.x + at * TERMS * p.x_width + head * p.x_head;
        });
        Accumulators<NT> acc[1];
        acc[0].clear();
        if (nvfp4)
            accumulate(memory.nvfp4, tiles, columns, TILES(here * TERMS), first, last, acc);
        else
            accumulate(memory.bf16, rows, columns, TILES(here * TERMS), first, last, acc);
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
        __syncthreads();
    }
}

// grid (row blocks of a, then of b; vector groups; heads), 256 threads. Two products that read the same vectors share a launch.
#define MATMUL(NAME, NT, BLOCKS)                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(Product a, Product b, u32 a_blocks, u32 count) { \
        if (blockIdx.x < a_blocks)                                                                                     \
            matmul_block<NT>(a, blockIdx.x, count);                                                                    \
        else                                                                                                           \
            matmul_block<NT>(b, blockIdx.x - a_blocks, count);                                                         \
    }
MATMUL(matmul_2, 1, 3)   // up to 2 vectors at a time
MATMUL(matmul_8, 3, 2)   // up to 8
MATMUL(matmul_16, 6, 1)  // up to 16
