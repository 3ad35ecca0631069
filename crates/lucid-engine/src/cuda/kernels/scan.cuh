// Sums and searches over many values by a block of 1,024 threads, or by a cluster of them, each with a part of the values; in whole
// numbers, so any order gives the same.

#define SCAN_THREADS 1024

// A number that orders as the scores do; NaN comes last, and -0 equals 0.
__device__ __forceinline__ u32 key(float score) {
    if (score != score) return 0;
    u32 bits = __float_as_uint(score + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ u64 shuffle_up(u64 x, u32 by) {
    u32 low = __shfl_up_sync(~0u, (u32)x, by), high = __shfl_up_sync(~0u, (u32)(x >> 32), by);
    return (u64)high << 32 | low;
}

__device__ __forceinline__ u64 of_lane(u64 x, u32 lane) {
    return (u64)__shfl_sync(~0u, (u32)(x >> 32), lane) << 32 | __shfl_sync(~0u, (u32)x, lane);
}

// The sum of the threads before this one and this one; `total` gets that of all.
__device__ u64 block_scan(u64 x, u64& total) {
    __shared__ u64 warps[32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 step = 1; step < 32; step *= 2) {
        u64 left = shuffle_up(x, step);
        if (lane >= step) x += left;
    }
    if (lane == 31) warps[warp] = x;
    __syncthreads();
    u64 before = 0, all = 0;
    for (u32 w = 0; w < SCAN_THREADS / 32; w++) {
        if (w < warp) before += warps[w];
        all += warps[w];
    }
    __syncthreads();
    total = all;
    return before + x;
}

// Calls f(i, values[i]) for i = first, first + stride, … below `end`; eight loads are on their way at a time.
template <typename F>
__device__ __forceinline__ void each_value(const float* values, u32 first, u32 end, u32 stride, F f) {
    for (u32 base = first; base < end; base += 8 * stride) {
        float ahead[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) ahead[i] = base + i * stride < end ? values[base + i * stride] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (base + i * stride < end) f(base + i * stride, ahead[i]);
    }
}

// Waits for all threads of the PARTS blocks of a cluster.
template <int PARTS>
__device__ __forceinline__ void group_sync() {
    if constexpr (PARTS == 1) {
        __syncthreads();
    } else {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }
}

// What stands at `ours` in the shared memory of the cluster's block `part`.
template <int PARTS>
__device__ __forceinline__ u32 load_of(const u32* ours, u32 part) {
    u32 x = *ours;
    if constexpr (PARTS > 1) {
#if __CUDA_ARCH__ >= 900
        u32 at;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((u32)__cvta_generic_to_shared(ours)), "r"(part));
        asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
#endif
    }
    return x;
}

// The first place at which the sum of `measure(place, value)` over the places up to it passes `point_in(total)`; ~0 if none does. The
// block has the places from `start` on and below `stop`; its warps have consecutive parts of them, and lanes eight values each when a
// warp goes through its part.
template <int PARTS, typename Measure, typename Point>
__device__ u32 first_past(const float* values, u32 part, u32 start, u32 stop, Measure measure, Point point_in) {
    __shared__ u32 found, low, high;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 of_warp = (stop - start + SCAN_THREADS - 1) / SCAN_THREADS * 32;
    u32 first = min(start + warp * of_warp, stop), end = min(first + of_warp, stop);
    u64 sum = 0, own;
    each_value(values, first + lane, end, 32, [&](u32 i, float x) { sum += measure(i, x); });
    u64 upto = block_scan(sum, own);
    if (threadIdx.x == 0) found = ~0u, low = (u32)own, high = (u32)(own >> 32);
    group_sync<PARTS>();
    u64 before = 0, total = 0;
    for (u32 p = 0; p < PARTS; p++) {
        u64 there = (u64)load_of<PARTS>(&high, p) << 32 | load_of<PARTS>(&low, p);
        if (p < part) before += there;
        total += there;
    }
    u64 point = point_in(total);
    // Where this warp's part begins and ends.
    u64 begins = before + of_lane(upto - sum, 0), ends = before + of_lane(upto, 31);
    if (begins <= point && point < ends) {
        u64 reached = begins;
        for (u32 base = first; base < end; base += 256) {
            u32 mine = base + 8 * lane, until = min(mine + 8, end);
            u64 x = 0;
            each_value(values, mine, until, 1, [&](u32 i, float value) { x += measure(i, value); });
            u64 own = x;
            for (u32 step = 1; step < 32; step *= 2) {
                u64 left = shuffle_up(x, step);
                if (lane >= step) x += left;
            }
            u32 passed = __ballot_sync(~0u, reached + x > point);
            if (passed) {
                if (lane == __ffs(passed) - 1) {
                    u64 here = reached + x - own;
                    for (u32 i = mine; i < until; i++) {
                        here += measure(i, values[i]);
                        if (here > point) {
                            found = i;
                            break;
                        }
                    }
                }
                break;
            }
            reached += of_lane(x, 31);
        }
    }
    group_sync<PARTS>();
    u32 result = ~0u;
    for (u32 p = 0; p < PARTS; p++) result = min(result, load_of<PARTS>(&found, p));
    group_sync<PARTS>();
    return result;
}
