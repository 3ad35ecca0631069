// Brings an NVFP4 matrix, codes and scales as stored, into tiles (see numerics.cuh): a thread a word of codes, and every fourth
// thread the two scales beside it. Rows are a multiple of 16 in the tiles. grid-stride.
extern "C" __global__ void tile_nvfp4(const u32* codes, const u8* scales, u32 rows, u32 cols, u8* tiles) {
    wait_for_previous();
    u64 words = (u64)((rows + 15) / 16 * 16) * (cols / 8);
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += gridDim.x * (u64)blockDim.x) {
        u32 row = i / (cols / 8), k = i % (cols / 8) * 8;
        u8* tile = tiles + ((u64)(row / 16) * (cols / 128) + k / 128) * TILE_BYTES;
        u32 high = row % 16 / 8, lane = row % 8 * 4 + k % 128 / 32;
        ((u32*)(tile + 512 * high))[4 * lane + k % 32 / 8] = row < rows ? interleave(codes[i]) : 0;
        if (k % 16 == 0)
            tile[1024 + 4 * lane + 2 * high + k % 32 / 16] = row < rows ? scales[(u64)row * (cols / 16) + k / 16] : 0;
    }
}

// The same for bf16: a thread eight values.
extern "C" __global__ void tile_bf16(const uint4* values, u32 rows, u32 cols, uint4* tiles) {
    wait_for_previous();
    u64 count = (u64)((rows + 15) / 16 * 16) * (cols / 8);
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x) {
        u32 row = i / (cols / 8), k = i % (cols / 8) * 8;
        uint4* tile = tiles + ((u64)(row / 16) * (cols / 32) + k / 32) * (BF16_TILE_BYTES / 16);
        tile[row % 16 / 8 * 32 + row % 8 * 4 + k % 32 / 8] = row < rows ? values[i] : make_uint4(0, 0, 0, 0);
    }
}
