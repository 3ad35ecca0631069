// The paged cache of latents, and the rows of a step that read it.

#define WIDTH (LATENT + ROPE)
#define PAGE_TOKENS 64

// One row of a step.
struct Row {
    u32 position;
    u32 table;  // where its sequence's pages begin in `pages`
};

// What rows attend to where an indexer chooses (see indexer.cu): ascending positions [rows, most] of those that have more than `most`
// tokens. Null where all rows see everything.
struct Choices {
    const u32* lists;
    u32 most;
};
#define NOT_FINITE ~0u  // begins the list of a row whose scores are not all numbers

// What one row attends to: all tokens up to its own, or those of a list, which take the places of the first `count` tokens.
struct Seen {
    const u32* list;
    u32 count, last;
    const u32* table;

    __device__ __forceinline__ Seen(const Choices& choices, u64 row, u32 position, const u32* table)
        : list(choices.lists && position >= choices.most ? choices.lists + row * choices.most : nullptr),
          count(list ? choices.most : position + 1), last(position), table(table) {}

    // Attention must not be a number where scores are not, so that it is found in the logits.
    __device__ __forceinline__ float scale(float scale) const { return list && __ldcg(list) == NOT_FINITE ? NAN_F : scale; }

    // The place in the cache of the i-th; of the last one, if there are fewer.
    __device__ __forceinline__ u64 place(u32 i) const {
        u32 position = list ? min(__ldcg(list + min(i, count - 1)), last) : i;
        return (u64)__ldcg(table + position / PAGE_TOKENS) * PAGE_TOKENS + position % PAGE_TOKENS;
    }
};

// Two neighbouring columns, as they are stored: loads of many go out before the first is unpacked.
template <typename T>
struct Pair;
template <>
struct Pair<float> {
    float2 values;
    __device__ __forceinline__ void load(const float* at) { values = *(const float2*)at; }
    __device__ __forceinline__ float2 unpack() const { return values; }
};
template <>
struct Pair<u16> {
    u32 values;
    __device__ __forceinline__ void load(const u16* at) { values = *(const u32*)at; }
    __device__ __forceinline__ float2 unpack() const {
        return make_float2(__uint_as_float(values << 16), __uint_as_float(values & 0xffff0000u));
    }
};
template <>
struct Pair<u8> {
    u16 codes;
    __device__ __forceinline__ void load(const u8* at) { codes = *(const u16*)at; }
    __device__ __forceinline__ float2 unpack() const { return make_float2(e4m3_to_f32(codes), e4m3_to_f32(codes >> 8)); }
};
