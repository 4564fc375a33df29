// Weights as they lie in device memory, and as a lane turns them into fragments.
//
// Packed: tile (8 rows) -> unit (128 of k) -> planes. Rows past the end and columns past k are
// zero. In a chunk of 32 columns, lane (g, t) owns row g, columns 8t .. 8t+7: 16 bytes of F16,
// so all planes are read contiguously by a warp. The two tensor-core steps j = 0, 1 of a chunk
// take columns 8t+4j+{0,1} in slots 2t, 2t+1 and 8t+4j+{2,3} in slots 2t+8, 2t+9: a permutation
// of k that activations follow (16 bytes of row-major F16 at the same columns).
//
// Per unit of 8 x 128 weights, in bytes:
//   F16   4 x 512 values                                            2048
//   F32   4 x (512 high halves, 512 low halves): w = high + low     4096
//   Q8_0  2 x 512 codes + 128, 64 scales d[g][4]                    1088
//   Q4_0  512 codes, 64 d                                            576
//   Q4_1  512 codes, 64 d, 64 m                                      640
//   Q5_0  512 codes, 128 fifth bits, 64 d                            704
//   Q5_1  512 codes, 128 fifth bits, 64 d, 64 m                      768
//   Q6_K  512 codes, 256 high bits, 64 scales + 128 [g][2][4], 16 d[g] 848
//   Q2_K  256 codes, 64 words of 4 scales and 4 mins [g][2], 32 (d, -dmin)[g] 352
//   IQ4_NL 512 codes, 64 d                                           576
//   MXFP4 512 codes, 32 exponents[g][4]                              544
//   IQ4_XS, Q3_K, IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS
//         512 codes, 64 scales [g][2][4], 16 d[g], 16 of a table     608
//
//   Q4_K and Q5_K are packed as Q4_1 and Q5_1: d is the block's d times the scale of these columns, m is minus its dmin
//         times their min, each rounded to F16.
//
// Codes of four bits of IQ4_NL, MXFP4 and IQ4_XS stand for values of a table, which lies in each unit of the last: so
// one kernel multiplies every type of scales of 16 columns and at most sixteen values. There scales count in quarters
// where the last byte of the table is odd, and else in eighths; both they and the table's bytes are told plus 128.
//
// A weight becomes w = d code + m in F16: the code less its offset is exact, and d and m are F16 (of
// k-quants the product of d and a scale, rounded to F16), so w is rounded once more. All of it is done
// two weights at a time. Codes become halves by their bits: 0x6400 | code is 1024 + code, and where a
// code lies four bits higher it is 1024 + 16 code, which costs no shift.
#pragma once
#include "common.cuh"

enum Type : int {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8,
    Q4_K = 12, Q5_K = 13,  // packed as Q4_1 and Q5_1
    Q6_K = 14, Q2_K = 10, IQ4_NL = 20, IQ4_XS = 23, MXFP4 = 39,
    Q3_K = 11, IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ3_S = 21, IQ2_S = 22,  // packed as IQ4_XS
    BF16 = 30   // packed as F16
};

__host__ __device__ constexpr int unit_bytes(int type) {
    return type == F32 ? 4096 : type == Q8_0 ? 1088 : type == Q4_0 ? 576 : type == Q4_1 ? 640
         : type == Q5_0 ? 704 : type == Q5_1 ? 768 : type == Q4_K ? 640 : type == Q5_K ? 768
         : type == Q6_K ? 848 : type == Q2_K ? 352 : type == IQ4_NL ? 576 : type == MXFP4 ? 544
         : type == IQ4_XS ? 608 : type == Q3_K ? 608 : type == IQ3_S ? 608 : type == IQ3_XXS ? 608
         : type == IQ2_S ? 608 : type == IQ2_XS ? 608 : type == IQ2_XXS ? 608 : 2048;
}

// Weights that become F16 on the way to the tensor core.
template <int T> constexpr bool IS_QUANTIZED = T != F32 && T != F16;

DEVICE bool is_three(int type) { return type == IQ3_XXS || type == IQ3_S; }
DEVICE bool has_grid(int type) { return is_three(type) || type == IQ2_XXS || type == IQ2_XS || type == IQ2_S; }
// Types packed as IQ4_XS.
DEVICE bool is_table(int type) { return type == IQ4_XS || type == Q3_K || has_grid(type); }

// Loads of weights as they lie at a pointer, with STREAM in device memory, where they are read once, or at
// an address of shared memory.
template <bool STREAM> DEVICE uint4 load16(const uint8_t* p) {
    if (STREAM) {
        uint4 v;
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
            : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
        return v;
    }
    return *reinterpret_cast<const uint4*>(p);
}
template <bool STREAM> DEVICE uint2 load8(const uint8_t* p) {
    if (STREAM) return __ldg(reinterpret_cast<const uint2*>(p));
    return *reinterpret_cast<const uint2*>(p);
}
template <bool STREAM> DEVICE uint32_t load4(const uint8_t* p) {
    if (STREAM) return __ldg(reinterpret_cast<const uint32_t*>(p));
    return *reinterpret_cast<const uint32_t*>(p);
}
template <bool STREAM> DEVICE uint32_t load2(const uint8_t* p) {
    if (STREAM) return __ldg(reinterpret_cast<const uint16_t*>(p));
    return *reinterpret_cast<const uint16_t*>(p);
}
template <bool> DEVICE uint4 load16(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
template <bool> DEVICE uint2 load8(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}
template <bool> DEVICE uint32_t load4(uint32_t at) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}
template <bool> DEVICE uint32_t load2(uint32_t at) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
    return v;
}

// The pairs i of a chunk c (columns 2i, 2i+1) have the low four bits of their codes in a word of the
// chunk: at bits 4i and 16 + 4i. Higher bits lie in words of all chunks, for even i so that they can be
// moved to bit 4, for odd i to bit 8, by shifts that two pairs share; the first code's place is told
// here, the second code's is 16 bits higher.
__host__ __device__ constexpr int fifth_at(int c, int i) { return ((i & 1 ? 8 : 4) + 2 * (c & 1) + (i >> 1) + 8 * (c >> 1)) & 15; }
// Two bits, in a word of two chunks.
__host__ __device__ constexpr int top_at(int c, int i) { return ((i & 1 ? 8 : 4) + 2 * (i >> 1) + 8 * (c & 1)) & 15; }

// w & MASK | 0x64006400, in one instruction: of two constants the compiler makes two.
template <uint32_t MASK> DEVICE uint32_t magic_of(uint32_t w) {
    uint32_t x;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(x) : "r"(w), "n"(MASK), "r"(0x64006400u));
    return x;
}
// The bytes of each half of a word change places where `odd`: what belongs at bits 8 to 15 comes to 0 to 7.
DEVICE uint32_t turned(uint32_t w, bool odd) { return odd ? __byte_perm(w, w, 0x2301) : w; }
// 1024 + code of even pairs of a chunk, 1024 + 16 code of odd ones. Of bits above the fourth, BITS more are
// in `high`, for pair i where `mask` and i / 2 shifts of BITS have them.
template <int BITS> DEVICE void magic_codes(uint32_t (&x)[4], uint32_t q, uint32_t high) {
    constexpr uint32_t EVEN = BITS == 2 ? 0x00300030u : 0x00100010u, ODD = EVEN << 4;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        x[i] = magic_of<0x000F000Fu>(q);
        x[i + 1] = magic_of<0x00F000F0u>(q);
        if (BITS) x[i] |= high & EVEN, x[i + 1] |= high & ODD;
        q >>= 8;
        high >>= BITS;
    }
}
// code - OFFSET, exactly.
template <int OFFSET> DEVICE __half2 code_of(uint32_t magic, int i) {
    if (i & 1) return __hfma2(halves(magic), __float2half2_rn(1.0f / 16), __float2half2_rn(-64.0f - OFFSET));
    return __hsub2(halves(magic), __float2half2_rn(1024.0f + OFFSET));
}
// Bytes `first` and `first` + 1 of a word, less OFFSET, as halves.
template <int OFFSET> DEVICE __half2 bytes_of(uint32_t w, int first) {
    uint32_t magic = __byte_perm(w, 0x64646464u, first ? 0x4342 : 0x4140);
    return __hsub2(halves(magic), __float2half2_rn(1024.0f + OFFSET));
}
DEVICE uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
// Half `i` of two or of four, twice.
DEVICE __half2 both(uint32_t two, int i) { return i ? __high2half2(halves(two)) : __low2half2(halves(two)); }
DEVICE __half2 both(uint2 four, int i) { return both(i < 2 ? four.x : four.y, i & 1); }

// GROUP chunks are loaded at a time; PLANES is 2 where a weight is the sum of two halves.
template <int T> struct Weights;

template <> struct Weights<F16> {
    static constexpr int GROUP = 1, PLANES = 1;
    uint4 q;
    template <bool S, typename At> DEVICE void load(At unit, const Lane& lane, int group) {
        q = load16<S>(unit + group * 512 + lane.id * 16);
    }
    DEVICE void fragment(int, int, uint32_t (&b)[4]) const {
        b[0] = q.x; b[1] = q.y; b[2] = q.z; b[3] = q.w;
    }
};

template <> struct Weights<F32> {
    static constexpr int GROUP = 1, PLANES = 2;
    uint4 high, low;
    template <bool S, typename At> DEVICE void load(At unit, const Lane& lane, int group) {
        high = load16<S>(unit + group * 1024 + lane.id * 16);
        low = load16<S>(unit + group * 1024 + 512 + lane.id * 16);
    }
    DEVICE void fragment(int, int plane, uint32_t (&b)[4]) const {
        const uint4& q = plane == 0 ? high : low;
        b[0] = q.x; b[1] = q.y; b[2] = q.z; b[3] = q.w;
    }
};

template <> struct Weights<Q8_0> {
    static constexpr int GROUP = 2, PLANES = 1;
    uint4 q;
    uint32_t d;
    template <bool S, typename At> DEVICE void load(At unit, const Lane& lane, int group) {
        q = load16<S>(unit + group * 512 + lane.id * 16);
        d = load4<S>(unit + 1024 + lane.g * 8 + group * 4);
    }
    DEVICE void fragment(int c, int, uint32_t (&b)[4]) const {
        __half2 scale = both(d, c);
#pragma unroll
        for (int i = 0; i < 4; i++)
            b[i] = bits(__hmul2(bytes_of<128>(word(q, 2 * c + (i >> 1)), 2 * (i & 1)), scale));
    }
};

// Codes of four bits, and with FIVE a fifth; with MIN d code + m, else d (code - half of the range).
template <bool FIVE, bool MIN> struct Legacy {
    static constexpr int GROUP = 4, PLANES = 1;
    static constexpr int D = FIVE ? 640 : 512;
    uint4 q;
    uint32_t high;
    uint2 d, m;
    template <bool S, typename At> DEVICE void load(At unit, const Lane& lane, int) {
        q = load16<S>(unit + lane.id * 16);
        high = FIVE ? load4<S>(unit + 512 + lane.id * 4) : 0;
        d = load8<S>(unit + D + lane.g * 8);
        if (MIN) m = load8<S>(unit + D + 64 + lane.g * 8);
    }
    DEVICE void fragment(int c, int, uint32_t (&b)[4]) const {
        constexpr int OFFSET = MIN ? 0 : FIVE ? 16 : 8;
        uint32_t x[4];
        magic_codes<FIVE>(x, word(q, c), turned(high, c >> 1) >> 2 * (c & 1));
        __half2 scale = both(d, c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            __half2 code = code_of<OFFSET>(x[i], i);
            b[i] = bits(MIN ? __hfma2(code, scale, both(m, c)) : __hmul2(code, scale));
        }
    }
};
template <> struct Weights<Q4_0> : Legacy<false, false> {};
template <> struct Weights<Q4_1> : Legacy<false, true> {};
template <> struct Weights<Q5_0> : Legacy<true, false> {};
template <> struct Weights<Q5_1> : Legacy<true, true> {};

template <> struct Weights<Q6_K> {
    static constexpr int GROUP = 4, PLANES = 1;
    uint4 q;
    uint2 high;
    uint32_t scales, d;
    template <bool S, typename At> DEVICE void load(At unit, const Lane& lane, int) {
        q = load16<S>(unit + lane.id * 16);
        high = load8<S>(unit + 512 + lane.id * 8);
        scales = load4<S>(unit + 768 + lane.g * 8 + (lane.t >> 1) * 4);
        d = load2<S>(unit + 832 + lane.g * 2);
    }
    DEVICE void fragment(int c, int, uint32_t (&b)[4]) const {
        uint32_t x[4];
        magic_codes<2>(x, word(q, c), turned(c < 2 ? high.x : high.y, c & 1));
        // Scales of this chunk and its neighbour.
        uint32_t two = bits(__hmul2(bytes_of<128>(scales, c & 2), both(d, 0)));
#pragma unroll
        for (int i = 0; i < 4; i++) b[i] = bits(__hmul2(code_of<32>(x[i], i), both(two, c & 1)));
    }
};

// Where the second code of a pair is 16 bits above the first: pair i of a chunk at bits 2i, chunks of even number
// in the low byte of each half.
template <> struct Weights<Q2_K> {
    static constexpr int GROUP = 4, PLANES = 1;
    uint2 q;
    uint32_t scales, dd;
    template <bool S, typename At> DEVICE void load(At unit, const Lane& lane, int) {
        q = load8<S>(unit + lane.id * 8);
        scales = load4<S>(unit + 256 + lane.g * 8 + (lane.t >> 1) * 4);
        dd = load4<S>(unit + 320 + lane.g * 4);
    }
    DEVICE void fragment(int c, int, uint32_t (&b)[4]) const {
        // (scale, min) of the 16 columns, multiplied out.
        __half2 sm = __hsub2(halves(magic_of<0x000F000Fu>(scales >> 4 * c)), __float2half2_rn(1024.0f));
        uint32_t two = bits(__hmul2(sm, halves(dd)));
        uint32_t w = (c < 2 ? q.x : q.y) >> 8 * (c & 1);
        // Codes are multiplied by 1, 4, 16 and 64 by where they lie.
        __half2 codes[4] = {
            __hsub2(halves(magic_of<0x00030003u>(w)), __float2half2_rn(1024.0f)),
            __hfma2(halves(magic_of<0x000C000Cu>(w)), __float2half2_rn(1.0f / 4), __float2half2_rn(-256.0f)),
            __hfma2(halves(magic_of<0x00300030u>(w)), __float2half2_rn(1.0f / 16), __float2half2_rn(-64.0f)),
            __hfma2(halves(magic_of<0x00C000C0u>(w)), __float2half2_rn(1.0f / 64), __float2half2_rn(-16.0f)),
        };
#pragma unroll
        for (int i = 0; i < 4; i++) b[i] = bits(__hfma2(codes[i], both(two, 0), both(two, 1)));
    }
};

// Column i of a lane's eight has its code in nibble i of a word. What four nibbles from `first` on stand for, of a
// table of 16 bytes.
DEVICE uint32_t looked_up(const uint4& table, uint32_t q, int first) {
    uint32_t at = (q & 0x77777777u) >> 4 * first;
    uint32_t half = (0x32103210u | (q & 0x88888888u) >> 1) >> 4 * first;
    return __byte_perm(__byte_perm(table.x, table.y, at), __byte_perm(table.z, table.w, at), half);
}
DEVICE void table_fragment(const uint4& table, uint32_t q, __half2 scale, uint32_t (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t four = looked_up(table, q, 2 * i);
        b[i] = bits(__hmul2(bytes_of<128>(four, 0), scale));
        b[i + 1] = bits(__hmul2(bytes_of<128>(four, 2), scale));
    }
}

// The values of IQ4_NL and IQ4_XS, plus 128.
#define IQ4_TABLE make_uint4(0x3F2D1801u, 0x766A5D4Fu, 0xA6998D81u, 0xF1D9C5B5u)

template <> struct Weights<IQ4_NL> {
    static constexpr int GROUP = 4, PLANES = 1;
    uint4 q;
    uint2 d;
    template <bool S, typename At> DEVICE void load(At unit, const Lane& lane, int) {
        q = load16<S>(unit + lane.id * 16);
        d = load8<S>(unit + 512 + lane.g * 8);
    }
    DEVICE void fragment(int c, int, uint32_t (&b)[4]) const { table_fragment(IQ4_TABLE, word(q, c), both(d, c), b); }
};

template <> struct Weights<IQ4_XS> {
    static constexpr int GROUP = 4, PLANES = 1;
    uint4 q, table;
    uint32_t scales, d;
    template <bool S, typename At> DEVICE void load(At unit, const Lane& lane, int) {
        q = load16<S>(unit + lane.id * 16);
        table = load16<S>(unit + 592);
        scales = load4<S>(unit + 512 + lane.g * 8 + (lane.t >> 1) * 4);
        d = load2<S>(unit + 576 + lane.g * 2);
    }
    DEVICE void fragment(int c, int, uint32_t (&b)[4]) const {
        // 0x5C00 | byte is 256 + byte / 4, and 0x5800 | byte 128 + byte / 8.
        uint32_t step = table.w & 0x01000000u ? 0x5C5C5C5Cu : 0x58585858u;
        uint32_t zero = __byte_perm(step, 0x80, 0x0404);
        // Scales of this chunk and its neighbour.
        uint32_t magic = __byte_perm(scales, step, c & 2 ? 0x4342 : 0x4140);
        uint32_t two = bits(__hmul2(__hsub2(halves(magic), halves(zero)), both(d, 0)));
        table_fragment(table, word(q, c), both(two, c & 1), b);
    }
};

// Codes are E2M1: moved to the top of an F16's fraction and the bottom of its exponent they are 2^-14 times what they
// stand for. A pair's are in nibbles i and 4 + i of a word. Exponents are told by the upper byte of the F16 that is
// 2^14 times the scale; what is smaller than 2^-28 is zero, and so are its weights as F16.
template <> struct Weights<MXFP4> {
    static constexpr int GROUP = 4, PLANES = 1;
    uint4 q;
    uint32_t exponents;
    template <bool S, typename At> DEVICE void load(At unit, const Lane& lane, int) {
        q = load16<S>(unit + lane.id * 16);
        exponents = load4<S>(unit + 512 + lane.g * 4);
    }
    DEVICE void fragment(int c, int, uint32_t (&b)[4]) const {
        __half2 scale = halves(__byte_perm(exponents, 0, 0x0404 | 0x1010 * c));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t code = word(q, c) << (12 - 4 * i);
            b[i] = bits(__hmul2(halves((code & 0x80008000u) | (code >> 3 & 0x0E000E00u)), scale));
        }
    }
};

// A lane's share of 16 activation rows in one chunk: rows g and g + 8.
struct Rows {
    uint4 a, b;
};

// One chunk of 32 columns: both steps, all planes, ascending.
template <int T>
DEVICE void multiply(float (&d)[4], const Rows& x, const Weights<T>& w, int chunk_in_group) {
#pragma unroll
    for (int plane = 0; plane < Weights<T>::PLANES; plane++) {
        uint32_t b[4];
        w.fragment(chunk_in_group, plane, b);
        mma(d, x.a.x, x.b.x, x.a.y, x.b.y, b[0], b[1]);
        mma(d, x.a.z, x.b.z, x.a.w, x.b.w, b[2], b[3]);
    }
}
