// What log-probabilities of a row are made of, by the rules of `logprobs.rs` to the bit: the likeliest tokens, the rank of one token,
// and the sum of all weights as `choice.rs` has them, which are whole numbers. A block a row, or a cluster of them, as for draws.

// `MOST_LISTED` of scoring.rs: a lane of a warp holds one.
#define LISTED 32

struct Wish {
    u32 row;
    u32 token;  // ~0: the one that was drawn there
};

struct Scored {
    u64 total;      // of all weights, in 2^-40 of the likeliest token's
    float highest;  // the likeliest token's logit
    u32 token;
    float logit;
    u32 rank;  // 1 + the tokens above it; 0: a logit is not finite
    u32 tokens[LISTED];  // the likeliest ones, best first, at equal logits by number; ~0 where there are no more
    float logits[LISTED];
};

__device__ __forceinline__ u64 shuffle_xor(u64 x, u32 mask) {
    u32 low = __shfl_xor_sync(~0u, (u32)x, mask), high = __shfl_xor_sync(~0u, (u32)(x >> 32), mask);
    return (u64)high << 32 | low;
}

// A warp's list, a lane each, in falling order: keys above, the token's complement below, so that no two are equal. 0: none.
__device__ __forceinline__ void insert(u64& list, u64 x) {
    u32 lane = threadIdx.x % 32, place = __popc(__ballot_sync(~0u, list > x));
    u64 left = shuffle_up(list, 1);
    if (lane == place) list = x;
    if (lane > place) list = left;
}

// The best of two lists.
__device__ __forceinline__ u64 merge(u64 a, u64 b) {
    u32 lane = threadIdx.x % 32;
    u64 other = shuffle_xor(b, 31), best = a > other ? a : other;
    // It rises and falls once at most: five comparisons a lane sort it.
    for (u32 step = 16; step > 0; step /= 2) {
        other = shuffle_xor(best, step);
        bool larger = other > best;
        best = larger == ((lane & step) == 0) ? other : best;
    }
    return best;
}

// grid (PARTS wishes): scored[i] of the row logits[wishes[i].row]; logits [rows, vocab].
template <int PARTS>
__device__ __forceinline__ void score(const float* logits, u32 vocab, const Wish* wishes, const u32* drawn, Scored* scored) {
    __shared__ u64 lists[32][LISTED];
    __shared__ u32 best_low[LISTED], best_high[LISTED], wrong, total_low, total_high, above;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) wrong = 0;
    wait_for_previous();
    __syncthreads();
    u32 number = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
    u32 of_part = (vocab + PARTS - 1) / PARTS, start = min(part * of_part, vocab), stop = min(start + of_part, vocab);
    Wish wish = wishes[number];
    const float* row = logits + (u64)wish.row * vocab;
    u32 token = wish.token == ~0u ? drawn[wish.row] : wish.token;
    u64 list = 0, last = 0;
    u32 bad = 0;
    // A warp takes 256 neighbouring values at a time, all lanes together.
    for (u32 base = start + 256 * warp; base < stop; base += 8 * SCAN_THREADS) {
        float ahead[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) ahead[i] = base + 32 * i + lane < stop ? row[base + 32 * i + lane] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 at = base + 32 * i + lane;
            bad |= (__float_as_uint(ahead[i]) & 0x7f800000u) == 0x7f800000u;
            u64 x = at < stop ? (u64)key(ahead[i]) << 32 | ~at : 0;
            u32 better = __ballot_sync(~0u, x > last);
            if (better == 0) continue;
            for (; better; better &= better - 1) insert(list, of_lane(x, __ffs(better) - 1));
            last = of_lane(list, LISTED - 1);
        }
    }
    if (bad) wrong = 1;
    lists[warp][lane] = list;
    __syncthreads();
    for (u32 step = 16; step > 0; step /= 2) {
        if (warp < step) lists[warp][lane] = list = merge(list, lists[warp + step][lane]);
        __syncthreads();
    }
    if (warp == 0) best_low[lane] = (u32)list, best_high[lane] = (u32)(list >> 32);
    group_sync<PARTS>();
    u32 highest_key = 0;
    bad = 0;
    for (u32 p = 0; p < PARTS; p++) {
        highest_key = max(highest_key, load_of<PARTS>(&best_high[0], p));
        bad |= load_of<PARTS>(&wrong, p);
    }
    // A row that has a NaN draws no token.
    if (bad) token = 0;
    float highest = __uint_as_float(highest_key >> 31 ? highest_key & 0x7fffffffu : ~highest_key), own = row[token];
    u64 sum = 0, total, count = 0, all_above;
    each_value(row, start + threadIdx.x, stop, SCAN_THREADS, [&](u32, float logit) {
        sum += (u64)(exp_as_host(logit - highest) * 0x1p40f);
        count += logit > own;
    });
    block_scan(sum, total);
    block_scan(count, all_above);
    if (threadIdx.x == 0) total_low = (u32)total, total_high = (u32)(total >> 32), above = (u32)all_above;
    group_sync<PARTS>();
    if (part == 0 && warp == 0) {
        u64 sums = 0;
        u32 rank = 1;
        for (u32 p = 0; p < PARTS; p++) {
            sums += (u64)load_of<PARTS>(&total_high, p) << 32 | load_of<PARTS>(&total_low, p);
            rank += load_of<PARTS>(&above, p);
            if (p > 0) list = merge(list, (u64)load_of<PARTS>(&best_high[lane], p) << 32 | load_of<PARTS>(&best_low[lane], p));
        }
        Scored* out = scored + number;
        u32 listed = list ? ~(u32)list : ~0u;
        out->tokens[lane] = listed;
        out->logits[lane] = list ? row[listed] : 0.0f;
        if (lane == 0) {
            out->total = sums;
            out->highest = highest;
            out->token = token;
            out->logit = own;
            out->rank = bad ? 0 : rank;
        }
    }
    // Others may still read from this block.
    group_sync<PARTS>();
}

extern "C" __global__ void __launch_bounds__(SCAN_THREADS, 1)
    score_1(const float* logits, u32 vocab, const Wish* wishes, const u32* drawn, Scored* scored) {
    score<1>(logits, vocab, wishes, drawn, scored);
}

// From Hopper on.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS, 1) CLUSTER
    score_8(const float* logits, u32 vocab, const Wish* wishes, const u32* drawn, Scored* scored) {
    score<8>(logits, vocab, wishes, drawn, scored);
}
