// The weighted sum of a token's experts, and the norm that follows it.

// Experts' outputs y [visits, width], and whose a token gets.
// Experts of other ranks (`places` ELSEWHERE) are left out. `shared`: y has the shared expert's of all tokens, from shared_first on; else
// shared_places, if it isn't null, says where a token's is, or ELSEWHERE.
// places null: one block without router; y[token] is added as it is. shared_first: where the shared expert's visits begin.
struct Combined {
    const float* y;
    const u32* places;     // [tokens, per_token]
    const float* weights;  // the same
    const u32* shared_places;
    u32 per_token;
    int shared;
    u32 shared_first, width;
    int accumulate;  // hidden += instead of =
    float* hidden;   // [tokens, width]
};

// A token's routes, one a lane, and where the shared expert's output is. They are older than the last kernel.
struct TokensRoutes {
    u32 place;
    float weight;
    u64 of_shared;

    __device__ __forceinline__ TokensRoutes(const Combined& c, u64 token) : place(0), weight(0.0f) {
        u32 lane = threadIdx.x % 32;
        if (lane < c.per_token) {
            place = c.places[token * c.per_token + lane];
            weight = c.weights[token * c.per_token + lane];
        }
        of_shared = c.shared ? c.shared_first + token : c.shared_places ? c.shared_places[token] : ELSEWHERE;
    }
};

// hidden += shared + Σ weight · expert, in the order of the routes. grid (width / 256, tokens), 256 threads.
extern "C" __global__ void combine(const __grid_constant__ Combined c) {
    u32 k = blockIdx.x * blockDim.x + threadIdx.x;
    u64 token = blockIdx.y;
    TokensRoutes routes(c, token);
    wait_for_previous();
    float* out = c.hidden + token * c.width + k;
    bool mine = k < c.width;
    float before = mine && c.accumulate ? *out : 0.0f;
    float sum = mine && routes.of_shared != ELSEWHERE ? c.y[routes.of_shared * c.width + k] : 0.0f;
#pragma unroll 8
    for (u32 i = 0; i < c.per_token; i++) {
        u64 row = __shfl_sync(~0u, routes.place, i);
        float share = __shfl_sync(~0u, routes.weight, i);
        if (mine && row != ELSEWHERE) sum = fmaf(share, c.y[row * c.width + k], sum);
    }
    if (mine) *out = c.accumulate ? before + sum : sum;
}

#define NORM_PARTS 8         // blocks of a cluster
#define COMBINED_AT_ONCE 8   // routes whose loads are under way together
#define NORM_THREADS 128     // of a block: a row has 32 warps, as many as a block of rms_norm at the most

// The same, and RMSNorm of the sums, a cluster of eight blocks a token; the bits are those of `combine` and `rms_norm`. Rows have up to 8,192
// columns, a multiple of eight. grid (8, tokens), 128 threads.
extern "C" __global__ void
#if __CUDA_ARCH__ >= 900
__cluster_dims__(NORM_PARTS, 1, 1)
#endif
__launch_bounds__(NORM_THREADS)
combine_norm(const __grid_constant__ Combined c, const float* weight, float eps, u16* natural, u16* nvfp4) {
#if __CUDA_ARCH__ >= 900
    __shared__ float sums[32];  // of all the row's warps
    u32 part = blockIdx.x, lane = threadIdx.x % 32, warp = part * (NORM_THREADS / 32) + threadIdx.x / 32;
    u32 first = NORM_COLUMNS * (part * NORM_THREADS + threadIdx.x);
    u64 token = blockIdx.y;
    // Whoever writes to another block's memory must know that the block has begun.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    TokensRoutes routes(c, token);
    float weights[NORM_COLUMNS], values[NORM_COLUMNS], sum[NORM_COLUMNS], of_experts[COMBINED_AT_ONCE][NORM_COLUMNS];
    // Threads behind the row's end read its first columns, so that no load waits for a branch, and add nothing.
    bool mine = first < c.width;
    u32 column = mine ? first : 0;
    const float* y = c.y + column;
    float* hidden = c.hidden + token * c.width + column;
    load_whole(weight + column, weights);
    wait_for_previous();
    load_whole(hidden, values);
    bool has_shared = routes.of_shared != ELSEWHERE;
    load_whole(y + (has_shared ? routes.of_shared : 0) * c.width, sum);
#pragma unroll
    for (int k = 0; k < NORM_COLUMNS; k++) sum[k] = has_shared ? sum[k] : 0.0f;
#pragma unroll 1
    for (u32 base = 0; base < c.per_token; base += COMBINED_AT_ONCE) {
        // Lanes without a route have place 0.
#pragma unroll
        for (u32 i = 0; i < COMBINED_AT_ONCE; i++) {
            u64 row = __shfl_sync(~0u, routes.place, base + i);
            load_whole(y + (row == ELSEWHERE ? 0 : row) * c.width, of_experts[i]);
        }
#pragma unroll
        for (u32 i = 0; i < COMBINED_AT_ONCE; i++) {
            bool counts = base + i < c.per_token && __shfl_sync(~0u, routes.place, base + i) != ELSEWHERE;
            float share = __shfl_sync(~0u, routes.weight, base + i);
#pragma unroll
            for (int k = 0; k < NORM_COLUMNS; k++) sum[k] = counts ? fmaf(share, of_experts[i][k], sum[k]) : sum[k];
        }
    }
#pragma unroll
    for (int k = 0; k < NORM_COLUMNS; k++) values[k] = !mine ? 0.0f : c.accumulate ? values[k] + sum[k] : sum[k];
    if (mine) {
        ((float4*)hidden)[0] = make_float4(values[0], values[1], values[2], values[3]);
        ((float4*)hidden)[1] = make_float4(values[4], values[5], values[6], values[7]);
    }
    float squares = warp_sum(add_squares(values, 0.0f));
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (lane < NORM_PARTS) {
        u32 at;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(&sums[warp])), "r"(lane));
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(squares) : "memory");
    }
    group_sync<NORM_PARTS>();
    float scale = norm_scale(sums, eps, c.width);
    if (natural) natural += token * TERMS * c.width;
    if (nvfp4) nvfp4 += token * TERMS * c.width;
    store_normed(values, weights, scale, c.width, first, natural, nvfp4);
#endif
}
