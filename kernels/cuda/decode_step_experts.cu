// The kernels of decode_step.cuh for models of experts, as a translation unit: one row, routers in F32, and other weights of
// few types each, as files have them.
#include "decode_step.cuh"
#include "step_experts.cuh"

template <int... TYPES> struct ExpertsStep {
    static constexpr bool COMPACT = true;
    typedef Chosen Shared;
    DEVICE static int used(const StepArgs& a) { return a.mixture.used; }
    DEVICE static void init(Chosen& chosen, const StepArgs& a, int block, int blocks) { chosen.init(a, block, blocks); }
    DEVICE static void produce(const Plan& plan, const Ring& ring, Chosen& chosen) { ExpertsProducer(plan, ring, chosen).run(); }
    DEVICE static void multiply(const Plan& plan, uint8_t* smem, RowReduction& reduction, const Ring& ring, Chosen& chosen) {
        ExpertsProducts<TYPES...>(plan, smem, reduction, ring, chosen).run();
    }
};

#define EXPERTS_STEP(NAME, ...)                                            \
    STEP_KERNEL(64_experts_##NAME##_alone, 64, ExpertsStep<__VA_ARGS__>)     \
    STEP_KERNEL(128_experts_##NAME##_alone, 128, ExpertsStep<__VA_ARGS__>)

EXPERTS_STEP(K, F32, Q4_1, Q6_K)
EXPERTS_STEP(Q8_0, F32, Q8_0)
EXPERTS_STEP(any, ANY_TYPE)
