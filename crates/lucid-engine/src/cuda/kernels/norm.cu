// RMSNorm of rows: y = w * x / sqrt(mean(x^2) + eps) (Zhang & Sennrich 2019, arXiv:1910.07467). One block a row.
// The result goes out in split form, in one order or in both.
extern "C" __global__ void rms_norm(const float* x, const float* weight, float eps, u32 width, u32 stride, u16* natural,
                                    u16* nvfp4) {
    u64 row = blockIdx.x;
    x += row * stride;
    float sum = 0.0f;
    for (u32 k = threadIdx.x; k < width; k += blockDim.x) sum = fmaf(x[k], x[k], sum);
    float scale = 1.0f / sqrtf(block_sum(sum) / width + eps);
    for (u32 k = threadIdx.x; k < width; k += blockDim.x) {
        float y = x[k] * scale * weight[k];
        if (natural) store_split(natural + row * TERMS * width, width, NATURAL, k, y);
        if (nvfp4) store_split(nvfp4 + row * TERMS * width, width, NVFP4_ORDER, k, y);
    }
}

// x [count] rows of `width` in split form: what tests and products of plain vectors start from.
extern "C" __global__ void split(const float* x, u32 width, int order, u16* out) {
    u64 row = blockIdx.x;
    for (u32 k = threadIdx.x; k < width; k += blockDim.x)
        store_split(out + row * TERMS * width, width, order, k, x[row * width + k]);
}
