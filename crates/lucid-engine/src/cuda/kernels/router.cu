// The router: which experts a token goes to, with what weight (DeepSeek-V3, arXiv:2412.19437, §2.1), and each expert's list.

struct Routing {
    u32 experts;
    u32 per_token;
    u32 groups;
    u32 keep_groups;
    int softmax;    // else sigmoid
    int normalize;
    float scaling;
    int shared;     // expert number `experts` is the shared one and sees every token
};

// (a, i) is a better choice than (b, j): the higher score, at equal scores the lower number; NaN is the worst.
__device__ __forceinline__ bool better(float a, u32 i, float b, u32 j) {
    bool a_nan = a != a, b_nan = b != b;
    if (a_nan || b_nan) return a_nan == b_nan ? i < j : b_nan;
    return a > b || (a == b && i < j);
}

// One warp a token. logits [tokens, experts]; chosen, weights [tokens, per_token], best first.
// Shared memory: 2 * experts + groups floats.
extern "C" __global__ void route(Routing r, const float* logits, const float* bias, u32* chosen, float* weights) {
    extern __shared__ float memory[];
    float *scores = memory, *choice = memory + r.experts, *group_values = memory + 2 * r.experts;
    u64 token = blockIdx.x;
    u32 lane = threadIdx.x;
    logits += token * r.experts;
    chosen += token * r.per_token;
    weights += token * r.per_token;
    float highest = -INFINITY_F, total = 1.0f;
    if (r.softmax) {
        for (u32 e = lane; e < r.experts; e += 32) highest = fmaxf(highest, logits[e]);
        highest = warp_max(highest);
        total = 0.0f;
        for (u32 e = lane; e < r.experts; e += 32) total += expf(logits[e] - highest);
        total = warp_sum(total);
    }
    for (u32 e = lane; e < r.experts; e += 32) {
        float score = r.softmax ? expf(logits[e] - highest) / total : 1.0f / (1.0f + expf(-logits[e]));
        scores[e] = score;
        choice[e] = bias ? score + bias[e] : score;
    }
    __syncwarp();
    if (r.groups > 1) {
        // A group counts with the sum of its two best scores (with bias, DeepSeek-V3), or its best one (DeepSeek-V2).
        u32 size = r.experts / r.groups;
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
            group_values[group] = bias ? first + second : first;
        }
        __syncwarp();
        for (u32 group = lane; group < r.groups; group += 32) {
            u32 rank = 0;
            for (u32 other = 0; other < r.groups; other++)
                rank += other != group && better(group_values[other], other, group_values[group], group);
            // Not 0: that would beat a negative biased score.
            if (rank >= r.keep_groups)
                for (u32 e = group * size; e < (group + 1) * size; e++) choice[e] = -INFINITY_F;
        }
        __syncwarp();
    }
    float sum = 0.0f;
    for (u32 i = 0; i < r.per_token; i++) {
        float best = NAN_F;
        u32 best_at = ~0u;
        for (u32 e = lane; e < r.experts; e += 32)
            if (better(choice[e], e, best, best_at)) best = choice[e], best_at = e;
        for (int step = 16; step > 0; step /= 2) {
            float other = __shfl_xor_sync(~0u, best, step);
            u32 other_at = __shfl_xor_sync(~0u, best_at, step);
            if (better(other, other_at, best, best_at)) best = other, best_at = other_at;
        }
        sum += scores[best_at];
        if (lane == 0) {
            chosen[i] = best_at;
            choice[best_at] = -INFINITY_F;
        }
        __syncwarp();
    }
    for (u32 i = lane; i < r.per_token; i += 32) {
        float weight = scores[chosen[i]];
        if (r.normalize) weight /= sum + 1e-20f;
        weights[i] = weight * r.scaling;
    }
}

// The lists of all experts, by one block of 1,024 threads. Visits stand by expert, then by token, so every step has one order.
//
// first, count: [experts + 1]; active: [1 + experts + 1], active[0] is how many follow; tokens: [visits]: who visits;
// places: [tokens, per_token]: where a route's visit stands. Visits of the shared expert come last, by token.
// Shared memory: experts + 1 words, and the chosen experts (tokens * per_token halves).
extern "C" __global__ void __launch_bounds__(1024) group_visits(Routing r, const u32* chosen, u32 count, u32* first,
                                                                u32* visitors, u32* active, u32* tokens, u32* places) {
    extern __shared__ u32 words[];
    u32* starts = words;
    u16* routes = (u16*)(words + r.experts + 1);
    u32 total = count * r.per_token;
    for (u32 i = threadIdx.x; i < total; i += blockDim.x) routes[i] = chosen[i];
    __syncthreads();
    for (u32 e = threadIdx.x; e < r.experts; e += blockDim.x) {
        u32 visits = 0;
        for (u32 i = 0; i < total; i++) visits += routes[i] == e;
        visitors[e] = visits;
        starts[e] = visits;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        // Exclusive prefix sums and the list of experts that anybody visits, 32 experts at a time.
        u32 lane = threadIdx.x, running = 0, used = 0;
        if (r.shared) {
            if (lane == 0) active[1] = r.experts, first[r.experts] = total, visitors[r.experts] = count;
            used = 1;
        }
        for (u32 base = 0; base < r.experts; base += 32) {
            u32 e = base + lane, mine = e < r.experts ? starts[e] : 0, sum = mine;
            for (u32 step = 1; step < 32; step *= 2) {
                u32 left = __shfl_up_sync(~0u, sum, step);
                if (lane >= step) sum += left;
            }
            u32 any = __ballot_sync(~0u, mine > 0);
            if (e < r.experts) starts[e] = first[e] = running + sum - mine;
            if (mine > 0) active[1 + used + __popc(any & ((1u << lane) - 1))] = e;
            running += __shfl_sync(~0u, sum, 31);
            used += __popc(any);
        }
        if (lane == 0) active[0] = used;
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < r.experts; e += blockDim.x) {
        u32 at = starts[e];
        if (visitors[e] == 0) continue;
        for (u32 i = 0; i < total; i++) {
            if (routes[i] == e) {
                tokens[at] = i / r.per_token;
                places[i] = at++;
            }
        }
    }
    if (r.shared)
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) tokens[total + i] = i;
}
