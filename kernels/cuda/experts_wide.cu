// A mixture of experts where an expert has many rows, on Hopper: products of matmul_wgmma.cuh over shares, as a
// translation unit of its own.
//
// Places of an expert begin at a multiple of eight (route.cu), so a share is whole groups of eight rows of the packed
// layout, and the places behind its last row belong to no pair: what is computed there is written there, and read by
// no other kernel's pair. `experts_pack` brings the rows of a batch to their places.
//
// Blocks walk pairs of a share and a block's tiles of its expert. How many there are is known on the device alone.
#include "experts.cuh"
#include "matmul_wgmma.cuh"

struct ExpertsPackArgs {
    const __half* x;      // [rows, units * 128]
    const float* scale;   // [rows]
    const int* rows;      // of each place
    __half* out;          // by place, packed by `store_eight`
    float* out_scale;     // by place
    int units;
    int groups;           // of eight places
};
LAYOUT(ExpertsPackArgs, 48, AT(x, 0) AT(scale, 8) AT(rows, 16) AT(out, 24) AT(out_scale, 32) AT(units, 40)
       AT(groups, 44))

// A block a group of places, a thread a chunk of 32 columns of one of them: four pieces of 16 bytes, and eight places
// are a line. A place that belongs to no pair gets a row of an earlier batch.
extern "C" __global__ void experts_pack(const __grid_constant__ ExpertsPackArgs a) {
    launch_dependents();
    grid_dependency_wait();
    const int group = blockIdx.x, place = threadIdx.x & 7;
    const int row = max(a.rows[8 * group + place], 0);
    if (threadIdx.x < 8) a.out_scale[8 * group + place] = a.scale[row];
    for (int chunk = threadIdx.x >> 3; chunk < a.units * CHUNKS; chunk += blockDim.x >> 3) {
        const uint4* from = reinterpret_cast<const uint4*>(a.x + int64_t(row) * a.units * UNIT + chunk * CHUNK);
        const uint4 q[4] = {from[0], from[1], from[2], from[3]};
        const int64_t unit = int64_t(chunk / CHUNKS) * a.groups + group;
        __half* to = a.out + (unit * 16 + chunk % CHUNKS * 4) * 64 + place * 8;
#pragma unroll
        for (int i = 0; i < 4; i++)
            *reinterpret_cast<uint4*>(to + 64 * i) = make_uint4(word(q[0], i), word(q[1], i), word(q[2], i), word(q[3], i));
    }
}

struct ExpertsWideArgs {
    WideArgs wide;        // parts and bias are those of an expert, tensor maps of all; rows are places, out is by place.
                          // Without a scale rows are outputs of a clamped unit
    const Share* shares;
    const int* counts;    // of shares
    int activation;       // of a pair. Some blocks write outputs of a clamped unit as inputs of a product
    int out_units;        // of such a row
};
LAYOUT(ExpertsWideArgs, 640, AT(wide, 0) AT(shares, 576) AT(counts, 584) AT(activation, 592) AT(out_units, 596))

#ifdef HAS_WGMMA
// One matrix, without a gated linear unit.
constexpr int NO_UNIT = -1;

template <int T, int WG, int NB> struct ExpertsWide : Wide<T, WG, NB> {
    using Base = Wide<T, WG, NB>;
    using Base::a, Base::w, Base::stage, Base::parity, Base::n_segments;
    // Warpgroups that hold many sums get registers of another one, of which one warp copies.
    static constexpr bool LARGE = NB > 64;
    static constexpr int COPIER = 32, MULTIPLIER = 160;
    static_assert(WG == 3 && COPIER + WG * MULTIPLIER == (WG + 1) * 128);

    // Outputs of a clamped unit are written as inputs of the next product, and taken as such. Only where it pays: a block of
    // 128 rows has no registers for it, and gpt-oss's experts are of this type.
    static constexpr bool BOUNDED = T == MXFP4 && NB <= 64;

    const ExpertsWideArgs& e;
    int blocks;  // of tiles of an expert
    int count;   // of shares and blocks of tiles

    DEVICE ExpertsWide(const ExpertsWideArgs& args, uint8_t* smem, Shared barriers)
        : Base(args.wide, smem, barriers), e(args) {
        const int own = w.paired ? Base::TILES / 2 : Base::TILES;
        blocks = (a.parts[0].tiles + own - 1) / own;
        count = e.counts[0] * blocks;
    }

    struct Piece {
        Share share;
        int tile0;
    };
    // Blocks of tiles are fastest: those of a share read its rows, and the next share's weights are the same where it
    // is of the same expert.
    DEVICE Piece piece(int i) const {
        return {e.shares[i / blocks], i % blocks * (w.paired ? Base::TILES / 2 : Base::TILES)};
    }

    // By one thread.
    DEVICE void produce(int i, int step) {
        const int groups = (a.rows + 7) / 8;
        for (; i < count; i += step) {
            const Piece p = piece(i);
            const int bytes = (p.share.count + 7) / 8 * GROUP_BYTES;
            // Behind the last tile of an expert is the first one of the next.
            const int tile = p.share.expert * a.parts[0].tiles + p.tile0;
            const __half* x = a.x + int64_t(p.share.first / 8) * (GROUP_BYTES / 2);
            for (Segments walk(a.units, 0); walk.segment < n_segments; walk.next()) {
                barrier_wait(Base::of_stage(Base::empty, stage), parity ^ 1);
                const Shared here = Base::at + stage * Base::STAGE, bar = Base::of_stage(Base::full, stage);
                barrier_expect(bar, bytes + 2 * Base::BOX);
                for (int half = 0; half < 2; half++)
                    copy_box(here + Base::X_BYTES + half * Base::BOX_STEP, &w.weights[w.paired ? half : 0],
                             walk.unit * Base::LINES, tile + (w.paired ? 0 : half * Base::WARPS), bar);
                copy_bulk(here, x + int64_t(walk.unit) * groups * (GROUP_BYTES / 2), bytes, bar);
                Base::advance();
            }
        }
    }

    DEVICE void consume(int i, int step) {
        Lane lane;
        const int warp = threadIdx.x / 32;
        // Units of a segment, of which the first `longer` ones have one more.
        const int length = a.units / n_segments, longer = a.units % n_segments;
        for (; i < count; i += step) {
            const Piece p = piece(i);
            float total[NB / 2] = {}, d[NB / 2] = {};
            for (int segment = 0; segment < n_segments; segment++) {
                Base::multiply_segment(d, length + (segment < longer ? 1 : 0), lane, warp);
#pragma unroll
                for (int j = 0; j < NB / 2; j++) total[j] = __fadd_rn(total[j], d[j]);
            }
            if (!w.paired) write<NO_UNIT>(total, p, warp, lane);
            else if (e.activation == SILU) write<SILU>(total, p, warp, lane);
            else if (e.activation == GELU) write<GELU>(total, p, warp, lane);
            else if (BOUNDED) write_inputs(total, p, warp, lane);
            else write<CLAMPED_SWIGLU>(total, p, warp, lane);
        }
    }

    // Outputs of a clamped unit as `store_eight` packs rows. Their power of two is known, so nothing waits for a row.
    DEVICE void write_inputs(const float (&total)[NB / 2], const Piece& p, int warp, const Lane& lane) const {
        const int tiles = a.parts[0].tiles, groups = (a.rows + 7) / 8;
        __half* const out = reinterpret_cast<__half*>(a.out);
        // Of the first eight places: a lane has one of a column's two rows, with its neighbour of the next column.
        auto place_of = [&](int tile) {
            const int64_t group = int64_t(tile / 16) * groups + p.share.first / 8;
            const int piece = tile % 16 / 4 * 4 + lane.g / 2, row = 2 * lane.t + (lane.g & 1);
            return reinterpret_cast<uint32_t*>(out + (group * 16 + piece) * 64 + row * 8 + tile % 4 * 2);
        };
        constexpr int STEP = 16 * 64 / 2;  // words of eight places
        // Columns behind the last one are zero.
        if (p.tile0 + Base::TILES / 2 >= tiles)
            for (int tile = tiles + warp; tile < e.out_units * 16; tile += Base::WARPS) {
                uint32_t* to = place_of(tile);
                for (int j = 0; 8 * j < p.share.count; j++) to[j * STEP] = 0;
            }
        const int tile = p.tile0 + warp;
        if (tile >= tiles) return;
        const float* bias[2];
        float b[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bias[i] = bias_of(a.parts[i], p.share.expert);
            b[i] = bias[i] ? bias[i][tile * TILE_N + lane.g] : 0.0f;
        }
        auto finish = [&](float sum, float scale, int i) {
            const float v = __fmul_rn(sum, scale);
            return bias[i] ? __fadd_rn(v, b[i]) : v;
        };
        const float* scales = a.scale + p.share.first + 2 * lane.t;
        uint32_t* to = place_of(tile);
#pragma unroll
        for (int j = 0; j < NB / 8; j++, to += STEP) {
            if (8 * j >= p.share.count) return;
            const float2 scale = *reinterpret_cast<const float2*>(scales + 8 * j);
            float v[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float s = i == 0 ? scale.x : scale.y;
                v[i] = clamped_swiglu(finish(total[4 * j + i], s, 0), finish(total[4 * j + 2 + i], s, 1));
            }
            const bool odd = lane.g & 1;
            const float other = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 4);
            const float low = odd ? other : v[0], high = odd ? v[1] : other;
            *to = pack(__fmul_rn(low, SWIGLU_UP), __fmul_rn(high, SWIGLU_UP));
        }
    }

    // Whole groups of eight places. An expert has whole tiles.
    template <int ACTIVATION>
    DEVICE void write(const float (&total)[NB / 2], const Piece& p, int warp, const Lane& lane) const {
        constexpr bool PAIRED = ACTIVATION != NO_UNIT;
        const int tile[2] = {p.tile0 + warp, p.tile0 + warp + (PAIRED ? 0 : Base::WARPS)};
        if (tile[0] >= a.parts[0].tiles) return;
        const bool has_second = tile[1] < a.parts[0].tiles;
        const float* bias[2];
        float b[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const Part& part = a.parts[PAIRED ? i : 0];
            bias[i] = bias_of(part, p.share.expert);
            b[i] = bias[i] && (i == 0 || has_second) ? bias[i][tile[i] * TILE_N + lane.g] : 0.0f;
        }
        auto finish = [&](float sum, float scale, int i) {
            const float v = __fmul_rn(sum, scale);
            return bias[i] ? __fadd_rn(v, b[i]) : v;
        };
        const int64_t stride = a.out_stride;
        const float* scales = BOUNDED && !a.scale ? nullptr : a.scale + p.share.first + 2 * lane.t;
        float* to = a.out + (p.share.first + 2 * lane.t) * stride + a.parts[0].column + tile[0] * TILE_N + lane.g;
#pragma unroll
        for (int j = 0; j < NB / 8; j++, to += 8 * stride) {
            if (8 * j >= p.share.count) return;
            float2 scale = make_float2(1.0f / SWIGLU_UP, 1.0f / SWIGLU_UP);
            if (!BOUNDED || scales) scale = *reinterpret_cast<const float2*>(scales + 8 * j);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float s = i == 0 ? scale.x : scale.y;
                const float low = finish(total[4 * j + i], s, 0), high = finish(total[4 * j + 2 + i], s, 1);
                float* at = to + i * stride;
                if (PAIRED) {
                    *at = glu(ACTIVATION, low, high);
                } else {
                    *at = low;
                    if (has_second) at[Base::WARPS * TILE_N] = high;
                }
            }
        }
    }
};
#endif

// Grid: as many blocks as the device holds together.
template <int T, int WG, int NB> DEVICE void experts_wide(const ExpertsWideArgs& args) {
#ifdef HAS_WGMMA
    using Block = ExpertsWide<T, WG, NB>;
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ uint64_t barriers[2 * MAX_STAGES + 1];
    launch_dependents();
    const Shared bars = shared_address(barriers);
    if (threadIdx.x == 0) {
        for (int i = 0; i < args.wide.stages; i++) {
            barrier_init(bars + i * BARRIER_BYTES, 1);
            barrier_init(bars + (MAX_STAGES + i) * BARRIER_BYTES, Block::WARPS);
        }
        fence_barrier_init();
    }
    grid_dependency_wait();
    Block block(args, smem, bars);
    __syncthreads();
    if (threadIdx.x / 32 >= Block::WARPS) {
        if (Block::LARGE) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Block::COPIER));
        if (threadIdx.x / 32 == Block::WARPS && elect_lane()) block.produce(blockIdx.x, gridDim.x);
    } else {
        if (Block::LARGE) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Block::MULTIPLIER));
        block.consume(blockIdx.x, gridDim.x);
    }
#endif
}

// The blocks of device/cuda/experts_wide.rs, of which a multiprocessor holds one.
#define EXPERTS_WIDE_OF(T, WG, NB)                                                           \
    extern "C" __global__ void __launch_bounds__(WG * 128 + (NB > 64 ? 128 : 32), 1)         \
    experts_wide_##T##_##WG##_##NB(const __grid_constant__ ExpertsWideArgs a) { experts_wide<T, WG, NB>(a); }
#define EXPERTS_WIDE(T) EXPERTS_WIDE_OF(T, 3, 32) EXPERTS_WIDE_OF(T, 3, 64) EXPERTS_WIDE_OF(T, 3, 128)
EACH_TYPE(EXPERTS_WIDE)
