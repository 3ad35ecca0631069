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
// Small kernels let the next one start before they wait themselves (`let_next_start`), so that its weights come while this one and the one
// before it, which leave the memory idle, have their turns. The kernel behind such a one must read nothing before it waits that one of those
// two has written.
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

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#define INFINITY_F __int_as_float(0x7f800000)
#define NAN_F __int_as_float(0x7fc00000)

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
