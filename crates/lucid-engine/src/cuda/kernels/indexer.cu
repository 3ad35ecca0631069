// DeepSeek sparse attention: scores of all tokens before a query, and the best of them (see cpu/indexer/mod.rs for the formulas).

struct Indexer {
    u32 heads, width, most;
    int interleaved;
    float scale;
};

#define INDEX_WIDTH 128  // of a head, at the most
#define INDEX_HEADS 16   // of a query that are in shared memory at a time

// Block 0 of a row: LayerNorm and rotation of its key, which goes to its page. Block 1: its queries [heads, width], rotated, to `turned`.
// RoPE turns the first ROPE columns of both. 128 threads.
template <typename T>
__device__ __forceinline__ void index_inputs(Indexer ix, const float* keys, const float* norm, const float* bias, const float* queries,
                                             T* turned, const float2* angles, const Row* rows, const u32* pages, T* cache) {
    __shared__ float normed[INDEX_WIDTH];
    wait_for_previous();
    u64 row = blockIdx.x;
    u32 position = rows[row].position, k = threadIdx.x;
    angles += (u64)position * (ROPE / 2);
    if (blockIdx.y == 0) {
        bool is_column = k < ix.width;
        float x = is_column ? keys[row * ix.width + k] : 0.0f;
        float centered = x - block_sum(x) / ix.width;
        float variance = block_sum(is_column ? centered * centered : 0.0f) / ix.width;
        if (is_column) normed[k] = centered / sqrtf(variance + 1e-6f) * norm[k] + bias[k];
        __syncthreads();
        u64 page = pages[rows[row].table + position / PAGE_TOKENS];
        T* out = cache + (page * PAGE_TOKENS + position % PAGE_TOKENS) * ix.width;
        if (is_column) store_entry(out + k, k < ROPE ? rotated(normed, angles, ix.interleaved, k) : normed[k]);
        return;
    }
    queries += row * ix.heads * ix.width;
    turned += row * ix.heads * ix.width;
    for (u32 i = k; i < ix.heads * ix.width; i += blockDim.x) {
        u32 column = i % ix.width;
        store_entry(turned + i, column < ROPE ? rotated(queries + i - column, angles, ix.interleaved, column) : queries[i]);
    }
}

// Scores of a page for a row that has to choose, in f32. Every thread has one token and a quarter of the heads.
// queries [rows, heads, width], weights [rows, heads], scores [rows, stride] up to the row's own position.
// grid (pages, rows), 256 threads; `rows` and what lies beside them begin at the first row of the group.
extern "C" __global__ void __launch_bounds__(256)
    index_scores_f32(Indexer ix, const float* queries, const float* weights, const Row* rows, const u32* pages, const float* cache,
                     float* scores, u32 stride, u32, u32) {
    __shared__ __align__(16) float keys[PAGE_TOKENS][INDEX_WIDTH + 4];
    __shared__ __align__(16) float query[INDEX_HEADS][INDEX_WIDTH];
    __shared__ float sums[4][PAGE_TOKENS];
    wait_for_previous();
    u64 row = blockIdx.y;
    u32 position = rows[row].position, first = blockIdx.x * PAGE_TOKENS;
    if (position < ix.most || first > position) return;
    const float* page = cache + (u64)pages[rows[row].table + blockIdx.x] * PAGE_TOKENS * ix.width;
    for (u32 i = threadIdx.x; i < PAGE_TOKENS * ix.width; i += 256) keys[i / ix.width][i % ix.width] = page[i];
    u32 token = threadIdx.x % PAGE_TOKENS, quarter = threadIdx.x / PAGE_TOKENS;
    queries += row * ix.heads * ix.width;
    weights += row * ix.heads;
    float total = 0.0f;
    for (u32 base = 0; base < ix.heads; base += INDEX_HEADS) {
        u32 here = min(INDEX_HEADS, ix.heads - base);
        __syncthreads();
        for (u32 i = threadIdx.x; i < here * ix.width; i += 256) query[i / ix.width][i % ix.width] = queries[base * ix.width + i];
        __syncthreads();
        float dot[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (u32 k = 0; k < ix.width; k += 4) {
            float4 key = *(const float4*)&keys[token][k];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float4 q = *(const float4*)&query[4 * quarter + j][k];
                dot[j] = fmaf(q.x, key.x, dot[j]);
                dot[j] = fmaf(q.y, key.y, dot[j]);
                dot[j] = fmaf(q.z, key.z, dot[j]);
                dot[j] = fmaf(q.w, key.w, dot[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 head = base + 4 * quarter + j;
            // A maximum would turn NaN into 0.
            if (head < ix.heads) total = fmaf(weights[head] * ix.scale, dot[j] < 0.0f ? 0.0f : dot[j], total);
        }
    }
    sums[quarter][token] = total;
    __syncthreads();
    if (threadIdx.x < PAGE_TOKENS && first + token <= position)
        scores[row * stride + first + token] = sums[0][token] + sums[1][token] + sums[2][token] + sums[3][token];
}

// The same with bf16 keys and queries, on tensor cores: a warp has 16 of 64 heads and half of the page's tokens. A block takes `at_once`
// rows of `count`, so that neighbours of one sequence share their keys.
#define INDEX_PITCH (2 * INDEX_WIDTH + 16)  // bytes: eight rows lie in different banks
extern "C" __global__ void __launch_bounds__(256)
    index_scores_bf16(Indexer ix, const u16* queries, const float* weights, const Row* rows, const u32* pages, const u16* cache,
                      float* scores, u32 stride, u32 at_once, u32 count) {
    __shared__ __align__(16) u8 keys[PAGE_TOKENS * INDEX_PITCH], query[64 * INDEX_PITCH];
    __shared__ float sums[4][PAGE_TOKENS];
    wait_for_previous();
    u32 lane = threadIdx.x % 32, tile = threadIdx.x / 32 % 4, half = threadIdx.x / 128, first = blockIdx.x * PAGE_TOKENS, loaded = ~0u;
    u32 chunks = ix.width / 8;
    for (u64 row = blockIdx.y * at_once, end = min((u32)row + at_once, count); row < end; row++) {
        u32 position = rows[row].position;
        if (position < ix.most || first > position) continue;
        u32 page = pages[rows[row].table + blockIdx.x];
        if (page != loaded) {
            const u16* from = cache + (u64)page * PAGE_TOKENS * ix.width;
            __syncthreads();
            for (u32 i = threadIdx.x; i < PAGE_TOKENS * chunks; i += 256)
                *(uint4*)(keys + i / chunks * INDEX_PITCH + i % chunks * 16) = *(const uint4*)(from + 8 * i);
            loaded = page;
        }
        for (u32 base = 0; base < ix.heads; base += 64) {
            const u16* from = queries + (row * ix.heads + base) * ix.width;
            __syncthreads();
            for (u32 i = threadIdx.x; i < 64 * chunks; i += 256)
                *(uint4*)(query + i / chunks * INDEX_PITCH + i % chunks * 16) =
                    base + i / chunks < ix.heads ? *(const uint4*)(from + 8 * i) : make_uint4(0, 0, 0, 0);
            __syncthreads();
            float dots[4][4] = {};
            const u8* a_at = query + (16 * tile + lane % 16) * INDEX_PITCH + lane / 16 * 16;
            const u8* b_at = keys + (32 * half + lane / 16 * 8 + lane % 8) * INDEX_PITCH + lane / 8 % 2 * 16;
            for (u32 k = 0; k < 2 * ix.width; k += 32) {
                u32 a[4], b[2][4];
                load_matrices(a, a_at + k);
#pragma unroll
                for (int j = 0; j < 2; j++) load_matrices(b[j], b_at + 16 * j * INDEX_PITCH + k);
#pragma unroll
                for (int n = 0; n < 4; n++) mma(dots[n], a[0], a[1], a[2], a[3], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
            }
            u32 head = base + 16 * tile + lane / 4;
            float low = head < ix.heads ? weights[row * ix.heads + head] * ix.scale : 0.0f;
            float high = head + 8 < ix.heads ? weights[row * ix.heads + head + 8] * ix.scale : 0.0f;
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float a = dots[n][i], b = dots[n][2 + i];
                    // A maximum would turn NaN into 0.
                    float sum = low * (a < 0.0f ? 0.0f : a) + high * (b < 0.0f ? 0.0f : b);
#pragma unroll
                    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
                    float* at = &sums[tile][32 * half + 8 * n + lane % 4 * 2 + i];
                    if (lane < 4) *at = base == 0 ? sum : *at + sum;
                }
        }
        __syncthreads();
        u32 token = threadIdx.x;
        if (token < PAGE_TOKENS && first + token <= position)
            scores[row * stride + first + token] = sums[0][token] + sums[1][token] + sums[2][token] + sums[3][token];
    }
}

// What rows with more than `most` tokens attend to: the `most` best, of equal ones the earlier. lists [rows, most]. One block a row.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
    index_choose(Indexer ix, const float* scores, u32 stride, const Row* rows, u32* lists) {
    __shared__ u32 counts[2048], digit_found, wrong;
    __shared__ u64 digit_before;
    wait_for_previous();
    u64 row = blockIdx.x;
    u32 position = rows[row].position, seen = position + 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (position < ix.most) return;
    lists += row * ix.most;
    scores += row * stride;
    if (threadIdx.x == 0) wrong = 0;
    u32 bound = 0;
    u64 before = 0;
    for (int digit = 0; digit < 3; digit++) {
        const u32 shift = digit == 0 ? 21 : digit == 1 ? 10 : 0, bits = digit == 2 ? 10 : 11;
        for (u32 i = threadIdx.x; i < 2048; i += SCAN_THREADS) counts[i] = 0;
        __syncthreads();
        each_value(scores, threadIdx.x, seen, SCAN_THREADS, [&](u32, float score) {
            u32 order = key(score);
            if (score != score) wrong = 1;
            if (digit > 0 && order >> (shift + bits) != bound >> (shift + bits)) return;
            atomicAdd(&counts[(1u << bits) - 1 - (order >> shift & ((1u << bits) - 1))], 1);
        });
        __syncthreads();
        u64 total, low = counts[2 * threadIdx.x], high = counts[2 * threadIdx.x + 1];
        u64 upto = before + block_scan(low + high, total), begins = upto - low - high;
        if (begins < ix.most && ix.most <= begins + low) digit_found = 2 * threadIdx.x, digit_before = begins;
        begins += low;
        if (begins < ix.most && ix.most <= begins + high) digit_found = 2 * threadIdx.x + 1, digit_before = begins;
        __syncthreads();
        before = digit_before;
        bound |= ((1u << bits) - 1 - digit_found) << shift;
        __syncthreads();
    }
    u64 missing = ix.most - before;
    u32 last = first_past<1>(
        scores, 0, 0, seen, [&](u32, float score) -> u64 { return key(score) == bound; }, [&](u64) { return missing - 1; });
    if (wrong) {
        if (threadIdx.x == 0) *lists = NOT_FINITE;
        return;
    }
    // Warps have consecutive parts of the tokens: first how many each keeps, then which.
    u32 part = (seen + SCAN_THREADS - 1) / SCAN_THREADS * 32, first = min(warp * part, seen), end = min(first + part, seen);
    auto kept = [&](u32 base) {
        u32 token = base + lane, order = token < end ? key(scores[token]) : 0;
        return __ballot_sync(~0u, token < end && (order > bound || (order == bound && token <= last)));
    };
    u32 own = 0;
    for (u32 base = first; base < end; base += 32) own += __popc(kept(base));
    u64 all;
    u32 at = (u32)of_lane(block_scan(lane == 31 ? own : 0, all), 31) - own;
    for (u32 base = first; base < end; base += 32) {
        u32 here = kept(base);
        if (here >> lane & 1) lists[at + __popc(here & ((1u << lane) - 1))] = base + lane;
        at += __popc(here);
    }
}

#define INDEX_INPUTS(SUFFIX, T)                                                                                            \
    extern "C" __global__ void __launch_bounds__(128)                                                                      \
        index_inputs_##SUFFIX(Indexer ix, const float* keys, const float* norm, const float* bias, const float* queries,   \
                              T* turned, const float2* angles, const Row* rows, const u32* pages, T* cache) {              \
        index_inputs(ix, keys, norm, bias, queries, turned, angles, rows, pages, cache);                                   \
    }
INDEX_INPUTS(f32, float)
INDEX_INPUTS(bf16, u16)
