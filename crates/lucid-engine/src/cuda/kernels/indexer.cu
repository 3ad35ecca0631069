// DeepSeek sparse attention: scores of all tokens before a query, and the best of them (see cpu/indexer/mod.rs for the formulas). What
// a row may attend to is a bit a position.

struct Indexer {
    u32 heads, width, most;
    int interleaved;
    float scale;
};

#define INDEX_WIDTH 128  // of a head, at the most
#define INDEX_HEADS 16   // of a query that are in shared memory at a time

// Block 0 of a row: LayerNorm and rotation of its key, which goes to its page. Block 1: its queries [heads, width], rotated in place.
// RoPE turns the first ROPE columns of both. 128 threads.
template <typename T>
__device__ __forceinline__ void index_inputs(Indexer ix, const float* keys, const float* norm, const float* bias, float* queries,
                                             const float2* angles, const Row* rows, const u32* pages, T* cache) {
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
    for (u32 i = k; i < ix.heads * (ROPE / 2); i += blockDim.x) {
        u32 pair = i % (ROPE / 2);
        float* x = queries + i / (ROPE / 2) * ix.width;
        float *low = x + (ix.interleaved ? 2 * pair : pair), *high = x + (ix.interleaved ? 2 * pair + 1 : pair + ROPE / 2);
        float2 angle = angles[pair];
        float a = *low, b = *high;
        *low = a * angle.x - b * angle.y;
        *high = b * angle.x + a * angle.y;
    }
}

// Scores of a page for a row that has to choose. Every thread has one token and a quarter of the heads.
// queries [rows, heads, width], weights [rows, heads], scores [rows, stride] up to the row's own position.
// grid (pages, rows), 256 threads; `rows` and what lies beside them begin at the first row of the group.
template <typename T>
__device__ __forceinline__ void index_scores(Indexer ix, const float* queries, const float* weights, const Row* rows, const u32* pages,
                                             const T* cache, float* scores, u32 stride) {
    __shared__ __align__(16) float keys[PAGE_TOKENS][INDEX_WIDTH + 4];
    __shared__ __align__(16) float query[INDEX_HEADS][INDEX_WIDTH];
    __shared__ float sums[4][PAGE_TOKENS];
    wait_for_previous();
    u64 row = blockIdx.y;
    u32 position = rows[row].position, first = blockIdx.x * PAGE_TOKENS;
    if (position < ix.most || first > position) return;
    const T* page = cache + (u64)pages[rows[row].table + blockIdx.x] * PAGE_TOKENS * ix.width;
    for (u32 i = threadIdx.x; i < PAGE_TOKENS * ix.width / 2; i += 256) {
        Pair<T> pair;
        pair.load(page + 2 * i);
        *(float2*)&keys[2 * i / ix.width][2 * i % ix.width] = pair.unpack();
    }
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

// What each row attends to: all tokens up to its own where these are no more than `most`, else the `most` best, of equal ones the
// earlier; nothing if a score is not a number, so that what follows isn't either. chosen [rows, words]. One block a row.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
    index_choose(Indexer ix, const float* scores, u32 stride, const Row* rows, u32* chosen, u32 words) {
    __shared__ u32 counts[2048], digit_found, wrong;
    __shared__ u64 digit_before;
    wait_for_previous();
    u64 row = blockIdx.x;
    u32 position = rows[row].position, seen = position + 1, lane = threadIdx.x % 32;
    chosen += row * words;
    scores += row * stride;
    if (position < ix.most) {
        for (u32 word = threadIdx.x; word < (seen + 31) / 32; word += SCAN_THREADS) chosen[word] = ~0u;
        return;
    }
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
    for (u32 first = threadIdx.x / 32 * 32; first < seen; first += SCAN_THREADS) {
        u32 token = first + lane, order = token < seen ? key(scores[token]) : 0;
        bool keep = token < seen && !wrong && (order > bound || (order == bound && token <= last));
        u32 word = __ballot_sync(~0u, keep);
        if (lane == 0) chosen[first / 32] = word;
    }
}

#define INDEXER(SUFFIX, T)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(128)                                                                      \
        index_inputs_##SUFFIX(Indexer ix, const float* keys, const float* norm, const float* bias, float* queries,         \
                              const float2* angles, const Row* rows, const u32* pages, T* cache) {                         \
        index_inputs(ix, keys, norm, bias, queries, angles, rows, pages, cache);                                           \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256)                                                                      \
        index_scores_##SUFFIX(Indexer ix, const float* queries, const float* weights, const Row* rows, const u32* pages,   \
                              const T* cache, float* scores, u32 stride) {                                                 \
        index_scores(ix, queries, weights, rows, pages, cache, scores, stride);                                            \
    }
INDEXER(f32, float)
INDEXER(bf16, u16)
