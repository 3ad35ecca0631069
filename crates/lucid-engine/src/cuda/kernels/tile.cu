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
            tile[1024 + 4 * lane + k % 32 / 16 * 2 + high] = row < rows ? scales[(u64)row * (cols / 16) + k / 16] : 0;
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

// INT4 likewise, scales bf16: a thread a word of codes.
extern "C" __global__ void tile_int4(const u32* codes, const u16* scales, u32 rows, u32 cols, u8* tiles) {
    wait_for_previous();
    u64 words = (u64)((rows + 15) / 16 * 16) * (cols / 8);
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += gridDim.x * (u64)blockDim.x) {
        u32 row = i / (cols / 8), k = i % (cols / 8) * 8;
        u8* tile = tiles + ((u64)(row / 16) * (cols / 128) + k / 128) * TILE_BYTES;
        u32 high = row % 16 / 8, lane = row % 8 * 4 + k % 32 / 8, w = k % 128 / 32;
        u32 code = row < rows ? codes[i] : 0x88888888u, word = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) word |= (code >> 4 * j & 15) << (j % 2 * 16 + j / 2 * 4);
        ((u32*)(tile + 512 * high))[4 * lane + w] = word;
        if (k % 32 == 0)
            ((u16*)(tile + 1024))[row % 16 * 4 + w] = row < rows ? scales[(u64)row * (cols / 32) + k / 32] : 0;
    }
}

// FP8 blocks likewise: a thread eight codes.
extern "C" __global__ void tile_f8(const uint2* codes, const float* scales, u32 rows, u32 cols, u8* tiles) {
    wait_for_previous();
    u64 count = (u64)((rows + 15) / 16 * 16) * (cols / 8);
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x) {
        u32 row = i / (cols / 8), k = i % (cols / 8) * 8;
        u8* tile = tiles + ((u64)(row / 16) * (cols / 128) + k / 128) * F8_TILE_BYTES;
        u32 high = row % 16 / 8, lane = row % 8 * 4 + k % 32 / 8, w = k % 128 / 32;
        uint2 code = row < rows ? codes[i] : make_uint2(0, 0);
        ((uint2*)(tile + w / 2 * 1024 + high * 512))[2 * lane + w % 2] =
            make_uint2(__byte_perm(code.x, 0, 0x3120), __byte_perm(code.y, 0, 0x3120));
        if (row % 16 == 0 && k % 128 == 0)
            *(float4*)(tile + 2048) =
                make_float4(scales[(u64)(row / 128) * (cols / 128) + k / 128], 0.0f, 0.0f, 0.0f);
    }
}
