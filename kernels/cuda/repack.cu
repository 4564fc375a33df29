// Packed tiles (weights.cuh), made of a GGUF file's rows, once, at load.
//
// One thread writes one lane's share of one unit: everything of its row g in columns 8t .. 8t+7
// of four chunks; the lanes t = 0 also write the row's scales. File blocks are not aligned, so
// they are read byte by byte; they come through the caches, and this is not the slow part of a
// load. Each file byte is read once from device memory, each packed byte written once.
//
// `flags` gets bit 0 where a finite file value is none in F16 (F32, BF16): the host refuses.
#pragma once
#include "weights.cuh"

struct RepackArgs {
    const uint8_t* file;  // rows * row_bytes
    uint8_t* packed;
    uint32_t* flags;
    uint64_t row_bytes;
    int ty, rows, cols, units;
};
LAYOUT(RepackArgs, 48, AT(file, 0) AT(packed, 8) AT(flags, 16) AT(row_bytes, 24) AT(ty, 32)
       AT(rows, 36) AT(cols, 40) AT(units, 44))

DEVICE float half_at(const uint8_t* p) {
    return __half2float(__ushort_as_half(uint16_t(p[0] | p[1] << 8)));
}
DEVICE uint16_t word_at(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

// Block of 32: code of element i, without its offset.
DEVICE int legacy_code(int type, const uint8_t* b, int i) {
    if (type == Q8_0) return int(int8_t(b[2 + i])) + 128;
    int at = type == Q4_0 ? 2 : type == Q4_1 ? 4 : type == Q5_0 ? 6 : 8;
    int low = i < 16 ? b[at + i] & 15 : b[at + i - 16] >> 4;
    if (type == Q4_0 || type == Q4_1) return low;
    return low | ((b[at - 4 + (i >> 3)] >> (i & 7)) & 1) << 4;
}

// Block of 256: code of element i.
DEVICE int k_code(int type, const uint8_t* b, int i) {
    if (type == Q6_K) {
        int half = i >> 7, run = (i >> 5) & 3, l = i & 31;
        int low = (b[64 * half + 32 * (run & 1) + l] >> (4 * (run >> 1))) & 15;
        return low | ((b[128 + 32 * half + l] >> (2 * run)) & 3) << 4;
    }
    int sub = i >> 5, l = i & 31;
    int low = (b[(type == Q4_K ? 16 : 48) + 32 * (sub >> 1) + l] >> (4 * (sub & 1))) & 15;
    return type == Q4_K ? low : low | ((b[16 + l] >> sub) & 1) << 4;
}

// Six-bit scale and min of sub-block `sub`.
DEVICE void k_scale_min(const uint8_t* b, int sub, int& scale, int& min) {
    const uint8_t* s = b + 4;
    if (sub < 4) {
        scale = s[sub] & 63;
        min = s[sub + 4] & 63;
    } else {
        scale = (s[sub + 4] & 15) | (s[sub - 4] >> 6) << 4;
        min = s[sub + 4] >> 4 | (s[sub] >> 6) << 4;
    }
}

DEVICE int block_bytes(int type) {
    switch (type) {
        case Q8_0: return 34;
        case Q4_0: return 18;
        case Q4_1: return 20;
        case Q5_0: return 22;
        case Q5_1: return 24;
        case Q4_K: return 144;
        case Q5_K: return 176;
        case Q6_K: return 210;
        default: return 0;
    }
}

DEVICE float file_float(const RepackArgs& a, const uint8_t* row, int k) {
    if (row == nullptr || k >= a.cols) return 0.0f;
    if (a.ty == F32) {
        const uint8_t* p = row + 4 * k;
        return __uint_as_float(p[0] | p[1] << 8 | p[2] << 16 | uint32_t(p[3]) << 24);
    }
    uint16_t v = word_at(row + 2 * k);
    return a.ty == BF16 ? __uint_as_float(uint32_t(v) << 16)
                          : __half2float(__ushort_as_half(v));
}

DEVICE void repack_floats(const RepackArgs& a, const uint8_t* row, uint8_t* unit, int k0,
                          const Lane& lane) {
    bool overflow = false;
    for (int c = 0; c < CHUNKS; c++) {
        uint16_t high[8], low[8];
        for (int i = 0; i < 8; i++) {
            float v = file_float(a, row, k0 + CHUNK * c + 8 * lane.t + i);
            __half h = __float2half_rn(v);
            overflow |= isfinite(v) && __hisinf(h);
            high[i] = __half_as_ushort(h);
            low[i] = __half_as_ushort(__float2half_rn(v - __half2float(h)));
        }
        uint8_t* at = unit + (a.ty == F32 ? 1024 : 512) * c + 16 * lane.id;
        *reinterpret_cast<uint4*>(at) = *reinterpret_cast<uint4*>(high);
        if (a.ty == F32) *reinterpret_cast<uint4*>(at + 512) = *reinterpret_cast<uint4*>(low);
    }
    if (overflow) atomicOr(a.flags, 1u);
}

DEVICE void put_half(uint8_t* p, const uint8_t* from) {
    *reinterpret_cast<uint16_t*>(p) = from ? word_at(from) : 0;
}

// Codes and, per row, scales. `b` is null for columns and rows that are padding.
DEVICE void repack_codes(const RepackArgs& a, const uint8_t* row, uint8_t* unit, int k0,
                         const Lane& lane) {
    bool k_quant = a.ty == Q4_K || a.ty == Q5_K || a.ty == Q6_K;
    int elements = k_quant ? 256 : 32;
    uint32_t q[4] = {0, 0, 0, 0}, q8[8], high = 0, high2[2] = {0, 0};
    for (int c = 0; c < CHUNKS; c++) {
        int k = k0 + CHUNK * c;
        const uint8_t* b = row && k < a.cols ? row + uint64_t(k / elements) * block_bytes(a.ty) : nullptr;
        uint32_t w8[2] = {0, 0};
        for (int i = 0; i < 8; i++) {
            int e = k % elements + 8 * lane.t + i;
            int code = b == nullptr ? 0 : k_quant ? k_code(a.ty, b, e) : legacy_code(a.ty, b, e);
            int pair = i >> 1, up = i & 1;
            w8[i >> 2] |= uint32_t(code & 255) << (8 * (i & 3));
            q[c] |= uint32_t(code & 15) << (16 * up + 4 * pair);
            high |= uint32_t(code >> 4 & 1) << (16 * up + fifth_at(c, pair));
            high2[c >> 1] |= uint32_t(code >> 4 & 3) << (16 * up + top_at(c, pair));
        }
        q8[2 * c] = w8[0];
        q8[2 * c + 1] = w8[1];
        if (lane.t != 0) continue;
        int g = lane.g, type = a.ty;
        if (type == Q8_0) put_half(unit + 1024 + g * 8 + 2 * c, b);
        if (type == Q4_0 || type == Q4_1) put_half(unit + 512 + g * 8 + 2 * c, b);
        if (type == Q4_1) put_half(unit + 576 + g * 8 + 2 * c, b ? b + 2 : nullptr);
        if (type == Q5_0 || type == Q5_1) put_half(unit + 640 + g * 8 + 2 * c, b);
        if (type == Q5_1) put_half(unit + 704 + g * 8 + 2 * c, b ? b + 2 : nullptr);
        if (type == Q4_K || type == Q5_K) {
            int at = type == Q4_K ? 512 : 640, scale = 0, min = 0;
            if (b) k_scale_min(b, (k % 256) / 32, scale, min);
            unit[at + g * 8 + 2 * c] = uint8_t(scale);
            unit[at + g * 8 + 2 * c + 1] = uint8_t(min);
            if (c == 0) {
                put_half(unit + at + 64 + g * 4, b);
                put_half(unit + at + 66 + g * 4, b ? b + 2 : nullptr);
                unit[at + 67 + g * 4] ^= 0x80;  // -dmin
            }
        }
        if (type == Q6_K) {
            for (int half = 0; half < 2; half++)
                unit[768 + g * 8 + half * 4 + c] = (b ? b[192 + (k % 256) / 16 + half] : 0) ^ 0x80;
            if (c == 0) put_half(unit + 832 + g * 2, b ? b + 208 : nullptr);
        }
    }
    if (a.ty == Q8_0) {
        for (int group = 0; group < 2; group++)
            *reinterpret_cast<uint4*>(unit + 512 * group + 16 * lane.id) =
                make_uint4(q8[4 * group], q8[4 * group + 1], q8[4 * group + 2], q8[4 * group + 3]);
        return;
    }
    *reinterpret_cast<uint4*>(unit + 16 * lane.id) = make_uint4(q[0], q[1], q[2], q[3]);
    if (a.ty == Q5_0 || a.ty == Q5_1 || a.ty == Q5_K)
        *reinterpret_cast<uint32_t*>(unit + 512 + 4 * lane.id) = high;
    if (a.ty == Q6_K)
        *reinterpret_cast<uint2*>(unit + 512 + 8 * lane.id) = make_uint2(high2[0], high2[1]);
}

// The grid has one warp a unit.
extern "C" __global__ void repack(const __grid_constant__ RepackArgs a) {
    Lane lane;
    int64_t index = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    int tile = int(index / a.units), u = int(index % a.units);
    if (tile >= (a.rows + TILE_N - 1) / TILE_N) return;
    int r = tile * TILE_N + lane.g;
    const uint8_t* row = r < a.rows ? a.file + uint64_t(r) * a.row_bytes : nullptr;
    uint8_t* unit = a.packed + uint64_t(index) * unit_bytes(a.ty);
    if (a.ty == F32 || a.ty == F16 || a.ty == BF16)
        repack_floats(a, row, unit, u * UNIT, lane);
    else
        repack_codes(a, row, unit, u * UNIT, lane);
}
