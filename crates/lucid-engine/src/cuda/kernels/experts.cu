// Experts: the plain kernels, and those for forms of safetensors' checkpoints (see experts.cuh).

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
