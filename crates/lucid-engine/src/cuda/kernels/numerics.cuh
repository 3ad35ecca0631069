// Number formats, sums in a fixed order, and the tensor-core product that all other kernels are built from.
//
// Compiled without contraction (--fmad=false): a fused multiply-add stands where the code says fmaf, and nowhere else, so that
// every variant of a kernel computes the same bits.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// From Hopper on a kernel may start while the one before it ends, and fetch weights meanwhile. Every thread of every kernel
// calls this before it touches anything that another kernel has written or still reads; the next kernel may start from then on.
// So when a kernel starts, all kernels but the last one before it are complete.
//
// For the profile of a step (tests/timeline.rs) blocks note when they came here and when they could go on.
#ifdef TIMELINE
struct Event {
    u64 grid, came, went;
    u32 blocks, threads;
};
#define MOST_EVENTS (1 << 16)
extern "C" {
__device__ Event timeline[MOST_EVENTS];
__device__ u32 timeline_events;
}
__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
#endif
__device__ __forceinline__ void wait_for_previous() {
#ifdef TIMELINE
    u64 came = now();
#endif
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
#ifdef TIMELINE
    if (threadIdx.x == 0) {
        u64 went = now(), grid;
        asm volatile("mov.u64 %0, %gridid;" : "=l"(grid));
        u32 at = atomicAdd(&timeline_events, 1);
        if (at < MOST_EVENTS) timeline[at] = Event{grid, came, went, gridDim.x * gridDim.y * gridDim.z, blockDim.x};
    }
#endif
}

#define INFINITY_F __int_as_float(0x7f800000)
#define NAN_F __int_as_float(0x7fc00000)

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
    Q6_K = 15
};

__device__ __forceinline__ float bf16_to_f32(u16 bits) { return __uint_as_float((u32)bits << 16); }

// Round to nearest, ties to even.
__device__ __forceinline__ u16 f32_to_bf16(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ u32 pack_bf16(float low, float high) { return f32_to_bf16(low) | (u32)f32_to_bf16(high) << 16; }

__device__ __forceinline__ float f16_to_f32(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// E4M3: the exponent's bias changes from 7 to 127 by a product with 2^120, which is exact for subnormals too.
__device__ __forceinline__ float e4m3_to_f32(u8 code) {
    if ((code & 0x7f) == 0x7f) return NAN_F;
    float magnitude = __uint_as_float((u32)(code & 0x7f) << 20) * 0x1p120f;
    return __uint_as_float(__float_as_uint(magnitude) | (u32)(code & 0x80) << 24);
}

// `f32_to_e4m3` of lucid-checkpoint: to nearest, ties to even; beyond 448 it becomes 448.
__device__ __forceinline__ u8 f32_to_e4m3(float x) {
    u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    u32 subnormal = __float_as_uint(__uint_as_float(magnitude) + 16384.0f) - __float_as_uint(16384.0f);
    u32 normal = (magnitude + 0x7ffff + (magnitude >> 20 & 1) >> 20) - (120 << 3);
    u32 code = magnitude < 0x3c800000u ? subnormal : normal;
    if (magnitude >= __float_as_uint(448.0f)) code = 0x7e;
    if (magnitude > 0x7f800000u) code = 0x7f;
    return bits >> 24 & 0x80 | code;
}

// E2M1: the same with 2^126.
__device__ __forceinline__ float e2m1_to_f32(u32 code) {
    float magnitude = __uint_as_float((code & 7) << 22) * 0x1p126f;
    return __uint_as_float(__float_as_uint(magnitude) | (code & 8) << 28);
}

// NVFP4 for the tensor-core kernels: the same bits in tiles of 16 rows by 128 columns, 1,152 bytes each, in the order in which a
// warp takes them: three contiguous reads a step. Lane 4 g + t has columns 32 t to 32 t + 31 of rows g and g + 8.
//   0: [32 lanes][4] words of row g;  512: the same of row g + 8;  1024: [32 lanes] scales: of row g, of row g + 8, and the next of both
// Tiles stand by columns, then by rows; rows past the last are zero.
#define TILE_BYTES 1152

// bf16 likewise, in tiles of 16 rows by 32 columns: lane 4 g + t has columns 8 t to 8 t + 7 of rows g and g + 8.
//   0: [32 lanes][8] values of row g;  512: the same of row g + 8
#define BF16_TILE_BYTES 1024

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

// Block types of GGUF: value i of a block, rounded where `BlockType::decode` of lucid-checkpoint rounds.
__device__ __forceinline__ float half_at(const u8* at) { return f16_to_f32(*(const u16*)at); }
__device__ __forceinline__ float decode_q8_0(const u8* b, u32 i) { return half_at(b) * (float)(signed char)b[2 + i]; }
__device__ __forceinline__ float decode_q5_0(const u8* b, u32 i) {
    u32 low = b[6 + i % 16] >> (i < 16 ? 0 : 4) & 15, high = b[2 + i / 8] >> i % 8 & 1;
    return half_at(b) * (float)((int)(low | high << 4) - 16);
}
// Q5_K has a fifth bit of each value before the others; six bits of scale and minimum for 32 values stand in twelve bytes.
template <bool FIFTH>
__device__ __forceinline__ float decode_q45_k(const u8* b, u32 i) {
    const u8* s = b + 4;
    u32 j = i / 32, scale, minimum;
    if (j < 4)
        scale = s[j] & 63, minimum = s[j + 4] & 63;
    else
        scale = s[j + 4] & 15 | s[j - 4] >> 6 << 4, minimum = s[j + 4] >> 4 | s[j] >> 6 << 4;
    u32 q = b[(FIFTH ? 48 : 16) + i / 64 * 32 + i % 32] >> 4 * (j % 2) & 15;
    if (FIFTH) q |= (b[16 + i % 32] >> j & 1) << 4;
    return half_at(b) * (float)scale * (float)q - half_at(b + 2) * (float)minimum;
}
__device__ __forceinline__ float decode_q6_k(const u8* b, u32 i) {
    u32 h = i / 128, g = i % 128 / 32, e = i % 32;
    u32 low = b[64 * h + 32 * (g % 2) + e] >> 4 * (g / 2) & 15, high = b[128 + 32 * h + e] >> 2 * g & 3;
    return half_at(b + 208) * (float)(signed char)b[192 + i / 16] * (float)((int)(low | high << 4) - 32);
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
        case BF16_TILED: return decode_bf16_tiled(values, row, k, cols);
        case INT4_TILED: return decode_int4_tiled(values, row, k, cols);
        case Q8_0: return decode_q8_0(values + at / 32 * 34, k % 32);
        case Q5_0: return decode_q5_0(values + at / 32 * 22, k % 32);
        case Q4_K: return decode_q45_k<false>(values + at / 256 * 144, k % 256);
        case Q5_K: return decode_q45_k<true>(values + at / 256 * 176, k % 256);
        case Q6_K: return decode_q6_k(values + at / 256 * 210, k % 256);
        case F8_BLOCKS_TILED: return decode_f8_tiled(values, row, k, cols);
        default: return decode_tiled(values, row, k, cols);
    }
}

// All lanes get the sum; the tree is fixed.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lane));
    return x;
}

// The sum over a block of up to 1,024 threads; all threads get it.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float sums[32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < (blockDim.x + 31) / 32 ? sums[threadIdx.x % 32] : 0.0f;
    x = warp_sum(x);
    __syncthreads();
    return x;
}

// An activation vector in split form is TERMS bf16 vectors, which tensor cores multiply with bf16 weights without rounding a
// product. Three hold the f32 vector exactly (3 times 8 bits of significand): reference mode. One is the vector rounded to bf16:
// serving mode. TERMS comes from the compiler's options.
//
// Two orders of the columns: NATURAL, and NVFP4_ORDER, in which the sixteen bytes that one thread reads at a time meet the codes
// that it unpacks at a time (see mma.cuh). The second permutes columns within blocks of 128.
enum { NATURAL = 0, NVFP4_ORDER = 1 };

__device__ __forceinline__ u32 place(int order, u32 k) {
    if (order == NATURAL) return k;
    u32 thread = k >> 5 & 3, word = k >> 3 & 3, nibble = k & 7;
    return (k & ~127u) + 32 * word + 8 * thread + 2 * (nibble & 3) + (nibble >> 2);
}

// Stores column k of a vector whose terms lie `width` apart.
__device__ __forceinline__ void store_split(u16* vector, u32 width, int order, u32 k, float x) {
    u16* at = vector + place(order, k);
#pragma unroll
    for (int term = 0; term < TERMS; term++) {
        u16 rounded = f32_to_bf16(x);
        at[(u64)term * width] = rounded;
        x -= bf16_to_f32(rounded);
    }
}

__device__ __forceinline__ float load_split(const u16* vector, u32 width, int order, u32 k) {
    const u16* at = vector + place(order, k);
    float x = 0.0f;
    // Small terms first.
#pragma unroll
    for (int term = TERMS - 1; term >= 0; term--) x += bf16_to_f32(at[(u64)term * width]);
    return x;
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
