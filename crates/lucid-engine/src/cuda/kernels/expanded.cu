// Attention of prompts in the expanded form, on Hopper: keys and values of every head come from the cache's latents (W_UK c, W_UV c),
// and queries meet them at 192 and 128 columns a head instead of 576 and 512. Keys, values, queries and softmax weights are f16, which rounds eight times less than
// bf16 does (a key beyond its range, 65,504, would be cut to it); sums are f32. A token of a prompt always goes this way and a token of an answer never, so a prompt may still be cut anywhere: a row's sums run
// over tiles of 128 positions from the sequence's first on, and rows don't mix.
//
// Expanded keys and values stand by 64 positions (a page), then by head: KEY_BYTES of keys, by 64 columns, then by eight positions:
// 1,024 bytes as in pack.cu; VALUE_BYTES of values, transposed: by eight columns, 1,024 bytes with 64 positions each.
#define HEAD_NOPE 128
#define HEAD_VALUE 128
#define KEY_BYTES ((HEAD_NOPE + ROPE) * 128)
#define VALUE_BYTES (HEAD_VALUE * 128)
#define EXPANDED_BYTES (KEY_BYTES + VALUE_BYTES)
#define EXPANDED_TOKENS 128  // of a tile

__device__ __forceinline__ u32 pack_f16(float low, float high) {
    const float MOST = 65504.0f;
    u32 pair;
    // NaN stays NaN: comparisons with it are false.
    low = low > MOST ? MOST : low < -MOST ? -MOST : low;
    high = high > MOST ? MOST : high < -MOST ? -MOST : high;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
// Numbers that are no larger than 1.
__device__ __forceinline__ u32 pack_small_f16(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Where bytes 2 c and 2 c + 1 of row r stand in a block of eight rows of 64 values.
__device__ __forceinline__ u32 swizzled(u32 r, u32 c) { return r * 128 + (c / 8 ^ r) * 16 + c % 8 * 2; }

// Packs the latents of listed pages for the product with kv_b, and gives every head its rotated key part. list: a page's number and how
// many of its positions were written; the others are zeros, whatever the cache holds. What E4M3 codes are multiplied with, `scale`, is
// a factor of the product with kv_b. grid (pages), 256 threads.
template <typename T>
__device__ __forceinline__ void expand_inputs(const uint2* list, const T* cache, float scale, u32 heads, u8* packed, u8* expanded) {
    wait_for_previous();
    uint2 page = list[blockIdx.x];
    const T* entries = cache + (u64)page.x * PAGE_TOKENS * WIDTH;
    // As pack_vectors does it, in groups of 64 vectors.
    u8* to = packed + (u64)blockIdx.x * PAGE_TOKENS * LATENT * 2;
    for (u32 i = threadIdx.x; i < PAGE_TOKENS / 8 * LATENT; i += blockDim.x) {
        u32 block = i / LATENT;
        pack_piece(
            i % LATENT, false, [&](u32 r) { return 8 * block + r < page.y ? entries + (8 * block + r) * WIDTH : nullptr; }, to + block * 2048,
            PAGE_TOKENS / 8 * 2048);
    }
    u8* keys = expanded + (u64)blockIdx.x * heads * EXPANDED_BYTES + HEAD_NOPE * 128;
    for (u32 i = threadIdx.x; i < PAGE_TOKENS * (ROPE / 8); i += blockDim.x) {
        u32 token = i / (ROPE / 8), piece = i % (ROPE / 8);
        uint4 value = make_uint4(0, 0, 0, 0);
        if (token < page.y) {
            Pair<T> pairs[4];
#pragma unroll
            for (int word = 0; word < 4; word++) pairs[word].load(entries + token * WIDTH + LATENT + 8 * piece + 2 * word);
#pragma unroll
            for (int word = 0; word < 4; word++) {
                float2 both = pairs[word].unpack();
                (&value.x)[word] = pack_f16(both.x * scale, both.y * scale);
            }
        }
        u8* at = keys + piece / 8 * 8192 + token / 8 * 1024 + swizzled(token % 8, piece % 8 * 8);
        for (u32 head = 0; head < heads; head++) *(uint4*)(at + (u64)head * EXPANDED_BYTES) = value;
    }
}

extern "C" __global__ void expand_inputs_bf16(const uint2* list, const u16* cache, float scale, u32 heads, u8* packed, u8* expanded) {
    expand_inputs(list, cache, scale, heads, packed, expanded);
}
extern "C" __global__ void expand_inputs_f8(const uint2* list, const u8* cache, float scale, u32 heads, u8* packed, u8* expanded) {
    expand_inputs(list, cache, scale, heads, packed, expanded);
}

// Keys and values of `heads` heads for packed latents of `count` positions, a multiple of 64: a product with kv_b, whose rows are a
// head's keys and then its values. grid (multiprocessors), 384 threads.
template <typename Format, int COLUMNS>
__device__ __forceinline__ void expand(const Product& p, u32 heads, const u8* packed, u32 count, u8* expanded) {
#if HOPPER
    // A head's keys and values are the two times 128 rows of a block, or blocks of their own.
    const int N = 64, M = HopperMemory<Format, N>::M;
    HopperMemory<Format, N>& memory = hopper_memory<Format, N>();
    __shared__ HopperFlags<HopperMemory<Format, N>::STAGES> flags;
    prepare(flags);
    wait_for_previous();
    u32 row_blocks = 2 * heads / M, groups = count / N, chunks = LATENT / CHUNK, lane = threadIdx.x % 32;
    Turn turn{0, 0};
    take_tiles(
        row_blocks * groups,
        [&](u32 tile) {
            u32 row = p.row_first + tile % row_blocks * 128 * M + copied_tile<M>() * 16;
            const u8* from = lane < 2 * M ? p.values + (u64)(row / 16) * chunks * Format::BYTES
                                          : packed + (u64)(tile / row_blocks) * N * LATENT * 2;
            copy_tile<Format, N>(memory, flags, turn, chunks, N / 8, from, lane < 2 * M ? Format::BYTES : N / 8 * 2048);
        },
        [&](u32 tile) {
            u32 row_tile = threadIdx.x / 32, row = 16 * row_tile + lane / 4;
            float total[M][N / 2];
            sum_tile<Format, N, COLUMNS>(memory, flags, turn, LATENT, p.slices,
                                         [&](u32 m) { return Halves{8 * m + row_tile, 0, 8 * m + row_tile, 1}; }, total);
#pragma unroll
            for (int m = 0; m < M; m++) {
                u32 block = tile % row_blocks * M + m;
                u8* to = expanded + ((u64)(tile / row_blocks) * heads + block / 2) * EXPANDED_BYTES;
#pragma unroll
                for (int n = 0; n < N / 8; n++)
#pragma unroll
                    for (int high = 0; high < 2; high++) {
                        u32 r = row + 8 * high, first = lane % 4 * 2;
                        u32 pair = pack_f16(total[m][4 * n + 2 * high] * p.scale, total[m][4 * n + 2 * high + 1] * p.scale);
                        if (block % 2) {
                            *(u32*)(to + KEY_BYTES + r / 8 * 1024 + swizzled(r % 8, 8 * n + first)) = pair;
                        } else {
                            u8* at = to + r / 64 * 8192 + n * 1024;
                            *(u16*)(at + swizzled(first, r % 64)) = pair;
                            *(u16*)(at + swizzled(first + 1, r % 64)) = pair >> 16;
                        }
                    }
            }
        });
#endif
}
#define EXPAND(FORMAT, COLUMNS, NAME)                                                                                              \
    extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)                                                                \
        expand_##NAME(const __grid_constant__ Product p, u32 heads, const u8* packed, u32 count, u8* expanded) {                   \
        expand<FORMAT, COLUMNS>(p, heads, packed, count, expanded);                                                                \
    }
EXPAND(Bf16Late, 32, bf16)
EXPAND(F8Blocks, CHUNK, f8)

struct ExpandedMemory {
    u8 keys[2][2 * KEY_BYTES];
    u8 values[2][2 * VALUE_BYTES];
    u8 queries[2][KEY_BYTES];  // of a warpgroup's 64 rows, as a page's keys
};

#if HOPPER
struct ExpandedFlags {
    u64 full_keys[2], empty_keys[2], full_values[2], empty_values[2];
};
__device__ __forceinline__ void init_barrier(u64& barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void expect(u64& barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void warpgroup_barrier(u32 group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The tiles of two pages of one head, for the copying warp: lanes 0 to 5 keys, by 64 columns and pages; lanes 0 and 1 values.
__device__ __forceinline__ void copy_expanded(ExpandedMemory& memory, ExpandedFlags& flags, Turn& turn, u32 tiles, const u8* from,
                                              u64 page_bytes) {
    u32 lane = threadIdx.x % 32;
    const u32 PIECES = KEY_BYTES / 8192;
    for (u32 tile = 0; tile < tiles; tile++, from += 2 * page_bytes) {
        u32 stage = turn.stage;
        wait_barrier(shared_address(&flags.empty_keys[stage]), turn.parity ^ 1);
        if (lane == 0) expect(flags.full_keys[stage], 2 * KEY_BYTES);
        __syncwarp();
        if (lane < 2 * PIECES)
            bulk_copy(shared_address(memory.keys[stage] + 8192 * lane), from + lane % 2 * page_bytes + lane / 2 * 8192, 8192,
                      shared_address(&flags.full_keys[stage]));
        wait_barrier(shared_address(&flags.empty_values[stage]), turn.parity ^ 1);
        if (lane == 0) expect(flags.full_values[stage], 2 * VALUE_BYTES);
        __syncwarp();
        if (lane < 2)
            bulk_copy(shared_address(memory.values[stage] + VALUE_BYTES * lane), from + lane * page_bytes + KEY_BYTES, VALUE_BYTES,
                      shared_address(&flags.full_values[stage]));
        turn.next(2);
    }
}

#define QUERY_STEPS ((HEAD_NOPE + ROPE) / 16)

// One tile's sums for a warpgroup's 64 rows, of which `here` are there, the first at `position`. Calls f(row, column, two values).
template <typename F>
__device__ __forceinline__ void attend_tile(ExpandedMemory& memory, ExpandedFlags& flags, Turn& turn, u32 tiles, u32 position, u32 here,
                                            float scale, F f) {
    u32 lane = threadIdx.x % 32, g = lane / 4, pair = lane % 4 * 2;
    float sums[HEAD_VALUE / 2], scores[EXPANDED_TOKENS / 2];
    u32 weights[EXPANDED_TOKENS / 16][4];
    float maximum[2] = {-INFINITY_F, -INFINITY_F}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < HEAD_VALUE / 2; i++) sums[i] = 0.0f;
    // Tiles that none of this warpgroup's rows sees are only handed back.
    u32 seen = here == 0 ? 0 : min(tiles, (position + here - 1) / EXPANDED_TOKENS + 1);
#pragma unroll 1
    for (u32 tile = 0; tile < seen; tile++) {
        u32 stage = turn.stage, last_stage = stage ^ 1;
        wait_barrier(shared_address(&flags.full_keys[stage]), turn.parity);
        u64 keys = operand<1024>(shared_address(memory.keys[stage]));
        u64 queries = operand<1024>(shared_address(memory.queries[threadIdx.x / 128]));
        begin_products();
#pragma unroll
        for (int step = 0; step < QUERY_STEPS; step++) {
            u64 key = keys + step / 4 * (16384 >> 4) + step % 4 * (32 >> 4), query = queries + step / 4 * (8192 >> 4) + step % 4 * (32 >> 4);
            if (step == 0)
                multiply_group_f16<EXPANDED_TOKENS, false>(scores, query, key);
            else
                multiply_group_f16<EXPANDED_TOKENS, true>(scores, query, key);
        }
        end_products();
        wait_products<0>();
        settle(scores);
        settle(sums);
        if (lane == 0) {
            arrive(shared_address(&flags.empty_keys[stage]));
            if (tile > 0) arrive(shared_address(&flags.empty_values[last_stage]));
        }
        u32 first = tile * EXPANDED_TOKENS;
        if (first + EXPANDED_TOKENS > position + 1) {
#pragma unroll
            for (int i = 0; i < EXPANDED_TOKENS / 2; i++) {
                u32 token = first + i / 4 * 8 + pair + i % 2, row = threadIdx.x / 32 % 4 * 16 + g + 8 * ROW_PAIR(i);
                if (token > position + row) scores[i] = -INFINITY_F;
            }
        }
        float highest[2] = {maximum[0], maximum[1]};
#pragma unroll
        for (int i = 0; i < EXPANDED_TOKENS / 2; i++) highest[ROW_PAIR(i)] = fmaxf(highest[ROW_PAIR(i)], scores[i]);
        float rescale[2], raised[2], added[2] = {0.0f, 0.0f};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            highest[r] = fmaxf(highest[r], __shfl_xor_sync(~0u, highest[r], 1));
            highest[r] = fmaxf(highest[r], __shfl_xor_sync(~0u, highest[r], 2));
            rescale[r] = power_of_two((maximum[r] - highest[r]) * scale);
            raised[r] = highest[r] * scale;
            maximum[r] = highest[r];
        }
#pragma unroll
        for (int i = 0; i < EXPANDED_TOKENS / 2; i += 2) {
            float low = power_of_two(fmaf(scores[i], scale, -raised[ROW_PAIR(i)]));
            float high = power_of_two(fmaf(scores[i + 1], scale, -raised[ROW_PAIR(i)]));
            u32 both = pack_small_f16(low, high);
            // What is summed is what is multiplied with.
            added[ROW_PAIR(i)] += f16_to_f32(both) + f16_to_f32(both >> 16);
            weights[i / 8][i % 8 / 2] = both;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) total[r] = fmaf(total[r], rescale[r], added[r]);
#pragma unroll
        for (int i = 0; i < HEAD_VALUE / 2; i++) sums[i] *= rescale[ROW_PAIR(i)];
        wait_barrier(shared_address(&flags.full_values[stage]), turn.parity);
        u64 values = operand<1024>(shared_address(memory.values[stage]));
        begin_products();
#pragma unroll
        for (int step = 0; step < EXPANDED_TOKENS / 16; step++)
            multiply_group_f16<HEAD_VALUE, true>(sums, weights[step], values + step / 4 * (VALUE_BYTES >> 4) + step % 4 * (32 >> 4));
        end_products();
        turn.next(2);
    }
    wait_products<0>();
    settle(sums);
    if (lane == 0 && seen > 0) arrive(shared_address(&flags.empty_values[turn.stage ^ 1]));
    for (u32 tile = seen; tile < tiles; tile++) {
        wait_barrier(shared_address(&flags.full_keys[turn.stage]), turn.parity);
        if (lane == 0) arrive(shared_address(&flags.empty_keys[turn.stage]));
        wait_barrier(shared_address(&flags.full_values[turn.stage]), turn.parity);
        if (lane == 0) arrive(shared_address(&flags.empty_values[turn.stage]));
        turn.next(2);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] += __shfl_xor_sync(~0u, total[r], 1);
        total[r] += __shfl_xor_sync(~0u, total[r], 2);
    }
#pragma unroll
    for (int i = 0; i < HEAD_VALUE / 2; i += 2) {
        u32 row = threadIdx.x / 32 % 4 * 16 + g + 8 * ROW_PAIR(i);
        if (row < here) f(row, i / 4 * 8 + pair, sums[i] / total[ROW_PAIR(i)], sums[i + 1] / total[ROW_PAIR(i)]);
    }
}
#endif

// tiles: up to 128 rows of one sequence each, 64 for each warpgroup: the first row of the step, how many, the first one's position, and
// where the sequence's pages begin in `expanded`.
// queries: [rows, all_heads, HEAD_NOPE + ROPE] f32, of which the first HEAD_NOPE columns count; rotated: [rows, all_heads, WIDTH] f32,
// of which the last ROPE columns count; out: [rows,
// all_heads * HEAD_VALUE] in `order`. Heads from `first_head` on are in `expanded`. `scale` has the base-2 logarithm's factor in it.
// grid (multiprocessors), 384 threads.
extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    attend_expanded(const uint4* tiles, u32 count, u32 first_head, u32 heads, u32 all_heads, const float* queries, const float* rotated,
                    float scale, const u8* expanded, int order, u16* out) {
#if HOPPER
    static_assert(sizeof(ExpandedMemory) + 1024 <= HOPPER_SHARED, "see kernels.rs");
    ExpandedMemory& memory = *(ExpandedMemory*)(block_memory + (0u - shared_address(block_memory) & 1023));
    __shared__ ExpandedFlags flags;
    if (threadIdx.x == 0) {
#pragma unroll
        for (int stage = 0; stage < 2; stage++) {
            init_barrier(flags.full_keys[stage], 1);
            init_barrier(flags.empty_keys[stage], 8);
            init_barrier(flags.full_values[stage], 1);
            init_barrier(flags.empty_values[stage], 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    wait_for_previous();
    u64 page_bytes = (u64)heads * EXPANDED_BYTES;
    Turn turn{0, 0};
    // Later tiles see more: they come first.
    auto find = [&](u32 number) { return tiles[count - 1 - number % count]; };
    auto tiles_of_keys = [&](const uint4& tile) { return (tile.z + tile.y - 1) / EXPANDED_TOKENS + 1; };
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x < 256 + 32)
            for (u32 number = blockIdx.x; number < count * heads; number += gridDim.x) {
                uint4 tile = find(number);
                copy_expanded(memory, flags, turn, tiles_of_keys(tile),
                              expanded + tile.w * page_bytes + (u64)(number / count) * EXPANDED_BYTES, page_bytes);
            }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        u32 lane = threadIdx.x % 32, group = threadIdx.x / 128;
        for (u32 number = blockIdx.x; number < count * heads; number += gridDim.x) {
            uint4 tile = find(number);
            u32 head = first_head + number / count, skipped = min(tile.y, group * 64), here = min(tile.y - skipped, 64);
            // All warps of the group are done with the last tile's queries.
            warpgroup_barrier(group);
#pragma unroll
            for (int high = 0; high < 2; high++) {
                u32 r = threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * high;
                u64 row = (tile.x + (here == 0 ? 0 : skipped + min(r, here - 1))) * (u64)all_heads + head;
                const float* from = queries + row * (HEAD_NOPE + ROPE) + lane % 4 * 2;
                const float* turned = rotated + row * WIDTH + LATENT + lane % 4 * 2;
                u8* to = memory.queries[group] + r / 8 * 1024;
#pragma unroll
                for (int i = 0; i < 2 * QUERY_STEPS; i++) {
                    u32 column = 8 * i + lane % 4 * 2;
                    float2 pair = *(const float2*)(i < HEAD_NOPE / 8 ? from + 8 * i : turned + 8 * i - HEAD_NOPE);
                    u32 both = pack_f16(pair.x, pair.y);
                    *(u32*)(to + column / 64 * 8192 + swizzled(r % 8, column % 64)) = both;
                }
            }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            warpgroup_barrier(group);
            u32 width = all_heads * HEAD_VALUE;
            attend_tile(memory, flags, turn, tiles_of_keys(tile), tile.z + skipped, here, scale,
                        [&](u32 row, u32 column, float low, float high) {
                            u16* to = out + (u64)(tile.x + skipped + row) * width;
                            store_split(to, width, order, head * HEAD_VALUE + column, low);
                            store_split(to, width, order, head * HEAD_VALUE + column + 1, high);
                        });
        }
    }
#endif
}
