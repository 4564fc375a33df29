// Matmul for few rows (up to 64): decoding, on every architecture but Hopper. Bound by reading W
// once.
//
// Block (32, segments, tiles): one warp a segment of a tile of 8 weight rows, so that all of a
// short row's bytes are in flight at once; partial sums go to shared memory and are added by
// one thread an output. Activations come through the caches. The 16 rows of a tensor-core step
// cost nothing when most are empty: the kernel waits for memory.
#include "hopper.cuh"
#include "matmul.cuh"

// Rows `row` and `row + 8` at the columns of `x`; zero past the end.
DEVICE Rows read_rows(const MatmulArgs& a, const __half* x, int row) {
    const uint4 none = make_uint4(0, 0, 0, 0);
    x += int64_t(row) * a.units * UNIT;
    Rows r;
    r.a = row < a.rows ? *reinterpret_cast<const uint4*>(x) : none;
    x += int64_t(8) * a.units * UNIT;
    r.b = row + 8 < a.rows ? *reinterpret_cast<const uint4*>(x) : none;
    return r;
}

// Segment sums of one tile for MT * 16 rows.
template <int T, int MT, bool STREAM>
DEVICE void run_segment(float (&d)[MT][4], const uint8_t* tile, int first, int segments,
                        const MatmulArgs& a, const Lane& lane) {
    constexpr int GROUPS = CHUNKS / Weights<T>::GROUP;
    Weights<T> now[GROUPS], next[GROUPS];
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
        now[i].template load<STREAM>(tile + first * unit_bytes(T), lane, i);
    for (int u = first; u < a.units; u += segments) {
        const __half* x = a.x + u * UNIT + 8 * lane.t;
        Rows rows[CHUNKS];
        // With one row of tiles its activations are loaded together with the weights.
        if (MT == 1)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) rows[c] = read_rows(a, x + CHUNK * c, lane.g);
        if (u + segments < a.units)
#pragma unroll
            for (int i = 0; i < GROUPS; i++)
                next[i].template load<STREAM>(tile + (u + segments) * unit_bytes(T), lane, i);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int m = 0; m < MT; m++) {
                if (MT > 1) rows[c] = read_rows(a, x + CHUNK * c, 16 * m + lane.g);
                multiply<T>(d[m], rows[c], now[c / Weights<T>::GROUP], c % Weights<T>::GROUP);
            }
#pragma unroll
        for (int i = 0; i < GROUPS; i++) now[i] = next[i];
    }
}

template <int T, int MT> DEVICE void matmul_few(const MatmulArgs& a) {
    extern __shared__ float sums[];  // [tiles][segments][rows][8]
    launch_dependents();
    grid_dependency_wait();
    Lane lane;
    int segments = blockDim.y, segment = threadIdx.y;
    int tile = blockIdx.x * blockDim.z + threadIdx.z, p = 0;
    while (p < a.n_parts && tile >= a.parts[p].tiles) tile -= a.parts[p++].tiles;
    bool works = p < a.n_parts;
    const Part& part = a.parts[works ? p : 0];
    float* mine = sums + threadIdx.z * segments * a.rows * TILE_N;
    if (works) {
        float d[MT][4] = {};
        const uint8_t* weight = part.weight + int64_t(tile) * a.units * unit_bytes(T);
        run_segment<T, MT, true>(d, weight, segment, segments, a, lane);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int row = 16 * m + 8 * i + lane.g;
                if (row >= a.rows) continue;
                float2* to = reinterpret_cast<float2*>(
                    mine + (segment * a.rows + row) * TILE_N + 2 * lane.t);
                *to = make_float2(d[m][2 * i], d[m][2 * i + 1]);
            }
    }
    __syncthreads();
    if (!works) return;
    for (int i = segment * 32 + lane.id; i < a.rows * TILE_N; i += segments * 32) {
        float total = 0.0f;
        for (int s = 0; s < segments; s++) total = __fadd_rn(total, mine[s * a.rows * TILE_N + i]);
        epilogue(a, part, i / TILE_N, tile * TILE_N + i % TILE_N, total);
    }
}

constexpr int FEW_THREADS = 512;

#define MATMUL_FEW(T)                                                                       \
    extern "C" __global__ void __launch_bounds__(FEW_THREADS)                               \
    matmul_few_##T##_1(const __grid_constant__ MatmulArgs a) { matmul_few<T, 1>(a); }        \
    extern "C" __global__ void __launch_bounds__(FEW_THREADS)                               \
    matmul_few_##T##_4(const __grid_constant__ MatmulArgs a) { matmul_few<T, 4>(a); }
EACH_TYPE(MATMUL_FEW)
