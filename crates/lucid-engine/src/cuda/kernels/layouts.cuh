// How weights stand in memory: as stored, and in the tiles that the tensor-core kernels take; and one element of each.

// Layouts, as `Layout` in weights.rs numbers them.
enum {
    F32 = 0,
    F16 = 1,
    BF16 = 2,
    F8_E4M3 = 3,
    NVFP4 = 4,
    NVFP4_TILED = 5,
    BF16_TILED = 6,
    INT4 = 7,
    INT4_TILED = 8,
    F8_BLOCKS = 9,
    F8_BLOCKS_TILED = 10,
    Q8_0 = 11,
    Q5_0 = 12,
    Q4_K = 13,
    Q5_K = 14,
    Q6_K = 15,
    Q8_0_TILED = 16,
    Q5_0_TILED = 17,
    Q4_K_TILED = 18,
    Q5_K_TILED = 19,
    Q6_K_TILED = 20,
    F32_TILED = 21,
    Q5_1 = 22,
    IQ4_XS = 23,
    Q2_K = 24,
    Q5_1_TILED = 27,
    IQ4_XS_TILED = 28
};

// NVFP4 for the tensor-core kernels: the same bits in tiles of 16 rows by 128 columns, 1,152 bytes each, in the order in which a
// warp takes them: three contiguous reads a step. Lane 4 g + t has columns 32 t to 32 t + 31 of rows g and g + 8.
//   0: [32 lanes][4] words of row g;  512: the same of row g + 8;  1024: [32 lanes] scales: of row g, of row g + 8, and the next of both
// Tiles stand by columns, then by rows; rows past the last are zero.
#define TILE_BYTES 1152

// bf16 likewise, in tiles of 16 rows by 32 columns: lane 4 g + t has columns 8 t to 8 t + 7 of rows g and g + 8.
//   0: [32 lanes][8] values of row g;  512: the same of row g + 8
#define BF16_TILE_BYTES 1024

// f32 as three such tiles that add up to it, the smallest part first.
#define F32_TILE_BYTES (3 * BF16_TILE_BYTES)

// INT4 as NVFP4, but lane 4 g + t has columns 32 w + 8 t to 32 w + 8 t + 7 in word w. Columns 2 i of a word are in bits 4 i, columns
// 2 i + 1 in bits 16 + 4 i.
//   1024: [16 rows][4] bf16 scales

// FP8 blocks in tiles of 16 rows by 128 columns, whose scale is one, columns as INT4's. The bytes of four columns 0 1 2 3 stand as
// 0 2 1 3.
//   0: [2 pairs of words][rows g, rows g + 8][32 lanes][2 words][8 bytes];  2048: the scale, f32, and 12 bytes of nothing
#define F8_TILE_BYTES 2064

// The bits of each word of eight NVFP4 codes stand so that few instructions unpack them: three codes of a half (codes 0 to 3, 4 to
// 7) come with one shift and one mask, which is as many as there can be. With a code's bits as s (sign) and a, b, c:
//   15 14 13 12 11 10  9  8  7  6  5  4  3  2  1  0
//   s0 a2 b2 c2 s1 a3 s3 a0 b0 c0 s' a1 b1 c1 b3 c3      s': s2 of the other half, for code 2 comes by a rotation of the word
__device__ __forceinline__ u32 interleave(u32 codes) {
    u32 word = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 bits = codes >> 16 * half;
        u32 low = (bits >> 3 & 1) << 15 | (bits >> 8 & 7) << 12 | (bits >> 7 & 1) << 11 | (bits >> 14 & 1) << 10 |
                  (bits >> 15 & 1) << 9 | (bits & 7) << 6 | (bits >> 4 & 7) << 2 | (bits >> 12 & 3);
        word |= low << 16 * half | (bits >> 11 & 1) << (16 * (1 - half) + 5);
    }
    return word;
}

// Code i of an interleaved word, as E2M1 has it.
__device__ __forceinline__ u32 interleaved_code(u32 word, u32 i) {
    u32 half = word >> (i / 4 * 16), other = word >> (16 - i / 4 * 16);
    switch (i % 4) {
        case 0: return half >> 12 & 8 | half >> 6 & 7;
        case 1: return half >> 8 & 8 | half >> 2 & 7;
        case 2: return other >> 2 & 8 | half >> 12 & 7;
        default: return half >> 6 & 8 | half >> 8 & 4 | half & 3;
    }
}

__device__ __forceinline__ float decode_tiled(const u8* values, u64 row, u32 k, u32 cols) {
    const u8* tile = values + (row / 16 * (cols / 128) + k / 128) * TILE_BYTES;
    u32 high = row % 16 / 8, lane = row % 8 * 4 + k % 128 / 32;
    u32 word = ((const u32*)(tile + 512 * high))[4 * lane + k % 32 / 8];
    return e2m1_to_f32(interleaved_code(word, k % 8)) * e4m3_to_f32(tile[1024 + 4 * lane + k % 32 / 16 * 2 + high]);
}

__device__ __forceinline__ float decode_bf16_tiled(const u8* values, u64 row, u32 k, u32 cols) {
    const u8* tile = values + (row / 16 * (cols / 32) + k / 32) * BF16_TILE_BYTES;
    return bf16_to_f32(((const u16*)(tile + row % 16 / 8 * 512))[(row % 8 * 4 + k % 32 / 8) * 8 + k % 8]);
}

__device__ __forceinline__ float decode_f32_tiled(const u8* values, u64 row, u32 k, u32 cols) {
    const u8* tiles = values + (row / 16 * (cols / 32) + k / 32) * F32_TILE_BYTES;
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < 3; part++) sum += decode_bf16_tiled(tiles + part * BF16_TILE_BYTES, row % 16, k % 32, 32);
    return sum;
}

__device__ __forceinline__ float decode_int4_tiled(const u8* values, u64 row, u32 k, u32 cols) {
    const u8* tile = values + (row / 16 * (cols / 128) + k / 128) * TILE_BYTES;
    u32 high = row % 16 / 8, lane = row % 8 * 4 + k % 32 / 8, w = k % 128 / 32;
    u32 word = ((const u32*)(tile + 512 * high))[4 * lane + w];
    int code = word >> (k % 2 * 16 + k % 8 / 2 * 4) & 15;
    return (float)(code - 8) * bf16_to_f32(((const u16*)(tile + 1024))[row % 16 * 4 + w]);
}

__device__ __forceinline__ float decode_f8_tiled(const u8* values, u64 row, u32 k, u32 cols) {
    const u8* tile = values + (row / 16 * (cols / 128) + k / 128) * F8_TILE_BYTES;
    u32 high = row % 16 / 8, lane = row % 8 * 4 + k % 32 / 8, w = k % 128 / 32;
    u32 byte = k % 8 / 4 * 4 + k % 2 * 2 + k % 4 / 2;
    return e4m3_to_f32(tile[w / 2 * 1024 + high * 512 + lane * 16 + w % 2 * 8 + byte]) * *(const float*)(tile + 2048);
}

// One element of a matrix with `cols` columns, without its global scale. NVFP4 columns are a multiple of 16.
__device__ __forceinline__ float decode(int layout, const u8* values, const u8* scales, u64 row, u32 k, u32 cols) {
    u64 at = row * cols + k;
    switch (layout) {
        case F32: return ((const float*)values)[at];
        case F16: return f16_to_f32(((const u16*)values)[at]);
        case BF16: return bf16_to_f32(((const u16*)values)[at]);
        case F8_E4M3: return e4m3_to_f32(values[at]);
        case NVFP4: return e2m1_to_f32(values[at / 2] >> 4 * (at % 2) & 15) * e4m3_to_f32(scales[at / 16]);
        case INT4: return (float)((int)(values[at / 2] >> 4 * (at % 2) & 15) - 8) * bf16_to_f32(((const u16*)scales)[at / 32]);
        // A scale for 128 rows, or the last ones, by 128 columns.
        case F8_BLOCKS: return e4m3_to_f32(values[at]) * ((const float*)scales)[row / 128 * ((cols + 127) / 128) + k / 128];
        case F32_TILED: return decode_f32_tiled(values, row, k, cols);
        case BF16_TILED: return decode_bf16_tiled(values, row, k, cols);
        case INT4_TILED: return decode_int4_tiled(values, row, k, cols);
        case Q8_0: return decode_blocks<BlocksQ8_0>(values, at);
        case Q8_0_TILED: return decode_tiled_blocks<BlocksQ8_0>(values, row, k, cols);
        case Q5_0: return decode_blocks<BlocksQ5_0>(values, at);
        case Q5_0_TILED: return decode_tiled_blocks<BlocksQ5_0>(values, row, k, cols);
        case Q4_K: return decode_blocks<BlocksQ4K>(values, at);
        case Q4_K_TILED: return decode_tiled_blocks<BlocksQ4K>(values, row, k, cols);
        case Q5_K: return decode_blocks<BlocksQ5K>(values, at);
        case Q5_K_TILED: return decode_tiled_blocks<BlocksQ5K>(values, row, k, cols);
        case Q6_K: return decode_blocks<BlocksQ6K>(values, at);
        case Q6_K_TILED: return decode_tiled_blocks<BlocksQ6K>(values, row, k, cols);
        case Q5_1: return decode_blocks<BlocksQ5_1>(values, at);
        case Q5_1_TILED: return decode_tiled_blocks<BlocksQ5_1>(values, row, k, cols);
        case IQ4_XS: return decode_blocks<BlocksIq4Xs>(values, at);
        case IQ4_XS_TILED: return decode_tiled_blocks<BlocksIq4Xs>(values, row, k, cols);
        case Q2_K: return decode_blocks<BlocksQ2K>(values, at);
        case F8_BLOCKS_TILED: return decode_f8_tiled(values, row, k, cols);
        default: return decode_tiled(values, row, k, cols);
    }
}
