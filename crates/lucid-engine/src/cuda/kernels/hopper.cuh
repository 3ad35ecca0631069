// Products for many vectors on Hopper's warpgroup instructions: a block multiplies 128 or 256 rows with up to 192 vectors.
//
// Four warps of the block only copy: packed weights and packed vectors (see pack.cuh) come through a ring of stages in shared
// memory. Two warpgroups unpack weights in registers, where wgmma takes operand A, while the tensor cores work on what was
// unpacked before; vectors are operand B, in shared memory. Blocks stay, and take one tile of the work after the other, so that
// copies for the next run while this one's results are stored.
//
// wgmma of 16 columns gives the bits of mma.sync of the same columns, and the order of the sums is that of decoding (mma.cuh),
// so the bits are the same: a prompt may be cut anywhere. bf16 activations only.
#define HOPPER_THREADS 384  // two warpgroups that compute, one that copies

// N: vectors of a tile. A warpgroup has M times 64 rows: two where sums leave registers for it, so that vectors are read half as often.
template <typename Format, int N>
struct HopperMemory {
    static const int M = N <= (Format::SCALED ? 32 : 64) ? 2 : 1, ROW_TILES = 8 * M, WEIGHT_BYTES = ROW_TILES * Format::BYTES;
    static const int FITTING = (HOPPER_SHARED - 1024) / (N * 256 + WEIGHT_BYTES), STAGES = FITTING < 4 ? FITTING : 4;
    u8 vectors[STAGES][N * 256];
    u8 weights[STAGES][WEIGHT_BYTES];
};

#if HOPPER
// The ring's place, for the warp that fills it and for those that read it.
struct Turn {
    u32 stage, parity;
    __device__ __forceinline__ void next(u32 stages) {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};
template <int STAGES>
struct HopperFlags {
    u64 full[STAGES], empty[STAGES];
};

// The row tile that one of the first 2 M lanes of a copying warp copies.
template <int M>
__device__ __forceinline__ u32 copied_tile() { return 2 * M * (threadIdx.x / 32 - 8) + threadIdx.x % 32; }

// What a copying warp copies for a tile: lane i < 2 M its row tile i, the first warp's lane 2 M the vectors. A copy takes a warp some
// thirty cycles for each lane, so there are four such warps. `from`: the lane's first source, or of the vectors.
template <typename Format, int N>
__device__ __forceinline__ void copy_tile(HopperMemory<Format, N>& memory, HopperFlags<HopperMemory<Format, N>::STAGES>& flags, Turn& turn,
                                          u32 chunks, u32 blocks, const u8* from, u64 stride) {
    const u32 LANES = 2 * HopperMemory<Format, N>::M;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 8, bytes = lane < LANES ? Format::BYTES : blocks * 2048;
    bool copies = lane < LANES || (lane == LANES && warp == 0);
    for (u32 chunk = 0; chunk < chunks; chunk++, from += stride) {
        wait_barrier(shared_address(&flags.empty[turn.stage]), turn.parity ^ 1);
        u32 full = shared_address(&flags.full[turn.stage]);
        if (lane == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full), "r"(LANES * Format::BYTES + (warp == 0 ? blocks * 2048 : 0))
                         : "memory");
        __syncwarp();
        const u8* to = lane < LANES ? memory.weights[turn.stage] + (LANES * warp + lane) * Format::BYTES : memory.vectors[turn.stage];
        if (copies) bulk_copy(shared_address(to), from, bytes, full);
        turn.next(HopperMemory<Format, N>::STAGES);
    }
}

// A thread's part of two half row tiles: rows g of the one as the upper eight rows, of the other as the lower.
struct Halves {
    u32 low_tile, low_half, high_tile, high_half;
};

// The sums of one tile: a warpgroup's M times 64 rows by N vectors. halves(m): where the thread's rows of the m-th 64 are. Slices of the columns are parts of COLUMNS columns.
//
// What is unpacked waits in registers until its products are complete: two words of 32 columns take turns.
template <typename Format, int N, int COLUMNS, typename H>
__device__ __forceinline__ void sum_tile(HopperMemory<Format, N>& memory, HopperFlags<HopperMemory<Format, N>::STAGES>& flags, Turn& turn,
                                         u32 cols, u32 slices, H halves, float (&total)[HopperMemory<Format, N>::M][N / 2]) {
    const int M = HopperMemory<Format, N>::M, BUFFERS = 2;
    u32 lane = threadIdx.x % 32, chunks = cols / CHUNK;
    u32 across = cols / COLUMNS, per_slice = (across + slices - 1) / slices, end_of_slice = per_slice;
    const Factors by(HOPPER_THREADS);
    float acc[M][N / 2];
    float part[M][Format::SCALED ? N / 2 : 1];                                  // sums of 32 columns, where those are scaled
    float next[M][Format::SIXTEENS ? N / 2 : 1];                                // or of 16, and of the next
    float ones[Format::WITH_MINIMA ? N / 2 : 1];                                // the vectors' own
    const u32 ONES[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};  // bf16 pairs
    u32 a[BUFFERS][M][8];
#pragma unroll
    for (int i = 0; i < M * N / 2; i++) (&acc[0][0])[i] = 0.0f;
    auto add_slice = [&]() {
        if constexpr (!Format::SCALED) {
            wait_products<0>();
#pragma unroll
            for (int m = 0; m < M; m++) settle(acc[m]);
        }
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                total[m][i] = end_of_slice == per_slice ? acc[m][i] : total[m][i] + acc[m][i];
                acc[m][i] = 0.0f;
            }
        end_of_slice += per_slice;
    };
    u32 last_stage = 0;
#pragma unroll 1
    for (u32 chunk = 0; chunk < chunks; chunk++) {
        wait_barrier(shared_address(&flags.full[turn.stage]), turn.parity);
        const u8* tiles = memory.weights[turn.stage];
        u64 b = operand<2048>(shared_address(memory.vectors[turn.stage]));
        Format loaded[M];
#pragma unroll
        for (int m = 0; m < M; m++) {
            Halves h = halves(m);
            loaded[m].load(tiles + h.low_tile * Format::BYTES, h.low_half, tiles + h.high_tile * Format::BYTES, h.high_half, lane);
        }
#pragma unroll
        for (int word = 0; word < 4; word++) {
            const int at = word % BUFFERS;
            const u64 columns = b + word / 2 * (1024 >> 4) + word % 2 * (64 >> 4);
            const bool begins_slice = COLUMNS == CHUNK ? word == 0 && chunk == end_of_slice : 4 * chunk + word == end_of_slice;
            auto unpack = [&](int word) {
#pragma unroll
                for (int m = 0; m < M; m++) loaded[m].unpack(a[word % BUFFERS][m], word, by);
            };
            if constexpr (Format::SCALED) {
                if (word == 0) unpack(0);
                begin_products();
#pragma unroll
                for (int m = 0; m < M; m++) {
                    multiply_group<N, false>(part[m], a[at][m], columns);
                    if constexpr (Format::SIXTEENS)
                        multiply_group<N, false>(next[m], a[at][m] + 4, columns + (32 >> 4));
                    else
                        multiply_group<N, true>(part[m], a[at][m] + 4, columns + (32 >> 4));
                }
                if constexpr (Format::WITH_MINIMA) {
                    multiply_group<N, false>(ones, ONES, columns);
                    multiply_group<N, true>(ones, ONES, columns + (32 >> 4));
                }
                end_products();
                if (word < 3) unpack(word + 1);
                if (begins_slice) add_slice();
                wait_products<0>();
                auto add = [&](int m, const float2& scale, float (&sums)[N / 2]) {
#pragma unroll
                    for (int i = 0; i < N / 2; i++) acc[m][i] = fmaf(i % 4 < 2 ? scale.x : scale.y, sums[i], acc[m][i]);
                };
                if constexpr (Format::WITH_MINIMA) settle(ones);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    settle(part[m]);
                    add(m, loaded[m].scale(word, by), part[m]);
                    if constexpr (Format::WITH_MINIMA) add(m, loaded[m].minimum(word, by), ones);
                    if constexpr (Format::SIXTEENS) {
                        settle(next[m]);
                        add(m, loaded[m].scale(word, by, 1), next[m]);
                    }
                }
            } else {
                if (begins_slice) add_slice();
                unpack(word);
                begin_products();
#pragma unroll
                for (int m = 0; m < M; m++) {
                    multiply_group<N, true>(acc[m], a[at][m], columns);
                    multiply_group<N, true>(acc[m], a[at][m] + 4, columns + (32 >> 4));
                }
                end_products();
                wait_products<BUFFERS - 1>();
            }
            // All products of the chunk before are complete, and all lanes have read its weights, for `wgmma.wait_group.sync` is a
            // barrier of the warp: its stage is free. (A __syncwarp here makes the compiler wait for each product by itself.)
            if (word == BUFFERS - 2 && chunk > 0 && lane == 0) arrive(shared_address(&flags.empty[last_stage]));
        }
        last_stage = turn.stage;
        turn.next(HopperMemory<Format, N>::STAGES);
    }
    add_slice();
    if (lane == 0) arrive(shared_address(&flags.empty[last_stage]));
}

// Computes a tile and calls f(m, vector, sum of row r, sum of row r + 8).
template <typename Format, int N, int COLUMNS, typename H, typename F>
__device__ __forceinline__ void compute_tile(HopperMemory<Format, N>& memory, HopperFlags<HopperMemory<Format, N>::STAGES>& flags, Turn& turn,
                                             u32 cols, u32 slices, u32 here, H halves, F f) {
    float total[HopperMemory<Format, N>::M][N / 2];
    sum_tile<Format, N, COLUMNS>(memory, flags, turn, cols, slices, halves, total);
#pragma unroll
    for (int m = 0; m < HopperMemory<Format, N>::M; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 v = 8 * n + threadIdx.x % 4 * 2 + i;
                if (v < here) f(m, v, total[m][4 * n + i], total[m][4 * n + 2 + i]);
            }
}

template <typename Format, int N>
__device__ __forceinline__ HopperMemory<Format, N>& hopper_memory() {
    // 128-byte swizzle counts from multiples of 1,024.
    return *(HopperMemory<Format, N>*)(block_memory + (0u - shared_address(block_memory) & 1023));
}

// Once in a block, by all threads.
template <int STAGES>
__device__ __forceinline__ void prepare(HopperFlags<STAGES>& flags) {
    if (threadIdx.x == 0) {
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            asm volatile("mbarrier.init.shared.b64 [%0], 4;" ::"r"(shared_address(&flags.full[stage])) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], 8;" ::"r"(shared_address(&flags.empty[stage])) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}

// All tiles of a block: `copy(tile)` gives the lane's source, the number of blocks; `compute(tile)` stores results.
template <typename Copy, typename Compute>
__device__ __forceinline__ void take_tiles(u32 tiles, Copy copy, Compute compute) {
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) copy(tile);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) compute(tile);
    }
}
#endif
