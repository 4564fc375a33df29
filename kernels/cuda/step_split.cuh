// One split of a decode step's attention by a team of four warps, in the order of attention.cuh.
//
// The split's pages lie in shared memory as they lie in the cache (kv.cuh). Warp w computes the scores of
// page w for all heads of the group, which are the rows of the tensor core; behind the common maximum each
// warp multiplies all exponentials with a quarter of the values' dimensions.
#pragma once
#include "attention.cuh"
#include "bulk.cuh"

constexpr int TEAM_WARPS = 4, TEAM_THREADS = 32 * TEAM_WARPS;
constexpr int TEAM_ROWS = 16;  // heads of a group, at most
constexpr int MAX_TEAMS = 4;   // of a block
static_assert(SPLIT_PAGES == TEAM_WARPS);

// A barrier of one team; number 1 is that of all consumers.
DEVICE void sync_team(int team) { asm volatile("bar.sync %0, %1;" ::"r"(2 + team), "n"(TEAM_THREADS) : "memory"); }

// A team's maxima of each page.
struct TeamMaxima {
    float of[SPLIT_PAGES][TEAM_ROWS];
};

// Halves between two queries in shared memory, so that eight rows lie in different banks.
constexpr int QUERY_GAP = 8;
template <int HD> constexpr int QUERY_STRIDE = HD + QUERY_GAP;
constexpr int EXPONENTIALS_BYTES = 5376;  // TeamSplit::Exponentials

template <int HD> struct TeamSplit {
    static constexpr int PAGE_HALVES = 2 * PAGE * HD;  // keys, then values
    static constexpr int TILES = HD / 8 / TEAM_WARPS;  // of eight dimensions, a warp
    // Exponentials, and each lane's sum of a page. They take the place of the first page's keys, which are
    // done with by then; heads whose keys are too short for that have room for them behind the pages.
    static constexpr int ROW = SPLIT + 8;
    struct Exponentials {
        __half e[TEAM_ROWS][ROW];
        float sums[SPLIT_PAGES][TEAM_ROWS][4];
    };
    static constexpr int PAGES_BYTES = SPLIT_PAGES * PAGE_HALVES * 2;
    static constexpr bool OVER_KEYS = sizeof(Exponentials) <= PAGE * HD * 2;
    static constexpr int BYTES = PAGES_BYTES + (OVER_KEYS ? 0 : int(sizeof(Exponentials)));
    static_assert(sizeof(Exponentials) == EXPONENTIALS_BYTES && EXPONENTIALS_BYTES % 128 == 0);

    __half* pages;  // [SPLIT_PAGES][PAGE_HALVES]
    TeamMaxima& maxima;
    int team, warp;  // of the team
    Lane lane;

    DEVICE TeamSplit(__half* pages, TeamMaxima& maxima, int team)
        : pages(pages), maxima(maxima), team(team), warp(threadIdx.x / 32 % TEAM_WARPS) {}

    DEVICE Exponentials& shared() const {
        return *reinterpret_cast<Exponentials*>(pages + (OVER_KEYS ? 0 : PAGES_BYTES / 2));
    }

    // Writes a key and a value into their page; by all threads of the team.
    DEVICE void add_position(const float* key, const float* value, int at) const {
        int page = at / PAGE, slot = at % PAGE;
        __half* keys = pages + page * PAGE_HALVES;
#pragma unroll 1
        for (int i = threadIdx.x % TEAM_THREADS; i < HD; i += TEAM_THREADS) {
            keys[key_place(slot, i)] = __float2half_rn(key[i]);
            keys[PAGE * HD + value_place(slot, i, HD)] = __float2half_rn(value[i]);
        }
        sync_team(team);
    }

    DEVICE void scores(float (&s)[4][4], const __half* queries, int group) const {
        const __half* keys = pages + warp * PAGE_HALVES;
        const __half* key = keys + key_piece(lane.id / 8 % 2, lane.id / 16 * 8 + lane.id % 8);
        const __half* q = queries + lane.g * QUERY_STRIDE<HD> + 2 * lane.t;
        const bool low = lane.g < group, high = lane.g + 8 < group;
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
#pragma unroll
        for (int k = 0; k < HD / 16; k++) {
            uint32_t b[2][4], a[4] = {};
            load_matrices(b[0], key + key_piece(2 * k, 0));
            load_matrices(b[1], key + key_piece(2 * k, 16));
            const __half* at = q + 16 * k;
            if (low) {
                a[0] = *reinterpret_cast<const uint32_t*>(at);
                a[2] = *reinterpret_cast<const uint32_t*>(at + 8);
            }
            if (high) {
                a[1] = *reinterpret_cast<const uint32_t*>(at + 8 * QUERY_STRIDE<HD>);
                a[3] = *reinterpret_cast<const uint32_t*>(at + 8 * QUERY_STRIDE<HD> + 8);
            }
#pragma unroll
            for (int n = 0; n < 4; n++)
                mma(s[n], a[0], a[1], a[2], a[3], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }

    // `last` is the row's position, counted from the split's first. `keep(head, i, low, high)` gets
    // dimensions i and i + 1 of the weighted values; with i = HD the maximum and the sum.
    template <typename Keep>
    DEVICE void run(const __half* queries, int group, int last, float scale, const Keep& keep) const {
        const int there = min(last / PAGE + 1, SPLIT_PAGES);  // pages
        const bool tall = group > 8;                          // there are rows g + 8
        float s[4][4], max[2] = {MASKED, MASKED}, sum[2] = {0.0f, 0.0f};
        if (warp < there) {
            scores(s, queries, group);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (r > 0 && !tall) break;
#pragma unroll
                for (int n = 0; n < 4; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int at = warp * PAGE + 8 * n + 2 * lane.t + i;
                        float& v = s[n][2 * r + i];
                        v = __fmul_rn(v, scale);
                        v = at <= last ? v : MASKED;
                        max[r] = fmaxf(max[r], v);
                    }
                max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 1));
                max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 2));
            }
        }
        if (lane.t == 0) {
            maxima.of[warp][lane.g] = max[0];
            if (tall) maxima.of[warp][lane.g + 8] = max[1];
        }
        sync_team(team);
        Exponentials& all = shared();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (r > 0 && !tall) break;
            int row = lane.g + 8 * r;
#pragma unroll
            for (int p = 0; p < SPLIT_PAGES; p++) max[r] = fmaxf(max[r], maxima.of[p][row]);
            if (warp < there)
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    uint32_t e = exponentials(s[n][2 * r], s[n][2 * r + 1], max[r]);
                    float2 back = __half22float2(halves(e));
                    sum[r] = __fadd_rn(sum[r], __fadd_rn(back.x, back.y));
                    *reinterpret_cast<uint32_t*>(&all.e[row][warp * PAGE + 8 * n + 2 * lane.t]) = e;
                }
            all.sums[warp][row][lane.t] = sum[r];
        }
        sync_team(team);
        values(all, group, there, keep);
        if (warp == 0) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (r > 0 && !tall) break;
                int row = lane.g + 8 * r;
                float total = all.sums[0][row][lane.t];
#pragma unroll
                for (int p = 1; p < SPLIT_PAGES; p++) total = __fadd_rn(total, all.sums[p][row][lane.t]);
                total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 1));
                total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 2));
                if (lane.t == 0 && row < group) keep(row, HD, max[r], total);
            }
        }
    }

    // This warp's quarter of the weighted values.
    template <typename Keep>
    DEVICE void values(const Exponentials& all, int group, int there, const Keep& keep) const {
        float o[TILES][4] = {};
        const int first = warp * TILES * 8;
        const __half* e = &all.e[(lane.id / 8 & 1) * 8 + lane.id % 8][lane.id / 16 * 8];
        const __half* value = pages + PAGE * HD + value_piece(lane.id / 8, first + lane.id % 8, HD);
#pragma unroll
        for (int p = 0; p < SPLIT_PAGES; p++) {
            if (p >= there) break;
            uint32_t one[4], two[4], v[4];
            load_matrices(one, e + p * PAGE);
            load_matrices(two, e + p * PAGE + 16);
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                load_matrices(v, value + p * PAGE_HALVES + value_piece(0, 8 * n, HD));
                mma(o[n], one[0], one[1], one[2], one[3], v[0], v[1]);
                mma(o[n], two[0], two[1], two[2], two[3], v[2], v[3]);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (lane.g + 8 * r < group)
#pragma unroll
                for (int n = 0; n < TILES; n++)
                    keep(lane.g + 8 * r, first + 8 * n + 2 * lane.t, o[n][2 * r], o[n][2 * r + 1]);
    }
};
