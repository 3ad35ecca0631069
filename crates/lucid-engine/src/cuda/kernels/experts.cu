// Experts: the plain kernels, those for forms of safetensors' checkpoints (see experts.cuh), and the weighted sum.

// The plain versions, for any layout: a warp computes one row for one visit. grid (rows / 8, slots), 256 threads.
// x: [tokens, 3, cols] in `order`; activated: [visits, 3, rows] in `out_order`.
extern "C" __global__ void experts_gate_up_plain(int layout, ExpertWeight gate, ExpertWeight up, u32 rows, u32 cols,
                                                 Visits visits, const u16* x, int order, u16* activated, int out_order) {
    Visit visit;
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
    wait_for_previous();
    if (!find_visit(visits, blockIdx.y, visit) || row >= rows) return;
    u64 e = visit.expert;
    for (u32 v = visit.first; v < visit.first + visit.count; v++) {
        const u16* vector = x + (u64)token_of(visits, v) * TERMS * cols;
        float g = 0.0f, u = 0.0f;
        for (u32 k = threadIdx.x % 32; k < cols; k += 32) {
            float value = load_split(vector, cols, order, k);
            const u8 *gate_scales = gate.scales + e * gate.scale_stride, *up_scales = up.scales + e * up.scale_stride;
            g = fmaf(decode(layout, gate.values + e * gate.value_stride, gate_scales, row, k, cols), value, g);
            u = fmaf(decode(layout, up.values + e * up.value_stride, up_scales, row, k, cols), value, u);
        }
        g = warp_sum(g) * gate.global_scales[e];
        u = warp_sum(u) * up.global_scales[e];
        if (threadIdx.x % 32 == 0) store_split(activated + (u64)v * TERMS * rows, rows, out_order, row, silu(g) * u);
    }
}

extern "C" __global__ void experts_down_plain(int layout, ExpertWeight down, u32 rows, u32 cols, Visits visits,
                                              const u16* activated, int order, float* y) {
    Visit visit;
    u32 row = blockIdx.x * 8 + threadIdx.x / 32;
    wait_for_previous();
    if (!find_visit(visits, blockIdx.y, visit) || row >= rows) return;
    u64 e = visit.expert;
    for (u32 v = visit.first; v < visit.first + visit.count; v++) {
        float sum = 0.0f;
        for (u32 k = threadIdx.x % 32; k < cols; k += 32)
            sum = fmaf(decode(layout, down.values + e * down.value_stride, down.scales + e * down.scale_stride, row, k, cols),
                       load_split(activated + (u64)v * TERMS * cols, cols, order, k), sum);
        sum = warp_sum(sum) * down.global_scales[e];
        if (threadIdx.x % 32 == 0) y[(u64)v * rows + row] = sum;
    }
}

// Passes of 8 columns, and of up to 24.
EXPERTS(Nvfp4, nvfp4_8, 1, 2, 4, 3, 2, 3, 4)
EXPERTS(Nvfp4, nvfp4_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS(Int4, int4_8, 1, 2, 4, 3, 2, 3, 4)
EXPERTS(Int4, int4_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS(F8Blocks, f8_8, 1, 2, 2, 3, 3, 1, 4)
EXPERTS(F8Blocks, f8_24, 3, 3, 1, 3, 3, 1, 3)
EXPERTS(Bf16, bf16_8, 1, 2, 1, 3, 2, 1, 3)
EXPERTS(Bf16, bf16_24, 3, 2, 1, 2, 2, 1, 2)

// hidden += shared + Σ weight · expert, in the order of the routes; `=` if not `accumulate`. grid (width / 256, tokens).
// Experts of other ranks (`places` ELSEWHERE) are left out. `shared`: y has the shared expert's of all tokens, from shared_first on; else
// shared_places, if it isn't null, says where a token's is, or ELSEWHERE.
// places null: one block without router; y[token] is added as it is. shared_first: where the shared expert's visits begin.
extern "C" __global__ void combine(const float* y, const u32* places, const float* weights, const u32* shared_places,
                                   u32 per_token, int shared, u32 shared_first, u32 width, int accumulate, float* hidden) {
    u32 k = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    u64 token = blockIdx.y;
    // The routes are older than the last kernel, so they are there.
    u32 place = 0;
    float weight = 0.0f;
    if (lane < per_token) {
        place = places[token * per_token + lane];
        weight = weights[token * per_token + lane];
    }
    u64 of_shared = shared ? shared_first + token : shared_places ? shared_places[token] : ELSEWHERE;
    wait_for_previous();
    float* out = hidden + token * width + k;
    bool mine = k < width;
    float before = mine && accumulate ? *out : 0.0f;
    float sum = mine && of_shared != ELSEWHERE ? y[of_shared * width + k] : 0.0f;
#pragma unroll 8
    for (u32 i = 0; i < per_token; i++) {
        u64 row = __shfl_sync(~0u, place, i);
        float share = __shfl_sync(~0u, weight, i);
        if (mine && row != ELSEWHERE) sum = fmaf(share, y[row * width + k], sum);
    }
    if (mine) *out = accumulate ? before + sum : sum;
}
