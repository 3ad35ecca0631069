// Lists of visitors' groups, and their vectors as operand B takes them (see pack.cuh).

// An entry of a list of groups, up to `size` visits of one expert: the expert, the first visit, how many, and the block of eight where
// they are packed. Entry 0 has the number of groups in its first word.

// Two lists: groups of up to `size` visits, a multiple of 8; and experts' last ones where they have no more than `narrow`.
// One block of 512 threads. `slots` null: one expert, and every vector visits it.
extern "C" __global__ void list_groups(Visits visits, u32 slots, u32 size, u32 narrow, uint4* groups, uint4* narrow_groups) {
    __shared__ u32 sums[16];
    wait_for_previous();
    if (threadIdx.x == 0) narrow_groups[0] = make_uint4(0, 0, 0, 0);
    if (!visits.slots) {
        u32 count = (visits.count + size - 1) / size;
        for (u32 i = threadIdx.x; i < count; i += blockDim.x)
            groups[1 + i] = make_uint4(0, i * size, min(visits.count - i * size, size), i * (size / 8));
        if (threadIdx.x == 0) groups[0] = make_uint4(count, 0, 0, 0);
        return;
    }
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, before = 0, before_narrow = 0;
    for (u32 base = 0; base < slots; base += blockDim.x) {
        u32 slot = base + threadIdx.x;
        uint4 visit = slot < slots ? __ldcg(visits.slots + slot) : make_uint4(0, 0, 0, 0);
        u32 rest = visit.z % size, last = rest > 0 && rest <= narrow, mine = (visit.z + size - 1) / size - last;
        // Both lists' sums at once: neither reaches 65,536.
        u32 both = mine | last << 16, sum = both;
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            u32 left = __shfl_up_sync(~0u, sum, step);
            if (lane >= step) sum += left;
        }
        if (lane == 31) sums[warp] = sum;
        __syncthreads();
        u32 start = sum - both, all = 0;
        for (u32 w = 0; w < blockDim.x / 32; w++) {
            if (w < warp) start += sums[w];
            all += sums[w];
        }
        // Slots stand by their first visit, but for the shared expert's: that is the first slot and has the last visits.
        u32 place = slot == 0 && visit.y > 0 ? slots : slot, block = visit.y / 8 + place;
        for (u32 i = 0; i < mine; i++)
            groups[1 + before + (start & 0xffff) + i] =
                make_uint4(visit.x, visit.y + i * size, min(visit.z - i * size, size), block + i * (size / 8));
        if (last)
            narrow_groups[1 + before_narrow + (start >> 16)] =
                make_uint4(visit.x, visit.y + mine * size, rest, block + mine * (size / 8));
        before += all & 0xffff;
        before_narrow += all >> 16;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        groups[0] = make_uint4(before, 0, 0, 0);
        narrow_groups[0] = make_uint4(before_narrow, 0, 0, 0);
    }
}

// Packs `count` vectors of x in groups of `size`, for weights with scales for `sixteens` or not. grid (blocks of eight), 256 threads.
extern "C" __global__ void pack_vectors(const u16* x, u32 count, u32 size, u32 cols, int sixteens, u8* packed) {
    wait_for_previous();
    u32 first = blockIdx.x * 8 / size * size, blocks = (min(count - first, size) + 7) / 8;
    u8* block = packed + (u64)first * cols * 2 + (blockIdx.x - first / 8) * 2048;
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x)
        pack_piece(
            i, sixteens, [&](u32 r) { return blockIdx.x * 8 + r < count ? x + (u64)(blockIdx.x * 8 + r) * cols : nullptr; }, block,
            blocks * 2048);
}

// Packs the groups' vectors likewise: vector v is row `tokens[v]` of x, or row v without a list.
// grid (groups at the most, as many blocks of eight as a group can have), 256 threads.
extern "C" __global__ void pack_visitors(const uint4* groups, const u32* tokens, const u16* x, u32 cols, int sixteens,
                                         u8* packed) {
    wait_for_previous();
    if (blockIdx.x >= __ldcg(groups).x) return;
    uint4 group = __ldcg(groups + 1 + blockIdx.x);
    u32 blocks = (group.z + 7) / 8;
    if (blockIdx.y >= blocks) return;
    u8* block = packed + (u64)group.w * cols * 16 + blockIdx.y * 2048;
    __shared__ u32 rows[8];
    if (threadIdx.x < 8) {
        u32 v = min(blockIdx.y * 8 + threadIdx.x, group.z - 1);
        rows[threadIdx.x] = tokens ? tokens[group.y + v] : group.y + v;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < cols; i += blockDim.x)
        pack_piece(i, sixteens, [&](u32 r) { return x + (u64)rows[r] * cols; }, block, blocks * 2048);
}
