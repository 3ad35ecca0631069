// All visits of a step to its experts in one kernel, for decoding: gate, up and down, without a pause between them.
//
// Warps take items from one list, whoever is free the next one: sixteen rows of an expert's gate and the same of its up, or 32 rows of its down, for up to eight
// visits. All gate and up come before all down. The warp's ring runs on from one item into the next, so weights are always on their
// way: while results are stored, while the first vectors come, and while an expert's `activated` isn't complete yet, which `done`
// counts. Whoever waits has no gate or up left to do himself, so it always goes on.
//
// The parts of `slices` are added in the same order as in experts.cuh, so the bits are the same.

// Visits of an item.
#define WHOLE_VISITS 8
// So many groups of visits has a step at the most: they stand beside the rings.
#define WHOLE_GROUPS 560

struct ExpertsJob {
    ExpertWeight gate, up, down;
    u32 hidden, width;
    Visits visits;
    u32 slots;        // that can have visits; those that have any come first
    const u16* x;     // [tokens, hidden]
    u16* activated;   // [visits, width]
    float* y;         // [visits, hidden]
    u32* done;        // [WHOLE_GROUPS + 2]: see below; all 0 before and after
    int activated_order;
    u32 up_slices, down_slices;
};

// In `done`: how many row tiles of each group's `activated` are complete, then blocks that have ended, and items that were taken.
#define ENDED WHOLE_GROUPS
#define TAKEN (WHOLE_GROUPS + 1)

#if TERMS == 1 && BULK_COPIES
// Up to eight visits to an expert: its number and their count, the first of them.
struct Groups {
    uint2 of[WHOLE_GROUPS];
};
__device__ __forceinline__ u32 expert_of(uint2 group) { return group.x & 0xffff; }
__device__ __forceinline__ u32 count_of(uint2 group) { return group.x >> 16; }

template <typename A, typename B>
constexpr bool is_same = false;
template <typename A>
constexpr bool is_same<A, A> = true;

// How weights are taken, gate and up in one form and down in the same or another (form_kernels.rs has the same numbers): by so many warps of
// a block, through rings of so many stages of so many tiles, some two to three KB of each of two row tiles. Unpacking is what takes the time,
// so as many warps as there are registers for.
template <typename Up, typename Down>
struct WholeShape {
    static const bool SAME = is_same<Up, Down>;
    static const int LARGEST = Up::BYTES > Down::BYTES ? Up::BYTES : Down::BYTES;
    static const bool WITH_TABLES = Up::WITH_MINIMA || Down::WITH_MINIMA, IS_LARGE = LARGEST + (WITH_TABLES ? 128 : 0) > 1700;
    static const int WARPS_OF_BLOCK = Up::WHOLE_WARPS < Down::WHOLE_WARPS ? Up::WHOLE_WARPS : Down::WHOLE_WARPS;
    static const int STAGES = IS_LARGE ? 3 : 2, C = IS_LARGE ? 1 : 2;
    typedef Ring<STAGES, 2, C * LARGEST, WARPS_OF_BLOCK> WholeRing;
    typedef Flags<STAGES, WARPS_OF_BLOCK> WholeFlags;
};

// Lists the step's visits in groups; returns how many there are. A thread a slot.
__device__ __forceinline__ u32 list_groups(const ExpertsJob& job, Groups& groups) {
    __shared__ u32 of_warp[32];
    u32 warps = blockDim.x / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint4 visit = threadIdx.x < job.slots ? __ldcg(job.visits.slots + threadIdx.x) : make_uint4(0, 0, 0, 0);
    u32 mine = (visit.z + WHOLE_VISITS - 1) / WHOLE_VISITS, sum = mine;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        u32 left = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += left;
    }
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    u32 before = 0, all = 0;
    for (u32 w = 0; w < warps; w++) {
        before += w < warp ? of_warp[w] : 0;
        all += of_warp[w];
    }
    for (u32 i = 0; i < mine; i++) {
        u32 at = before + sum - mine + i, first = i * WHOLE_VISITS;
        if (at < WHOLE_GROUPS)
            groups.of[at] = make_uint2(visit.x | min(WHOLE_VISITS, visit.z - first) << 16, visit.y + first);
    }
    __syncthreads();
    return min(all, WHOLE_GROUPS);
}

// The list of items.
struct Items {
    u32 up_tiles, down_tiles;           // of a group
    u32 up_items, all;                  // gate and up, then down
};
struct Item {
    bool is_down;
    u32 group, row;
};
__device__ __forceinline__ Item item_of(const Items& items, u32 number) {
    bool is_down = number >= items.up_items;
    u32 i = is_down ? number - items.up_items : number, tiles = is_down ? items.down_tiles : items.up_tiles;
    u32 group = i / tiles;
    return Item{is_down, group, (i - group * tiles) * (is_down ? 32 : 16)};
}

// What a warp's ring is filled with: some stages, and so some items, ahead of the products. Lane 0 alone uses it, so it stands in
// shared memory and costs no registers.
template <typename Up, typename Down>
struct Source {
    const u8* from[2];
    u32 at, across, opened, is_down;
    u32 numbers[4];  // of the last items that it has opened

    __device__ __forceinline__ void open(const ExpertsJob& job, const Items& items, const Groups& groups, u32 number) {
        at = across = 0;
        numbers[opened++ % 4] = number;
        if (number >= items.all) return;
        Item item = item_of(items, number);
        u32 expert = expert_of(groups.of[item.group]);
        u32 rows = item.is_down ? job.hidden : job.width, cols = item.is_down ? job.width : job.hidden;
        if (is_same<Up, Down> || !item.is_down) {
            from[0] = tiles_of<Up>(item.is_down ? job.down : job.gate, expert, rows, cols, item.row);
            from[1] = tiles_of<Up>(item.is_down ? job.down : job.up, expert, rows, cols, item.row + (item.is_down ? 16 : 0));
        } else {
            from[0] = tiles_of<Down>(job.down, expert, rows, cols, item.row);
            from[1] = tiles_of<Down>(job.down, expert, rows, cols, item.row + 16);
        }
        across = cols / 128;
        is_down = item.is_down;
    }
};

// `done` reaches `wanted`: what others have written before they counted can be read from here on. Who waits only looks: acquiring empties
// the first-level cache, which those who still work need.
__device__ __forceinline__ void wait_until(const u32* done, u32 wanted) {
    if (threadIdx.x % 32 == 0) {
        u32 now;
        while (true) {
            asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(done) : "memory");
            if (now >= wanted) break;
            __nanosleep(100);
        }
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
    }
    __syncwarp();
}
__device__ __forceinline__ void count_up(u32* done) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(done) : "memory");
}

template <typename Format, typename Shape, typename G>
__device__ __forceinline__ void compute_item(const ExpertsJob& job, const Item& item, uint2 group, typename Shape::WholeRing& ring,
                                             typename Shape::WholeFlags& flags, Place<Shape::STAGES>& place, const Factors& by, G refill) {
    u32 rows = item.is_down ? job.hidden : job.width, cols = item.is_down ? job.width : job.hidden;
    u32 slices = item.is_down ? job.down_slices : job.up_slices;
    u32 across = cols / 128, per_slice = (across + slices - 1) / slices;
    u32 here = count_of(group), lane = threadIdx.x % 32;
    Columns<1> columns;
    find_columns(columns, here, cols, [&](u32 v) {
        if (item.is_down) return (const u16*)job.activated + (u64)(group.y + v) * cols;
        return job.x + (u64)__ldcg(job.visits.tokens + group.y + v) * cols;
    });
    Accumulators<1> acc[2], total[2];
    acc[0].clear();
    acc[1].clear();
    u32 end_of_slice = per_slice;
    auto add_slice = [&]() {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float& sum = total[r].d[0][i];
                sum = end_of_slice == per_slice ? acc[r].d[0][i] : sum + acc[r].d[0][i];
            }
        acc[0].clear();
        acc[1].clear();
        end_of_slice += per_slice;
    };
    accumulate_stages<Format, 1, Shape::STAGES, 2, Shape::C>(
        ring, flags, place, by, block_memory + sizeof(typename Shape::WholeRing), columns, 1, 0, across, acc, refill, [&](u32 tile) {
            if (tile == end_of_slice) add_slice();
        });
    add_slice();
    float low_scale = (item.is_down ? job.down : job.gate).global_scales[expert_of(group)] * Format::unit();
    float high_scale = (item.is_down ? job.down : job.up).global_scales[expert_of(group)] * Format::unit();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 row = item.row + lane / 4 + i / 2 * 8, v = lane % 4 * 2 + i % 2;
        if (v >= here) continue;
        float low = total[0].d[0][i] * low_scale, high = total[1].d[0][i] * high_scale;
        if (!item.is_down) {
            if (row < rows)
                store_split(job.activated + (u64)(group.y + v) * rows, rows, job.activated_order, row, silu(low) * high);
        } else {
            float* to = job.y + (u64)(group.y + v) * rows + row;
            if (row < rows) to[0] = low;
            if (row + 16 < rows) to[16] = high;
        }
    }
}

// grid: as many blocks as run at once, or fewer.
template <typename Up, typename Down>
__device__ __forceinline__ void experts_whole(const ExpertsJob& job) {
    typedef WholeShape<Up, Down> Shape;
    const int C = Shape::C, STAGES = Shape::STAGES;
    const u32 threads = 32 * Shape::WARPS_OF_BLOCK;
    typename Shape::WholeRing& ring = *(typename Shape::WholeRing*)block_memory;
    __shared__ typename Shape::WholeFlags flags;
    __shared__ Groups groups;
    __shared__ Source<Up, Down> sources[Shape::WARPS_OF_BLOCK];
    Place<STAGES> place = prepare(flags);
    const Factors by(threads);
    wait_for_previous();
    u32 count = list_groups(job, groups);
    Items items;
    items.up_tiles = (job.width + 15) / 16;
    items.down_tiles = (job.hidden + 31) / 32;
    items.up_items = count * items.up_tiles;
    items.all = items.up_items + count * items.down_tiles;
    // At first, neighbours in the list go to different multiprocessors.
    u32 first = threadIdx.x / 32 * gridDim.x + blockIdx.x, warps = Shape::WARPS_OF_BLOCK * gridDim.x;

    Source<Up, Down>& source = sources[threadIdx.x / 32];
    // The item after the next, long before anybody asks for it.
    u32 upcoming = 0;
    if (threadIdx.x % 32 == 0) {
        source.opened = 0;
        source.open(job, items, groups, first);
        upcoming = warps + atomicAdd(job.done + TAKEN, 1);
    }
    auto refill = [&](u32 stage, u32) {
        // All lanes are done with what the stage held before.
        __syncwarp();
        if (threadIdx.x % 32 != 0 || source.at >= source.across) return;
        if (is_same<Up, Down> || !source.is_down)
            send<Up::BYTES, C>(ring, flags, stage, source.from, source.at, source.across);
        else
            send<Down::BYTES, C>(ring, flags, stage, source.from, source.at, source.across);
        source.at += C;
        if (source.at < source.across) return;
        source.open(job, items, groups, upcoming);
        if (upcoming < items.all) upcoming = warps + atomicAdd(job.done + TAKEN, 1);
    };
#pragma unroll
    for (u32 stage = 0; stage < STAGES - 1; stage++) refill(stage, 0);
#pragma unroll 1
    for (u32 i = 0;; i++) {
        __syncwarp();
        u32 number = source.numbers[i % 4];
        if (number >= items.all) break;
        Item item = item_of(items, number);
        if (item.is_down) wait_until(job.done + item.group, items.up_tiles);
        if (is_same<Up, Down> || !item.is_down)
            compute_item<Up, Shape>(job, item, groups.of[item.group], ring, flags, place, by, refill);
        else
            compute_item<Down, Shape>(job, item, groups.of[item.group], ring, flags, place, by, refill);
        if (!item.is_down) count_up(job.done + item.group);
    }
    // The last block to end leaves the counters as it found them.
    __syncthreads();
    __shared__ bool is_last;
    if (threadIdx.x == 0) is_last = atomicAdd(job.done + ENDED, 1) == gridDim.x - 1;
    __syncthreads();
    if (is_last)
        for (u32 i = threadIdx.x; i <= TAKEN; i += threads) job.done[i] = 0;
}
#endif

#if TERMS == 1 && BULK_COPIES
#define EXPERTS_WHOLE_OF(UP, DOWN, NAME)                                                              \
    extern "C" __global__ void __launch_bounds__(32 * WholeShape<UP, DOWN>::WARPS_OF_BLOCK, 1)        \
        experts_whole_##NAME(const __grid_constant__ ExpertsJob job) {                                \
        experts_whole<UP, DOWN>(job);                                                                 \
    }
#else
// Only for rounded activations, and for GPUs with a copy engine.
#define EXPERTS_WHOLE_OF(UP, DOWN, NAME) \
    extern "C" __global__ void experts_whole_##NAME(const __grid_constant__ ExpertsJob job) {}
#endif
#define EXPERTS_WHOLE(FORMAT, NAME) EXPERTS_WHOLE_OF(FORMAT, FORMAT, NAME)
