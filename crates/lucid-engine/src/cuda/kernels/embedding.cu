// hidden[t] = embed_tokens[tokens[t]], any layout. One block a token.
extern "C" __global__ void embed(int layout, const u8* values, const u8* scales, float global_scale, u32 width,
                                 const u32* tokens, float* hidden) {
    wait_for_previous();
    u64 row = tokens[blockIdx.x];
    for (u32 k = threadIdx.x; k < width; k += blockDim.x)
        hidden[(u64)blockIdx.x * width + k] = decode(layout, values, scales, row, k, width) * global_scale;
}
