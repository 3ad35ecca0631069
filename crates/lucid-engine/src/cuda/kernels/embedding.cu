// hidden[t] = embed_tokens[tokens[t] - first], any layout; 0 for tokens of other ranks, which are not among the matrix's `rows`.
// One block a token.
extern "C" __global__ void embed(int layout, const u8* values, const u8* scales, float global_scale, u32 width, u32 first, u32 rows,
                                 const u32* tokens, float* hidden) {
    wait_for_previous();
    u32 row = tokens[blockIdx.x] - first;
    for (u32 k = threadIdx.x; k < width; k += blockDim.x)
        hidden[(u64)blockIdx.x * width + k] = row < rows ? decode(layout, values, scales, row, k, width) * global_scale : 0.0f;
}
