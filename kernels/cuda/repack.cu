// Packed tiles (weights.cuh), made of a GGUF file's rows, once, at load.
//
// One thread writes one lane's share of one unit: everything of its row g in columns 8t .. 8t+7
// of four chunks; the lanes t = 0 also write the row's scales. File blocks are not aligned, so
// they are read byte by byte; they come through the caches, and this is not the slow part of a
// load. Each file byte is read once from device memory, each packed byte written once.
//
// `flags` gets bit 0 where a finite file value is none in F16 (F32, BF16), bit 1 where a scale of MXFP4 is more than 2:
// the host refuses.
#pragma once
#include "weights.cuh"

struct RepackArgs {
    const uint8_t* file;  // rows * row_bytes
    uint8_t* packed;
    uint32_t* flags;
    const uint16_t* grid;  // of the type, where it has one: eight values of two bits or four of three
    uint64_t row_bytes;
    int ty, rows, cols, units;
};
LAYOUT(RepackArgs, 56, AT(file, 0) AT(packed, 8) AT(flags, 16) AT(grid, 24) AT(row_bytes, 32) AT(ty, 40)
       AT(rows, 44) AT(cols, 48) AT(units, 52))

DEVICE float half_at(const uint8_t* p) {
    return __half2float(__ushort_as_half(uint16_t(p[0] | p[1] << 8)));
}
DEVICE uint16_t word_at(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

// Block of 32: code of element i, without its offset.
DEVICE int legacy_code(int type, const uint8_t* b, int i) {
    if (type == Q8_0) return int(int8_t(b[2 + i])) + 128;
    int at = type == Q4_0 || type == IQ4_NL ? 2 : type == MXFP4 ? 1 : type == Q4_1 ? 4 : type == Q5_0 ? 6 : 8;
    int low = i < 16 ? b[at + i] & 15 : b[at + i - 16] >> 4;
    if (type != Q5_0 && type != Q5_1) return low;
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
    if (type == IQ4_XS) return (b[8 + 16 * sub + (l & 15)] >> (4 * (l >> 4))) & 15;
    if (type == Q2_K || type == Q3_K) {
        int two = (b[(type == Q2_K ? 16 : 32) + 32 * (sub >> 2) + l] >> (2 * (sub & 3))) & 3;
        return type == Q2_K ? two : two | ((b[l] >> sub) & 1) << 2;
    }
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

// Seven signs; there is an eighth where without it their number is odd.
DEVICE uint32_t even_signs(uint32_t signs) { return (signs & 127) | (__popc(signs & 127) & 1) << 7; }

// Block of a type with a grid: the number of element i's level, three bits and a fourth where it is negative.
DEVICE int grid_code(int type, const uint16_t* grid, const uint8_t* b, int i) {
    int sub = i >> 5, eight = i >> 3, bit = i & 7, code;
    uint32_t signs;
    if (type == IQ2_XXS || type == IQ3_XXS) {
        const uint8_t* w = type == IQ2_XXS ? b + 6 + 8 * sub : b + 66 + 4 * sub;
        signs = even_signs((w[0] | w[1] << 8 | w[2] << 16 | uint32_t(w[3]) << 24) >> 7 * (eight & 3));
        code = type == IQ2_XXS ? b[2 + 8 * sub + (eight & 3)] : b[2 + (i >> 2)];
    } else if (type == IQ2_XS) {
        int q = word_at(b + 2 + 2 * eight);
        signs = even_signs(q >> 9);
        code = q & 511;
    } else if (type == IQ2_S) {
        signs = b[34 + eight];
        code = b[2 + eight] | ((b[66 + sub] >> 2 * (eight & 3)) & 3) << 8;
    } else {
        signs = b[74 + eight];
        code = b[2 + (i >> 2)] | ((b[66 + sub] >> ((i >> 2) & 7)) & 1) << 8;
    }
    int number = is_three(type) ? grid[code] >> 3 * (i & 3) & 7 : grid[code] >> 2 * bit & 3;
    return number | int(signs >> bit & 1) << 3;
}

// Types packed as IQ4_XS: scale of the 16 columns from element i on, in the steps of the type's table.
DEVICE int table_scale(int type, const uint8_t* b, int i) {
    int sub = i >> 5, half = (i >> 4) & 1;
    if (type == IQ4_XS) {
        int low = (b[4 + (sub >> 1)] >> (4 * (sub & 1))) & 15;
        return 4 * ((low | ((b[2 + (sub >> 2)] >> (2 * (sub & 3))) & 3) << 4) - 32);
    }
    if (type == Q3_K) {
        int sixteen = i >> 4;
        const uint8_t* s = b + 96;
        int low = (s[sixteen & 7] >> (4 * (sixteen >> 3))) & 15;
        return 4 * ((low | ((s[8 + (sixteen & 3)] >> (2 * (sixteen >> 2))) & 3) << 4) - 32);
    }
    int scale = type == IQ2_XXS ? b[9 + 8 * sub] >> 4 : type == IQ3_XXS ? b[69 + 4 * sub] >> 4
              : type == IQ2_XS ? (b[66 + sub] >> 4 * half) & 15 : type == IQ2_S ? (b[74 + sub] >> 4 * half) & 15
              : (b[106 + (sub >> 1)] >> 4 * (sub & 1)) & 15;
    // Of IQ3_S whole numbers in quarters, of IQ3_XXS quarters and of IQ2 eighths in eighths.
    return (2 * scale + 1) * (type == IQ3_S ? 4 : type == IQ3_XXS ? 2 : 1);
}
// What codes stand for, plus 128. The last byte is odd where scales count in quarters, even where in eighths.
DEVICE uint4 table_of(int type) {
    switch (type) {
        case IQ4_XS: return IQ4_TABLE;
        case Q3_K: return make_uint4(0x7F7E7D7Cu, 0x83828180u, 0x81818181u, 0x81818181u);
        case IQ3_S: return make_uint4(0x87858381u, 0x8F8D8B89u, 0x797B7D7Fu, 0x71737577u);
        case IQ3_XXS: return make_uint4(0x9C948C84u, 0xBEB4ACA4u, 0x646C747Cu, 0x424C545Cu);
        default: return make_uint4(0x80AB9988u, 0x80808080u, 0x80556778u, 0x80808080u);
    }
}

DEVICE int block_bytes(int type) {
    switch (type) {
        case Q2_K: return 84;
        case Q3_K: return 110;
        case IQ4_NL: return 18;
        case IQ4_XS: return 136;
        case MXFP4: return 17;
        case IQ2_XXS: return 66;
        case IQ2_XS: return 74;
        case IQ2_S: return 82;
        case IQ3_XXS: return 98;
        case IQ3_S: return 110;
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

// What lane t = 0 writes of the row's block at chunk c, whose columns begin at element `e`; `b` is null for padding.
DEVICE void repack_scales(const RepackArgs& a, const uint8_t* b, uint8_t* unit, int c, int e, int g) {
    int type = a.ty;
    if (type == Q8_0) put_half(unit + 1024 + g * 8 + 2 * c, b);
    if (type == Q4_0 || type == Q4_1 || type == IQ4_NL) put_half(unit + 512 + g * 8 + 2 * c, b);
    if (type == Q4_1) put_half(unit + 576 + g * 8 + 2 * c, b ? b + 2 : nullptr);
    if (type == Q5_0 || type == Q5_1) put_half(unit + 640 + g * 8 + 2 * c, b);
    if (type == Q5_1) put_half(unit + 704 + g * 8 + 2 * c, b ? b + 2 : nullptr);
    if (type == MXFP4) {
        int exponent = b ? b[0] : 0;
        if (exponent > 128) atomicOr(a.flags, 2u);
        unit[512 + g * 4 + c] = uint8_t(min(max(exponent - 98, 0), 30) << 2);
    }
    if (type == Q4_K || type == Q5_K) {
        int at = (type == Q4_K ? 512 : 640) + g * 8 + 2 * c, scale = 0, min = 0;
        if (b) k_scale_min(b, e / 32, scale, min);
        // d and minus dmin.
        uint32_t both = b ? uint32_t(word_at(b + 2) ^ 0x8000) << 16 | word_at(b) : 0;
        uint32_t product = bits(__hmul2(halves(pack(float(scale), float(min))), halves(both)));
        *reinterpret_cast<uint16_t*>(unit + at) = uint16_t(product);
        *reinterpret_cast<uint16_t*>(unit + at + 64) = uint16_t(product >> 16);
    }
    for (int half = 0; half < 2; half++) {
        if (type == Q6_K) unit[768 + g * 8 + half * 4 + c] = (b ? b[192 + e / 16 + half] : 0) ^ 0x80;
        if (is_table(type))
            unit[512 + g * 8 + half * 4 + c] = uint8_t(128 + (b ? table_scale(type, b, e + 16 * half) : 0));
        if (type == Q2_K) {
            // Scales of four chunks in two bytes, then their mins.
            int both = b ? b[e / 16 + half] : 0;
            uint8_t* to = unit + 256 + g * 8 + half * 4 + (c >> 1);
            int at = 4 * (c & 1), kept = at ? 15 : 0;
            to[0] = uint8_t((to[0] & kept) | (both & 15) << at);
            to[2] = uint8_t((to[2] & kept) | (both >> 4) << at);
        }
    }
    if (c > 0) return;
    // Once for 256 columns: the scale of scales and, less than zero, that of mins.
    if (type == Q6_K) put_half(unit + 832 + g * 2, b ? b + 208 : nullptr);
    if (is_table(type)) put_half(unit + 576 + g * 2, b ? b + (type == Q3_K ? 108 : 0) : nullptr);
    if (type == Q2_K) {
        put_half(unit + 320 + g * 4, b ? b + 80 : nullptr);
        put_half(unit + 322 + g * 4, b ? b + 82 : nullptr);
        unit[323 + g * 4] ^= 0x80;
    }
}

// Codes and, per row, scales. Of columns and rows that are padding there is no block.
DEVICE void repack_codes(const RepackArgs& a, const uint8_t* row, uint8_t* unit, int k0,
                         const Lane& lane) {
    bool k_quant = a.ty == Q2_K || a.ty == Q4_K || a.ty == Q5_K || a.ty == Q6_K || is_table(a.ty);
    int elements = k_quant ? 256 : 32;
    uint32_t q[4] = {0, 0, 0, 0}, ordered[4] = {0, 0, 0, 0}, q8[8], high = 0, high2[2] = {0, 0}, twos[2] = {0, 0};
    for (int c = 0; c < CHUNKS; c++) {
        int k = k0 + CHUNK * c;
        const uint8_t* b = row && k < a.cols ? row + uint64_t(k / elements) * block_bytes(a.ty) : nullptr;
        uint32_t w8[2] = {0, 0};
        for (int i = 0; i < 8; i++) {
            int e = k % elements + 8 * lane.t + i;
            int code = b == nullptr ? 0 : has_grid(a.ty) ? grid_code(a.ty, a.grid, b, e)
                     : k_quant ? k_code(a.ty, b, e) : legacy_code(a.ty, b, e);
            int pair = i >> 1, up = i & 1;
            w8[i >> 2] |= uint32_t(code & 255) << (8 * (i & 3));
            q[c] |= uint32_t(code & 15) << (16 * up + 4 * pair);
            ordered[c] |= uint32_t(code & 15) << (4 * i);
            high |= uint32_t(code >> 4 & 1) << (16 * up + fifth_at(c, pair));
            high2[c >> 1] |= uint32_t(code >> 4 & 3) << (16 * up + top_at(c, pair));
            twos[c >> 1] |= uint32_t(code & 3) << (16 * up + 8 * (c & 1) + 2 * pair);
        }
        q8[2 * c] = w8[0];
        q8[2 * c + 1] = w8[1];
        if (lane.t == 0) repack_scales(a, b, unit, c, k % elements, lane.g);
    }
    if (a.ty == Q8_0) {
        for (int group = 0; group < 2; group++)
            *reinterpret_cast<uint4*>(unit + 512 * group + 16 * lane.id) =
                make_uint4(q8[4 * group], q8[4 * group + 1], q8[4 * group + 2], q8[4 * group + 3]);
        return;
    }
    if (a.ty == Q2_K) {
        *reinterpret_cast<uint2*>(unit + 8 * lane.id) = make_uint2(twos[0], twos[1]);
        return;
    }
    bool in_order = a.ty == IQ4_NL || is_table(a.ty);
    *reinterpret_cast<uint4*>(unit + 16 * lane.id) =
        in_order ? make_uint4(ordered[0], ordered[1], ordered[2], ordered[3]) : make_uint4(q[0], q[1], q[2], q[3]);
    if (a.ty == Q5_0 || a.ty == Q5_1 || a.ty == Q5_K)
        *reinterpret_cast<uint32_t*>(unit + 512 + 4 * lane.id) = high;
    if (a.ty == Q6_K)
        *reinterpret_cast<uint2*>(unit + 512 + 8 * lane.id) = make_uint2(high2[0], high2[1]);
    if (is_table(a.ty) && lane.id == 0) *reinterpret_cast<uint4*>(unit + 592) = table_of(a.ty);
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
