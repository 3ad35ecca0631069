// Brings an NVFP4 matrix, codes and scales as stored, into tiles (see layouts.cuh): a thread a word of codes, and every fourth
// thread the two scales beside it. Rows are a multiple of 16 in the tiles. grid-stride.
template <typename C, typename S>
__device__ __forceinline__ void tile_nvfp4_of(u32 rows, u32 cols, u8* tiles, C eight_codes, S scale) {
    wait_for_previous();
    u64 words = (u64)((rows + 15) / 16 * 16) * (cols / 8);
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += gridDim.x * (u64)blockDim.x) {
        u32 row = i / (cols / 8), k = i % (cols / 8) * 8;
        u8* tile = tiles + ((u64)(row / 16) * (cols / 128) + k / 128) * TILE_BYTES;
        u32 high = row % 16 / 8, lane = row % 8 * 4 + k % 128 / 32;
        ((u32*)(tile + 512 * high))[4 * lane + k % 32 / 8] = row < rows ? interleave(eight_codes(i)) : 0;
        if (k % 16 == 0) tile[1024 + 4 * lane + k % 32 / 16 * 2 + high] = row < rows ? scale(i / 2) : 0;
    }
}
extern "C" __global__ void tile_nvfp4(const u32* codes, const u8* scales, u32 rows, u32 cols, u8* tiles) {
    tile_nvfp4_of(rows, cols, tiles, [&](u64 i) { return codes[i]; }, [&](u64 i) { return scales[i]; });
}
// From GGUF's blocks of 64: four scales without sign, of which NaN counts as zero, and nibbles of codes, eight apart in a byte.
extern "C" __global__ void tile_nvfp4_blocks(const u8* blocks, const void*, u32 rows, u32 cols, u8* tiles) {
    tile_nvfp4_of(
        rows, cols, tiles,
        [&](u64 i) {
            const u8* codes = blocks + i / 8 * 36 + 4 + i % 8 / 2 * 8;
            u32 eight = 0;
            for (u32 j = 0; j < 8; j++) eight |= (codes[j] >> i % 2 * 4 & 15u) << 4 * j;
            return eight;
        },
        [&](u64 i) {
            u8 scale = blocks[i / 4 * 36 + i % 4] & 0x7f;
            return scale == 0x7f ? (u8)0 : scale;
        });
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

// f32 likewise: a thread a value.
extern "C" __global__ void tile_f32(const float* values, const void*, u32 rows, u32 cols, u8* tiles) {
    wait_for_previous();
    u64 count = (u64)((rows + 15) / 16 * 16) * cols;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x) {
        u32 row = i / cols, k = i % cols;
        u8* tile = tiles + ((u64)(row / 16) * (cols / 32) + k / 32) * F32_TILE_BYTES;
        u32 at = row % 16 / 8 * 256 + (row % 8 * 4 + k % 32 / 8) * 8 + k % 8;
        float rest = row < rows ? values[i] : 0.0f;
#pragma unroll
        for (int part = 2; part >= 0; part--) {
            u16 rounded = f32_to_bf16(rest);
            ((u16*)(tile + part * BF16_TILE_BYTES))[at] = rounded;
            rest -= bf16_to_f32(rounded);
        }
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

// GGUF's blocks likewise (see blocks.cuh): a thread a row's codes of a lane, and every fourth thread the row's scales.
template <typename Blocks>
__device__ __forceinline__ void tile_blocks(const u8* blocks, u32 rows, u32 cols, u8* tiles) {
    const int CODES = Blocks::Codes::BYTES, BYTES = CODES + Blocks::SCALE_BYTES;
    wait_for_previous();
    u32 across = cols / 128;
    u64 count = (u64)((rows + 15) / 16) * across * 64;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x) {
        u32 lane = i % 32, high = i / 32 % 2, first = i / 64 % across * 128, in_tile = 8 * high + lane / 4;
        u64 row = i / 64 / across * 16 + in_tile;
        u8* tile = tiles + i / 64 * BYTES;
        const u8* of_row = row < rows ? blocks + row * (cols / Blocks::COLUMNS) * Blocks::BYTES : nullptr;
        Blocks::Codes::pack(tile, high, lane, [&](u32 w, u32 j) {
            u32 k = first + column_of<Blocks>(lane % 4, w, j);
            return of_row ? Blocks::code(of_row + k / Blocks::COLUMNS * Blocks::BYTES, k % Blocks::COLUMNS) : 0;
        });
        if (lane % 4 == 0)
            Blocks::put_scales(tile + CODES, in_tile, of_row ? of_row + first / Blocks::COLUMNS * Blocks::BYTES : nullptr,
                               first % Blocks::COLUMNS);
    }
}
#define TILE_BLOCKS(NAME, BLOCKS)                                                                                        \
    extern "C" __global__ void tile_##NAME(const u8* blocks, const void*, u32 rows, u32 cols, u8* tiles) { \
        tile_blocks<BLOCKS>(blocks, rows, cols, tiles);                                                                  \
    }
TILE_BLOCKS(q8_0, BlocksQ8_0)
TILE_BLOCKS(q5_0, BlocksQ5_0)
TILE_BLOCKS(q4_k, BlocksQ4K)
TILE_BLOCKS(q5_k, BlocksQ5K)
TILE_BLOCKS(q6_k, BlocksQ6K)
TILE_BLOCKS(q4_0, BlocksQ4_0)
TILE_BLOCKS(iq4_nl, BlocksIq4Nl)
TILE_BLOCKS(q3_k, BlocksQ3K)
TILE_BLOCKS(q5_1, BlocksQ5_1)
TILE_BLOCKS(q4_1, BlocksQ4_1)
TILE_BLOCKS(iq4_xs, BlocksIq4Xs)
TILE_BLOCKS(mxfp4, BlocksMxfp4)
