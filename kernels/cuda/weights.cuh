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
//   Q4_K  512 codes, 64 (4 scales, 4 mins)[g], 32 (d, dmin)[g]       608
//   Q5_K  512 codes, 128 fifth bits, 64 (4 scales, 4 mins), 32       736
//   Q6_K  512 codes, 256 high bits, 64 scales[g][2][4], 16 d[g]      848
//
// A weight becomes w = d code + m, rounded once to F16; k-quants multiply out scales in F32 and
// round at the end. Codes become halves by their bits: 0x6400 | code is 1024 + code.
#pragma once
#include "common.cuh"

enum Type : int {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8,
    Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30  // packed as F16
};

__host__ __device__ constexpr int unit_bytes(int type) {
    return type == F32 ? 4096 : type == Q8_0 ? 1088 : type == Q4_0 ? 576 : type == Q4_1 ? 640
         : type == Q5_0 ? 704 : type == Q5_1 ? 768 : type == Q4_K ? 608 : type == Q5_K ? 736
         : type == Q6_K ? 848 : 2048;
}

// Loads: with STREAM from device memory, read once; otherwise from shared memory.
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

// Half `i` of a run of four, twice.
DEVICE __half2 both(uint2 four, int i) {
    uint32_t w = i < 2 ? four.x : four.y;
    return halves(__byte_perm(w, w, i & 1 ? 0x3232 : 0x1010));
}
// 1024 + code, of the pair i (columns 2i, 2i+1) of chunk c: nibbles lie at bits 4i and 16+4i.
DEVICE uint32_t nibbles(uint32_t word, int i) { return (word >> (4 * i)) & 0x000F000Fu; }
DEVICE uint32_t fifth(uint32_t word, int i) {
    // Bits i and 16 + i, moved to 4 and 20.
    return (i <= 4 ? word << (4 - i) : word >> (i - 4)) & 0x00100010u;
}
constexpr uint32_t MAGIC = 0x64006400u;
DEVICE __half2 minus(uint32_t magic, float offset) {
    return __hsub2(halves(magic), __float2half2_rn(offset));
}
DEVICE uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
// s code - m, in F32, then F16.
DEVICE uint32_t scaled(__half2 code, float s, float m) {
    float2 f = __half22float2(code);
    return pack(__fmaf_rn(s, f.x, -m), __fmaf_rn(s, f.y, -m));
}

// GROUP chunks are loaded at a time; PLANES is 2 where a weight is the sum of two halves.
template <int T> struct Weights;

template <> struct Weights<F16> {
    static constexpr int GROUP = 1, PLANES = 1;
    uint4 q;
    template <bool S> DEVICE void load(const uint8_t* unit, const Lane& lane, int group) {
        q = load16<S>(unit + group * 512 + lane.id * 16);
    }
    DEVICE void fragment(int, int, uint32_t (&b)[4]) const {
        b[0] = q.x; b[1] = q.y; b[2] = q.z; b[3] = q.w;
    }
};

template <> struct Weights<F32> {
    static constexpr int GROUP = 1, PLANES = 2;
    uint4 high, low;
    template <bool S> DEVICE void load(const uint8_t* unit, const Lane& lane, int group) {
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
    template <bool S> DEVICE void load(const uint8_t* unit, const Lane& lane, int group) {
        q = load16<S>(unit + group * 512 + lane.id * 16);
        d = load4<S>(unit + 1024 + lane.g * 8 + group * 4);
    }
    DEVICE void fragment(int c, int, uint32_t (&b)[4]) const {
        __half2 scale = halves(__byte_perm(d, d, c ? 0x3232 : 0x1010));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t w = word(q, 2 * c + (i >> 1));
            uint32_t magic = __byte_perm(w, 0x64646464u, i & 1 ? 0x4342 : 0x4140);
            b[i] = bits(__hmul2(minus(magic, 1024.0f + 128.0f), scale));
        }
    }
};

// Codes of four bits, and with FIVE a fifth; with MIN d code + m, else d (code - half of the range).
template <bool FIVE, bool MIN> struct Legacy {
    static constexpr int GROUP = 4, PLANES = 1;
    static constexpr int D = FIVE ? 640 : 512;
    uint4 q;
    uint32_t high;
    uint2 d, m;
    template <bool S> DEVICE void load(const uint8_t* unit, const Lane& lane, int) {
        q = load16<S>(unit + lane.id * 16);
        if (FIVE) high = load4<S>(unit + 512 + lane.id * 4);
        d = load8<S>(unit + D + lane.g * 8);
        if (MIN) m = load8<S>(unit + D + 64 + lane.g * 8);
    }
    DEVICE void fragment(int c, int, uint32_t (&b)[4]) const {
        __half2 scale = both(d, c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t magic = nibbles(word(q, c), i) | MAGIC;
            if (FIVE) magic |= fifth(high, 4 * c + i);
            if (MIN) b[i] = bits(__hfma2(minus(magic, 1024.0f), scale, both(m, c)));
            else b[i] = bits(__hmul2(minus(magic, FIVE ? 1040.0f : 1032.0f), scale));
        }
    }
};
template <> struct Weights<Q4_0> : Legacy<false, false> {};
template <> struct Weights<Q4_1> : Legacy<false, true> {};
template <> struct Weights<Q5_0> : Legacy<true, false> {};
template <> struct Weights<Q5_1> : Legacy<true, true> {};

template <bool FIVE> struct KQuant {
    static constexpr int GROUP = 4, PLANES = 1;
    static constexpr int D = FIVE ? 640 : 512;
    uint4 q;
    uint32_t high, dd;
    uint2 sm;
    template <bool S> DEVICE void load(const uint8_t* unit, const Lane& lane, int) {
        q = load16<S>(unit + lane.id * 16);
        if (FIVE) high = load4<S>(unit + 512 + lane.id * 4);
        sm = load8<S>(unit + D + lane.g * 8);
        dd = load4<S>(unit + D + 64 + lane.g * 4);
    }
    DEVICE void fragment(int c, int, uint32_t (&b)[4]) const {
        float2 d = __half22float2(halves(dd));
        float s = __fmul_rn(d.x, float((sm.x >> (8 * c)) & 255));
        float m = __fmul_rn(d.y, float((sm.y >> (8 * c)) & 255));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t magic = nibbles(word(q, c), i) | MAGIC;
            if (FIVE) magic |= fifth(high, 4 * c + i);
            b[i] = scaled(minus(magic, 1024.0f), s, m);
        }
    }
};
template <> struct Weights<Q4_K> : KQuant<false> {};
template <> struct Weights<Q5_K> : KQuant<true> {};

template <> struct Weights<Q6_K> {
    static constexpr int GROUP = 4, PLANES = 1;
    uint4 q;
    uint2 high;
    uint32_t scales, d;
    template <bool S> DEVICE void load(const uint8_t* unit, const Lane& lane, int) {
        q = load16<S>(unit + lane.id * 16);
        high = load8<S>(unit + 512 + lane.id * 8);
        scales = load4<S>(unit + 768 + lane.g * 8 + (lane.t >> 1) * 4);
        d = load2<S>(unit + 832 + lane.g * 2);
    }
    DEVICE void fragment(int c, int, uint32_t (&b)[4]) const {
        float scale = float(int8_t(scales >> (8 * c)));
        float s = __fmul_rn(__half2float(__ushort_as_half(uint16_t(d))), scale);
        uint32_t h = c < 2 ? high.x : high.y;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // Two bits at 2n and 16 + 2n, moved to 4 and 20.
            int n = 4 * (c & 1) + i;
            uint32_t top = (n <= 2 ? h << (4 - 2 * n) : h >> (2 * n - 4)) & 0x00300030u;
            b[i] = scaled(minus(nibbles(word(q, c), i) | MAGIC | top, 1056.0f), s, 0.0f);
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
