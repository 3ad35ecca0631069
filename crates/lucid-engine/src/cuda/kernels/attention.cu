// Multi-head latent attention in the absorbed form over a paged cache. LATENT and ROPE come from the compiler's options.
//
// The unit of the sums is half a page, 32 tokens: its scores, one a lane, its maximum, its weighted sum; units are then merged in
// order. Whether they run one after the other (attend) or side by side (attend_units, merge_units) does not change a bit.
//
// A cache of E4M3 codes is read as they are: what they are to be multiplied with is a factor of the softmax's `scale`, and of the product
// that takes the sums.

#define UNIT 32

// What a cache of codes divides by is the layer's; others have none.
__device__ __forceinline__ void store_entry(float* at, float x, float = 1.0f) { *at = x; }
__device__ __forceinline__ void store_entry(u16* at, float x, float = 1.0f) { *at = f32_to_bf16(x); }
__device__ __forceinline__ void store_entry(u8* at, float x, float scale) { *at = f32_to_e4m3(x / scale); }

// Element i of the rotated x [ROPE]; `angles` are this position's cosines and sines, one pair for two elements.
__device__ __forceinline__ float rotated(const float* x, const float2* angles, int interleaved, u32 i) {
    u32 pair = interleaved ? i / 2 : i % (ROPE / 2);
    u32 second = interleaved ? i % 2 : i / (ROPE / 2);
    float low = x[interleaved ? 2 * pair : pair], high = x[interleaved ? 2 * pair + 1 : pair + ROPE / 2];
    float2 angle = angles[pair];
    return second ? high * angle.x + low * angle.y : low * angle.x - high * angle.y;
}

#define INPUTS_THREADS 128
// Block 0 of a row: norm and rotation of its cache entry, which goes to its page. Other blocks: queries of `at_once` heads each; the
// part without position is split for the absorbing product, if that comes (else `nope_split` is null), the rotated part goes to
// `absorbed` [rows, heads, WIDTH].
template <typename T>
__device__ __forceinline__ void attention_inputs(const float* entries, const float* norm, float eps, const float* queries,
                                                 u32 heads, u32 at_once, u32 nope, const float2* angles, int interleaved,
                                                 const Row* rows, const u32* pages, T* cache, float cache_scale,
                                                 u16* nope_split, float* absorbed) {
    static_assert(ROPE <= INPUTS_THREADS, "a thread has one");
    const int OF_THREAD = (LATENT + INPUTS_THREADS - 1) / INPUTS_THREADS;
    // A product follows, or what makes inputs for an indexer or for prompts, which waits first.
    let_next_start();
    // Rows, pages and angles are there since before the step, and weights anyway.
    u64 row = blockIdx.x;
    u32 position = rows[row].position, lane = threadIdx.x;
    angles += (u64)position * (ROPE / 2);
    if (blockIdx.y == 0) {
        u64 page = pages[rows[row].table + position / PAGE_TOKENS];
        T* out = cache + (page * PAGE_TOKENS + position % PAGE_TOKENS) * WIDTH;
        float values[OF_THREAD], weights[OF_THREAD], turned = 0.0f, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < OF_THREAD; i++) {
            u32 k = lane + i * INPUTS_THREADS;
            weights[i] = k < LATENT ? norm[k] : 0.0f;
        }
        wait_for_previous();
        const float* entry = entries + row * WIDTH;
#pragma unroll
        for (int i = 0; i < OF_THREAD; i++) {
            u32 k = lane + i * INPUTS_THREADS;
            values[i] = k < LATENT ? entry[k] : 0.0f;
        }
        if (lane < ROPE) turned = rotated(entry + LATENT, angles, interleaved, lane);
#pragma unroll
        for (int i = 0; i < OF_THREAD; i++) sum = fmaf(values[i], values[i], sum);
        float scale = 1.0f / sqrtf(block_sum(sum) / LATENT + eps);
#pragma unroll
        for (int i = 0; i < OF_THREAD; i++) {
            u32 k = lane + i * INPUTS_THREADS;
            if (k < LATENT) store_entry(out + k, values[i] * scale * weights[i], cache_scale);
        }
        if (lane < ROPE) store_entry(out + LATENT + lane, turned, cache_scale);
        return;
    }
    u32 first = (blockIdx.y - 1) * at_once, end = min(first + at_once, heads);
    u16* split = nope_split + row * TERMS * heads * nope;
    wait_for_previous();
#pragma unroll 1
    for (u32 head = first; head < end; head++) {
        // All loads before the stores, which the compiler can't tell apart.
        const float* query = queries + (row * heads + head) * (nope + ROPE);
        float value = lane < nope ? query[lane] : 0.0f;
        float turned = lane < ROPE ? rotated(query + nope, angles, interleaved, lane) : 0.0f;
        if (lane < ROPE) absorbed[(row * heads + head) * WIDTH + LATENT + lane] = turned;
        if (!nope_split) continue;
        if (lane < nope) store_split(split, heads * nope, NATURAL, head * nope + lane, value);
        for (u32 k = lane + INPUTS_THREADS; k < nope; k += INPUTS_THREADS)
            store_split(split, heads * nope, NATURAL, head * nope + k, query[k]);
    }
}

// A running softmax sum over N times 64 latent columns: lane l holds columns 64 i + 2 l and 64 i + 2 l + 1.
template <int N>
struct Running {
    float maximum, total;
    float2 acc[N];
};
typedef Running<LATENT / 64> Sum;

template <int N>
__device__ __forceinline__ void empty(Running<N>& sum) {
    sum.maximum = -INFINITY_F;
    sum.total = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) sum.acc[i] = make_float2(0.0f, 0.0f);
}

// The entries of unit i of what a row sees. The warp's query is in registers.
template <typename T>
__device__ __forceinline__ void unit_sum(const float2 query[WIDTH / 64], const T* cache, const Seen& seen, u32 i, float scale, Sum& sum) {
    u32 lane = threadIdx.x % 32, first = i * UNIT, count = min(UNIT, seen.count - first);
    float score = -INFINITY_F;  // of entry `lane`
    cache += 2 * lane;
    // A unit of neighbours lies in one page.
    const T* unit = cache + seen.place(first) * WIDTH;
    auto entry = [&](u32 j) { return seen.list ? cache + seen.place(first + j) * WIDTH : unit + j * WIDTH; };
    for (u32 j = 0; j < count; j += 4) {
        // The cache has whole pages: entries past `count` can be read, and are not used.
        Pair<T> pairs[4][WIDTH / 64];
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int i = 0; i < WIDTH / 64; i++) pairs[e][i].load(entry(j + e) + 64 * i);
        float dot[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < WIDTH / 64; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float2 value = pairs[e][i].unpack();
                dot[e] = fmaf(query[i].x, value.x, dot[e]);
                dot[e] = fmaf(query[i].y, value.y, dot[e]);
            }
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float total = warp_sum(dot[e]) * scale;
            if (lane == j + e && lane < count) score = total;
        }
    }
    sum.maximum = warp_max(score);
    // The maximum is finite, or all is NaN and stays NaN.
    float weight = lane < count ? expf(score - sum.maximum) : 0.0f;
    sum.total = warp_sum(weight);
#pragma unroll
    for (int i = 0; i < LATENT / 64; i++) sum.acc[i] = make_float2(0.0f, 0.0f);
    for (u32 j = 0; j < count; j += 4) {
        Pair<T> pairs[4][LATENT / 64];
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int i = 0; i < LATENT / 64; i++) pairs[e][i].load(entry(j + e) + 64 * i);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float p = __shfl_sync(~0u, weight, j + e);
            // What was never written may be NaN, even under a weight of 0.
            if (j + e < count) {
#pragma unroll
                for (int i = 0; i < LATENT / 64; i++) {
                    float2 value = pairs[e][i].unpack();
                    sum.acc[i].x = fmaf(p, value.x, sum.acc[i].x);
                    sum.acc[i].y = fmaf(p, value.y, sum.acc[i].y);
                }
            }
        }
    }
}

// Milakov & Gimelshein 2018, arXiv:1805.02867.
template <int N>
__device__ __forceinline__ void merge(Running<N>& into, const Running<N>& unit) {
    float maximum = fmaxf(into.maximum, unit.maximum);
    float old_scale = expf(into.maximum - maximum), new_scale = expf(unit.maximum - maximum);
    into.maximum = maximum;
    into.total = fmaf(into.total, old_scale, unit.total * new_scale);
#pragma unroll
    for (int i = 0; i < N; i++) {
        into.acc[i].x = fmaf(into.acc[i].x, old_scale, unit.acc[i].x * new_scale);
        into.acc[i].y = fmaf(into.acc[i].y, old_scale, unit.acc[i].y * new_scale);
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
        query[i] = *(const float2*)(queries + (row * heads + head) * WIDTH + 64 * i + 2 * (threadIdx.x % 32));
}

// Units one after the other. grid (heads / 8, rows), 256 threads: a warp a head.
template <typename T>
__device__ __forceinline__ void attend(const float* queries, u32 heads, float scale, const Row* rows, const u32* pages,
                                       Choices choices, const T* cache, int order, u16* out) {
    wait_for_previous();
    u64 row = blockIdx.y;
    u32 head = blockIdx.x * 8 + threadIdx.x / 32;
    if (head >= heads) return;
    float2 query[WIDTH / 64];
    load_query(queries, row, head, heads, query);
    Seen seen(choices, row, rows[row].position, pages + rows[row].table);
    scale = seen.scale(scale);
    Sum sum, unit;
    empty(sum);
    for (u32 i = 0; i * UNIT < seen.count; i++) {
        unit_sum(query, cache, seen, i, scale, unit);
        merge(sum, unit);
    }
    finish(sum, row, head, heads, order, out);
}

// Units side by side. grid (units, heads / 8, rows); partial: [rows, heads, units, PARTIAL]: maximum and total, and after a sector of
// memory the LATENT sums.
#define PARTIAL_SUMS 8
#define PARTIAL (PARTIAL_SUMS + LATENT)
template <typename T>
__device__ __forceinline__ void attend_units(const float* queries, u32 heads, float scale, const Row* rows,
                                             const u32* pages, Choices choices, const T* cache, float* partial) {
    wait_for_previous();
    u64 row = blockIdx.z;
    u32 head = blockIdx.y * 8 + threadIdx.x / 32, i = blockIdx.x, lane = threadIdx.x % 32;
    Seen seen(choices, row, rows[row].position, pages + rows[row].table);
    if (head >= heads || i * UNIT >= seen.count) return;
    float2 query[WIDTH / 64];
    load_query(queries, row, head, heads, query);
    Sum unit;
    unit_sum(query, cache, seen, i, seen.scale(scale), unit);
    float* out = partial + ((row * heads + head) * gridDim.x + i) * PARTIAL;
    if (lane == 0) *(float2*)out = make_float2(unit.maximum, unit.total);
#pragma unroll
    for (int c = 0; c < LATENT / 64; c++) *(float2*)(out + PARTIAL_SUMS + 64 * c + 2 * lane) = unit.acc[c];
}

// Units of a row that were summed by themselves. tokens: of a unit; 0: spans (see attention_tensor.cu).
__device__ __forceinline__ u32 units_of(u32 position, u32 tokens);

// The same merges, two columns a thread, by MERGE_THREADS threads: columns 2 i and 2 i + 1 of the sums of a head's `count` units. The scales of all
// merges come first: the maxima so far are a scan, in any order. Of up to 32 units every warp makes them for itself, and the first sums come
// meanwhile.
#define MERGE_THREADS (LATENT / 2)
#define MERGED_AT_ONCE 8
struct MergeMemory {
    float maxima[MERGE_THREADS / 32], totals[MERGE_THREADS];
    float2 scales[MERGE_THREADS];
};
__device__ __forceinline__ float2 merge_columns(const float* partial, u32 count, MergeMemory& memory) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float2 acc = make_float2(0.0f, 0.0f);
    float maximum = -INFINITY_F, total = 0.0f;
    auto head_of = [&](u32 i) { return i < count ? *(const float2*)(partial + i * PARTIAL) : make_float2(-INFINITY_F, 0.0f); };
    auto sums_of = [&](u32 i) { return *(const float2*)(partial + i * PARTIAL + PARTIAL_SUMS + 2 * threadIdx.x); };
    auto add = [&](float2 scale, float of_total, float2 sum) {
        total = fmaf(total, scale.x, of_total * scale.y);
        acc.x = fmaf(acc.x, scale.x, sum.x * scale.y);
        acc.y = fmaf(acc.y, scale.x, sum.y * scale.y);
    };
    // The highest of the warp's units up to a lane's, and before it.
    auto scan = [&](float own, float& before) {
        float so_far = own;
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            float left = __shfl_up_sync(~0u, so_far, step);
            if (lane >= step) so_far = fmaxf(left, so_far);
        }
        before = __shfl_up_sync(~0u, so_far, 1);
        if (lane == 0) before = -INFINITY_F;
        return so_far;
    };
    if (count <= 32) {
        float2 mine = head_of(lane), sums[MERGED_AT_ONCE];
        float before, so_far;
#pragma unroll 1
        for (u32 base = 0; base < count; base += MERGED_AT_ONCE) {
#pragma unroll
            for (u32 i = 0; i < MERGED_AT_ONCE; i++) sums[i] = sums_of(min(base + i, count - 1));
            if (base == 0) {
                so_far = scan(mine.x, before);
                before = expf(before - so_far), so_far = expf(mine.x - so_far);
            }
#pragma unroll
            for (u32 i = 0; i < MERGED_AT_ONCE; i++) {
                float2 scale = make_float2(__shfl_sync(~0u, before, base + i), __shfl_sync(~0u, so_far, base + i));
                float of_total = __shfl_sync(~0u, mine.y, base + i);
                if (base + i < count) add(scale, of_total, sums[i]);
            }
        }
    }
    for (u32 base = 0; count > 32 && base < count; base += MERGE_THREADS) {
        float2 mine = head_of(base + threadIdx.x);
        float before, so_far = scan(mine.x, before);
        __syncthreads();
        if (lane == 31) memory.maxima[warp] = so_far;
        memory.totals[threadIdx.x] = mine.y;
        __syncthreads();
        float left = maximum;
        for (u32 w = 0; w < MERGE_THREADS / 32; w++) {
            if (w < warp) left = fmaxf(left, memory.maxima[w]);
            maximum = fmaxf(maximum, memory.maxima[w]);
        }
        before = fmaxf(left, before);
        so_far = fmaxf(left, so_far);
        memory.scales[threadIdx.x] = make_float2(expf(before - so_far), expf(mine.x - so_far));
        __syncthreads();
        u32 here = min(MERGE_THREADS, count - base);
#pragma unroll 8
        for (u32 u = 0; u < here; u++) add(memory.scales[u], memory.totals[u], sums_of(base + u));
    }
    return make_float2(acc.x / total, acc.y / total);
}

// Units of a row, which stands there since before the step.
__device__ __forceinline__ u32 units_of_row(const Row* rows, const Choices& choices, u64 row, u32 tokens) {
    return units_of(Seen(choices, row, __ldcg(&rows[row].position), nullptr).count - 1, tokens);
}

// grid (heads, rows), MERGE_THREADS threads.
extern "C" __global__ void __launch_bounds__(MERGE_THREADS)
    merge_units(const float* partial, u32 heads, u32 units, u32 tokens, const Row* rows, Choices choices, int order, u16* out) {
    __shared__ MergeMemory memory;
    // A product follows, or sums of other rows, whose entries were written long ago.
    let_next_start();
    u64 row = blockIdx.y;
    u32 head = blockIdx.x, width = heads * LATENT, column = head * LATENT + 2 * threadIdx.x;
    u32 count = units_of_row(rows, choices, row, tokens);
    wait_for_previous();
    float2 both = merge_columns(partial + (row * heads + head) * units * PARTIAL, count, memory);
    out += row * TERMS * width;
    store_split(out, width, order, column, both.x);
    store_split(out, width, order, column + 1, both.y);
}

#define ATTENTION(SUFFIX, T)                                                                                             \
    extern "C" __global__ void attention_inputs_##SUFFIX(                                                                \
        const float* entries, const float* norm, float eps, const float* queries, u32 heads, u32 at_once, u32 nope,      \
        const float2* angles, int interleaved, const Row* rows, const u32* pages, T* cache, float cache_scale,           \
        u16* nope_split, float* absorbed) {                                                                              \
        attention_inputs(entries, norm, eps, queries, heads, at_once, nope, angles, interleaved, rows, pages, cache,     \
                         cache_scale, nope_split, absorbed);                                                             \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                    \
        attend_##SUFFIX(const float* queries, u32 heads, float scale, const Row* rows, const u32* pages, Choices choices, \
                        const T* cache, int order, u16* out) {                                                           \
        attend(queries, heads, scale, rows, pages, choices, cache, order, out);                                          \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                                    \
        attend_units_##SUFFIX(const float* queries, u32 heads, float scale, const Row* rows, const u32* pages,           \
                              Choices choices, const T* cache, float* partial) {                                         \
        attend_units(queries, heads, scale, rows, pages, choices, cache, partial);                                       \
    }
ATTENTION(f32, float)
ATTENTION(bf16, u16)
ATTENTION(f8, u8)
