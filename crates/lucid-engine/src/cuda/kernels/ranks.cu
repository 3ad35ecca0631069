// The sum over the GPUs that share a model: every rank reads all parts from their memory, in the order of the ranks, so all get the
// same bits. One kernel and no library: for the few kilobytes of a decoding step, starting anything else would take longer than
// the copy.

#define MOST_RANKS 8
struct Ranks {
    const float* parts[MOST_RANKS];  // [values] each, in the memory of its rank
    u32* arrived[MOST_RANKS];        // [blocks, MOST_RANKS] each: the last turn in which that rank's block has arrived
    u32* turns;                      // [blocks]: turns so far, ours
    u32 count, number;
    u64 patience;                    // cycles to wait for a rank that does not come
};

__device__ __forceinline__ float4 load_from_rank(const float* at) {
    float4 v;
    // Not from the first-level cache: it may hold an older turn's values.
    asm volatile("ld.relaxed.sys.global.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(at) : "memory");
    return v;
}

// hidden = Σ parts, or += if `accumulate`. values: a multiple of 4. The same grid on all ranks.
// A part may be overwritten two turns later: nobody begins a turn before it has ended the last one.
extern "C" __global__ void sum_ranks(Ranks ranks, u32 values, int accumulate, float* hidden) {
    __shared__ int missing;
    wait_for_previous();
    u32 turn = ranks.turns[blockIdx.x] + 1;
    if (threadIdx.x == 0) missing = 0;
    __syncthreads();
    if (threadIdx.x < ranks.count) {
        // Our part is written (the last kernel is complete); now it is visible to all GPUs.
        __threadfence_system();
        u32 slot = blockIdx.x * MOST_RANKS;
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(ranks.arrived[threadIdx.x] + slot + ranks.number), "r"(turn)
                     : "memory");
        const u32* arrived = ranks.arrived[ranks.number] + slot + threadIdx.x;
        long long start = clock64();
        for (;;) {
            u32 seen;
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
            if ((int)(seen - turn) >= 0) break;
            if ((u64)(clock64() - start) > ranks.patience) {
                missing = 1;
                break;
            }
        }
    }
    __syncthreads();
    for (u32 i = 4 * (blockIdx.x * blockDim.x + threadIdx.x); i < values; i += 4 * gridDim.x * blockDim.x) {
        float4 sum = load_from_rank(ranks.parts[0] + i);
        for (u32 r = 1; r < ranks.count; r++) {
            float4 part = load_from_rank(ranks.parts[r] + i);
            sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
        }
        float4* out = (float4*)(hidden + i);
        if (accumulate) {
            float4 old = *out;
            sum = make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
        }
        // A rank is lost: what follows must not look like an answer.
        if (missing) sum = make_float4(NAN_F, NAN_F, NAN_F, NAN_F);
        *out = sum;
    }
    if (threadIdx.x == 0) ranks.turns[blockIdx.x] = turn;
}

// The same sum of parts that stand here, `stride` apart: of GPUs in other processes. values, stride: multiples of 4.
extern "C" __global__ void sum_parts(const float* parts, u64 stride, u32 count, u32 values, int accumulate, float* hidden) {
    wait_for_previous();
    for (u32 i = 4 * (blockIdx.x * blockDim.x + threadIdx.x); i < values; i += 4 * gridDim.x * blockDim.x) {
        float4 sum = *(const float4*)(parts + i);
        for (u32 r = 1; r < count; r++) {
            float4 part = *(const float4*)(parts + r * stride + i);
            sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
        }
        float4* out = (float4*)(hidden + i);
        if (accumulate) {
            float4 old = *out;
            sum = make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
        }
        *out = sum;
    }
}
