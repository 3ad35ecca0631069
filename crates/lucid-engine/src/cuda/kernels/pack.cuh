// Vectors as operand B of Hopper's warpgroup products takes them (see hopper.cu).

// A group's vectors stand by 128 columns, then by blocks of eight vectors, then by 64 columns: 1,024 bytes, in which the
// sixteen bytes number c of vector r stand at place c ^ r of its 128 ("128-byte swizzle"). Within 32 columns the words that thread t has in decoding, 4 t to 4 t + 3,
// stand where operand B's rows for its word of operand A are: at t, t + 4, t + 8, t + 12. Where
// weights have a scale for sixteen columns (`sixteens`), it has 2 t and 2 t + 1 of each sixteen columns.

// A vector's pairs of columns as words of bf16.
__device__ __forceinline__ const u32* pairs_of(const u16* vector) { return (const u32*)vector; }
// From E4M3 codes.
struct CodePairs {
    const u16* codes;
    __device__ __forceinline__ operator bool() const { return codes; }
    __device__ __forceinline__ void operator+=(u32 pairs) { codes += pairs; }
    __device__ __forceinline__ u32 operator[](u32 i) const { return pack_bf16(e4m3_to_f32(codes[i]), e4m3_to_f32(codes[i] >> 8)); }
};
__device__ __forceinline__ CodePairs pairs_of(const u8* vector) { return CodePairs{(const u16*)vector}; }

// Sixteen bytes of a block in the order in which they stand, so that a warp's stores are whole lines: number i of the block's. `vector(r)`:
// vector r, or null for zeros; 128 columns of the block stand `stride` bytes apart.
template <typename V>
__device__ __forceinline__ void pack_piece(u32 i, bool sixteens, V vector, u8* block, u64 stride) {
    u32 r = i / 8 % 8, place = i % 8, piece = place ^ r, half = i / 64, quarter = piece % 4;
    u32 first = sixteens ? quarter / 2 * 8 + quarter % 2 : quarter, step = sixteens ? 2 : 4;
    auto x = pairs_of(vector(r));
    uint4 words = make_uint4(0, 0, 0, 0);
    if (x) {
        x += half * 32 + piece / 4 * 16 + first;
        words = make_uint4(x[0], x[step], x[2 * step], x[3 * step]);
    }
    *(uint4*)(block + half / 2 * stride + half % 2 * 1024 + r * 128 + 16 * place) = words;
}
