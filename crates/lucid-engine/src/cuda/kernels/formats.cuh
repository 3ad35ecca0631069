extern __shared__ __align__(128) u8 block_memory[];

#define CHUNK 128  // columns of a step, where weights are in tiles of so many

// The forms in which weights meet the tensor cores: each a struct that holds a thread's part of a tile of 16 rows by 128 columns
// (see mma.cuh for the order), with
//   BYTES   of a tile
//   unit    what sums are multiplied with in the end, beside the matrix's global scale
//   SCALED  whether sums of 32 columns are multiplied with a scale before they are added: where a scaled weight is no bf16 number
//   load    from shared memory
//   unpack  word `word` (columns 32 word to 32 word + 31) as operand A of two products, exact
//   scale   of that word's rows g and g + 8
//   SIXTEENS, WITH_MINIMA  what GGUF's blocks add (see gguf.cuh): vectors come in halves of words, each with a scale of its own; sums of the
//           vectors' columns are multiplied with `minimum`
//   WHOLE_WARPS  warps of a block in experts_whole.cuh, of those that have a kernel there
// INT4, FP8 and bf16 take vectors in their natural order: in word w, thread t has columns 32 w + 8 t to 32 w + 8 t + 7.

__device__ __forceinline__ void mma(float d[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The product of bf16 pairs, exact wherever we use it. sm_80 has no bf16 multiply, so it is a sum with -0.
__device__ __forceinline__ u32 multiply_pairs(u32 a, u32 b) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
    return d;
}

// Numbers that the compiler must not know, so they come from the block's size, `block`. Left shifts as products run on a pipe that has
// nothing else to do; the compiler would turn them back into shifts. And an instruction holds one constant; a second one must be in a
// register, or it becomes a second instruction: `constant` is what it seems to be, but in a register.
struct Factors {
    u32 sixteen, sixty_four, nothing;
    __device__ __forceinline__ explicit Factors(u32 block = 256)
        : sixteen(blockDim.x / (block / 16)), sixty_four(blockDim.x / (block / 64)), nothing(blockDim.x / (2 * block)) {}
    __device__ __forceinline__ u32 constant(u32 x) const { return x | nothing; }
};

// What `mask` leaves of `bits`, and `with`.
__device__ __forceinline__ u32 masked_with(u32 bits, u32 mask, u32 with) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(bits), "r"(mask), "r"(with));
    return d;
}

// A word has one scale, or none.
struct WholeWords {
    static const bool SIXTEENS = false, WITH_MINIMA = false;
    static __device__ __forceinline__ float2 minimum(int, const Factors&) { return make_float2(0.0f, 0.0f); }
};

// Codes i and i + 4 of an interleaved word (see layouts.cuh) as a bf16 pair, times 2^-126: the sign in bit 15, the three
// others in bits 8 to 6.
template <int I>
__device__ __forceinline__ u32 e2m1_pair(u32 word, const Factors& by) {
    if (I == 0) return word & 0x81c081c0u;
    if (I == 1) return word * by.sixteen & 0x81c081c0u;
    if (I == 2) return __funnelshift_r(word, word, 6) & 0x81c081c0u;
    return (word * by.sixty_four & 0x80c080c0u) | (word >> 2 & 0x01000100u);
}

// Two E4M3 scales, in bits 0 to 7 and 16 to 23, or (HIGH) 8 to 15 and 24 to 31, as a bf16 pair, times 2^119: exact. What else is in
// the word is left out.
template <bool HIGH>
__device__ __forceinline__ u32 scale_pair(u32 codes) {
    u32 magnitude = (HIGH ? codes >> 4 : codes << 4) & 0x07f007f0u;
    u32 pair = multiply_pairs(magnitude, 0x7b807b80u);  // 2^120: the plain value
    pair = multiply_pairs(pair, 0x7b007b00u);           // 2^119
    return pair | ((HIGH ? codes : codes << 8) & 0x80008000u);
}

// Whether one of the four E4M3 codes is NaN, which a scale hardly ever is: then its half of the pair becomes NaN.
__device__ __forceinline__ bool has_nan(u32 codes) { return ((codes & 0x7f7f7f7fu) + 0x01010101u & 0x80808080u) != 0; }
template <bool HIGH>
__device__ __forceinline__ u32 nan_of(u32 codes) {
    u32 magnitude = (HIGH ? codes >> 8 : codes) & 0x007f007fu;
    // 0x7f + 1 carries into bit 7; times 255 that is all ones in bits 7 to 14.
    return (magnitude + 0x00010001u & 0x00800080u) * 255;
}

// NVFP4: E2M1 codes, an E4M3 scale for 16 columns; their products are bf16 numbers. Lane 4 g + t has columns 32 t to 32 t + 31.
// Half `which` of a pair, twice.
__device__ __forceinline__ u32 broadcast(u32 pair, int which) {
    u32 both;
    if (which == 0)
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(both) : "r"(pair));
    else
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(both) : "r"(pair));
    return both;
}
struct Nvfp4 : WholeWords {
    static const int WHOLE_WARPS = 24;
    static const int BYTES = TILE_BYTES;
    static const bool SCALED = false;
    static __device__ __forceinline__ float unit() { return 128.0f; }
    uint4 low, high;
    u32 low_pair, high_pair;

    __device__ __forceinline__ void load(const u8* tile, u32 lane) {
        low = ((const uint4*)tile)[lane];
        high = ((const uint4*)(tile + 512))[lane];
        u32 scales = ((const u32*)(tile + 1024))[lane];
        low_pair = scale_pair<false>(scales);
        high_pair = scale_pair<true>(scales);
        if (has_nan(scales)) {
            low_pair |= nan_of<false>(scales);
            high_pair |= nan_of<true>(scales);
        }
    }
    // Rows g from half `low_half` of one tile, rows g + 8 from half `high_half` of another.
    __device__ __forceinline__ void load(const u8* low_tile, u32 low_half, const u8* high_tile, u32 high_half, u32 lane) {
        low = ((const uint4*)(low_tile + 512 * low_half))[lane];
        high = ((const uint4*)(high_tile + 512 * high_half))[lane];
        u32 low_scales = ((const u32*)(low_tile + 1024))[lane] >> 8 * low_half;
        u32 high_scales = ((const u32*)(high_tile + 1024))[lane] >> 8 * high_half;
        low_pair = scale_pair<false>(low_scales);
        high_pair = scale_pair<false>(high_scales);
        if (has_nan(low_scales) || has_nan(high_scales)) {
            low_pair |= nan_of<false>(low_scales);
            high_pair |= nan_of<false>(high_scales);
        }
    }
    __device__ __forceinline__ void unpack(u32 (&a)[8], int word, const Factors& by) const {
        u32 l = (&low.x)[word], h = (&high.x)[word];
        u32 low_scale = broadcast(low_pair, word / 2), high_scale = broadcast(high_pair, word / 2);
        a[0] = multiply_pairs(e2m1_pair<0>(l, by), low_scale);
        a[1] = multiply_pairs(e2m1_pair<0>(h, by), high_scale);
        a[2] = multiply_pairs(e2m1_pair<1>(l, by), low_scale);
        a[3] = multiply_pairs(e2m1_pair<1>(h, by), high_scale);
        a[4] = multiply_pairs(e2m1_pair<2>(l, by), low_scale);
        a[5] = multiply_pairs(e2m1_pair<2>(h, by), high_scale);
        a[6] = multiply_pairs(e2m1_pair<3>(l, by), low_scale);
        a[7] = multiply_pairs(e2m1_pair<3>(h, by), high_scale);
    }
    __device__ __forceinline__ float2 scale(int, const Factors&) const { return make_float2(1.0f, 1.0f); }
};

// INT4: a code is the value plus 8, a bf16 scale for 32 columns.
struct Int4 : WholeWords {
    static const int WHOLE_WARPS = 20;
    static const int BYTES = TILE_BYTES;
    static const bool SCALED = true;
    static __device__ __forceinline__ float unit() { return 1.0f; }
    uint4 low, high;
    uint2 low_scales, high_scales;  // four bf16 each

    // Codes 2 I and 2 I + 1 of a word, in bits 4 I and 16 + 4 I, as a bf16 pair: 128 plus a code is exact, and so is the difference.
    template <int I>
    static __device__ __forceinline__ u32 pair(u32 word, u32 raise) {
        u32 raised = masked_with(word >> 4 * I, 0x000f000fu, raise), d;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(raised), "r"(0x3f803f80u), "r"(0xc308c308u));
        return d;
    }
    __device__ __forceinline__ void load(const u8* tile, u32 lane) {
        low = ((const uint4*)tile)[lane];
        high = ((const uint4*)(tile + 512))[lane];
        low_scales = ((const uint2*)(tile + 1024))[lane / 4];
        high_scales = ((const uint2*)(tile + 1024))[lane / 4 + 8];
    }
    __device__ __forceinline__ void load(const u8* low_tile, u32 low_half, const u8* high_tile, u32 high_half, u32 lane) {
        low = ((const uint4*)(low_tile + 512 * low_half))[lane];
        high = ((const uint4*)(high_tile + 512 * high_half))[lane];
        low_scales = ((const uint2*)(low_tile + 1024))[lane / 4 + 8 * low_half];
        high_scales = ((const uint2*)(high_tile + 1024))[lane / 4 + 8 * high_half];
    }
    __device__ __forceinline__ void unpack(u32 (&a)[8], int word, const Factors& by) const {
        u32 l = (&low.x)[word], h = (&high.x)[word], raise = by.constant(0x43004300u);
        a[0] = pair<0>(l, raise);
        a[1] = pair<0>(h, raise);
        a[2] = pair<1>(l, raise);
        a[3] = pair<1>(h, raise);
        a[4] = pair<2>(l, raise);
        a[5] = pair<2>(h, raise);
        a[6] = pair<3>(l, raise);
        a[7] = pair<3>(h, raise);
    }
    static __device__ __forceinline__ float half(const uint2& scales, int word) {
        u32 both = word < 2 ? scales.x : scales.y;
        return __uint_as_float(word % 2 ? both & 0xffff0000u : both << 16);
    }
    __device__ __forceinline__ float2 scale(int word, const Factors&) const {
        return make_float2(half(low_scales, word), half(high_scales, word));
    }
};

// FP8: E4M3 with an f32 scale for blocks of 128 rows and columns.
struct F8Blocks : WholeWords {
    static const int WHOLE_WARPS = 16;
    static const int BYTES = F8_TILE_BYTES;
    static const bool SCALED = true;
    static __device__ __forceinline__ float unit() { return 1.0f; }
    uint4 low[2], high[2];  // words 0 and 1, words 2 and 3
    float factor, high_factor;  // of rows g, of rows g + 8

    // Two codes, in bits 0 to 7 and 16 to 23, as a bf16 pair: exact, and NaN stays NaN.
    static __device__ __forceinline__ u32 pair(u32 codes) {
        u32 magnitude = codes & 0x007f007fu;
        u32 value = multiply_pairs(magnitude * 16, 0x7b807b80u);  // 2^120
        u32 nan = (magnitude + 0x00010001u & 0x00800080u) * 255;
        return value | (codes & 0x00800080u) * 256 | nan;
    }
    __device__ __forceinline__ void load(const u8* tile, u32 lane) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            low[i] = ((const uint4*)(tile + 1024 * i))[lane];
            high[i] = ((const uint4*)(tile + 1024 * i + 512))[lane];
        }
        factor = high_factor = *(const float*)(tile + 2048);
    }
    __device__ __forceinline__ void load(const u8* low_tile, u32 low_half, const u8* high_tile, u32 high_half, u32 lane) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            low[i] = ((const uint4*)(low_tile + 1024 * i + 512 * low_half))[lane];
            high[i] = ((const uint4*)(high_tile + 1024 * i + 512 * high_half))[lane];
        }
        factor = *(const float*)(low_tile + 2048);
        high_factor = *(const float*)(high_tile + 2048);
    }
    __device__ __forceinline__ void unpack(u32 (&a)[8], int word, const Factors&) const {
        const uint4 &l = low[word / 2], &h = high[word / 2];
        u32 l0 = word % 2 ? l.z : l.x, l1 = word % 2 ? l.w : l.y;
        u32 h0 = word % 2 ? h.z : h.x, h1 = word % 2 ? h.w : h.y;
        a[0] = pair(l0);
        a[1] = pair(h0);
        a[2] = pair(l0 >> 8);
        a[3] = pair(h0 >> 8);
        a[4] = pair(l1);
        a[5] = pair(h1);
        a[6] = pair(l1 >> 8);
        a[7] = pair(h1 >> 8);
    }
    __device__ __forceinline__ float2 scale(int, const Factors&) const { return make_float2(factor, high_factor); }
};

// bf16: four tiles of 32 columns are one of 128.
struct Bf16 : WholeWords {
    static const int BYTES = 4 * BF16_TILE_BYTES;
    static const bool SCALED = false;
    static __device__ __forceinline__ float unit() { return 1.0f; }
    uint4 low[4], high[4];

    __device__ __forceinline__ void load(const u8* tile, u32 lane) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            low[i] = ((const uint4*)(tile + BF16_TILE_BYTES * i))[lane];
            high[i] = ((const uint4*)(tile + BF16_TILE_BYTES * i + 512))[lane];
        }
    }
    __device__ __forceinline__ void unpack(u32 (&a)[8], int word, const Factors&) const {
        const uint4 &l = low[word], &h = high[word];
        a[0] = l.x;
        a[1] = h.x;
        a[2] = l.y;
        a[3] = h.y;
        a[4] = l.z;
        a[5] = h.z;
        a[6] = l.w;
        a[7] = h.w;
    }
    __device__ __forceinline__ float2 scale(int, const Factors&) const { return make_float2(1.0f, 1.0f); }
};

// bf16 weights: words are taken from shared memory when their turn comes, all at once would take too many registers.
struct Bf16Late : WholeWords {
    static const int BYTES = Bf16::BYTES;
    static const bool SCALED = false;
    static __device__ __forceinline__ float unit() { return 1.0f; }
    const uint4 *low, *high;
    __device__ __forceinline__ void load(const u8* low_tile, u32 low_half, const u8* high_tile, u32 high_half, u32 lane) {
        low = (const uint4*)(low_tile + 512 * low_half) + lane;
        high = (const uint4*)(high_tile + 512 * high_half) + lane;
    }
    __device__ __forceinline__ void unpack(u32 (&a)[8], int word, const Factors&) const {
        uint4 l = low[BF16_TILE_BYTES / 16 * word], h = high[BF16_TILE_BYTES / 16 * word];
        a[0] = l.x;
        a[1] = h.x;
        a[2] = l.y;
        a[3] = h.y;
        a[4] = l.z;
        a[5] = h.z;
        a[6] = l.w;
        a[7] = h.w;
    }
    __device__ __forceinline__ float2 scale(int, const Factors&) const { return make_float2(1.0f, 1.0f); }
};

// The sums of a word's 32 columns of eight vectors, as products with ones, so that prompts have the bits of decoding: a thread's two vectors'.
template <typename Format>
__device__ __forceinline__ float2 sum_columns(const uint4& v) {
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (Format::WITH_MINIMA) {
        const u32 ONES = 0x3f803f80u;
        mma(sum, ONES, ONES, ONES, ONES, v.x, v.y);
        mma(sum, ONES, ONES, ONES, ONES, v.z, v.w);
    }
    return make_float2(sum[0], sum[1]);
}

__device__ __forceinline__ void add_scaled(float (&sum)[4], const float2& scale, const float (&part)[4]) {
    sum[0] = fmaf(scale.x, part[0], sum[0]);
    sum[1] = fmaf(scale.x, part[1], sum[1]);
    sum[2] = fmaf(scale.y, part[2], sum[2]);
    sum[3] = fmaf(scale.y, part[3], sum[3]);
}

// What sums of a word are multiplied with: of rows g and of rows g + 8, the scale, and the minimum or the next sixteen columns' scale.
struct WordScales {
    float2 first, second;
};
template <typename Weights>
__device__ __forceinline__ WordScales scales_of(const Weights& weights, int word, const Factors& by) {
    WordScales scales;
    if constexpr (Weights::WITH_MINIMA) {
        weights.both(word, by, scales.first, scales.second);
    } else if constexpr (Weights::SCALED) {
        scales.first = weights.scale(word, by);
        if constexpr (Weights::SIXTEENS) scales.second = weights.scale(word, by, 1);
    }
    return scales;
}

// Adds a word of a tile times eight columns of vectors, whose own sums are `columns`. Sums of 32 columns are scaled at once: the scale differs
// from word to word (INT4), or holding them back would take more registers than there are (FP8).
template <typename Format>
__device__ __forceinline__ void multiply_word(const WordScales& scales, const u32 (&a)[8], const uint4& v, const float2& columns,
                                              float (&sum)[4]) {
    if constexpr (Format::SIXTEENS) {
        float part[4] = {0.0f, 0.0f, 0.0f, 0.0f}, next[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        mma(part, a[0], a[1], a[2], a[3], v.x, v.y);
        mma(next, a[4], a[5], a[6], a[7], v.z, v.w);
        add_scaled(sum, scales.first, part);
        add_scaled(sum, scales.second, next);
    } else if constexpr (Format::SCALED) {
        float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        mma(part, a[0], a[1], a[2], a[3], v.x, v.y);
        mma(part, a[4], a[5], a[6], a[7], v.z, v.w);
        add_scaled(sum, scales.first, part);
        if constexpr (Format::WITH_MINIMA) {
            const float both[4] = {columns.x, columns.y, columns.x, columns.y};
            add_scaled(sum, scales.second, both);
        }
    } else {
        mma(sum, a[0], a[1], a[2], a[3], v.x, v.y);
        mma(sum, a[4], a[5], a[6], a[7], v.z, v.w);
    }
}
