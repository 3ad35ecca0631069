// Multi-head latent attention in the absorbed form over a paged cache. LATENT and ROPE come from the compiler's options.
//
// The unit of the sums is a page: its scores, its maximum, its weighted sum; pages are then merged in order. Whether pages run
// one after the other (attend) or side by side (attend_pages, merge_pages) does not change a bit.

#define WIDTH (LATENT + ROPE)
#define PAGE_TOKENS 64

// One row of a step.
struct Row {
    u32 position;
    u32 table;  // where its sequence's pages begin in `pages`
};

template <typename T>
__device__ __forceinline__ float2 load_pair(const T* at);
template <>
__device__ __forceinline__ float2 load_pair<float>(const float* at) { return *(const float2*)at; }
template <>
__device__ __forceinline__ float2 load_pair<u16>(const u16* at) {
    u32 both = *(const u32*)at;
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}
__device__ __forceinline__ void store_entry(float* at, float x) { *at = x; }
__device__ __forceinline__ void store_entry(u16* at, float x) { *at = f32_to_bf16(x); }

// Element i of the rotated x [ROPE]; `angles` are this position's cosines and sines, one pair for two elements.
__device__ __forceinline__ float rotated(const float* x, const float2* angles, int interleaved, u32 i) {
    u32 pair = interleaved ? i / 2 : i % (ROPE / 2);
    u32 second = interleaved ? i % 2 : i / (ROPE / 2);
    float low = x[interleaved ? 2 * pair : pair], high = x[interleaved ? 2 * pair + 1 : pair + ROPE / 2];
    float2 angle = angles[pair];
    return second ? high * angle.x + low * angle.y : low * angle.x - high * angle.y;
}

// Block 0 of a row: norm and rotation of its cache entry, which goes to its page. Other blocks: a head's query each; the part
// without position is split for the absorbing product, the rotated part goes to `absorbed` [rows, heads, WIDTH].
template <typename T>
__device__ __forceinline__ void attention_inputs(const float* entries, const float* norm, float eps, const float* queries,
                                                 u32 heads, u32 nope, const float2* angles, int interleaved,
                                                 const Row* rows, const u32* pages, T* cache, u16* nope_split,
                                                 float* absorbed) {
    u64 row = blockIdx.x;
    u32 position = rows[row].position;
    angles += (u64)position * (ROPE / 2);
    if (blockIdx.y == 0) {
        const float* entry = entries + row * WIDTH;
        float sum = 0.0f;
        for (u32 k = threadIdx.x; k < LATENT; k += blockDim.x) sum = fmaf(entry[k], entry[k], sum);
        float scale = 1.0f / sqrtf(block_sum(sum) / LATENT + eps);
        u64 page = pages[rows[row].table + position / PAGE_TOKENS];
        T* out = cache + (page * PAGE_TOKENS + position % PAGE_TOKENS) * WIDTH;
        for (u32 k = threadIdx.x; k < LATENT; k += blockDim.x) store_entry(out + k, entry[k] * scale * norm[k]);
        for (u32 k = threadIdx.x; k < ROPE; k += blockDim.x)
            store_entry(out + LATENT + k, rotated(entry + LATENT, angles, interleaved, k));
        return;
    }
    u32 head = blockIdx.y - 1;
    const float* query = queries + (row * heads + head) * (nope + ROPE);
    u16* split = nope_split + row * TERMS * heads * nope;
    for (u32 k = threadIdx.x; k < nope; k += blockDim.x)
        store_split(split, heads * nope, NATURAL, head * nope + k, query[k]);
    for (u32 k = threadIdx.x; k < ROPE; k += blockDim.x)
        absorbed[(row * heads + head) * WIDTH + LATENT + k] = rotated(query + nope, angles, interleaved, k);
}

// A running softmax sum: lane l holds the latent columns 64 i + 2 l and 64 i + 2 l + 1.
struct Sum {
    float maximum, total;
    float2 acc[LATENT / 64];
};

__device__ __forceinline__ void empty(Sum& sum) {
    sum.maximum = -INFINITY_F;
    sum.total = 0.0f;
#pragma unroll
    for (int i = 0; i < LATENT / 64; i++) sum.acc[i] = make_float2(0.0f, 0.0f);
}

// The first `count` entries of a page. The warp's query is in registers.
template <typename T>
__device__ __forceinline__ void page_sum(const float2 query[WIDTH / 64], const T* page, u32 count, float scale, Sum& sum) {
    u32 lane = threadIdx.x % 32;
    float score[2] = {-INFINITY_F, -INFINITY_F};  // of entries lane and lane + 32
    for (u32 j = 0; j < count; j += 4) {
        float dot[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < WIDTH / 64; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                // The cache has whole pages: entries past `count` can be read, and are not used.
                float2 value = load_pair(page + (j + e) * WIDTH + 64 * i + 2 * lane);
                dot[e] = fmaf(query[i].x, value.x, dot[e]);
                dot[e] = fmaf(query[i].y, value.y, dot[e]);
            }
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float total = warp_sum(dot[e]) * scale;
            if (j + e < count && lane == (j + e) % 32) score[(j + e) / 32] = total;
        }
    }
    sum.maximum = warp_max(fmaxf(score[0], score[1]));
    // A page's maximum is finite, or all is NaN and stays NaN.
    float weight[2];
    weight[0] = lane < count ? expf(score[0] - sum.maximum) : 0.0f;
    weight[1] = lane + 32 < count ? expf(score[1] - sum.maximum) : 0.0f;
    sum.total = warp_sum(weight[0] + weight[1]);
#pragma unroll
    for (int i = 0; i < LATENT / 64; i++) sum.acc[i] = make_float2(0.0f, 0.0f);
#pragma unroll 2
    for (u32 j = 0; j < count; j++) {
        float p = __shfl_sync(~0u, j < 32 ? weight[0] : weight[1], j % 32);
#pragma unroll
        for (int i = 0; i < LATENT / 64; i++) {
            float2 value = load_pair(page + j * WIDTH + 64 * i + 2 * lane);
            sum.acc[i].x = fmaf(p, value.x, sum.acc[i].x);
            sum.acc[i].y = fmaf(p, value.y, sum.acc[i].y);
        }
    }
}

// Milakov & Gimelshein 2018, arXiv:1805.02867.
__device__ __forceinline__ void merge(Sum& into, const Sum& page) {
    float maximum = fmaxf(into.maximum, page.maximum);
    float old_scale = expf(into.maximum - maximum), new_scale = expf(page.maximum - maximum);
    into.maximum = maximum;
    into.total = fmaf(into.total, old_scale, page.total * new_scale);
#pragma unroll
    for (int i = 0; i < LATENT / 64; i++) {
        into.acc[i].x = fmaf(into.acc[i].x, old_scale, page.acc[i].x * new_scale);
        into.acc[i].y = fmaf(into.acc[i].y, old_scale, page.acc[i].y * new_scale);
    }
}

// out: [rows, heads * LATENT] in split form, in `order`.
__device__ __forceinline__ void finish(const Sum& sum, u64 row, u32 head, u32 heads, int order, u16* out) {
    u32 lane = threadIdx.x % 32, width = heads * LATENT;
    out += row * TERMS * width;
#pragma unroll
    for (int i = 0; i < LATENT / 64; i++) {
        u32 k = head * LATENT + 64 * i + 2 * lane;
        store_split(out, width, order, k, sum.acc[i].x / sum.total);
        store_split(out, width, order, k + 1, sum.acc[i].y / sum.total);
    }
}

__device__ __forceinline__ void load_query(const float* queries, u64 row, u32 head, u32 heads, float2 query[WIDTH / 64]) {
#pragma unroll
    for (int i = 0; i < WIDTH / 64; i++)
        query[i] = load_pair(queries + (row * heads + head) * WIDTH + 64 * i + 2 * (threadIdx.x % 32));
}

// Pages one after the other. grid (heads / 8, rows), 256 threads: a warp a head.
template <typename T>
__device__ __forceinline__ void attend(const float* queries, u32 heads, float scale, const Row* rows, const u32* pages,
                                       const T* cache, int order, u16* out) {
    u64 row = blockIdx.y;
    u32 head = blockIdx.x * 8 + threadIdx.x / 32;
    if (head >= heads) return;
    float2 query[WIDTH / 64];
    load_query(queries, row, head, heads, query);
    u32 visible = rows[row].position + 1;
    Sum sum, page;
    empty(sum);
    for (u32 i = 0; i * PAGE_TOKENS < visible; i++) {
        const T* values = cache + (u64)pages[rows[row].table + i] * PAGE_TOKENS * WIDTH;
        page_sum(query, values, min(PAGE_TOKENS, visible - i * PAGE_TOKENS), scale, page);
        merge(sum, page);
    }
    finish(sum, row, head, heads, order, out);
}

// Pages side by side. grid (pages, heads / 8, rows); partial: [rows, heads, pages, 2 + LATENT].
#define PARTIAL (LATENT + 2)
template <typename T>
__device__ __forceinline__ void attend_pages(const float* queries, u32 heads, float scale, const Row* rows,
                                             const u32* pages, const T* cache, float* partial) {
    u64 row = blockIdx.z;
    u32 head = blockIdx.y * 8 + threadIdx.x / 32, i = blockIdx.x, lane = threadIdx.x % 32;
    u32 visible = rows[row].position + 1;
    if (head >= heads || i * PAGE_TOKENS >= visible) return;
    float2 query[WIDTH / 64];
    load_query(queries, row, head, heads, query);
    const T* values = cache + (u64)pages[rows[row].table + i] * PAGE_TOKENS * WIDTH;
    Sum page;
    page_sum(query, values, min(PAGE_TOKENS, visible - i * PAGE_TOKENS), scale, page);
    float* out = partial + ((row * heads + head) * gridDim.x + i) * PARTIAL;
    if (lane == 0) *(float2*)out = make_float2(page.maximum, page.total);
#pragma unroll
    for (int c = 0; c < LATENT / 64; c++) *(float2*)(out + 2 + 64 * c + 2 * lane) = page.acc[c];
}

// grid (heads / 8, rows), 256 threads.
extern "C" __global__ void merge_pages(const float* partial, u32 heads, u32 pages, const Row* rows, int order,
                                       u16* out) {
    u64 row = blockIdx.y;
    u32 head = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head >= heads) return;
    u32 count = rows[row].position / PAGE_TOKENS + 1;
    Sum sum, page;
    empty(sum);
#pragma unroll 4
    for (u32 i = 0; i < count; i++) {
        const float* in = partial + ((row * heads + head) * pages + i) * PARTIAL;
        float2 head_of = *(const float2*)in;
        page.maximum = head_of.x;
        page.total = head_of.y;
#pragma unroll
        for (int c = 0; c < LATENT / 64; c++) page.acc[c] = *(const float2*)(in + 2 + 64 * c + 2 * lane);
        merge(sum, page);
    }
    finish(sum, row, head, heads, order, out);
}

#define ATTENTION(SUFFIX, T)                                                                                             \
    extern "C" __global__ void attention_inputs_##SUFFIX(                                                                \
        const float* entries, const float* norm, float eps, const float* queries, u32 heads, u32 nope,                   \
        const float2* angles, int interleaved, const Row* rows, const u32* pages, T* cache, u16* nope_split,             \
        float* absorbed) {                                                                                               \
        attention_inputs(entries, norm, eps, queries, heads, nope, angles, interleaved, rows, pages, cache, nope_split,  \
                         absorbed);                                                                                      \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                    \
        attend_##SUFFIX(const float* queries, u32 heads, float scale, const Row* rows, const u32* pages, const T* cache, \
                        int order, u16* out) {                                                                           \
        attend(queries, heads, scale, rows, pages, cache, order, out);                                                   \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                    \
        attend_pages_##SUFFIX(const float* queries, u32 heads, float scale, const Row* rows, const u32* pages,           \
                              const T* cache, float* partial) {                                                          \
        attend_pages(queries, heads, scale, rows, pages, cache, partial);                                                \
    }
ATTENTION(f32, float)
ATTENTION(bf16, u16)
