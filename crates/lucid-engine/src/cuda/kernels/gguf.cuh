// GGUF's block types on the tensor cores: forms of weights as formats.cuh says, from tiles as blocks.cuh says.
//
// Codes are whole numbers of up to eight bits, so they are bf16 numbers, and sums of 32 columns (Q6_K: 16) are multiplied with their scale
// in f32. Where a minimum is taken off each value, the sums of the same columns of the vectors are multiplied with it; they are products
// with ones. A code with a minimum stays raised by the number whose exponent it was put under (`RAISED`), which costs no instruction: the
// minimum takes it off too.

// Eight codes of a word as four pairs.
struct EightBitPairs {
    uint4 words[2];
    __device__ __forceinline__ void load(const u8* tile, u32 half, u32 lane) {
#pragma unroll
        for (int i = 0; i < 2; i++) words[i] = ((const uint4*)(tile + 1024 * i + 512 * half))[lane];
    }
    // Two signed bytes: 128 and seven bits, less 128 or, with the sign, 256.
    static __device__ __forceinline__ u32 pair(u32 bytes, u32 raise) {
        u32 d, lower = masked_with(bytes, 0x00800080u, raise ^ 0x80008000u);
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(masked_with(bytes, 0x007f007fu, raise)), "r"(0x3f803f80u), "r"(lower));
        return d;
    }
    __device__ __forceinline__ void unpack(u32 (&pairs)[4], int word, const Factors& by) const {
        const uint4& four = words[word / 2];
        u32 first = word % 2 ? four.z : four.x, second = word % 2 ? four.w : four.y;
        u32 raise = by.constant(0x43004300u);
        pairs[0] = pair(first, raise);
        pairs[1] = pair(first >> 8, raise);
        pairs[2] = pair(second, raise);
        pairs[3] = pair(second >> 8, raise);
    }
};

struct FourBitPairs {
    static constexpr float RAISED = 16.0f;
    uint4 words;
    __device__ __forceinline__ void load(const u8* tile, u32 half, u32 lane) { words = ((const uint4*)(tile + 512 * half))[lane]; }
    static __device__ __forceinline__ u32 pair(u32 word, u32 raise) { return masked_with(word, 0x00780078u, raise); }
    __device__ __forceinline__ void unpack(u32 (&pairs)[4], int word, const Factors& by) const {
        u32 codes = (&words.x)[word], raise = by.constant(0x41804180u);
        pairs[0] = pair(codes, raise);
        pairs[1] = pair(codes >> 4, raise);
        pairs[2] = pair(codes >> 8, raise);
        pairs[3] = pair(rotate_right(codes, 12), raise);
    }
};

struct FiveBitPairs {
    static constexpr float RAISED = 32.0f;
    u32 words[5];
    __device__ __forceinline__ void load(const u8* tile, u32 half, u32 lane) {
        uint4 four = ((const uint4*)(tile + 512 * half))[lane];
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
        words[4] = ((const u32*)(tile + 1024 + 128 * half))[lane];
    }
    __device__ __forceinline__ void unpack(u32 (&pairs)[4], int word, const Factors& by) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int number = 4 * word + i, at = number / 3, field = number % 3;
            pairs[i] = by.constant(0x42004200u);
            if (number < 15) {
                u32 codes = field == 0 ? words[at] : field == 1 ? words[at] >> 5 : rotate_right(words[at], 12 - 2);
                pairs[i] = masked_with(codes, 0x007c007cu, pairs[i]);
            } else {
#pragma unroll
                for (int bit = 0; bit < 5; bit++) pairs[i] = masked_with(words[bit] << (bit + 1), 0x00040004u << bit, pairs[i]);
            }
        }
    }
};

struct SixBitPairs {
    u32 words[6];
    __device__ __forceinline__ void load(const u8* tile, u32 half, u32 lane) {
        uint4 four = ((const uint4*)(tile + 512 * half))[lane];
        uint2 two = ((const uint2*)(tile + 1024 + 256 * half))[lane];
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
        words[4] = two.x;
        words[5] = two.y;
    }
    // Less 32.
    static __device__ __forceinline__ u32 lower(u32 raised) {
        u32 d;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(raised), "r"(0x3f803f80u), "r"(0xc320c320u));
        return d;
    }
    __device__ __forceinline__ void unpack(u32 (&pairs)[4], int word, const Factors& by) const {
        const u32* three = words + word / 2 * 3;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int number = word % 2 * 4 + i;
            u32 raised = by.constant(0x43004300u);
            if (number < 3)
                raised = masked_with(three[number], 0x003f003fu, raised);
            else if (number < 6)
                raised = masked_with(three[number - 3] >> 6, 0x003f003fu, raised);
            else
                raised = masked_with(three[1] >> (number == 6 ? 8 : 10), 0x00300030u,
                                     masked_with(three[number == 6 ? 0 : 2] >> 12, 0x000f000fu, raised));
            pairs[i] = lower(raised);
        }
    }
};

// Byte I of a word, without sign, times a factor of which `lowered` is -2^23 times: 2^23 and the byte is one permutation, and the
// difference is exact.
__device__ __forceinline__ float byte_times(u32 word, int i, const Factors& by, float factor, float lowered) {
    return fmaf(__uint_as_float(__byte_perm(word, by.constant(0x4b000000u), 0x7440 + i)), factor, lowered);
}

// What forms of blocks have in common: `Pairs` of both rows.
template <typename Type, typename Pairs>
struct Blocks {
    static const int CODE_BYTES = Type::Codes::BYTES, BYTES = CODE_BYTES + Type::SCALE_BYTES;
    static const bool SCALED = true, SIXTEENS = Type::SIXTEENS;
    static __device__ __forceinline__ float unit() { return 1.0f; }
    Pairs low, high;
    __device__ __forceinline__ void load_codes(const u8* low_tile, u32 low_half, const u8* high_tile, u32 high_half, u32 lane) {
        low.load(low_tile, low_half, lane);
        high.load(high_tile, high_half, lane);
    }
    __device__ __forceinline__ void unpack(u32 (&a)[8], int word, const Factors& by) const {
        u32 of_low[4], of_high[4];
        low.unpack(of_low, word, by);
        high.unpack(of_high, word, by);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[2 * i] = of_low[i];
            a[2 * i + 1] = of_high[i];
        }
    }
};

// Where half `half` of a tile's rows has its `PER_ROW` bytes of something `at` bytes behind the codes.
template <int CODE_BYTES>
__device__ __forceinline__ const u8* scales_of_row(const u8* tile, u32 at, u32 half, u32 lane, u32 per_row) {
    return tile + CODE_BYTES + at + (8 * half + lane / 4) * per_row;
}

// A binary16 scale for 32 columns.
template <typename Type, typename Pairs>
struct BlocksOf32 : Blocks<Type, Pairs> {
    typedef Blocks<Type, Pairs> Base;
    static const bool WITH_MINIMA = false;
    uint2 low_scales, high_scales;
    __device__ __forceinline__ void load(const u8* low_tile, u32 low_half, const u8* high_tile, u32 high_half, u32 lane) {
        Base::load_codes(low_tile, low_half, high_tile, high_half, lane);
        low_scales = *(const uint2*)scales_of_row<Base::CODE_BYTES>(low_tile, 0, low_half, lane, 8);
        high_scales = *(const uint2*)scales_of_row<Base::CODE_BYTES>(high_tile, 0, high_half, lane, 8);
    }
    __device__ __forceinline__ void load(const u8* tile, u32 lane) { load(tile, 0, tile, 1, lane); }
    static __device__ __forceinline__ float half(const uint2& scales, int word) {
        u32 both = word < 2 ? scales.x : scales.y;
        return f16_to_f32(word % 2 ? both >> 16 : both);
    }
    __device__ __forceinline__ float2 scale(int word, const Factors& by, int = 0) const {
        return make_float2(half(low_scales, word), half(high_scales, word));
    }
    __device__ __forceinline__ float2 minimum(int, const Factors&) const { return make_float2(0.0f, 0.0f); }
};

// The same in f32.
template <typename Type, typename Pairs>
struct BlocksOfWide32 : Blocks<Type, Pairs> {
    typedef Blocks<Type, Pairs> Base;
    static const bool WITH_MINIMA = false;
    float4 low_scales, high_scales;
    __device__ __forceinline__ void load(const u8* low_tile, u32 low_half, const u8* high_tile, u32 high_half, u32 lane) {
        Base::load_codes(low_tile, low_half, high_tile, high_half, lane);
        low_scales = *(const float4*)scales_of_row<Base::CODE_BYTES>(low_tile, 0, low_half, lane, 16);
        high_scales = *(const float4*)scales_of_row<Base::CODE_BYTES>(high_tile, 0, high_half, lane, 16);
    }
    __device__ __forceinline__ void load(const u8* tile, u32 lane) { load(tile, 0, tile, 1, lane); }
    __device__ __forceinline__ float2 scale(int word, const Factors&, int = 0) const {
        return make_float2((&low_scales.x)[word], (&high_scales.x)[word]);
    }
    __device__ __forceinline__ float2 minimum(int, const Factors&) const { return make_float2(0.0f, 0.0f); }
};

// A binary16 scale and a number that is added for 32 columns.
template <typename Type, typename Pairs>
struct BlocksOfPairs : Blocks<Type, Pairs> {
    typedef Blocks<Type, Pairs> Base;
    static const bool WITH_MINIMA = true;
    static __device__ __forceinline__ float scale_of(u32 pair) { return f16_to_f32(pair); }
    static __device__ __forceinline__ float minimum_of(u32 pair) { return fmaf(-Pairs::RAISED, scale_of(pair), f16_to_f32(pair >> 16)); }
    // As those of 256.
    static __device__ __forceinline__ void prepare(const u8* tile, u32 lane, const Factors&, float2* table) {
        const uint2 two = ((const uint2*)(tile + Base::CODE_BYTES))[lane];
        ((float4*)table)[lane] = make_float4(scale_of(two.x), minimum_of(two.x), scale_of(two.y), minimum_of(two.y));
    }
    uint4 low_pairs, high_pairs;
    __device__ __forceinline__ void load(const u8* low_tile, u32 low_half, const u8* high_tile, u32 high_half, u32 lane) {
        Base::load_codes(low_tile, low_half, high_tile, high_half, lane);
        low_pairs = *(const uint4*)scales_of_row<Base::CODE_BYTES>(low_tile, 0, low_half, lane, 16);
        high_pairs = *(const uint4*)scales_of_row<Base::CODE_BYTES>(high_tile, 0, high_half, lane, 16);
    }
    __device__ __forceinline__ void load(const u8* tile, u32 lane) { load(tile, 0, tile, 1, lane); }
    __device__ __forceinline__ float2 scale(int word, const Factors&, int = 0) const {
        return make_float2(scale_of((&low_pairs.x)[word]), scale_of((&high_pairs.x)[word]));
    }
    __device__ __forceinline__ float2 minimum(int word, const Factors&) const {
        return make_float2(minimum_of((&low_pairs.x)[word]), minimum_of((&high_pairs.x)[word]));
    }
    __device__ __forceinline__ void both(int word, const Factors& by, float2& of_codes, float2& of_columns) const {
        of_codes = scale(word, by);
        of_columns = minimum(word, by);
    }
};

// Factors of scales and minima for 256 columns.
template <typename Type, typename Pairs>
struct BlocksOf256 : Blocks<Type, Pairs> {
    typedef Blocks<Type, Pairs> Base;
    static const bool WITH_MINIMA = true;
    struct Row {
        uint2 bytes;
        float factor, of_minimum;  // the second one negative
        __device__ __forceinline__ void load(const u8* tile, u32 half, u32 lane) {
            bytes = *(const uint2*)scales_of_row<Base::CODE_BYTES>(tile, 0, half, lane, 8);
            load_factors(tile, half, lane);
        }
        __device__ __forceinline__ void load_factors(const u8* tile, u32 half, u32 lane) {
            u32 both = *(const u32*)scales_of_row<Base::CODE_BYTES>(tile, 128, half, lane, 4);
            factor = f16_to_f32(both);
            of_minimum = -f16_to_f32(both >> 16);
        }
        __device__ __forceinline__ float scale(int word, const Factors& by) const { return byte_times(bytes.x, word, by, factor, factor * -0x1p23f); }
        __device__ __forceinline__ float minimum(int word, const Factors& by) const {
            return fmaf(-Pairs::RAISED, scale(word, by), byte_times(bytes.y, word, by, of_minimum, of_minimum * -0x1p23f));
        }
    };
    // Rows' scales and minima once for all lanes: lane's two words' of a row, to `table` [16 rows][4 words].
    static __device__ __forceinline__ void prepare(const u8* tile, u32 lane, const Factors& by, float2* table) {
        u32 row = lane / 2, word = lane % 2 * 2;
        const u8* scales = tile + Base::CODE_BYTES;
        Row two;
        two.load_factors(tile, row / 8, row % 8 * 4);
        two.bytes = make_uint2(*(const u16*)(scales + 8 * row + word), *(const u16*)(scales + 8 * row + 4 + word));
        *(float4*)(table + 4 * row + word) = make_float4(two.scale(0, by), two.minimum(0, by), two.scale(1, by), two.minimum(1, by));
    }
    Row low_row, high_row;
    __device__ __forceinline__ void load(const u8* low_tile, u32 low_half, const u8* high_tile, u32 high_half, u32 lane) {
        Base::load_codes(low_tile, low_half, high_tile, high_half, lane);
        low_row.load(low_tile, low_half, lane);
        high_row.load(high_tile, high_half, lane);
    }
    __device__ __forceinline__ void load(const u8* tile, u32 lane) { load(tile, 0, tile, 1, lane); }
    __device__ __forceinline__ float2 scale(int word, const Factors& by, int = 0) const { return make_float2(low_row.scale(word, by), high_row.scale(word, by)); }
    __device__ __forceinline__ void both(int word, const Factors& by, float2& of_codes, float2& of_columns) const {
        of_codes = scale(word, by);
        of_columns = minimum(word, by);
    }
    __device__ __forceinline__ float2 minimum(int word, const Factors& by) const { return make_float2(low_row.minimum(word, by), high_row.minimum(word, by)); }
};

// A factor for 256 columns, of a signed byte for 16.
template <typename Type, typename Pairs>
struct BlocksOf16 : Blocks<Type, Pairs> {
    typedef Blocks<Type, Pairs> Base;
    static const bool WITH_MINIMA = false;
    struct Row {
        uint2 bytes;
        float factor;
        __device__ __forceinline__ void load(const u8* tile, u32 half, u32 lane) {
            bytes = *(const uint2*)scales_of_row<Base::CODE_BYTES>(tile, 0, half, lane, 8);
            factor = f16_to_f32(*(const u16*)scales_of_row<Base::CODE_BYTES>(tile, 128, half, lane, 2));
        }
        __device__ __forceinline__ float scale(int word, int which) const {
            u32 four = word < 2 ? bytes.x : bytes.y;
            return factor * (float)(signed char)(four >> (word % 2 * 16 + which * 8));
        }
    };
    Row low_row, high_row;
    __device__ __forceinline__ void load(const u8* low_tile, u32 low_half, const u8* high_tile, u32 high_half, u32 lane) {
        Base::load_codes(low_tile, low_half, high_tile, high_half, lane);
        low_row.load(low_tile, low_half, lane);
        high_row.load(high_tile, high_half, lane);
    }
    __device__ __forceinline__ void load(const u8* tile, u32 lane) { load(tile, 0, tile, 1, lane); }
    __device__ __forceinline__ float2 scale(int word, const Factors&, int which = 0) const {
        return make_float2(low_row.scale(word, which), high_row.scale(word, which));
    }
    __device__ __forceinline__ float2 minimum(int, const Factors&) const { return make_float2(0.0f, 0.0f); }
};

// Q5_0's codes are lowered by 16, from 32 and the code.
struct LoweredFiveBitPairs : FiveBitPairs {
    __device__ __forceinline__ void unpack(u32 (&pairs)[4], int word, const Factors& by) const {
        FiveBitPairs::unpack(pairs, word, by);
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(pairs[i]) : "r"(0x3f803f80u), "r"(0xc240c240u));
    }
};

struct Q8Zero : BlocksOf32<BlocksQ8_0, EightBitPairs> {
    static const int WHOLE_WARPS = 16;
};
struct Q5Zero : BlocksOf32<BlocksQ5_0, LoweredFiveBitPairs> {
    static const int WHOLE_WARPS = 16;
};
struct Q4K : BlocksOf256<BlocksQ4K, FourBitPairs> {
    static const int WHOLE_WARPS = 20;
};
struct Q5K : BlocksOf256<BlocksQ5K, FiveBitPairs> {
    static const int WHOLE_WARPS = 16;
};
struct Q5One : BlocksOfPairs<BlocksQ5_1, FiveBitPairs> {
    static const int WHOLE_WARPS = 16;
};
struct Iq4Xs : BlocksOfWide32<BlocksIq4Xs, EightBitPairs> {
    static const int WHOLE_WARPS = 16;
};
struct Q6K : BlocksOf16<BlocksQ6K, SixBitPairs> {
    static const int WHOLE_WARPS = 16;
};
