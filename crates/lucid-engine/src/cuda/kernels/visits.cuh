// Experts and who visits them.

struct ExpertWeight {
    const u8* values;  // [experts, rows, cols] as stored, or tiled with the scales inside
    const u8* scales;
    const float* global_scales;  // [experts]
    u64 value_stride;            // bytes from one expert to the next
    u64 scale_stride;
};

// The place of a visit to an expert of another rank.
#define ELSEWHERE ~0u

// An expert and its visits: count of them, from `first` on.
struct Visit {
    u32 expert, first, count, unused;
};

// Who visits whom (see router.cu). `slots` null: one expert, number 0, and every token visits it.
// `shared` is the number of the shared expert plus one, if there is one: the first slot, where all `step` tokens end the list.
struct Visits {
    const uint4* slots;
    const u32* tokens;
    u32 count, shared, step;
};

// The shared expert's visits are known before anybody has chosen.
__device__ __forceinline__ bool is_known(const Visits& visits, u32 slot) { return visits.shared && slot == 0; }
__device__ __forceinline__ Visit shared_visit(const Visits& visits) {
    return Visit{visits.shared - 1, visits.count - visits.step, visits.step, 0};
}

__device__ __forceinline__ bool find_visit(const Visits& visits, u32 slot, Visit& visit) {
    if (!visits.slots) {
        visit = Visit{0, 0, visits.count, 0};
        return true;
    }
    // One load: everything else waits for it. From the second level, as another kernel's blocks may have left an old list in the
    // first.
    uint4 words = __ldcg(visits.slots + slot);
    visit = Visit{words.x, words.y, words.z, 0};
    return visit.count > 0;
}

__device__ __forceinline__ u32 token_of(const Visits& visits, u32 visit) {
    return visits.tokens ? visits.tokens[visit] : visit;
}

// The tiles of sixteen rows from `row` on; rows past the end repeat the last tile and are not stored.
template <typename Format>
__device__ __forceinline__ const u8* tiles_of(const ExpertWeight& w, u64 expert, u32 rows, u32 cols, u32 row) {
    return w.values + expert * w.value_stride + (u64)(min(row, rows - 1) / 16) * (cols / 128) * Format::BYTES;
}
