// Multi-head latent attention on Hopper's warpgroup products, for many tokens: a block has all of 64 heads and one span of a row, so an
// entry comes from memory once. Its bits are those of attention_tensor.cu: the same spans, scores of two parts, the same order of
// weights and sums, and wgmma of 16 columns gives the bits of mma.sync.
//
// Blocks stay and take one span after the other, so that copies for the next run while the last one's sums are stored. One warpgroup copies
// pages, in turn into two places. One computes scores and their softmax, whose weights go to shared memory; two add the page to the
// sums, a half of the latent columns each, while the next page's scores are computed.
//
// Queries and pages stand by 64 columns, then by eight heads or tokens: 1,024 bytes, swizzled. Scores read them with columns as the
// product's inner dimension, sums with tokens.
// The kernel is for the latent width of all published models; others take attention_tensor.cu.
#define WIDE (HOPPER && LATENT == 512)
#define WIDE_HEADS 64
#define WIDE_THREADS 512
#define HALF (LATENT / 2)
#define COLUMN_BYTES 8192                       // 64 columns of 64 heads or tokens
#define BLOCK_BYTES (WIDTH / 64 * COLUMN_BYTES)  // all of them

struct WideMemory {
    u8 queries[BLOCK_BYTES];
    u8 pages[2][BLOCK_BYTES];
    u8 weights[COLUMN_BYTES];
    float rescale[WIDE_HEADS];
    u64 full[2], empty[2], queries_full, queries_empty, weights_full, weights_read;
};

struct WideJob {
    const float* queries;  // [rows, heads, WIDTH], of which the rotated part counts
    const u16* latents;    // [rows, heads, LATENT], the others
    u32 heads;
    float scale;
    const Row* rows;
    const u32* pages;
    Choices choices;
    float* partial;  // [rows, heads, units, PARTIAL]
    u32 count, units, blocks;  // rows, spans of each, and blocks of heads

    __device__ __forceinline__ u32 items() const { return count * units * blocks; }
};

#if WIDE
// Both operands in shared memory, columns contiguous.
template <int N, bool ADD>
__device__ __forceinline__ void multiply_scores(float (&d)[N / 2], u64 a, u64 b);
MULTIPLY_GROUP_OR(64 COMMA false, multiply_scores, 64, "bf16.bf16", 0, "=f", u64, "%32, %33, add, 1, 1, 0, 0", "l"(a))
MULTIPLY_GROUP_OR(64 COMMA true, multiply_scores, 64, "bf16.bf16", 1, "+f", u64, "%32, %33, add, 1, 1, 0, 0", "l"(a))
// Values that are contiguous in b belong to different columns of d.
template <int N>
__device__ __forceinline__ void multiply_page(float (&d)[N / 2], u64 a, u64 b);
MULTIPLY_GROUP_OR(128, multiply_page, 128, "bf16.bf16", 1, "+f", u64, "%64, %65, add, 1, 1, 0, 1", "l"(a))

// The same with tokens as the inner dimension: 64 columns stand COLUMN_BYTES apart, eight tokens 1,024 bytes.
__device__ __forceinline__ u64 page_operand(u32 address) {
    return operand<1024>(address) | (u64)(COLUMN_BYTES >> 4) << 16;
}
__device__ __forceinline__ void see_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Sixteen bytes, or zeros.
__device__ __forceinline__ void copy_16_or_zero(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// A span of a row: its pages, and how many tokens they have for the row. Empty where the row has fewer spans.
struct Span {
    u64 row;
    u32 unit, first_head, first_page, pages, visible;
    Seen seen;

    // Number `item` of all rows' spans; rows and pages were complete before this kernel started.
    __device__ __forceinline__ Span(u32 item, const WideJob& job)
        : row(item / (job.units * job.blocks)), unit(item % job.units), first_head(item / job.units % job.blocks * WIDE_HEADS),
          seen(job.choices, row, __ldcg(&job.rows[row].position), job.pages + __ldcg(&job.rows[row].table)) {
        u32 all = (seen.count + PAGE_TOKENS - 1) / PAGE_TOKENS, in_span = span_pages(all);
        first_page = unit * in_span;
        pages = first_page < all ? min(in_span, all - first_page) : 0;
        visible = pages ? min(seen.count - first_page * PAGE_TOKENS, in_span * PAGE_TOKENS) : 0;
    }
};

// Where the entries of a page lie that a copying thread copies: numbers `token`, `token` + 64 / N and so on.
template <int N>
struct Places {
    u64 at[N];
    __device__ __forceinline__ Places(const Seen& seen, u32 page, u32 token) {
        u64 neighbours = seen.place(page * PAGE_TOKENS);
#pragma unroll
        for (int i = 0; i < N; i++)
            at[i] = seen.list ? seen.place(page * PAGE_TOKENS + token + i * (PAGE_TOKENS / N)) : neighbours + token + i * (PAGE_TOKENS / N);
    }
};

// Copies the entries that a page of what a row sees has, and zeros for others: what was never written may be NaN, even under a weight of
// 0. By 128 threads, each of which arrives at `full`; `here`: entries.
__device__ __forceinline__ void copy_wide(u32 to, const u16* cache, const Places<4>& places, u32 here, u32 full) {
    u32 token = threadIdx.x % 128 / 8, piece = threadIdx.x % 8;
    to += token * 128 + ((piece ^ token % 8) * 16);
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (int block = 0; block < WIDTH / 64; block++)
            copy_16_or_zero(to + block * COLUMN_BYTES + i * 2048, cache + places.at[i] * WIDTH + 64 * block + 8 * piece, token + 16 * i < here);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
}
__device__ __forceinline__ void store_16(u32 to, const uint4& x) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
// Codes, widened on their way.
__device__ __forceinline__ void copy_wide(u32 to, const u8* cache, const Places<2>& places, u32 here, u32 full) {
    u32 token = threadIdx.x % 128 / 4, piece = threadIdx.x % 4;
#pragma unroll 1
    for (u32 i = 0; i < 2; i++) {
        const u8* from = cache + (i == 0 ? places.at[0] : places.at[1]) * WIDTH + 16 * piece;
        uint4 codes[WIDTH / 64];
#pragma unroll
        for (int block = 0; block < WIDTH / 64; block++)
            codes[block] = token + 32 * i < here ? __ldcg((const uint4*)(from + 64 * block)) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int block = 0; block < WIDTH / 64; block++)
#pragma unroll
            for (u32 half = 0; half < 2; half++)
                store_16(to + block * COLUMN_BYTES + (token + 32 * i) * 128 + ((2 * piece + half ^ token % 8) * 16),
                         half ? widened(codes[block].z, codes[block].w) : widened(codes[block].x, codes[block].y));
    }
    see_copies();
    arrive(full);
}

// Copies the queries of 64 heads, or of as many as there are and zeros: latent parts as bf16 [heads, LATENT], rotated ones rounded from
// f32 [heads, WIDTH]. Each of 128 threads arrives twice.
__device__ __forceinline__ void copy_queries(u32 to, const u16* latents, const float* queries, u32 here, u32 full) {
    u32 thread = threadIdx.x % 128, first = thread / 8, piece = thread % 8;
#pragma unroll
    for (u32 head = first; head < WIDE_HEADS; head += 16)
#pragma unroll
        for (int block = 0; block < LATENT / 64; block++)
            copy_16_or_zero(to + block * COLUMN_BYTES + head * 128 + ((piece ^ head % 8) * 16),
                            latents + min(head, here - 1) * LATENT + 64 * block + 8 * piece, head < here);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
    u32 head = thread / 2, half = thread % 2;
    const float4* rotated = (const float4*)(queries + min(head, here - 1) * WIDTH + LATENT + ROPE / 2 * half);
    float4 fours[ROPE / 8];
#pragma unroll
    for (int i = 0; i < ROPE / 8; i++) fours[i] = head < here ? rotated[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (u32 i = 0; i < ROPE / 16; i++)
        store_16(to + LATENT / 64 * COLUMN_BYTES + head * 128 + ((ROPE / 16 * half + i ^ head % 8) * 16),
                 make_uint4(pack_bf16(fours[2 * i].x, fours[2 * i].y), pack_bf16(fours[2 * i].z, fours[2 * i].w),
                            pack_bf16(fours[2 * i + 1].x, fours[2 * i + 1].y), pack_bf16(fours[2 * i + 1].z, fours[2 * i + 1].w)));
    see_copies();
    arrive(full);
}
static_assert(ROPE == 64, "a block of columns");

// What the copying warpgroup does: where a page lies is known before there is room for it.
template <typename T>
__device__ __forceinline__ void copy_spans(WideMemory& memory, const WideJob& job, const T* cache) {
    const int N = sizeof(T) == 1 ? 2 : 4;
    u32 token = threadIdx.x % 128 / (2 * N), number = 0, spans = 0;
    for (u32 item = blockIdx.x; item < job.items(); item += gridDim.x) {
        Span span(item, job);
        if (span.pages == 0) continue;
        Places<N> places(span.seen, span.first_page, token);
        for (u32 page = 0; page < span.pages; page++, number++) {
            wait_barrier(shared_address(&memory.empty[number % 2]), number / 2 % 2 ^ 1);
            copy_wide(shared_address(memory.pages[number % 2]), cache, places, span.visible - page * PAGE_TOKENS,
                      shared_address(&memory.full[number % 2]));
            if (page + 1 < span.pages) places = Places<N>(span.seen, span.first_page + page + 1, token);
            if (page == 0) {
                // Only the queries come from the kernel before this one.
                if (spans == 0) wait_for_previous();
                wait_barrier(shared_address(&memory.queries_empty), spans % 2 ^ 1);
                u64 first = span.row * job.heads + span.first_head;
                copy_queries(shared_address(memory.queries), job.latents + first * LATENT, job.queries + first * WIDTH,
                             min(job.heads - span.first_head, WIDE_HEADS), shared_address(&memory.queries_full));
                spans++;
            }
        }
    }
    if (spans == 0) wait_for_previous();
}

// The scores of all spans, and their softmax, of rows g and g + 8.
__device__ __forceinline__ void score_spans(WideMemory& memory, const WideJob& job) {
    u32 lane = threadIdx.x % 32, pair = lane % 4 * 2, row = threadIdx.x / 32 % 4 * 16 + lane / 4, number = 0, spans = 0;
    const u64 queries = operand<1024>(shared_address(memory.queries));
    for (u32 item = blockIdx.x; item < job.items(); item += gridDim.x) {
        Span span(item, job);
        if (span.pages == 0) continue;
        Softmax softmax[2] = {{-INFINITY_F, 0.0f}, {-INFINITY_F, 0.0f}};
        float scale = span.seen.scale(job.scale) * LOG2_E;
        wait_barrier(shared_address(&memory.queries_full), spans++ % 2);
        for (u32 page = 0; page < span.pages; page++, number++) {
            u32 here = span.visible - page * PAGE_TOKENS;
            float parts[2][PAGE_TOKENS / 2];
            wait_barrier(shared_address(&memory.full[number % 2]), number / 2 % 2);
            see_copies();
            u64 entries = operand<1024>(shared_address(memory.pages[number % 2]));
            begin_products();
#pragma unroll
            for (int step = 0; step < WIDTH / 16; step++) {
                const u64 at = step / 4 * (COLUMN_BYTES >> 4) + step % 4 * (32 >> 4);
                const int part = step / (WIDTH / 32);
                if (step % (WIDTH / 32) == 0)
                    multiply_scores<PAGE_TOKENS, false>(parts[part], queries + at, entries + at);
                else
                    multiply_scores<PAGE_TOKENS, true>(parts[part], queries + at, entries + at);
            }
            end_products();
            wait_products<0>();
            settle(parts[0]);
            settle(parts[1]);
            if (page + 1 == span.pages && lane == 0) arrive(shared_address(&memory.queries_empty));
            float highest[2] = {-INFINITY_F, -INFINITY_F}, rescale[2], added[2][PAGE_TOKENS / 8];
#pragma unroll
            for (int i = 0; i < PAGE_TOKENS / 2; i++) {
                parts[0][i] = i / 4 * 8 + pair + i % 2 < here ? (parts[0][i] + parts[1][i]) * scale : -INFINITY_F;
                highest[ROW_PAIR(i)] = fmaxf(highest[ROW_PAIR(i)], parts[0][i]);
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                highest[r] = fmaxf(highest[r], __shfl_xor_sync(~0u, highest[r], 1));
                highest[r] = fmaxf(highest[r], __shfl_xor_sync(~0u, highest[r], 2));
                // Finite, or all is NaN and stays NaN.
                float maximum = fmaxf(softmax[r].maximum, highest[r]);
                rescale[r] = power_of_two(softmax[r].maximum - maximum);
                softmax[r].maximum = maximum;
            }
            u32 weights[PAGE_TOKENS / 8][2];
#pragma unroll
            for (int n = 0; n < PAGE_TOKENS / 8; n++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    weights[n][r] = weigh(parts[0][4 * n + 2 * r], parts[0][4 * n + 2 * r + 1], softmax[r].maximum, added[r][n]);
            // The weights and factors of the page before have been read.
            if (number > 0) wait_barrier(shared_address(&memory.weights_read), (number - 1) % 2);
            u8* block = memory.weights + row / 8 * 1024 + row % 8 * 128;
#pragma unroll
            for (int n = 0; n < PAGE_TOKENS / 8; n++)
#pragma unroll
                for (int r = 0; r < 2; r++) *(u32*)(block + r * 1024 + ((n ^ row % 8) * 16) + 2 * pair) = weights[n][r];
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (pair == 0) memory.rescale[row + 8 * r] = rescale[r];
            see_copies();
            arrive(shared_address(&memory.weights_full));
#pragma unroll
            for (int r = 0; r < 2; r++) softmax[r].total = fmaf(softmax[r].total, rescale[r], sum_weights(added[r], 4));
        }
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            u32 head = span.first_head + row + 8 * r;
            if (pair == 0 && head < job.heads)
                *(float2*)(job.partial + ((span.row * job.heads + head) * job.units + span.unit) * PARTIAL) =
                    make_float2(softmax[r].maximum * LN_2, softmax[r].total);
        }
    }
}

// The sums of half of the columns, the first or the second.
__device__ __forceinline__ void sum_spans(WideMemory& memory, const WideJob& job, u32 half) {
    u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4, number = 0;
    const u64 weights = operand<1024>(shared_address(memory.weights));
    for (u32 item = blockIdx.x; item < job.items(); item += gridDim.x) {
        Span span(item, job);
        if (span.pages == 0) continue;
        float sums[2][HALF / 4];
#pragma unroll
        for (int i = 0; i < HALF / 2; i++) (&sums[0][0])[i] = 0.0f;
        for (u32 page = 0; page < span.pages; page++, number++) {
            // Whoever made the weights has seen the page; so that these products see it, too:
            wait_barrier(shared_address(&memory.full[number % 2]), number / 2 % 2);
            wait_barrier(shared_address(&memory.weights_full), number % 2);
            see_copies();
            float rescale[2] = {memory.rescale[row], memory.rescale[row + 8]};
#pragma unroll
            for (int i = 0; i < HALF / 2; i++) (&sums[0][0])[i] *= rescale[ROW_PAIR(i)];
            u64 values = page_operand(shared_address(memory.pages[number % 2]) + half * (HALF / 64) * COLUMN_BYTES);
            begin_products();
#pragma unroll
            for (int step = 0; step < PAGE_TOKENS / 16; step++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    multiply_page<HALF / 2>(sums[i], weights + step * (32 >> 4), values + i * (2 * COLUMN_BYTES >> 4) + step * (2048 >> 4));
            end_products();
            wait_products<0>();
            settle(sums[0]);
            settle(sums[1]);
            if (lane == 0) arrive(shared_address(&memory.empty[number % 2]));
            arrive(shared_address(&memory.weights_read));
        }
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            u32 head = span.first_head + row + 8 * r;
            if (head >= job.heads) continue;
            float* to = job.partial + ((span.row * job.heads + head) * job.units + span.unit) * PARTIAL + PARTIAL_SUMS + half * HALF + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < HALF / 8; n++) *(float2*)(to + 8 * n) = make_float2((&sums[0][0])[4 * n + 2 * r], (&sums[0][0])[4 * n + 2 * r + 1]);
        }
    }
}
#endif

// The spans of `count` rows, `units` of each at the most, as attend_spans of attention_tensor.cu sums them. grid (as many blocks as run at
// once), 512 threads.
template <typename T>
__device__ __forceinline__ void attend_wide(const WideJob& job, const T* cache) {
#if WIDE
    static_assert(sizeof(WideMemory) + 1024 <= ATTENTION_SHARED, "see kernels.rs");
    // 128-byte swizzle counts from multiples of 1,024.
    WideMemory& memory = *(WideMemory*)(block_memory + (0u - shared_address(block_memory) & 1023));
    if (threadIdx.x == 0) {
        auto init = [](u64& barrier, u32 arrivals) {
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
        };
#pragma unroll
        for (int stage = 0; stage < 2; stage++) {
            init(memory.full[stage], 128);
            init(memory.empty[stage], 8);
        }
        init(memory.queries_full, 256);
        init(memory.queries_empty, 4);
        // Every thread arrives there, as each has written or read factors. Named barriers at which one side only arrives would do, and save one
        // row 3 us at 32,768 tokens; but compute-sanitizer doesn't count that side, and what it can't follow it can't check.
        init(memory.weights_full, 128);
        init(memory.weights_read, 256);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    // The same for all of a warp, as the compiler sees it: else it lets each product wait for the one before.
    u32 group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (group == 3) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
        copy_spans(memory, job, cache);
    } else if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 112;");
        wait_for_previous();
        score_spans(memory, job);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        wait_for_previous();
        sum_spans(memory, job, group - 1);
    }
#endif
}

#define ATTEND_WIDE(SUFFIX, T)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1) attend_wide_##SUFFIX(const __grid_constant__ WideJob job, const T* cache) { \
        attend_wide(job, cache);                                                                                                       \
    }
ATTEND_WIDE(bf16, u16)
ATTEND_WIDE(f8, u8)
