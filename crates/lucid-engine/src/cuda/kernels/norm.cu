// RMSNorm of rows: y = w * x / sqrt(mean(x^2) + eps) (Zhang & Sennrich 2019, arXiv:1910.07467). One block a row.
// The result goes out in split form, in one order or in both.
#define HELD 8  // values that a thread keeps between the two passes
extern "C" __global__ void rms_norm(const float* x, const float* weight, float eps, u32 width, u32 stride, u16* natural,
                                    u16* nvfp4) {
    u64 row = blockIdx.x;
    x += row * stride;
    float values[HELD], weights[HELD], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        u32 k = threadIdx.x + i * blockDim.x;
        weights[i] = k < width ? weight[k] : 0.0f;
    }
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        u32 k = threadIdx.x + i * blockDim.x;
        values[i] = k < width ? x[k] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) sum = fmaf(values[i], values[i], sum);
    for (u32 k = threadIdx.x + HELD * blockDim.x; k < width; k += blockDim.x) sum = fmaf(x[k], x[k], sum);
    float scale = 1.0f / sqrtf(block_sum(sum) / width + eps);
    if (natural) natural += row * TERMS * width;
    if (nvfp4) nvfp4 += row * TERMS * width;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        u32 k = threadIdx.x + i * blockDim.x;
        float y = values[i] * scale * weights[i];
        if (natural && k < width) store_split(natural, width, NATURAL, k, y);
        if (nvfp4 && k < width) store_split(nvfp4, width, NVFP4_ORDER, k, y);
    }
    for (u32 k = threadIdx.x + HELD * blockDim.x; k < width; k += blockDim.x) {
        float y = x[k] * scale * weight[k];
        if (natural) store_split(natural, width, NATURAL, k, y);
        if (nvfp4) store_split(nvfp4, width, NVFP4_ORDER, k, y);
    }
}

// x [count] rows of `width` in split form: what tests and products of plain vectors start from.
extern "C" __global__ void split(const float* x, u32 width, int order, u16* out) {
    wait_for_previous();
    u64 row = blockIdx.x;
    for (u32 k = threadIdx.x; k < width; k += blockDim.x)
        store_split(out + row * TERMS * width, width, order, k, x[row * width + k]);
}
