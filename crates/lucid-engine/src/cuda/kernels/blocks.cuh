// Block types of GGUF, as stored and in tiles of 16 rows by 128 columns for the tensor cores (see gguf.cuh).
//
// Tiles hold the codes' bits in the order of use, and behind them every row's scales, those of 256 columns in both of their tiles.

__device__ __forceinline__ float half_at(const u8* at) { return f16_to_f32(*(const u16*)at); }

// How codes stand in a tile: lane 4 g + t has its part of rows g (half 0) and g + 8 (half 1), four words of 32 columns, eight codes of
// each. A word's codes come as pairs, one in each half of a register, by few shifts.
//   pack    a lane's codes of one row: number j of word w is code(w, j)
//   code    the same again
__device__ __forceinline__ u32 rotate_right(u32 x, u32 by) { return __funnelshift_r(x, x, by); }

// [2 pairs of words][2 halves][32 lanes][2 words][8 bytes], those of four columns 0 1 2 3 as 0 2 1 3.
struct EightBits {
    static const int BYTES = 2048;
    static __device__ __forceinline__ u8* at(u8* tile, u32 half, u32 lane, u32 w, u32 j) {
        return tile + w / 2 * 1024 + half * 512 + lane * 16 + w % 2 * 8 + j / 4 * 4 + j % 2 * 2 + j % 4 / 2;
    }
    template <typename F>
    static __device__ __forceinline__ void pack(u8* tile, u32 half, u32 lane, F code) {
        for (u32 i = 0; i < 32; i++) *at(tile, half, lane, i / 8, i % 8) = code(i / 8, i % 8);
    }
    static __device__ __forceinline__ u32 code(const u8* tile, u32 half, u32 lane, u32 w, u32 j) {
        return *at((u8*)tile, half, lane, w, j);
    }
};

// [2 halves][32 lanes][4 words]. Pair i of a word is in bits 4 i + 3 to 4 i + 6 and sixteen above, round the word's end.
struct FourBits {
    static const int BYTES = 1024;
    static __device__ __forceinline__ u32* words(u8* tile, u32 half, u32 lane) { return (u32*)(tile + 512 * half) + 4 * lane; }
    template <typename F>
    static __device__ __forceinline__ void pack(u8* tile, u32 half, u32 lane, F code) {
        for (u32 w = 0; w < 4; w++) {
            u32 word = 0;
            for (u32 j = 0; j < 8; j++) word |= code(w, j) << (j % 2 * 16 + j / 2 * 4);
            words(tile, half, lane)[w] = rotate_right(word, 29);
        }
    }
    static __device__ __forceinline__ u32 code(const u8* tile, u32 half, u32 lane, u32 w, u32 j) {
        return rotate_right(words((u8*)tile, half, lane)[w], 3) >> (j % 2 * 16 + j / 2 * 4) & 15;
    }
};

// Five words for a lane's sixteen pairs: [2 halves][32 lanes][4 words], then [2 halves][32 lanes] the fifth. Three pairs a word, in bits
// 2 to 6, 7 to 11 and 12 to 16 and sixteen above, round the word's end; the last pair's bit i in bits 1 and 17 of word i.
struct FiveBits {
    static const int BYTES = 1280;
    static __device__ __forceinline__ u32* word(u8* tile, u32 half, u32 lane, u32 i) {
        return i < 4 ? (u32*)(tile + 512 * half) + 4 * lane + i : (u32*)(tile + 1024 + 128 * half) + lane;
    }
    template <typename F>
    static __device__ __forceinline__ void pack(u8* tile, u32 half, u32 lane, F code) {
        for (u32 i = 0; i < 5; i++) {
            u32 word = 0;
            for (u32 high = 0; high < 2; high++) {
                for (u32 field = 0; field < 3; field++) {
                    u32 pair = 3 * i + field;
                    word |= rotate_right(code(pair / 4, pair % 4 * 2 + high), 30 - 5 * field - 16 * high & 31);
                }
                word |= (code(3, 6 + high) >> i & 1) << (1 + 16 * high);
            }
            *FiveBits::word(tile, half, lane, i) = word;
        }
    }
    static __device__ __forceinline__ u32 code(const u8* tile, u32 half, u32 lane, u32 w, u32 j) {
        u32 pair = 4 * w + j / 2, high = j % 2 * 16, last = 0;
        if (pair < 15) return rotate_right(*word((u8*)tile, half, lane, pair / 3), 2 + 5 * (pair % 3) + high) & 31;
        for (u32 i = 0; i < 5; i++) last |= (*word((u8*)tile, half, lane, i) >> (1 + high) & 1) << i;
        return last;
    }
};

// Three words for each eight pairs: [2 halves][32 lanes] words 0 to 3, then words 4 and 5. Pairs 0 to 2 in bits 0 to 5 and sixteen above of
// the three, 3 to 5 in bits 6 to 11; pair 6 has its low four bits behind those of the first word, pair 7 of the third, their high two
// behind those of the second.
struct SixBits {
    static const int BYTES = 1536;
    static __device__ __forceinline__ u32* word(u8* tile, u32 half, u32 lane, u32 i) {
        return i < 4 ? (u32*)(tile + 512 * half) + 4 * lane + i : (u32*)(tile + 1024 + 256 * half) + 2 * lane + i - 4;
    }
    template <typename F>
    static __device__ __forceinline__ void pack(u8* tile, u32 half, u32 lane, F code) {
        for (u32 eight = 0; eight < 2; eight++) {
            auto of_pair = [&](u32 pair, u32 high) { return code(2 * eight + pair / 4, pair % 4 * 2 + high); };
            u32 words[3] = {0, 0, 0};
            for (u32 high = 0; high < 2; high++) {
                u32 six = of_pair(6, high), seven = of_pair(7, high), up = 16 * high;
                for (u32 i = 0; i < 3; i++) words[i] |= of_pair(i, high) << up | of_pair(3 + i, high) << (6 + up);
                words[0] |= (six & 15) << (12 + up);
                words[1] |= (six >> 4 | seven >> 4 << 2) << (12 + up);
                words[2] |= (seven & 15) << (12 + up);
            }
            for (u32 i = 0; i < 3; i++) *word(tile, half, lane, 3 * eight + i) = words[i];
        }
    }
    static __device__ __forceinline__ u32 code(const u8* tile, u32 half, u32 lane, u32 w, u32 j) {
        u32 pair = w % 2 * 4 + j / 2, up = j % 2 * 16;
        auto bits = [&](u32 i, u32 from, u32 mask) { return *word((u8*)tile, half, lane, w / 2 * 3 + i) >> (from + up) & mask; };
        if (pair < 3) return bits(pair, 0, 63);
        if (pair < 6) return bits(pair - 3, 6, 63);
        return pair == 6 ? bits(0, 12, 15) | bits(1, 12, 3) << 4 : bits(2, 12, 15) | bits(1, 14, 3) << 4;
    }
};

// A block type:
//   COLUMNS, BYTES  of a block
//   Codes           how its codes stand in tiles
//   SIXTEENS        whether a lane has four of each sixteen columns of a word, in place of eight in a row: where a scale is for sixteen
//   SCALE_BYTES     behind a tile's codes
//   code            value i of a block, as stored
//   put_scales      writes the scales of row `row` of a tile, 128 columns from `first` of a block on (of blocks of 32 the next ones too)
//   value           from a code, rounded where `BlockType::decode` of lucid-checkpoint rounds. `scales_of`, from the block, and `scales_in`, from a
//                   tile for column k of it, give what it takes.

// A binary16 scale for 32 columns: [16 rows][4].
struct ScaleOf32 {
    static const int COLUMNS = 32, SCALE_BYTES = 128;
    static const bool SIXTEENS = false;
    typedef float Scales;
    static __device__ __forceinline__ Scales scales_of(const u8* b, u32) { return half_at(b); }
    static __device__ __forceinline__ Scales scales_in(const u8* scales, u32 row, u32 k) { return half_at(scales + 8 * row + k / 32 * 2); }
    template <int BYTES>
    static __device__ __forceinline__ void put(u8* scales, u32 row, const u8* blocks) {
        for (u32 i = 0; i < 4; i++) ((u16*)scales)[4 * row + i] = blocks ? *(const u16*)(blocks + BYTES * i) : 0;
    }
};
struct BlocksQ8_0 : ScaleOf32 {
    static const int BYTES = 34;
    typedef EightBits Codes;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) { return b[2 + i]; }
    static __device__ __forceinline__ float value(float scale, u32 code) { return scale * (float)(signed char)code; }
    static __device__ __forceinline__ void put_scales(u8* scales, u32 row, const u8* b, u32) { put<BYTES>(scales, row, b); }
};
struct BlocksQ5_0 : ScaleOf32 {
    static const int BYTES = 22;
    typedef FiveBits Codes;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) {
        return b[6 + i % 16] >> (i < 16 ? 0 : 4) & 15 | (b[2 + i / 8] >> i % 8 & 1) << 4;
    }
    static __device__ __forceinline__ float value(float scale, u32 code) { return scale * (float)((int)code - 16); }
    static __device__ __forceinline__ void put_scales(u8* scales, u32 row, const u8* b, u32) { put<BYTES>(scales, row, b); }
};

// A binary16 scale and a binary16 number that is added, for 32 columns: [16 rows][4] pairs.
struct PairOf32 {
    static const int COLUMNS = 32, SCALE_BYTES = 256;
    static const bool SIXTEENS = false;
    struct Scales {
        float scale, added;
    };
    static __device__ __forceinline__ Scales scales_of(const u8* b, u32) { return Scales{half_at(b), half_at(b + 2)}; }
    static __device__ __forceinline__ Scales scales_in(const u8* scales, u32 row, u32 k) { return scales_of(scales + 16 * row + k / 32 * 4, 0); }
    static __device__ __forceinline__ float value(Scales s, u32 code) { return s.scale * (float)code + s.added; }
    template <int BYTES>
    static __device__ __forceinline__ void put(u8* scales, u32 row, const u8* blocks) {
        for (u32 i = 0; i < 4; i++) ((u32*)scales)[4 * row + i] = blocks ? *(const u32*)(blocks + BYTES * i) : 0;
    }
};
struct BlocksQ5_1 : PairOf32 {
    static const int BYTES = 24;
    typedef FiveBits Codes;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) {
        return b[8 + i % 16] >> (i < 16 ? 0 : 4) & 15 | (b[4 + i / 8] >> i % 8 & 1) << 4;
    }
    static __device__ __forceinline__ void put_scales(u8* scales, u32 row, const u8* b, u32) { put<BYTES>(scales, row, b); }
};

// An f32 scale for 32 columns, which holds products of a binary16 factor and a few bits, and powers of two: [16 rows][4].
struct WideScaleOf32 {
    static const int SCALE_BYTES = 256;
    static const bool SIXTEENS = false;
    typedef float Scales;
    static __device__ __forceinline__ Scales scales_in(const u8* scales, u32 row, u32 k) { return ((const float*)scales)[4 * row + k / 32]; }
    static __device__ __forceinline__ float value(float scale, u32 code) { return scale * (float)(signed char)code; }
};
// The numbers that codes of IQ4_NL and IQ4_XS stand for.
__device__ const signed char IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// A binary16 factor for 256 columns, of a scale of six bits for each 32.
struct BlocksIq4Xs : WideScaleOf32 {
    static const int COLUMNS = 256, BYTES = 136;
    typedef EightBits Codes;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) {
        return (u8)IQ4[b[8 + i / 32 * 16 + i % 16] >> (i % 32 < 16 ? 0 : 4) & 15];
    }
    static __device__ __forceinline__ Scales scales_of(const u8* b, u32 i) {
        u32 k = i / 32, high = *(const u16*)(b + 2) >> 2 * k & 3;
        return half_at(b) * (float)((int)(b[4 + k / 2] >> k % 2 * 4 & 15 | high << 4) - 32);
    }
    static __device__ __forceinline__ void put_scales(u8* scales, u32 row, const u8* b, u32 first) {
        for (u32 i = 0; i < 4; i++) ((float*)scales)[4 * row + i] = b ? scales_of(b, first + 32 * i) : 0.0f;
    }
};

// Two binary16 factors for 256 columns, of four bits of scale and of minimum for each 16. Only read as stored, for no product here takes a
// minimum for sixteen columns.
struct BlocksQ2K {
    static const int COLUMNS = 256, BYTES = 84;
    struct Scales {
        float scale, minimum;
    };
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) { return b[16 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }
    static __device__ __forceinline__ Scales scales_of(const u8* b, u32 i) {
        return Scales{half_at(b + 80) * (float)(b[i / 16] & 15), half_at(b + 82) * (float)(b[i / 16] >> 4)};
    }
    static __device__ __forceinline__ float value(Scales s, u32 code) { return s.scale * (float)code - s.minimum; }
};

// Two binary16 factors for 256 columns, of six bits of scale and of minimum for each 32, which stand in twelve bytes.
//   0: [16 rows] four bytes of scales, four of minima;  128: [16 rows] the factors
struct FactorsOf256 {
    static const int COLUMNS = 256, SCALE_BYTES = 192;
    static const bool SIXTEENS = false;
    struct Scales {
        float scale, minimum;
    };
    static __device__ __forceinline__ void find(const u8* b, u32 j, u32& scale, u32& minimum) {
        const u8* s = b + 4;
        if (j < 4)
            scale = s[j] & 63, minimum = s[j + 4] & 63;
        else
            scale = s[j + 4] & 15 | s[j - 4] >> 6 << 4, minimum = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
    static __device__ __forceinline__ Scales scales_of(const u8* b, u32 i) {
        u32 scale, minimum;
        find(b, i / 32, scale, minimum);
        return Scales{half_at(b) * (float)scale, half_at(b + 2) * (float)minimum};
    }
    static __device__ __forceinline__ Scales scales_in(const u8* scales, u32 row, u32 k) {
        const u8 *both = scales + 8 * row + k / 32, *factors = scales + 128 + 4 * row;
        return Scales{half_at(factors) * (float)both[0], half_at(factors + 2) * (float)both[4]};
    }
    static __device__ __forceinline__ float value(Scales s, u32 code) { return s.scale * (float)code - s.minimum; }
    static __device__ __forceinline__ void put_scales(u8* scales, u32 row, const u8* b, u32 first) {
        for (u32 i = 0; i < 4; i++) {
            u32 scale = 0, minimum = 0;
            if (b) find(b, first / 32 + i, scale, minimum);
            scales[8 * row + i] = scale;
            scales[8 * row + 4 + i] = minimum;
        }
        *(u32*)(scales + 128 + 4 * row) = b ? *(const u32*)b : 0;
    }
};
struct BlocksQ4K : FactorsOf256 {
    static const int BYTES = 144;
    typedef FourBits Codes;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) { return b[16 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15; }
};
// A fifth bit of each value stands before the others.
struct BlocksQ5K : FactorsOf256 {
    static const int BYTES = 176;
    typedef FiveBits Codes;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) {
        return b[48 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15 | (b[16 + i % 32] >> i / 32 & 1) << 4;
    }
};

// A binary16 factor for 256 columns, of a signed byte for each 16.
//   0: [16 rows][8] bytes;  128: [16 rows] factors
struct BlocksQ6K {
    static const int COLUMNS = 256, BYTES = 210, SCALE_BYTES = 160;
    static const bool SIXTEENS = true;
    typedef SixBits Codes;
    typedef float Scales;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) {
        u32 h = i / 128, g = i % 128 / 32, e = i % 32;
        return b[64 * h + 32 * (g % 2) + e] >> 4 * (g / 2) & 15 | (b[128 + 32 * h + e] >> 2 * g & 3) << 4;
    }
    static __device__ __forceinline__ float value(float scale, u32 code) { return scale * (float)((int)code - 32); }
    static __device__ __forceinline__ Scales scales_of(const u8* b, u32 i) { return half_at(b + 208) * (float)(signed char)b[192 + i / 16]; }
    static __device__ __forceinline__ Scales scales_in(const u8* scales, u32 row, u32 k) {
        return half_at(scales + 128 + 2 * row) * (float)(signed char)scales[8 * row + k / 16];
    }
    static __device__ __forceinline__ void put_scales(u8* scales, u32 row, const u8* b, u32 first) {
        for (u32 i = 0; i < 8; i++) scales[8 * row + i] = b ? b[192 + first / 16 + i] : 0;
        *(u16*)(scales + 128 + 2 * row) = b ? *(const u16*)(b + 208) : 0;
    }
};

// Types that become the same values in another type's tiles, and are never read as stored: Q4_0 and Q4_1 with codes of five bits, IQ4_NL with
// the numbers that its codes stand for, Q3_K with codes of six bits, MXFP4 with twice its numbers and half of its scale, a power of two.
struct BlocksQ4_0 : ScaleOf32 {
    static const int BYTES = 18;
    typedef FiveBits Codes;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) { return 8 + (b[2 + i % 16] >> (i < 16 ? 0 : 4) & 15); }
    static __device__ __forceinline__ void put_scales(u8* scales, u32 row, const u8* b, u32) { put<BYTES>(scales, row, b); }
};
struct BlocksQ4_1 : PairOf32 {
    static const int BYTES = 20;
    typedef FiveBits Codes;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) { return b[4 + i % 16] >> (i < 16 ? 0 : 4) & 15; }
    static __device__ __forceinline__ void put_scales(u8* scales, u32 row, const u8* b, u32) { put<BYTES>(scales, row, b); }
};
struct BlocksMxfp4 : WideScaleOf32 {
    static const int COLUMNS = 32, BYTES = 17;
    typedef EightBits Codes;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) {
        u32 four = b[1 + i % 16] >> (i < 16 ? 0 : 4) & 15;
        int twice = (int)(2.0f * e2m1_to_f32(four));
        return (u8)twice;
    }
    static __device__ __forceinline__ void put_scales(u8* scales, u32 row, const u8* b, u32) {
        for (u32 i = 0; i < 4; i++) {
            u32 e = b ? b[BYTES * i] : 0, half = e < 2 ? 0x00200000u << e : (e - 1) << 23;
            ((u32*)scales)[4 * row + i] = b ? half : 0;
        }
    }
};
struct BlocksIq4Nl : ScaleOf32 {
    static const int BYTES = 18;
    typedef EightBits Codes;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) { return (u8)IQ4[b[2 + i % 16] >> (i < 16 ? 0 : 4) & 15]; }
    static __device__ __forceinline__ void put_scales(u8* scales, u32 row, const u8* b, u32) { put<BYTES>(scales, row, b); }
};
struct BlocksQ3K : BlocksQ6K {
    static const int BYTES = 110;
    static __device__ __forceinline__ u32 code(const u8* b, u32 i) {
        u32 low = b[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        return 32 + low - (b[i % 32] >> i / 32 & 1 ? 0 : 4);
    }
    static __device__ __forceinline__ void put_scales(u8* scales, u32 row, const u8* b, u32 first) {
        for (u32 i = 0; i < 8; i++) {
            u32 n = first / 16 + i;
            scales[8 * row + i] = b ? (b[96 + n % 8] >> n / 8 * 4 & 15 | (b[104 + n % 4] >> n / 4 * 2 & 3) << 4) - 32 : 0;
        }
        *(u16*)(scales + 128 + 2 * row) = b ? *(const u16*)(b + 108) : 0;
    }
};

template <typename Blocks>
__device__ __forceinline__ float decode_blocks(const u8* values, u64 at) {
    const u8* block = values + at / Blocks::COLUMNS * Blocks::BYTES;
    u32 i = at % Blocks::COLUMNS;
    return Blocks::value(Blocks::scales_of(block, i), Blocks::code(block, i));
}

// The first column of number j of word w that thread t has.
template <typename Blocks>
__device__ __forceinline__ u32 column_of(u32 t, u32 w, u32 j) {
    return 32 * w + (Blocks::SIXTEENS ? j / 4 * 16 + 4 * t + j % 4 : 8 * t + j);
}
template <typename Blocks>
__device__ __forceinline__ float decode_tiled_blocks(const u8* values, u64 row, u32 k, u32 cols) {
    const int BYTES = Blocks::Codes::BYTES + Blocks::SCALE_BYTES;
    const u8* tile = values + (row / 16 * (cols / 128) + k / 128) * BYTES;
    u32 w = k % 128 / 32, in_word = k % 32;
    u32 t = Blocks::SIXTEENS ? in_word % 16 / 4 : in_word / 8, j = Blocks::SIXTEENS ? in_word / 16 * 4 + in_word % 4 : in_word % 8;
    u32 code = Blocks::Codes::code(tile, row % 16 / 8, row % 8 * 4 + t, w, j);
    return Blocks::value(Blocks::scales_in(tile + Blocks::Codes::BYTES, row % 16, k % 128), code);
}
