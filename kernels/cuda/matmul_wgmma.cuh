// Matmul for many rows on Hopper: the warpgroup's own tensor-core step, fed by bulk copies.
//
// A block computes WG * 64 weight rows x NB rows of activations; each of its WG warpgroups 64 weight
// rows of them. Weights are the left operand: they lie packed in shared memory, become F16 on the
// way into registers, and that is where wgmma takes them from. Activations are the right one, taken
// from shared memory as the kernels of norm.cu laid them out (`store_eight`). One more thread does
// nothing but ask for copies, a unit of k at a time, as many units ahead as there are stages; it
// goes on to the next tile while the others still write, and starts to copy its first weights before the
// launch in front of this one has ended.
//
// Where many rows multiply the same weights, two blocks of a cluster take different rows, and each copies half
// of the weights into both: the second-level cache is read less. Where a weight has too few rows to fill the
// device, blocks of a cluster share its segments: each sum of a segment goes to the block that owns its
// outputs, which adds them in ascending order (matmul.cuh). Bits do not depend on any of that.
//
// Up to MOST_WARP_ROWS rows are multiplied by quantized weights with the steps of each warp instead (matmul_warps.cuh).
//
// Gate and up may come as a pair: then the second half of a block's tiles is of up, a lane has both values
// of its outputs, and only the gated linear unit of them is written (glu.cuh), as an input of the next product.
#pragma once
#include "hopper.cuh"
#include "matmul_warps.cuh"
#include "wide_outputs.cuh"

struct WideArgs {
    MatmulArgs matmul;  // x is packed by `store_eight`
    int stages;
    int cluster_sums;  // where the cluster's sums of segments lie in shared memory, in bytes
    int paired;        // part 0 is gate, part 1 up, of as many rows
    int shares;        // clusters are two blocks that multiply the same weights, and load half of them each
    float up;          // power of two of a pair's outputs
    int out_units;     // of a row of them
    TensorMap weights[MAX_PARTS];  // [tiles][units * lines][line], boxes of half a block's tiles of one unit
};
LAYOUT(WideArgs, 576, AT(matmul, 0) AT(stages, 144) AT(cluster_sums, 148) AT(paired, 152)
       AT(shares, 156) AT(up, 160) AT(out_units, 164) AT(weights, 192))

#ifdef HAS_WGMMA
constexpr int MAX_STAGES = 12;
// A unit of a tile is one line of its tensor map, or several where a line would be too long for a box.
constexpr int LINE_BYTES = 2048;
// Registers of a thread of the largest block, whose launch gives each 168.
constexpr int COPIER_REGISTERS = 56, MULTIPLIER_REGISTERS = 224;
static_assert(COPIER_REGISTERS + 2 * MULTIPLIER_REGISTERS == 3 * 168);

template <int T, int WG, int NB> struct Wide {
    static constexpr int TILES = WG * 8, WARPS = WG * 4;
    using Outputs = WideOutputs<WARPS>;
    // Two warpgroups that hold many sums get the registers of a third, of which one warp copies.
    static constexpr bool LARGE = WG == 2 && NB == 128;
    static constexpr int THREADS = (WARPS + (LARGE ? 4 : 1)) * 32;
    // Weights come in two boxes, at places that the copy engine can write to.
    static constexpr int BOX = WARPS * unit_bytes(T), BOX_STEP = (BOX + 127) / 128 * 128;
    static constexpr int X_BYTES = NB / 8 * GROUP_BYTES, W_BYTES = 2 * BOX_STEP;
    static constexpr int STAGE = X_BYTES + W_BYTES;
    static constexpr int LINES = (unit_bytes(T) + LINE_BYTES - 1) / LINE_BYTES;
    static constexpr bool BY_WARPS = NB <= MOST_WARP_ROWS && IS_QUANTIZED<T>;

    const WideArgs& w;
    const MatmulArgs& a;
    uint8_t* shared;
    Shared at;           // of `shared`
    Shared full, empty;  // barriers of the stages
    Shared empty_there;  // those at which this thread gives stages back
    Shared sums_full;    // barrier: all sums of segments for this block have come
    bool shares;
    int n_tiles, row_blocks, rank, split, n_segments, first_segment, end_segment;
    // This thread's place in the ring.
    int stage = 0, parity = 0;

    DEVICE Wide(const WideArgs& args, uint8_t* smem, Shared barriers)
        : w(args), a(args.matmul), shared(smem), at(shared_address(smem)), full(barriers), empty(full + MAX_STAGES * BARRIER_BYTES),
          sums_full(empty + MAX_STAGES * BARRIER_BYTES) {
        shares = w.shares;
        empty_there = shares ? map_to_rank(empty, threadIdx.x & 1) : empty;
        rank = cluster_rank();
        split = shares ? 1 : cluster_size();
        row_blocks = (a.rows + NB - 1) / NB;
        n_tiles = 0;
        for (int p = 0; p < a.n_parts; p++) n_tiles += (a.parts[p].tiles + TILES - 1) / TILES;
        if (w.paired) n_tiles = (a.parts[0].tiles + TILES / 2 - 1) / (TILES / 2);
        n_tiles *= row_blocks;
        n_segments = segments_of(a.units);
        first_segment = shares ? 0 : n_segments * rank / split;
        end_segment = shares ? n_segments : n_segments * (rank + 1) / split;
    }

    struct Place {
        const Part* part;
        int row0, tile0;
    };

    // Tiles are walked with rows fastest, so that neighbours share weights in L2.
    DEVICE Place place(int tile) const {
        int block = tile / row_blocks, row0 = tile % row_blocks * NB, p = 0;
        if (w.paired) return {a.parts, row0, block * TILES / 2};
        for (;; p++) {
            int blocks = (a.parts[p].tiles + TILES - 1) / TILES;
            if (block < blocks) break;
            block -= blocks;
        }
        return {a.parts + p, row0, block * TILES};
    }

    DEVICE static Shared of_stage(Shared barriers, int stage) {
        return barriers + stage * BARRIER_BYTES;
    }
    DEVICE void advance() {
        if (++stage == w.stages) stage = 0, parity ^= 1;
    }

    // === the warp that copies

    DEVICE int x_bytes(int row0) const {
        return min(NB / 8, (a.rows - row0 + 7) / 8) * GROUP_BYTES;
    }
    DEVICE void copy_x(int row0, int u, int to) const {
        int groups = (a.rows + 7) / 8;
        const __half* from = a.x + (int64_t(u) * groups + row0 / 8) * (GROUP_BYTES / 2);
        copy_bulk(at + to * STAGE, from, x_bytes(row0), of_stage(full, to));
    }
    // Two copies a unit, whatever the number of tiles: a copy a tile took longer to ask for. Tiles behind
    // the last come as zeros.
    DEVICE void copy_weights(const Place& place, int u, int to) const {
        const int part = int(place.part - a.parts);
        const Shared here = at + to * STAGE + X_BYTES, bar = of_stage(full, to);
        barrier_expect(bar, x_bytes(place.row0) + 2 * BOX);
        for (int half = 0; half < 2; half++) {
            const TensorMap* from = &w.weights[w.paired ? half : part];
            int tile = place.tile0 + (w.paired ? 0 : half * WARPS);
            if (!shares) copy_box(here + half * BOX_STEP, from, u * LINES, tile, bar);
            else if (half == rank) copy_box_to_both(here + half * BOX_STEP, from, u * LINES, tile, bar);
        }
    }

    // By one thread.
    DEVICE void produce(int tile, int step) {
        Segments walk(a.units, first_segment);
        if (tile < n_tiles) {
            // Weights of the first units, which nothing before this launch writes.
            Place at = place(tile);
            Segments asked = walk;
            for (int i = 0; i < w.stages && asked.segment < end_segment; i++, asked.next())
                copy_weights(at, asked.unit, i);
            grid_dependency_wait();
            for (int i = 0; i < w.stages && walk.segment < end_segment; i++, walk.next()) {
                copy_x(at.row0, walk.unit, i);
                advance();
            }
        }
        for (; tile < n_tiles; tile += step, walk = Segments(a.units, first_segment)) {
            Place at = place(tile);
            for (; walk.segment < end_segment; walk.next()) {
                barrier_wait(of_stage(empty, stage), parity ^ 1);
                copy_weights(at, walk.unit, stage);
                copy_x(at.row0, walk.unit, stage);
                advance();
            }
        }
    }

    // === the warps that multiply

    // Weights of the warp's rows g of two tiles, some chunks of a unit. The block's first half of tiles has the
    // one of each warp, and its second half, or those of up, the other.
    struct Operand {
        Weights<T> low, high;
    };
    DEVICE void load(Operand& o, const Lane& lane, int warp, int group) const {
        const uint8_t* tile = shared + stage * STAGE + X_BYTES + warp * unit_bytes(T);
        o.low.template load<false>(tile, lane, group);
        o.high.template load<false>(tile + BOX_STEP, lane, group);
    }

    // The unit at hand, whose first chunks are in `next`; leaves two products under way. The stage of the
    // segment's unit before, if there is one, is given back when its products are done.
    DEVICE void multiply_unit(float (&d)[NB / 2], bool goes_on, int before, Operand& next, const Lane& lane,
                              int warp) {
        constexpr int GROUP = Weights<T>::GROUP, PLANES = Weights<T>::PLANES, STEPS = CHUNKS * PLANES;
        uint64_t operand = wgmma_operand(at + stage * STAGE, GROUP_BYTES);
        uint32_t left[2][2][4];
        Operand now;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            int chunk = i / PLANES, plane = i % PLANES;
            if (plane == 0 && chunk % GROUP == 0) {
                now = next;
                if (chunk + GROUP < CHUNKS) load(next, lane, warp, chunk / GROUP + 1);
            }
            uint32_t l[4], h[4];
            now.low.fragment(chunk % GROUP, plane, l);
            now.high.fragment(chunk % GROUP, plane, h);
            // The product of two steps ago is done with its registers.
            wgmma_wait<1>();
            if (i == 1) release(before, lane, goes_on);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                left[i & 1][j][0] = l[2 * j];
                left[i & 1][j][1] = h[2 * j];
                left[i & 1][j][2] = l[2 * j + 1];
                left[i & 1][j][3] = h[2 * j + 1];
            }
            wgmma_fence();
            // 16 columns are two pieces of 128 bytes.
            wgmma<NB>(d, left[i & 1][0], operand + chunk * 32, goes_on || i > 0);
            wgmma<NB>(d, left[i & 1][1], operand + chunk * 32 + 16, true);
            wgmma_commit();
        }
    }

    // A segment's sums, of `units` units.
    DEVICE void multiply_segment(float (&d)[NB / 2], int units, const Lane& lane, int warp) {
        if constexpr (BY_WARPS) multiply_by_warps(d, units, lane, warp);
        else multiply_by_group(d, units, lane, warp);
    }

    DEVICE void multiply_by_warps(float (&d)[NB / 2], int units, const Lane& lane, int warp) {
        // Worked out in front of the loop.
        const Shared x = kept(at + lane.id * 16), weights = kept(at + X_BYTES + warp * unit_bytes(T));
#pragma unroll
        for (int i = 0; i < NB / 2; i++) d[i] = 0.0f;
#pragma unroll 1
        for (int i = 0; i < units; i++) {
            barrier_wait(of_stage(full, stage), parity);
            const WarpUnit<T, NB, BOX_STEP> unit(x + stage * STAGE, weights + stage * STAGE, lane);
            release(stage, lane, true);
            advance();
            unit.multiply(d);
        }
    }

    DEVICE void multiply_by_group(float (&d)[NB / 2], int units, const Lane& lane, int warp) {
        Operand next;
        int before = stage;
#pragma unroll 1
        for (int i = 0;;) {
            barrier_wait(of_stage(full, stage), parity);
            load(next, lane, warp, 0);
            multiply_unit(d, i > 0, before, next, lane, warp);
            before = stage;
            advance();
            if (++i == units) break;
        }
        wgmma_wait<0>();
        release(before, lane, true);
    }

    // The stage may be filled again, by this block and by the one that loads half of its weights.
    DEVICE void release(int stage, const Lane& lane, bool really) const {
        __syncwarp();
        barrier_arrive_if(really && lane.id < (shares ? 2 : 1), of_stage(empty_there, stage));
    }

    DEVICE void consume(int tile, int step) {
        Lane lane;
        int warp = threadIdx.x / 32;
        bool others_began = false;
        // Units of a segment, of which the first `longer` ones have one more.
        const int length = a.units / n_segments, longer = a.units % n_segments;
        grid_dependency_wait();
        if (w.paired && blockIdx.x == 0 && a.parts[0].rows < w.out_units * UNIT) {
            const InputRows inputs = {reinterpret_cast<__half*>(a.out), (a.rows + 7) / 8};
            for (int row = 0; row < a.rows; row++)
                clear_columns(inputs, row, a.parts[0].rows, w.out_units * UNIT, threadIdx.x, WARPS * 32);
        }
        for (; tile < n_tiles; tile += step) {
            float total[NB / 2] = {}, d[NB / 2] = {};
            for (int segment = first_segment; segment < end_segment; segment++) {
                multiply_segment(d, length + (segment < longer ? 1 : 0), lane, warp);
                if (split == 1) {
#pragma unroll
                    for (int i = 0; i < NB / 2; i++) total[i] = __fadd_rn(total[i], d[i]);
                } else {
                    // The other blocks must have begun before their memory is written.
                    if (!others_began) cluster_wait();
                    others_began = true;
                    send_segment(d, segment, warp, lane);
                }
            }
            if (split == 1) write_tile(total, tile, warp, lane);
        }
    }

    DEVICE void write_tile(const float (&total)[NB / 2], int tile, int warp, const Lane& lane) {
        Place at = place(tile);
        Outputs writer(a, w.paired, w.up, at.part, at.tile0, warp, lane);
        // Groups of eight rows at an edge whose loads are under way together.
        constexpr int EDGE = NB >= 64 ? 8 : NB % 16 == 0 ? 2 : 1;
        const bool is_whole = at.row0 + NB <= a.rows && __all_sync(~0u, writer.is_whole());
        if (is_whole && w.paired) writer.template write_whole<UNIT_OF_PAIR, NB / 8>(total, at.row0);
        else if (is_whole && a.add) writer.template write_whole<ADD, NB / 8>(total, at.row0);
        else if (is_whole) writer.template write_whole<SET, NB / 8>(total, at.row0);
        else
#pragma unroll
            for (int j = 0; j < NB / 8; j += EDGE) writer.template write<EDGE>(&total[4 * j], at.row0 + 8 * j);
    }

    // === segments shared out to the blocks of a cluster
    //
    // A piece is what a warp has of eight rows: four values a lane. Piece p is owned by block
    // p % split, which keeps it as [segment][p / split][lane].

    static constexpr int PIECES = WARPS * (NB / 8);

    // Pieces of a segment that a block owns, at most.
    DEVICE int owned() const { return (PIECES + split - 1) / split; }

    // All pieces count at one barrier.
    DEVICE void expect_segments() {
        int pieces = (PIECES - rank + split - 1) / split;
        barrier_expect(sums_full, n_segments * pieces * 512);
    }

    DEVICE void send_segment(const float (&d)[NB / 2], int segment, int warp, const Lane& lane) {
        Shared here = at + w.cluster_sums + segment * owned() * 512 + lane.id * 16;
        int own = warp * (NB / 8) / split, owner = warp * (NB / 8) % split;
#pragma unroll
        for (int j = 0; j < NB / 8; j++) {
            store_async(map_to_rank(here + own * 512, owner), map_to_rank(sums_full, owner),
                             d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
            if (++owner == split) owner = 0, own++;
        }
    }

    DEVICE void add_segments(int tile) {
        Lane lane;
        Place at = place(tile);
        int step = owned() * 512;
        barrier_wait(sums_full, 0);
        for (int own = threadIdx.x / 32;; own += WARPS) {
            int piece = own * split + rank;
            if (piece >= PIECES) break;
            Outputs writer(a, w.paired, w.up, at.part, at.tile0, piece / (NB / 8), lane);
            const uint8_t* from = shared + w.cluster_sums + own * 512 + lane.id * 16;
            float total[4] = {};
            for (int s = 0; s < n_segments; s++, from += step) {
                float4 d = *reinterpret_cast<const float4*>(from);
                total[0] = __fadd_rn(total[0], d.x);
                total[1] = __fadd_rn(total[1], d.y);
                total[2] = __fadd_rn(total[2], d.z);
                total[3] = __fadd_rn(total[3], d.w);
            }
            writer.template write<1>(total, at.row0 + piece % (NB / 8) * 8);
        }
    }
};
#endif
