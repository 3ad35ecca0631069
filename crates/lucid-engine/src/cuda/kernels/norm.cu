// RMSNorm of rows: y = w * x / sqrt(mean(x^2) + eps) (Zhang & Sennrich 2019, arXiv:1910.07467). The result goes out in split form, in one
// order or in both.
//
// A thread has eight columns that follow each other: whole words come and go, and the code is short, which counts for a kernel that runs once
// a layer. Squares are added in one order: a thread's in a chain, then a warp's threads and the row's warps in a tree.
#define NORM_COLUMNS 8

__device__ __forceinline__ void load_whole(const float* from, float (&x)[NORM_COLUMNS]) {
    const float4 low = ((const float4*)from)[0], high = ((const float4*)from)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// Columns first, first + 1, … of a row; zeros behind its end.
__device__ __forceinline__ void load_columns(const float* row, u32 first, u32 width, float (&x)[NORM_COLUMNS]) {
    if (first + NORM_COLUMNS <= width && (u64)row % 16 == 0) {
        load_whole(row + first, x);
    } else {
#pragma unroll
        for (u32 i = 0; i < NORM_COLUMNS; i++) x[i] = first + i < width ? row[first + i] : 0.0f;
    }
}

// The same columns of a vector in split form.
__device__ __forceinline__ void store_columns(u16* vector, u32 width, int order, u32 first, float (&x)[NORM_COLUMNS]) {
    if (width % NORM_COLUMNS != 0) {
        for (u32 i = 0; i < NORM_COLUMNS && first + i < width; i++) store_split(vector, width, order, first + i, x[i]);
        return;
    }
    if (first >= width) return;
#pragma unroll
    for (int term = 0; term < TERMS; term++) {
        u32 rounded[NORM_COLUMNS];
#pragma unroll
        for (int i = 0; i < NORM_COLUMNS; i++) {
            rounded[i] = f32_to_bf16(x[i]);
            if (term + 1 < TERMS) x[i] -= bf16_to_f32(rounded[i]);
        }
        // In NVFP4_ORDER column i of eight stands at 2 * (i % 4) + i / 4.
        const int next = order == NATURAL ? 1 : 4, pair = order == NATURAL ? 2 : 1;
        uint4 words;
        words.x = rounded[0] | rounded[next] << 16;
        words.y = rounded[pair] | rounded[pair + next] << 16;
        words.z = rounded[2 * pair] | rounded[2 * pair + next] << 16;
        words.w = rounded[3 * pair] | rounded[3 * pair + next] << 16;
        *(uint4*)(vector + (u64)term * width + place(order, first)) = words;
    }
}

// What a row's values are multiplied with. sums: those of its warps' squares, or zeros up to 32.
__device__ __forceinline__ float norm_scale(const float* sums, float eps, u32 width) {
    return 1.0f / sqrtf(warp_sum(sums[threadIdx.x % 32]) / width + eps);
}

__device__ __forceinline__ float add_squares(const float (&x)[NORM_COLUMNS], float sum) {
#pragma unroll
    for (int i = 0; i < NORM_COLUMNS; i++) sum = fmaf(x[i], x[i], sum);
    return sum;
}

// natural, nvfp4: where the row's result goes, or null.
__device__ __forceinline__ void store_normed(const float (&x)[NORM_COLUMNS], const float (&weights)[NORM_COLUMNS], float scale, u32 width,
                                             u32 first, u16* natural, u16* nvfp4) {
    float y[NORM_COLUMNS];
    auto compute = [&]() {
#pragma unroll
        for (int i = 0; i < NORM_COLUMNS; i++) y[i] = x[i] * scale * weights[i];
    };
    if (natural) {
        compute();
        store_columns(natural, width, NATURAL, first, y);
    }
    if (nvfp4) {
        compute();
        store_columns(nvfp4, width, NVFP4_ORDER, first, y);
    }
}

// One block a row, of as many warps as its columns take, 32 at the most; longer rows come in turns, and what doesn't stay in registers is
// read again.
extern "C" __global__ void __launch_bounds__(1024) rms_norm(const float* x, const float* weight, float eps, u32 width, u32 stride,
                                                            u16* natural, u16* nvfp4) {
    __shared__ float sums[32];
    // Products follow.
    let_next_start();
    u64 row = blockIdx.x;
    u32 first = NORM_COLUMNS * threadIdx.x, turn = NORM_COLUMNS * blockDim.x;
    x += row * stride;
    if (natural) natural += row * TERMS * width;
    if (nvfp4) nvfp4 += row * TERMS * width;
    float values[NORM_COLUMNS], weights[NORM_COLUMNS], more[NORM_COLUMNS];
    load_columns(weight, first, width, weights);
    if (threadIdx.x < 32) sums[threadIdx.x] = 0.0f;
    __syncthreads();
    wait_for_previous();
    load_columns(x, first, width, values);
    float sum = add_squares(values, 0.0f);
#pragma unroll 1
    for (u32 k = first + turn; k < width; k += turn) {
        load_columns(x, k, width, more);
        sum = add_squares(more, sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    float scale = norm_scale(sums, eps, width);
    store_normed(values, weights, scale, width, first, natural, nvfp4);
#pragma unroll 1
    for (u32 k = first + turn; k < width; k += turn) {
        load_columns(x, k, width, more);
        load_columns(weight, k, width, weights);
        store_normed(more, weights, scale, width, k, natural, nvfp4);
    }
}

// x [count] rows of `width` in split form: what tests and products of plain vectors start from.
extern "C" __global__ void split(const float* x, u32 width, int order, u16* out) {
    wait_for_previous();
    u64 row = blockIdx.x;
    for (u32 k = threadIdx.x; k < width; k += blockDim.x)
        store_split(out + row * TERMS * width, width, order, k, x[row * width + k]);
}
