// The kernels for prompts on Hopper (see hopper.cuh), for any form of weights.

// grid (multiprocessors), 384 threads; row blocks are M times 64 rows of gate and the same of up.
template <typename Format, int N>
__device__ __forceinline__ void gate_up_hopper(const ExpertWeight& gate, const ExpertWeight& up, u32 rows, u32 cols,
                                               const uint4* groups, const u8* packed, u16* activated, int out_order, u32 slices) {
#if HOPPER
    HopperMemory<Format, N>& memory = hopper_memory<Format, N>();
    const int STAGES = HopperMemory<Format, N>::STAGES, M = HopperMemory<Format, N>::M;
    __shared__ HopperFlags<STAGES> flags;
    prepare(flags);
    wait_for_previous();
    u32 row_blocks = (rows + 64 * M - 1) / (64 * M), chunks = cols / CHUNK, lane = threadIdx.x % 32;
    Turn turn{0, 0};
    take_tiles(
        __ldcg(groups).x * row_blocks,
        [&](u32 tile) {
            uint4 group = __ldcg(groups + 1 + tile / row_blocks);
            u32 row = tile % row_blocks * 64 * M;
            u32 copied = copied_tile<M>(), blocks = (group.z + 7) / 8;
            const u8* from = lane < 2 * M ? tiles_of<Format>(copied < 4 * M ? gate : up, group.x, rows, cols, row + copied % (4 * M) * 16)
                                      : packed + (u64)group.w * cols * 16;
            copy_tile<Format, N>(memory, flags, turn, chunks, blocks, from, lane < 2 * M ? Format::BYTES : blocks * 2048);
        },
        [&](u32 tile) {
            uint4 group = __ldcg(groups + 1 + tile / row_blocks);
            u32 warp = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
            u32 first = tile % row_blocks * 64 * M + 16 * warp + 8 * half + lane / 4;
            float gate_scale = gate.global_scales[group.x] * Format::unit(), up_scale = up.global_scales[group.x] * Format::unit();
            compute_tile<Format, N, CHUNK>(
                memory, flags, turn, cols, slices, group.z,
                [&](u32 m) { return Halves{4 * m + warp, half, 4 * M + 4 * m + warp, half}; },
                [&](u32 m, u32 v, float gated, float value) {
                    u32 row = first + 64 * m;
                    if (row < rows)
                        store_split(activated + (u64)(group.y + v) * rows, rows, out_order, row, silu(gated * gate_scale) * (value * up_scale));
                });
        });
#endif
}

// grid (multiprocessors), 384 threads; row blocks are M times 128 rows.
template <typename Format, int N>
__device__ __forceinline__ void down_hopper(const ExpertWeight& down, u32 rows, u32 cols, const uint4* groups, const u8* packed,
                                            float* y, u32 slices) {
#if HOPPER
    HopperMemory<Format, N>& memory = hopper_memory<Format, N>();
    const int STAGES = HopperMemory<Format, N>::STAGES, M = HopperMemory<Format, N>::M;
    __shared__ HopperFlags<STAGES> flags;
    prepare(flags);
    wait_for_previous();
    u32 row_blocks = (rows + 128 * M - 1) / (128 * M), chunks = cols / CHUNK, lane = threadIdx.x % 32;
    Turn turn{0, 0};
    take_tiles(
        __ldcg(groups).x * row_blocks,
        [&](u32 tile) {
            uint4 group = __ldcg(groups + 1 + tile / row_blocks);
            u32 row = tile % row_blocks * 128 * M;
            u32 blocks = (group.z + 7) / 8;
            const u8* from = lane < 2 * M ? tiles_of<Format>(down, group.x, rows, cols, row + copied_tile<M>() * 16)
                                      : packed + (u64)group.w * cols * 16;
            copy_tile<Format, N>(memory, flags, turn, chunks, blocks, from, lane < 2 * M ? Format::BYTES : blocks * 2048);
        },
        [&](u32 tile) {
            uint4 group = __ldcg(groups + 1 + tile / row_blocks);
            u32 row_tile = threadIdx.x / 32;
            u32 first = tile % row_blocks * 128 * M + 16 * row_tile + lane / 4;
            float scale = down.global_scales[group.x] * Format::unit();
            compute_tile<Format, N, CHUNK>(
                memory, flags, turn, cols, slices, group.z, [&](u32 m) { return Halves{8 * m + row_tile, 0, 8 * m + row_tile, 1}; },
                [&](u32 m, u32 v, float low, float high) {
                    u32 row = first + 128 * m;
                    float* to = y + (u64)(group.y + v) * rows + row;
                    if (row < rows) to[0] = low * scale;
                    if (row + 8 < rows) to[8] = high * scale;
                });
        });
#endif
}

// Row blocks of a band: their weights stay in the second-level cache while all vectors pass.
#define BAND_BLOCKS 16

// grid (multiprocessors), 384 threads; row blocks are M times 128 rows. bf16 is cut into slices by 32 columns, as in decoding (matmul.cu).
template <typename Format, int N, int COLUMNS>
__device__ __forceinline__ void matmul_hopper(const Product& p, u32 heads, const u8* packed, u32 count) {
#if HOPPER
    HopperMemory<Format, N>& memory = hopper_memory<Format, N>();
    const int STAGES = HopperMemory<Format, N>::STAGES, M = HopperMemory<Format, N>::M;
    __shared__ HopperFlags<STAGES> flags;
    prepare(flags);
    wait_for_previous();
    u32 row_blocks = (p.rows + 128 * M - 1) / (128 * M), groups = (count + N - 1) / N, chunks = p.cols / CHUNK, lane = threadIdx.x % 32;
    u32 of_head = row_blocks * groups, of_band = BAND_BLOCKS * groups;
    struct Tile {
        u32 head, row, first;
    };
    auto find = [&](u32 tile) {
        u32 head = tile / of_head, rest = tile % of_head, band = rest / of_band, in_band = rest % of_band;
        u32 blocks = min(BAND_BLOCKS, row_blocks - band * BAND_BLOCKS);
        return Tile{head, (band * BAND_BLOCKS + in_band % blocks) * 128 * M, in_band / blocks * N};
    };
    Turn turn{0, 0};
    take_tiles(
        of_head * heads,
        [&](u32 number) {
            Tile tile = find(number);
            u64 weight_row = p.row_first + (u64)tile.head * p.row_head + min(tile.row + copied_tile<M>() * 16, p.rows - 1);
            u32 blocks = (min(count - tile.first, N) + 7) / 8;
            const u8* from = lane < 2 * M ? p.values + weight_row / 16 * chunks * Format::BYTES
                                      : packed + (u64)tile.first * p.x_width * 2 + tile.head * p.x_head / CHUNK * blocks * 2048;
            copy_tile<Format, N>(memory, flags, turn, chunks, blocks, from, lane < 2 * M ? Format::BYTES : blocks * 2048);
        },
        [&](u32 number) {
            Tile tile = find(number);
            u32 row_tile = threadIdx.x / 32, first = tile.row + 16 * row_tile + lane / 4;
            u32 here = min(count - tile.first, N);
            float total[M][N / 2];
            sum_tile<Format, N, COLUMNS>(memory, flags, turn, p.cols, p.slices,
                                         [&](u32 m) { return Halves{8 * m + row_tile, 0, 8 * m + row_tile, 1}; }, total);
#pragma unroll
            for (int m = 0; m < M; m++) {
                // What results are added to, all before the first is stored: one wait instead of one for each.
                float old[N / 2];
                auto vector = [&](int i) { return 8 * (i / 4) + threadIdx.x % 4 * 2 + i % 2; };
                auto row = [&](int i) { return first + 128 * m + 8 * ROW_PAIR(i); };
                if (p.accumulate) {
#pragma unroll
                    for (int i = 0; i < N / 2; i++)
                        if (vector(i) < here && row(i) < p.rows)
                            old[i] = p.y[(u64)(tile.first + vector(i)) * p.y_width + tile.head * p.y_head + row(i)];
                }
#pragma unroll
                for (int i = 0; i < N / 2; i++) {
                    if (vector(i) >= here || row(i) >= p.rows) continue;
                    float value = total[m][i] * p.scale;
                    u32 column = tile.head * p.y_head + row(i);
                    u64 at = (u64)(tile.first + vector(i)) * p.y_width;
                    if (p.y) p.y[at + column] = p.accumulate ? old[i] + value : value;
                    if (p.y_split) store_split(p.y_split + at, p.y_width, p.y_order, column, value);
                }
            }
        });
#endif
}
#define MATMUL_HOPPER(FORMAT, COLUMNS, NAME, N)                                                                                   \
    extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)                                                               \
        matmul_hopper_##NAME##_##N(const __grid_constant__ Product p, u32 heads, const u8* packed, u32 count) {                   \
        matmul_hopper<FORMAT, N, COLUMNS>(p, heads, packed, count);                                                               \
    }
#define EXPERTS_HOPPER(FORMAT, NAME, N)                                                                                    \
    extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)                                                        \
        experts_gate_up_##NAME##_hopper_##N(ExpertWeight gate, ExpertWeight up, u32 rows, u32 cols, const uint4* groups,   \
                                            const u8* packed, u16* activated, int out_order, u32 slices) {                 \
        gate_up_hopper<FORMAT, N>(gate, up, rows, cols, groups, packed, activated, out_order, slices);                     \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)                                                        \
        experts_down_##NAME##_hopper_##N(ExpertWeight down, u32 rows, u32 cols, const uint4* groups, const u8* packed,     \
                                         float* y, u32 slices) {                                                           \
        down_hopper<FORMAT, N>(down, rows, cols, groups, packed, y, slices);                                               \
    }
