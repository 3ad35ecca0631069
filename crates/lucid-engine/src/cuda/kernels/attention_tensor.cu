// Multi-head latent attention on tensor cores: queries and softmax weights are rounded to bf16, the cache holds bf16 or E4M3 codes,
// which are bf16 numbers too, sums are f32.
// For serving; attention.cu has the plain versions.
//
// All heads read the same entries (as FlashMLA does it), so 16 MT heads are operand A's rows and a page is read once for them.
// A running softmax goes through the pages of a span, and spans, which begin at fixed positions, are merged in order. Whether
// spans run one after the other in one block or side by side (then merge_units merges them) does not change a bit.

// How many pages a span has depends on how many the row sees, on nothing else: short spans keep many multiprocessors busy with one
// sequence, and long ones leave less to merge.
__device__ __forceinline__ u32 span_pages(u32 pages) { return pages <= 16 ? 2 : pages <= 64 ? 4 : pages <= 256 ? 8 : 16; }
__device__ __forceinline__ u32 spans_of(u32 pages) { return (pages + span_pages(pages) - 1) / span_pages(pages); }
__device__ __forceinline__ u32 units_of(u32 position, u32 tokens) {
    return tokens ? position / tokens + 1 : spans_of(position / PAGE_TOKENS + 1);
}
#define ENTRY_PITCH (2 * WIDTH + 16)  // bytes: eight rows lie in different banks

// A score is the sum of two parts, each of half of the columns; a warp has one part of a quarter of the tokens. Then each warp has an
// eighth of the latent columns.
template <int MT>
struct AttentionMemory {
    // Of codes: the first is the page as bf16, the second has room for two pages as they are stored.
    u8 pages[2][PAGE_TOKENS * ENTRY_PITCH];
    u8 queries[16 * MT * ENTRY_PITCH];
    float scores[2][16 * MT][PAGE_TOKENS + 8];
    u16 weights[16 * MT][PAGE_TOKENS + 8];
    float rescale[16 * MT];
    float total_rescale[16 * MT], span_rescale[16 * MT];
};

__device__ __forceinline__ void load_matrices(u32 (&m)[4], const void* at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(at)) : "memory");
}
__device__ __forceinline__ void load_transposed(u32 (&m)[4], const void* at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(at)) : "memory");
}

template <typename T>
constexpr u32 PITCH = sizeof(T) == 1 ? WIDTH : ENTRY_PITCH;

// Where the entries of a page are fetched to.
template <typename T, int MT>
__device__ __forceinline__ u8* fetched(AttentionMemory<MT>& memory, u32 page) {
    return sizeof(T) == 1 ? memory.pages[1] + page % 2 * (PAGE_TOKENS * WIDTH) : memory.pages[page % 2];
}

// The page's entries, or as many chosen ones that lie anywhere.
template <typename T>
__device__ __forceinline__ void fetch_page(u8* to, const T* cache, const Seen& seen, u32 page) {
    const u32 PARTS = WIDTH * sizeof(T) / 16;
    u64 first = seen.place(page * PAGE_TOKENS);
    for (u32 i = threadIdx.x; i < PAGE_TOKENS * PARTS; i += THREADS) {
        u32 entry = i / PARTS;
        u64 place = seen.list ? seen.place(page * PAGE_TOKENS + entry) : first + entry;
        copy_16(to + entry * PITCH<T> + i % PARTS * 16, (const u8*)(cache + place * WIDTH) + i % PARTS * 16);
    }
}

// Two E4M3 codes, each in the upper byte of a half, as bf16: the exponent's bias changes by a product with 2^120, exact for
// subnormals too. NaN becomes 480.
__device__ __forceinline__ u32 widened(u32 codes) {
    u32 pair = codes & 0x80008000u | codes >> 4 & 0x07f007f0u;
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(0x7b807b80u), "r"(0x80008000u));
    return pair;
}

// Eight codes in the order of their columns.
__device__ __forceinline__ uint4 widened(u32 low, u32 high) {
    uint4 wide = make_uint4(widened(__byte_perm(low, 0, 0x1404)), widened(__byte_perm(low, 0, 0x3424)),
                            widened(__byte_perm(high, 0, 0x1404)), widened(__byte_perm(high, 0, 0x3424)));
    u32 wrong = (low & 0x7f7f7f7fu) + 0x01010101u | (high & 0x7f7f7f7fu) + 0x01010101u;
    // A NaN must reach the logits, wherever it is.
    if (wrong & 0x80808080u) wide.x = 0x7fc07fc0u;
    return wide;
}

// The first `count` entries of a page of codes as bf16.
__device__ __forceinline__ void widen_page(u8* to, const u8* codes, u32 count) {
    const u32 PARTS = WIDTH / 8;
    for (u32 i = threadIdx.x; i < count * PARTS; i += THREADS) {
        uint2 eight = *(const uint2*)(codes + 8 * i);
        *(uint4*)(to + i / PARTS * ENTRY_PITCH + i % PARTS * 16) = widened(eight.x, eight.y);
    }
}

// Scores of a page, in two parts.
template <int MT>
__device__ __forceinline__ void score_page(AttentionMemory<MT>& memory, const u8* page) {
    u32 lane = threadIdx.x % 32, part = threadIdx.x / 32 % 2, first = threadIdx.x / 64 * 16;
    float scores[MT][2][4] = {};
    const u8* query = memory.queries + lane % 16 * ENTRY_PITCH + lane / 16 * 16;
    const u8* entry = page + (first + lane / 16 * 8 + lane % 8) * ENTRY_PITCH + lane / 8 % 2 * 16;
#pragma unroll
    for (int step = 0; step < WIDTH / 32; step++) {
        u32 at = 2 * (part * (WIDTH / 2) + 16 * step);
        u32 a[MT][4], b[4];
#pragma unroll
        for (int m = 0; m < MT; m++) load_matrices(a[m], query + 16 * m * ENTRY_PITCH + at);
        load_matrices(b, entry + at);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < 2; n++) mma(scores[m][n], a[m][0], a[m][1], a[m][2], a[m][3], b[2 * n], b[2 * n + 1]);
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int high = 0; high < 2; high++)
                *(float2*)&memory.scores[part][16 * m + 8 * high + lane / 4][first + 8 * n + lane % 4 * 2] =
                    make_float2(scores[m][n][2 * high], scores[m][n][2 * high + 1]);
}

// A softmax over scores so far, in powers of two: of one head, held by all threads of that head.
struct Softmax {
    float maximum, total;
};
#define LOG2_E 1.44269504f
#define LN_2 0.69314718f
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two weights as bf16, and their sum: what is summed is what is multiplied with.
__device__ __forceinline__ u32 weigh(float low, float high, float maximum, float& sum) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(power_of_two(high - maximum)), "f"(power_of_two(low - maximum)));
    sum = bf16_to_f32(pair) + bf16_to_f32(pair >> 16);
    return pair;
}

// The sum of `COUNT` sums of two tokens, each half as far apart as the last time, then over the `lanes` of a head in the same way: one
// tree over the page's tokens (32, 16, 8, 4 and 2 tokens apart), however many threads share a head.
template <int COUNT>
__device__ __forceinline__ float sum_weights(float (&sums)[COUNT], u32 lanes) {
#pragma unroll
    for (int half = COUNT / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    float total = sums[0];
#pragma unroll
    for (u32 lane = lanes / 2; lane > 0; lane /= 2) total += __shfl_xor_sync(~0u, total, lane);
    return total;
}

// From scores to weights under the running maximum. Four threads of a head have the pairs of eight tokens that lie together.
template <int MT>
__device__ __forceinline__ void weigh_page(AttentionMemory<MT>& memory, Softmax& softmax, float scale, u32 visible) {
    const u32 PER_HEAD = THREADS / (16 * MT), PAIRS = PAGE_TOKENS / 2 / PER_HEAD;
    u32 head = threadIdx.x / PER_HEAD, first = threadIdx.x % PER_HEAD * 2;
    float score[PAIRS][2], highest = -INFINITY_F;
#pragma unroll
    for (u32 pair = 0; pair < PAIRS; pair++) {
        u32 token = first + 2 * PER_HEAD * pair;
        float2 low = *(const float2*)&memory.scores[0][head][token], high = *(const float2*)&memory.scores[1][head][token];
        score[pair][0] = token < visible ? (low.x + high.x) * scale : -INFINITY_F;
        score[pair][1] = token + 1 < visible ? (low.y + high.y) * scale : -INFINITY_F;
        highest = fmaxf(highest, fmaxf(score[pair][0], score[pair][1]));
    }
#pragma unroll
    for (u32 lane = PER_HEAD / 2; lane > 0; lane /= 2) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, lane));
    // Finite, or all is NaN and stays NaN.
    float maximum = fmaxf(softmax.maximum, highest), rescale = power_of_two(softmax.maximum - maximum), sums[PAIRS];
#pragma unroll
    for (u32 pair = 0; pair < PAIRS; pair++)
        *(u32*)&memory.weights[head][first + 2 * PER_HEAD * pair] = weigh(score[pair][0], score[pair][1], maximum, sums[pair]);
    softmax.total = fmaf(softmax.total, rescale, sum_weights(sums, PER_HEAD));
    softmax.maximum = maximum;
    if (threadIdx.x % PER_HEAD == 0) memory.rescale[head] = rescale;
}

// A warp's sums: an eighth of the latent columns of all heads. Values of rows g and g + 8 of each row tile.
#define SUM_TILES (LATENT / 64)
template <int MT>
struct HeadSums {
    float d[MT][SUM_TILES][4];
};

// sums = rescale · sums + weights · page
template <int MT>
__device__ __forceinline__ void add_page(AttentionMemory<MT>& memory, const u8* page, HeadSums<MT>& sums) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < MT; m++) {
        float low = memory.rescale[16 * m + lane / 4], high = memory.rescale[16 * m + 8 + lane / 4];
#pragma unroll
        for (int n = 0; n < SUM_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums.d[m][n][i] *= i < 2 ? low : high;
    }
    const u16* weight = &memory.weights[lane % 16][lane / 16 * 8];
    const u8* entry = page + lane % 16 * ENTRY_PITCH + 2 * (warp * (LATENT / 8) + lane / 16 * 8);
#pragma unroll
    for (int step = 0; step < PAGE_TOKENS / 16; step++) {
        u32 a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) load_matrices(a[m], weight + 16 * m * (PAGE_TOKENS + 8) + 16 * step);
#pragma unroll
        for (int n = 0; n < SUM_TILES; n += 2) {
            u32 b[4];
            load_transposed(b, entry + 16 * step * ENTRY_PITCH + 16 * n);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(sums.d[m][n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
                mma(sums.d[m][n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
            }
        }
    }
}

template <int MT>
__device__ __forceinline__ void clear(HeadSums<MT>& sums) {
#pragma unroll
    for (int i = 0; i < MT * SUM_TILES * 4; i++) (&sums.d[0][0][0])[i] = 0.0f;
}

// Calls f(head in the block, latent column, two sums) for all that the thread holds.
template <int MT, typename F>
__device__ __forceinline__ void each_pair(const HeadSums<MT>& sums, F f) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int high = 0; high < 2; high++)
#pragma unroll
            for (int n = 0; n < SUM_TILES; n++)
                f(16 * m + 8 * high + lane / 4, warp * (LATENT / 8) + 8 * n + lane % 4 * 2, sums.d[m][n][2 * high],
                  sums.d[m][n][2 * high + 1]);
}

// WHOLE: all spans of a row; grid (1, heads / (16 MT), rows); out [rows, heads * LATENT] in split form.
// Else one span; grid (spans, heads / (16 MT), rows); partial [rows, heads, spans, PARTIAL]. 256 threads.
template <int MT, bool WHOLE, typename T>
__device__ __forceinline__ void attend_spans(const float* queries, u32 heads, float scale, const Row* rows, const u32* pages,
                                             Choices choices, const T* cache, int order, u16* out, float* partial) {
    static_assert(sizeof(AttentionMemory<MT>) <= ATTENTION_SHARED, "see kernels.rs");
    AttentionMemory<MT>& memory = *(AttentionMemory<MT>*)block_memory;
    const u32 PER_HEAD = THREADS / (16 * MT);
    u64 row = blockIdx.z;
    u32 first_head = blockIdx.y * 16 * MT, here = min(heads - first_head, 16 * MT);
    // Rows, pages and entries are complete when this kernel starts: the one before it only computes queries.
    Seen seen(choices, row, __ldcg(&rows[row].position), pages + __ldcg(&rows[row].table));
    u32 visible = seen.count, all = (visible + PAGE_TOKENS - 1) / PAGE_TOKENS;
    u32 in_span = span_pages(all), at = WHOLE ? 0 : blockIdx.x * in_span, last = WHOLE ? all : min(all, at + in_span);
    scale = seen.scale(scale) * LOG2_E;
    if (at >= last) {
        wait_for_previous();
        return;
    }
    fetch_page(fetched<T>(memory, at), cache, seen, at);
    end_copies();
    wait_for_previous();
    queries += (row * heads + first_head) * WIDTH;
    for (u32 i = threadIdx.x; i < 16 * MT * WIDTH / 2; i += THREADS) {
        u32 head = i / (WIDTH / 2), column = i % (WIDTH / 2) * 2;
        float2 pair = head < here ? *(const float2*)(queries + head * WIDTH + column) : make_float2(0.0f, 0.0f);
        *(u32*)(memory.queries + head * ENTRY_PITCH + 2 * column) = pack_bf16(pair.x, pair.y);
    }
    Softmax softmax{-INFINITY_F, 0.0f}, whole{-INFINITY_F, 0.0f};
    HeadSums<MT> sums, total;
    clear(sums);
    if (WHOLE) clear(total);
    for (; at < last; at++) {
        u8* page = memory.pages[sizeof(T) == 1 ? 0 : at % 2];
        wait_copies<0>();
        __syncthreads();
        u32 in_page = min(PAGE_TOKENS, visible - at * PAGE_TOKENS);
        if (at + 1 < last) fetch_page(fetched<T>(memory, at + 1), cache, seen, at + 1);
        end_copies();
        if constexpr (sizeof(T) == 1) {
            widen_page(page, fetched<T>(memory, at), in_page);
            if (in_page == PAGE_TOKENS) __syncthreads();
        }
        if (in_page < PAGE_TOKENS) {
            // What was never written may be NaN, even under a weight of 0.
            for (u32 i = in_page * WIDTH / 8 + threadIdx.x; i < PAGE_TOKENS * WIDTH / 8; i += THREADS)
                *(uint4*)(page + i / (WIDTH / 8) * ENTRY_PITCH + i % (WIDTH / 8) * 16) = make_uint4(0, 0, 0, 0);
            __syncthreads();
        }
        score_page(memory, page);
        __syncthreads();
        weigh_page(memory, softmax, scale, in_page);
        __syncthreads();
        add_page(memory, page, sums);
        if (WHOLE && ((at + 1) % in_span == 0 || at + 1 == last)) {
            // As `merge` does it.
            float of_span = softmax.maximum * LN_2, maximum = fmaxf(whole.maximum, of_span);
            float old_scale = expf(whole.maximum - maximum), new_scale = expf(of_span - maximum);
            whole.total = fmaf(whole.total, old_scale, softmax.total * new_scale);
            whole.maximum = maximum;
            softmax = Softmax{-INFINITY_F, 0.0f};
            if (threadIdx.x % PER_HEAD == 0) {
                memory.total_rescale[threadIdx.x / PER_HEAD] = old_scale;
                memory.span_rescale[threadIdx.x / PER_HEAD] = new_scale;
            }
            __syncthreads();
            u32 g = threadIdx.x % 32 / 4;
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float keep = memory.total_rescale[16 * m + i / 2 * 8 + g], add = memory.span_rescale[16 * m + i / 2 * 8 + g];
#pragma unroll
                    for (int n = 0; n < SUM_TILES; n++)
                        total.d[m][n][i] = fmaf(total.d[m][n][i], keep, sums.d[m][n][i] * add);
                }
            clear(sums);
        }
    }
    u32 head = threadIdx.x / PER_HEAD;
    if (WHOLE) {
        __syncthreads();
        if (threadIdx.x % PER_HEAD == 0) memory.rescale[head] = whole.total;
        __syncthreads();
        u32 width = heads * LATENT;
        out += row * TERMS * width;
        each_pair(total, [&](u32 head, u32 column, float a, float b) {
            if (head >= here) return;
            float all = memory.rescale[head];
            store_split(out, width, order, (first_head + head) * LATENT + column, a / all);
            store_split(out, width, order, (first_head + head) * LATENT + column + 1, b / all);
        });
    } else {
        partial += ((row * heads + first_head) * gridDim.x + blockIdx.x) * PARTIAL;
        u64 stride = gridDim.x * PARTIAL;
        if (threadIdx.x % PER_HEAD == 0 && head < here)
            *(float2*)(partial + head * stride) = make_float2(softmax.maximum * LN_2, softmax.total);
        each_pair(sums, [&](u32 head, u32 column, float a, float b) {
            if (head < here) *(float2*)(partial + head * stride + PARTIAL_SUMS + column) = make_float2(a, b);
        });
    }
}

#define ATTEND(HEADS, SUFFIX, T)                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                             \
        attend_rows_##HEADS##SUFFIX(const float* queries, u32 heads, float scale, const Row* rows, const u32* pages,     \
                                    Choices choices, const T* cache, int order, u16* out) {                              \
        attend_spans<HEADS / 16, true>(queries, heads, scale, rows, pages, choices, cache, order, out, nullptr);         \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                             \
        attend_spans_##HEADS##SUFFIX(const float* queries, u32 heads, float scale, const Row* rows, const u32* pages,    \
                                     Choices choices, const T* cache, float* partial) {                                  \
        attend_spans<HEADS / 16, false>(queries, heads, scale, rows, pages, choices, cache, 0, nullptr, partial);        \
    }
ATTEND(16, , u16)
ATTEND(32, , u16)
ATTEND(16, _f8, u8)
ATTEND(32, _f8, u8)
