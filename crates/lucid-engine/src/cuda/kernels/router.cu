// The router: which experts a token goes to, with what weight (DeepSeek-V3, arXiv:2412.19437, §2.1), and the lists of the experts that are
// here.

struct Routing {
    u32 experts;
    u32 per_token;
    u32 groups;
    u32 keep_groups;
    int softmax;    // else sigmoid
    int normalize;
    float scaling;
    int shared;     // expert number `here` is the shared one and sees every token
    u32 first;      // number of the first expert that is here, of `here`; in the lists it has the number 0
    u32 here;
    u32 rank;       // number of this rank, of `ranks` that all have the shared expert as number `here`, each for some tokens; or 0 ranks
    u32 ranks;
};

// An expert's number in the lists; it is not below `here` if the expert is another rank's.
__device__ __forceinline__ u32 number_here(const Routing& r, u32 expert) { return expert - r.first; }

// (a, i) is a better choice than (b, j): the higher score, at equal scores the lower number; NaN is the worst.
__device__ __forceinline__ bool better(float a, u32 i, float b, u32 j) {
    bool a_nan = a != a, b_nan = b != b;
    if (a_nan || b_nan) return a_nan == b_nan ? i < j : b_nan;
    return a > b || (a == b && i < j);
}

// Every layer runs this code once, by few warps, with nothing of it in the instruction caches: what counts is how many different instructions
// are met, so loops over experts stay loops. (Unrolled, a choice for one token took 14 us instead of 9.)

// What a token's experts get, and what they are chosen by: `scores` and `choice`, [experts] each. Of experts first, first + step, ….
__device__ __forceinline__ void score_sigmoid(const Routing& r, const float* logits, const float* bias, float* scores,
                                              float* choice, u32 first, u32 step) {
#pragma unroll 2
    for (u32 e = first; e < r.experts; e += step) {
        float score = 1.0f / (1.0f + expf(-logits[e]));
        scores[e] = score;
        choice[e] = bias ? score + bias[e] : score;
    }
}

// The same by a warp.
__device__ __forceinline__ void score_softmax(const Routing& r, const float* logits, const float* bias, float* scores,
                                              float* choice) {
    u32 lane = threadIdx.x % 32;
    float highest = -INFINITY_F, total = 0.0f;
    for (u32 e = lane; e < r.experts; e += 32) highest = fmaxf(highest, logits[e]);
    highest = warp_max(highest);
    for (u32 e = lane; e < r.experts; e += 32) total += expf(logits[e] - highest);
    total = warp_sum(total);
    for (u32 e = lane; e < r.experts; e += 32) {
        float score = expf(logits[e] - highest) / total;
        scores[e] = score;
        choice[e] = bias ? score + bias[e] : score;
    }
}

// Experts of groups that are out are chosen by -inf. A group counts with the sum of its two best scores (with bias, DeepSeek-V3), or its best
// one (DeepSeek-V2). By a warp.
__device__ __forceinline__ void keep_groups(const Routing& r, bool bias, float* choice, float* values) {
    u32 size = r.experts / r.groups, lane = threadIdx.x % 32;
    for (u32 group = lane; group < r.groups; group += 32) {
        float first = -INFINITY_F, second = -INFINITY_F;
        for (u32 e = group * size; e < (group + 1) * size; e++) {
            if (choice[e] > first) {
                second = first;
                first = choice[e];
            } else if (choice[e] > second) {
                second = choice[e];
            }
        }
        values[group] = bias ? first + second : first;
    }
    __syncwarp();
    for (u32 group = lane; group < r.groups; group += 32) {
        u32 rank = 0;
        for (u32 other = 0; other < r.groups; other++)
            rank += other != group && better(values[other], other, values[group], group);
        // Not 0: that would beat a negative biased score.
        if (rank >= r.keep_groups)
            for (u32 e = group * size; e < (group + 1) * size; e++) choice[e] = -INFINITY_F;
    }
    __syncwarp();
}

// The `per_token` best of up to 32 N experts: lane i returns the i-th. `sum` gets that of their scores. By a warp, which has N experts' keys a
// lane in registers.
template <int N>
__device__ __forceinline__ u32 choose(const Routing& r, const float* scores, const float* choice, float& sum) {
    u32 keys[N], lane = threadIdx.x % 32, own = 0;
#pragma unroll
    for (int i = 0; i < N; i++) keys[i] = 32 * i + lane < r.experts ? key(choice[32 * i + lane]) : 0;
    sum = 0.0f;
#pragma unroll 1
    for (u32 rank = 0; rank < r.per_token; rank++) {
        u32 best = 0, at = ~0u;
#pragma unroll
        for (int i = 0; i < N; i++) best = max(best, keys[i]);
        best = __reduce_max_sync(~0u, best);
        // At equal scores the lowest.
#pragma unroll
        for (int i = N - 1; i >= 0; i--) at = keys[i] == best ? 32 * i + lane : at;
        u32 best_at = __reduce_min_sync(~0u, at);
#pragma unroll
        for (int i = 0; i < N; i++) keys[i] = 32 * i + lane == best_at ? key(-INFINITY_F) : keys[i];
        sum += scores[best_at];
        if (rank == lane) own = best_at;
    }
    return own;
}

// Routes from scores, by a warp: lane i returns the i-th, of which there are up to 32.
__device__ __forceinline__ u32 route_token(const Routing& r, u64 token, bool bias, u32* chosen, float* weights, float* memory) {
    float *scores = memory, *choice = memory + r.experts, sum;
    u32 lane = threadIdx.x % 32;
    if (r.groups > 1) keep_groups(r, bias, choice, memory + 2 * r.experts);
    u32 own = r.experts <= 12 * 32 ? choose<12>(r, scores, choice, sum) : choose<24>(r, scores, choice, sum);
    if (lane < r.per_token) {
        float weight = scores[own];
        if (r.normalize) weight /= sum + 1e-20f;
        chosen[token * r.per_token + lane] = own;
        weights[token * r.per_token + lane] = weight * r.scaling;
    }
    return own;
}

// Whether this rank has the shared expert of the warp's token, whose routes lanes have as `route_token` returns them: the rank with the fewest of
// them does, of several the first from the sum of their numbers on (parallel/experts.rs has the reason).
__device__ __forceinline__ bool has_shared(const Routing& r, u32 own) {
    bool is_route = threadIdx.x % 32 < r.per_token;
    u32 of_rank = is_route ? ((own + 1) * r.ranks - 1) / r.experts : ~0u;
    u32 start = __reduce_add_sync(~0u, is_route ? own : 0), fewest = ~0u, home = 0;
    for (u32 i = 0; i < r.ranks; i++) {
        u32 rank = (start + i) % r.ranks, routes = __popc(__ballot_sync(~0u, of_rank == rank));
        if (routes < fewest) {
            fewest = routes;
            home = rank;
        }
    }
    return home == r.rank;
}

// One warp a token. logits [tokens, experts]; chosen, weights [tokens, per_token], best first; shared_places [tokens]: 0 or ELSEWHERE,
// if ranks divide the shared expert's tokens.
// Shared memory: 2 * experts + groups floats.
extern "C" __global__ void route(Routing r, const float* logits, const float* bias, u32* chosen, float* weights,
                                 u32* shared_places) {
    extern __shared__ float memory[];
    u64 token = blockIdx.x;
    wait_for_previous();
    logits += token * r.experts;
    if (r.softmax)
        score_softmax(r, logits, bias, memory, memory + r.experts);
    else
        score_sigmoid(r, logits, bias, memory, memory + r.experts, threadIdx.x, 32);
    __syncwarp();
    u32 own = route_token(r, token, bias, chosen, weights, memory);
    if (r.ranks) {
        bool here = has_shared(r, own);
        if (threadIdx.x == 0) shared_places[token] = here ? 0 : ELSEWHERE;
    }
}

#define FEW_TOKENS 8
#define FEW_ROUTES 256

// Routes and lists (see group_visits) of up to eight tokens, by one block, a warp a token.
// Shared memory: 2 * experts + groups floats a token.
extern "C" __global__ void __launch_bounds__(32 * FEW_TOKENS)
    route_few(Routing r, const float* logits, const float* bias, u32 count, u32* chosen, float* weights, uint4* slots,
              u32* tokens, u32* places, u32* shared_places) {
    extern __shared__ float memory[];
    __shared__ u32 experts[FEW_ROUTES], is_first[FEW_ROUTES], to_shared[FEW_TOKENS];
    u32 warp = threadIdx.x / 32, total = count * r.per_token, mine = threadIdx.x;
    // Nobody reads the last layer's lists any more.
    for (u32 i = mine; i <= r.here; i += blockDim.x) slots[i] = make_uint4(0, 0, 0, 0);
    wait_for_previous();
    u32 words = 2 * r.experts + r.groups;
    float* own = memory + warp * words;
    if (!r.softmax)
        for (u32 token = 0; token < count; token++) {
            float* scores = memory + token * words;
            score_sigmoid(r, logits + token * r.experts, bias, scores, scores + r.experts, mine, blockDim.x);
        }
    else if (warp < count)
        score_softmax(r, logits + warp * r.experts, bias, own, own + r.experts);
    __syncthreads();
    if (warp < count) {
        u32 route = route_token(r, warp, bias, chosen, weights, own), lane = mine % 32;
        if (lane < r.per_token) experts[warp * r.per_token + lane] = number_here(r, route);
        bool goes = r.shared;
        if (r.ranks) goes = has_shared(r, route);
        if (lane == 0) to_shared[warp] = goes;
    }
    __syncthreads();
    // A route's place: behind those to lower experts and those of earlier tokens to its own. Other ranks' experts are no lower ones.
    u32 place = 0, visitors = 0, earlier = 0;
    bool listed = mine < total && experts[mine] < r.here;
    if (listed) {
#pragma unroll 4
        for (u32 i = 0; i < total; i++) {
            bool same = experts[i] == experts[mine];
            visitors += same;
            earlier += same && i < mine;
            place += experts[i] < experts[mine] || (same && i < mine);
        }
        is_first[mine] = earlier == 0;
        tokens[place] = mine / r.per_token;
    }
    if (mine < total) places[mine] = listed ? place : ELSEWHERE;
    u32 all_to_shared = 0, to_shared_before = 0;
    for (u32 i = 0; i < count; i++) {
        to_shared_before += i < mine ? to_shared[i] : 0;
        all_to_shared += to_shared[i];
    }
    u32 shared = all_to_shared > 0;
    __syncthreads();
    if (listed && earlier == 0) {
        u32 slot = shared;
#pragma unroll 4
        for (u32 i = 0; i < total; i++) slot += is_first[i] && experts[i] < experts[mine];
        slots[slot] = make_uint4(experts[mine], place, visitors, 0);
    }
    if (shared && mine == 0) slots[0] = make_uint4(r.here, total, all_to_shared, 0);
    if (mine < count && to_shared[mine]) tokens[total + to_shared_before] = mine;
    if (r.ranks && mine < count) shared_places[mine] = to_shared[mine] ? total + to_shared_before : ELSEWHERE;
}

// The lists of all experts that are here, by one block of 1,024 threads. Visits stand by expert, then by token, so every step has one order.
//
// slots: [here + 1]: the experts that somebody visits, as Visit (see visits.cuh); the rest has count 0. tokens: [visits]: who
// visits; places: [tokens, per_token]: where a route's visit stands, or ELSEWHERE. The shared expert is the first slot, for it has the most to
// do; its visits come last, by token, from tokens * per_token on, whoever visits the others. If only some tokens visit it, shared_places says
// which, and gets their places.
//
// Routes are taken 1,024 at a time, one a thread: a warp's threads of one expert find each other and their order by a vote, and
// the warps' counts are added up by a thread an expert.
// Shared memory: `here` words, and 32 * `here` halves.
extern "C" __global__ void __launch_bounds__(1024) group_visits(Routing r, const u32* chosen, u32 count, uint4* slots,
                                                                u32* tokens, u32* places, u32* shared_places) {
    extern __shared__ u32 words[];
    u32* starts = words;
    u16* of_warp = (u16*)(words + r.here);  // [32][here]
    u32 total = count * r.per_token, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 e = threadIdx.x; e < r.here; e += blockDim.x) starts[e] = 0;
    wait_for_previous();
    for (u32 i = threadIdx.x; i <= r.here; i += blockDim.x) slots[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    for (u32 i = threadIdx.x; i < total; i += blockDim.x) {
        u32 e = number_here(r, chosen[i]);
        if (e < r.here) atomicAdd(&starts[e], 1);
    }
    u32 to_shared = r.shared ? count : 0;
    for (u32 base = 0; r.ranks && base < count; base += blockDim.x) {
        __shared__ u32 of_warps[32];
        u32 token = base + threadIdx.x;
        bool goes = token < count && shared_places[token] != ELSEWHERE;
        u32 all = __ballot_sync(~0u, goes);
        if (lane == 0) of_warps[warp] = __popc(all);
        __syncthreads();
        u32 at = total + to_shared + __popc(all & ((1u << lane) - 1));
        for (u32 w = 0; w < 32; w++) {
            if (w < warp) at += of_warps[w];
            to_shared += of_warps[w];
        }
        if (goes) {
            tokens[at] = token;
            shared_places[token] = at;
        }
        __syncthreads();
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        // Exclusive prefix sums and the list of experts that anybody visits, 32 experts at a time.
        u32 running = 0, used = 0;
        if (to_shared > 0) {
            if (lane == 0) slots[0] = make_uint4(r.here, total, to_shared, 0);
            used = 1;
        }
        for (u32 base = 0; base < r.here; base += 32) {
            u32 e = base + lane, mine = e < r.here ? starts[e] : 0, sum = mine;
            for (u32 step = 1; step < 32; step *= 2) {
                u32 left = __shfl_up_sync(~0u, sum, step);
                if (lane >= step) sum += left;
            }
            u32 any = __ballot_sync(~0u, mine > 0), before = running + sum - mine;
            if (e < r.here) starts[e] = before;
            if (mine > 0) slots[used + __popc(any & ((1u << lane) - 1))] = make_uint4(e, before, mine, 0);
            running += __shfl_sync(~0u, sum, 31);
            used += __popc(any);
        }
    }
    u32 warps = min((total + 31) / 32, 32);
    for (u32 base = 0; base < total; base += blockDim.x) {
        for (u32 i = threadIdx.x; i < warps * r.here; i += blockDim.x) of_warp[i] = 0;
        __syncthreads();
        u32 route = base + threadIdx.x, e = route < total ? min(number_here(r, chosen[route]), r.here) : r.here;
        bool listed = e < r.here;
        u32 same = __match_any_sync(~0u, e), rank = __popc(same & ((1u << lane) - 1));
        if (listed && rank == 0) of_warp[warp * r.here + e] = __popc(same);
        __syncthreads();
        for (u32 i = threadIdx.x; i < r.here; i += blockDim.x) {
            // From counts to the places of each warp's first visit, counted from the round's first.
            u32 before = 0;
            for (u32 w = 0; w < warps; w++) {
                u32 of_this = of_warp[w * r.here + i];
                of_warp[w * r.here + i] = before;
                before += of_this;
            }
        }
        __syncthreads();
        u32 at = ELSEWHERE;
        if (listed) {
            at = starts[e] + of_warp[warp * r.here + e] + rank;
            tokens[at] = route / r.per_token;
        }
        if (route < total) places[route] = at;
        __syncthreads();
        // An expert's visits of this round lie before those of the next.
        if (listed) atomicMax(&starts[e], at + 1);
        __syncthreads();
    }
    if (r.shared)
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) tokens[total + i] = i;
}
