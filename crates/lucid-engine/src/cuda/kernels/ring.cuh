// Weights on their way to a warp. Every warp has a ring of stages in shared memory that it alone fills and reads, so no barrier
// of the block is needed and the bytes in flight don't cost registers. All stages but one are on their way while that one is
// computed. Weights stand in tiles whose bytes are in the order of use, so a stage is one contiguous copy for each row tile.
//
// From Hopper on one thread starts the copy and the copy engine moves it (cp.async.bulk), past the first-level cache, where the
// vectors are; a barrier in shared memory counts its bytes. Before, every thread copies its part.

#define BULK_COPIES (__CUDA_ARCH__ >= 900)

// For each of W warps, S stages of `BYTES` bytes for each of R row tiles.
template <int S, int R, int BYTES, int W = 8>
struct Ring {
    u8 bytes[W][S][R][BYTES];
};

// The barriers of all warps' stages. They stand outside of the ring, whose memory is used for other things in between.
template <int S, int W = 8>
struct Flags {
    u64 full[W][S];
};

// The stage that a warp reads next, and the barrier's phase that says that it is full.
template <int S>
struct Place {
    u32 stage, parity;
};
template <int S>
__device__ __forceinline__ u32 before(const Place<S>& place) {
    return place.stage == 0 ? S - 1 : place.stage - 1;
}
template <int S>
__device__ __forceinline__ void next(Place<S>& place) {
    place.stage++;
    if (place.stage == S) {
        place.stage = 0;
        place.parity ^= 1;
    }
}

__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Copies to shared memory that run on while the thread computes.
__device__ __forceinline__ void copy_16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Once in a block, before anything is fetched.
template <int S, int W>
__device__ __forceinline__ Place<S> prepare(Flags<S, W>& flags) {
#if BULK_COPIES
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int stage = 0; stage < S; stage++)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&flags.full[threadIdx.x / 32][stage]))
                         : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
#endif
    return Place<S>{0, 0};
}

#if BULK_COPIES
// One lane sends tiles [at, at + C), but none from `end` on, of UNIT bytes each, on their way.
template <int UNIT, int C, int S, int R, int BYTES, int W>
__device__ __forceinline__ void send(Ring<S, R, BYTES, W>& ring, Flags<S, W>& flags, u32 stage, const u8* const (&from)[R], u32 at,
                                     u32 end) {
    static_assert(C * UNIT <= BYTES, "a stage has room");
    u32 warp = threadIdx.x / 32, bytes = min(C, end - at) * UNIT;
    u32 flag = shared_address(&flags.full[warp][stage]);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(flag), "r"(bytes * R) : "memory");
#pragma unroll
    for (int r = 0; r < R; r++)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(ring.bytes[warp][stage][r])),
                     "l"(from[r] + (u64)at * UNIT), "r"(bytes), "r"(flag)
                     : "memory");
}
#endif

// The same by all lanes of a warp.
template <int UNIT, int C, int S, int R, int W>
__device__ __forceinline__ void fetch(Ring<S, R, C * UNIT, W>& ring, Flags<S, W>& flags, u32 stage, const u8* const (&from)[R],
                                      u32 at, u32 end) {
    u32 lane = threadIdx.x % 32;
    // All lanes are done with what the stage held before.
    __syncwarp();
    if (at < end) {
#if BULK_COPIES
        if (lane == 0) send<UNIT, C>(ring, flags, stage, from, at, end);
#else
        u32 warp = threadIdx.x / 32, bytes = min(C, end - at) * UNIT;
#pragma unroll
        for (int r = 0; r < R; r++)
            for (u32 i = 16 * lane; i < bytes; i += 512)
                copy_16(ring.bytes[warp][stage][r] + i, from[r] + (u64)at * UNIT + i);
#endif
    }
#if !BULK_COPIES
    end_copies();
#endif
}

// Sends the first stages of tiles [first, last) on their way: as early as it is known which.
template <int UNIT, int C, int S, int R, int W>
__device__ __forceinline__ void start(Ring<S, R, C * UNIT, W>& ring, Flags<S, W>& flags, const Place<S>& place,
                                      const u8* const (&from)[R], u32 first, u32 last) {
#pragma unroll
    for (u32 i = 0; i < S - 1; i++) fetch<UNIT, C>(ring, flags, (place.stage + i) % S, from, first + C * i, last);
}

// The block has used the ring's memory for something else, and gives it back.
__device__ __forceinline__ void give_back() {
#if BULK_COPIES
    // The copy engine must see what threads have written before it writes there.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
}

// Waits until the stage is full.
template <int S, int W>
__device__ __forceinline__ void wait(Flags<S, W>& flags, const Place<S>& place) {
#if BULK_COPIES
    u32 flag = shared_address(&flags.full[threadIdx.x / 32][place.stage]);
    u32 full = 0;
    while (!full)
        asm volatile(
            "{\n\t.reg .pred full;\n\t"
            "mbarrier.try_wait.parity.shared.b64 full, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, full;\n\t}"
            : "=r"(full) : "r"(flag), "r"(place.parity) : "memory");
#else
    wait_copies<S - 2>();
    __syncwarp();
#endif
}
