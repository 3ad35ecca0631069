// Draws tokens from logits, by the rules of `choice.rs` to the bit: weights are whole numbers, so their sums don't depend on an
// order, and `e^x` is written out as there. A block of 1,024 threads a row, or a cluster of them while
// that leaves none waiting.

struct Choice {
    u64 point;                  // where in the kept weights the draw falls, as a fraction of 2^64
    float inverse_temperature;  // 0: the likeliest token
    float min_p;
    float top_p;                // 1: all
    u32 top_k;                  // 0: all
};

#define BINS 2048

// `exp` of cpu/exp.rs.
__device__ __forceinline__ float exp_as_host(float x) {
    const float round = 12582912.0f;
    float clamped = fminf(fmaxf(x, -87.3f), 88.0f);
    float shifted = clamped * 1.44269504088896340736f + round;
    float n = shifted - round;
    float r = (clamped - n * 0.6933594f) - n * -2.1219444e-4f;
    float series = 1.0f / 5040.0f;
    series = series * r + 1.0f / 720.0f;
    series = series * r + 1.0f / 120.0f;
    series = series * r + 1.0f / 24.0f;
    series = series * r + 1.0f / 6.0f;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    return x < -87.3f ? 0.0f : series * __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
}

// A row's logits, the block's part of them, and what is drawn from them; kept are the tokens above the key `bound`, and those of that
// key up to token `last`.
struct Draw {
    const float* logits;
    u32 part, start, stop;
    Choice choice;
    float highest;
    u32 bound, last;

    __device__ __forceinline__ u64 weight(float logit) const {
        float p = exp_as_host((logit - highest) * choice.inverse_temperature);
        return p < choice.min_p ? 0 : (u64)(p * 0x1p40f);
    }

    __device__ __forceinline__ bool keeps(u32 token, u32 order) const { return order > bound || (order == bound && token <= last); }
};

// Keeps only the best tokens: those before which fewer than `wanted` tokens (or, by weight, less than a share of all weights)
// stand, by logit and at equal logits by number. Finds the last one's key by digits: first how far it lies below the highest logit,
// evenly spaced, because most keys begin alike; then the key's own bits.
template <int PARTS>
__device__ void keep_best(Draw& row, bool by_weight, u64 wanted, float share) {
    __shared__ u32 sums[3][BINS];  // of 14 bits of each measure: a vocabulary has up to 2^18 tokens
    __shared__ u32 chosen, before_low, before_high, own_low, own_high;
    u32 found = 0, bin = 0;
    u64 before = 0;
    for (int digit = 0; digit < 4; digit++) {
        for (u32 i = threadIdx.x; i < 3 * BINS; i += SCAN_THREADS) ((u32*)sums)[i] = 0;
        if (threadIdx.x == 0) chosen = ~0u;
        __syncthreads();
        u32 shift = digit == 1 ? 21 : digit == 2 ? 10 : 0, bits = digit == 3 ? 10 : 11;
        const Draw& r = row;
        each_value(r.logits, r.start + threadIdx.x, r.stop, SCAN_THREADS, [&](u32 token, float logit) {
            u32 order = key(logit);
            u32 distance = (u32)fminf((r.highest - logit) * r.choice.inverse_temperature * 72.0f, BINS - 1.0f), at = distance;
            if (digit > 0) {
                if (distance != bin || (digit > 1 && order >> (shift + bits) != found >> (shift + bits))) return;
                at = (1u << bits) - 1 - (order >> shift & ((1u << bits) - 1));
            }
            u64 weight = r.keeps(token, order) ? r.weight(logit) : 0;
            if (weight == 0) return;
            u64 measure = by_weight ? weight : 1;
            for (int part = 0; part < 3; part++) {
                u32 some = (u32)(measure >> 14 * part) & 0x3fff;
                if (some) atomicAdd(&sums[part][at], some);
            }
        });
        group_sync<PARTS>();
        // A block adds up an equal part of the bins.
        const u32 OWN = BINS / PARTS;
        u64 size[2] = {0, 0}, own, total = 0;
        if (threadIdx.x < OWN / 2) {
#pragma unroll
            for (u32 p = 0; p < PARTS; p++)
#pragma unroll
                for (u32 i = 0; i < 2; i++)
#pragma unroll
                    for (u32 some = 0; some < 3; some++)
                        size[i] += (u64)load_of<PARTS>(&sums[some][row.part * OWN + 2 * threadIdx.x + i], p) << 14 * some;
        }
        u64 begins = before + block_scan(size[0] + size[1], own) - size[0] - size[1];
        if (threadIdx.x == 0) own_low = (u32)own, own_high = (u32)(own >> 32);
        group_sync<PARTS>();
        for (u32 p = 0; p < PARTS; p++) {
            u64 there = (u64)load_of<PARTS>(&own_high, p) << 32 | load_of<PARTS>(&own_low, p);
            if (p < row.part) begins += there;
            total += there;
        }
        if (digit == 0) {
            if (by_weight) wanted = max((u64)((double)total * (double)share), 1ull);
            if (total <= wanted) {
                // All are wanted.
                group_sync<PARTS>();
                return;
            }
        }
        for (u32 i = 0; i < 2; i++) {
            if (begins < wanted && wanted <= begins + size[i])
                chosen = row.part * OWN + 2 * threadIdx.x + i, before_low = (u32)begins, before_high = (u32)(begins >> 32);
            begins += size[i];
        }
        group_sync<PARTS>();
        u32 here = ~0u;
        for (u32 p = 0; p < PARTS; p++) {
            u32 there = load_of<PARTS>(&chosen, p);
            if (there == ~0u) continue;
            here = there;
            before = (u64)load_of<PARTS>(&before_high, p) << 32 | load_of<PARTS>(&before_low, p);
        }
        if (digit == 0)
            bin = here;
        else
            found |= ((1u << bits) - 1 - here) << shift;
        group_sync<PARTS>();
    }
    // All tokens of the last bin have one key and so one measure: as many of them as are needed.
    u64 missing = wanted - before;
    u32 old_bound = row.bound, old_last = row.last;
    row.bound = found;
    row.last = ~0u;
    if (by_weight) {
        u64 each = row.weight(__uint_as_float(found >> 31 ? found & 0x7fffffffu : ~found));
        missing = (missing + each - 1) / each;
    }
    const Draw& r = row;
    row.last = first_past<PARTS>(
        r.logits, r.part, r.start, r.stop,
        [&](u32 token, float logit) -> u64 { return key(logit) == found && (found > old_bound || token <= old_last); },
        [&](u64) { return missing - 1; });
}

// logits [rows, vocab]; drawn [rows]: a token, or ~0 where a logit is not finite. grid (PARTS rows).
template <int PARTS>
__device__ __forceinline__ void sample(const float* logits, u32 vocab, const Choice* choices, u32* drawn) {
    __shared__ u32 best_keys[32], best_tokens[32], wrong, best_key, best_token;
    if (threadIdx.x == 0) wrong = 0;
    wait_for_previous();
    __syncthreads();
    u64 number = blockIdx.x / PARTS;
    u32 part = blockIdx.x % PARTS, of_part = (vocab + PARTS - 1) / PARTS, start = min(part * of_part, vocab);
    Draw row = {logits + number * vocab, part, start, min(start + of_part, vocab), choices[number], 0.0f, 0, ~0u};
    u32 best = 0, at = ~0u, bad = 0;
    each_value(row.logits, start + threadIdx.x, row.stop, SCAN_THREADS, [&](u32 token, float logit) {
        bad |= (__float_as_uint(logit) & 0x7f800000u) == 0x7f800000u;
        u32 order = key(logit);
        if (order > best) best = order, at = token;
    });
    u32 warp_best = __reduce_max_sync(~0u, best);
    at = __reduce_min_sync(~0u, best == warp_best ? at : ~0u);
    if (bad) wrong = 1;
    if (threadIdx.x % 32 == 0) best_keys[threadIdx.x / 32] = warp_best, best_tokens[threadIdx.x / 32] = at;
    __syncthreads();
    best = best_keys[threadIdx.x % 32];
    at = best_tokens[threadIdx.x % 32];
    warp_best = __reduce_max_sync(~0u, best);
    at = __reduce_min_sync(~0u, best == warp_best ? at : ~0u);
    if (threadIdx.x == 0) best_key = warp_best, best_token = at;
    group_sync<PARTS>();
    best = 0, bad = 0;
    for (u32 p = 0; p < PARTS; p++) {
        // Parts are in the order of tokens, so of equal ones the first stays.
        u32 there = load_of<PARTS>(&best_key, p);
        if (there > best) best = there, at = load_of<PARTS>(&best_token, p);
        bad |= load_of<PARTS>(&wrong, p);
    }
    if (bad) at = ~0u;
    if (at != ~0u && row.choice.inverse_temperature > 0.0f) {
        row.highest = row.logits[at];
        if (row.choice.top_k > 0) keep_best<PARTS>(row, false, row.choice.top_k, 0.0f);
        if (row.choice.top_p < 1.0f) keep_best<PARTS>(row, true, 0, row.choice.top_p);
        const Draw& r = row;
        at = first_past<PARTS>(
            r.logits, r.part, r.start, r.stop,
            [&](u32 token, float logit) -> u64 { return r.keeps(token, key(logit)) ? r.weight(logit) : 0; },
            [&](u64 total) { return __umul64hi(r.choice.point, total); });
    }
    if (threadIdx.x == 0 && part == 0) drawn[number] = at;
    // Others may still read from this block.
    group_sync<PARTS>();
}

extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
    sample_1(const float* logits, u32 vocab, const Choice* choices, u32* drawn) {
    sample<1>(logits, vocab, choices, drawn);
}

#if __CUDA_ARCH__ >= 900
#define CLUSTER __cluster_dims__(8, 1, 1)
#else
#define CLUSTER
#endif
// From Hopper on.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) CLUSTER
    sample_8(const float* logits, u32 vocab, const Choice* choices, u32* drawn) {
    sample<8>(logits, vocab, choices, drawn);
}
