//! The law of the device boundary on the CPU: a sequence's result depends, bit for bit, on its own tokens and positions
//! only.

use crate::support::laws::{self, assert_same};
use crate::support::{
    MIXED, MIXED_SMALL, Model, alone, config, config_like_gemma4_e2b,
    config_like_gemma4_e2b_of_four_layers, config_like_gemma4_with_experts, config_like_glm,
    config_of_delta_nets, config_of_experts, config_of_gpt_oss, config_of_mamba,
    config_of_short_convs, config_of_short_convs_and_experts, config_of_single_blocks,
    config_of_single_blocks_and_experts, config_with_joint_norms, config_with_temperature,
    config_with_windows, config_without_rotations, options, tokens,
};
use worker_orcd_gpu::device::Executor;
use worker_orcd_gpu::device::cpu::{CpuExecutor, Device};
use worker_orcd_gpu::device::{LoadOptions, Source};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::TensorType;
use worker_orcd_kernels::cpu::Isa;

/// Past one span of attention (256) and into the middle of a page.
const LONG: usize = 300;

/// One of each kind of layer.
fn models() -> [Model; 11] {
    let random = |config| Model::random(config, MIXED);
    [
        random(config(None)),
        random(config_of_experts()),
        random(config_of_gpt_oss()),
        random(config_of_delta_nets()),
        random(config_of_short_convs()),
        random(config_of_mamba()),
        random(config_of_single_blocks()),
        random(config_of_single_blocks_and_experts()),
        Model::like_gemma(MIXED),
        Model::like_gemma4(config_like_gemma4_with_experts(), MIXED),
        Model::like_gemma4(config_like_gemma4_e2b_of_four_layers(), MIXED),
    ]
}

#[test]
fn neither_chunks_nor_threads_change_a_bit() {
    let mut cases = [None, Some(40), Some(270)]
        .map(|window| (config(window), MIXED))
        .to_vec();
    cases.push((config(None), MIXED_SMALL));
    cases.push((config_of_experts(), MIXED));
    cases.push((config_of_gpt_oss(), MIXED_SMALL));
    cases.push((config_without_rotations(), MIXED));
    cases.push((config_with_temperature(), MIXED));
    cases.push((config_with_windows(40), MIXED));
    cases.push((config_with_windows(270), MIXED));
    cases.push((config_of_delta_nets(), MIXED));
    cases.push((config_of_short_convs(), MIXED));
    cases.push((config_of_mamba(), MIXED));
    cases.push((config_of_single_blocks(), MIXED));
    cases.push((config_of_single_blocks_and_experts(), MIXED_SMALL));
    cases.push((config_of_short_convs_and_experts(), MIXED_SMALL));
    cases.push((config_like_glm(), MIXED_SMALL));
    cases.push((config_with_joint_norms(), MIXED));
    let models = cases.into_iter();
    let models = models.map(|(config, types)| Model::random(config, types));
    let like_gemma = [
        Model::like_gemma(MIXED),
        Model::like_gemma4(config_like_gemma4_e2b_of_four_layers(), MIXED),
        Model::like_gemma4(config_like_gemma4_with_experts(), MIXED_SMALL),
    ];
    for (index, model) in models.chain(like_gemma).enumerate() {
        let tokens = tokens(LONG, 1);
        let expected = alone(&mut model.load(1), &model.config, &tokens, 1);
        for threads in [1, 2, 3] {
            laws::chunks_do_not_change_a_bit(
                &mut model.load(threads),
                &model.config,
                &tokens,
                &expected,
                &[1, 7, 32, 33, 256, LONG],
                &format!("model {index}: {threads} threads"),
            );
        }
    }
}

#[test]
fn a_window_changes_what_is_seen_from_its_length_on() {
    let tokens = tokens(60, 1);
    let runs = [None, Some(40)].map(|window| {
        let model = Model::random(config(window), MIXED);
        alone(&mut model.load(2), &model.config, &tokens, 60)
    });
    assert_eq!(runs[0].hidden[..40], runs[1].hidden[..40]);
    assert_ne!(runs[0].hidden[40], runs[1].hidden[40]);
}

#[test]
fn neighbours_do_not_change_a_bit() {
    models().into_iter().for_each(neighbours_of);
}

fn neighbours_of(model: Model) {
    // Lengths across pages and the end of a span, so that a batch mixes all of them.
    let lengths = [
        1, 2, 5, 31, 32, 33, 40, 63, 64, 65, 9, 17, 255, 256, 257, 100, 270,
    ];
    for threads in [1, 3] {
        laws::neighbours_do_not_change_a_bit(
            &mut model.load(threads),
            &model.config,
            &lengths,
            1..=lengths.len(),
            lengths.len(),
            &format!("{threads} threads"),
        );
    }
}

#[test]
fn prefill_beside_decoding_does_not_change_a_bit() {
    for model in models() {
        laws::prefill_beside_decoding_does_not_change_a_bit(&mut model.load(2), &model.config);
    }
}

#[test]
fn drafts_do_not_change_a_bit() {
    let windows = Model::random(config_with_windows(40), MIXED);
    for model in models().into_iter().chain([windows]) {
        laws::drafts_do_not_change_a_bit(&mut model.load(2), &model.config);
    }
}

#[test]
fn pages_of_another_request_serve_an_equal_prefix() {
    for model in models() {
        laws::pages_of_another_request_serve_an_equal_prefix(&mut model.load(2), &model.config);
    }
}

#[test]
fn pages_behind_windows_do_not_change_a_bit() {
    let models = [
        config(Some(40)),
        config_with_windows(40),
        config_of_gpt_oss(),
        config_of_delta_nets(),
        config_of_short_convs(),
        config_of_mamba(),
        config_of_single_blocks(),
    ];
    let models = models.map(|config| Model::random(config, MIXED_SMALL));
    let like_gemma = [
        Model::like_gemma(MIXED),
        Model::like_gemma4(config_like_gemma4_e2b(), MIXED_SMALL),
    ];
    for model in models.into_iter().chain(like_gemma) {
        for chunk in [1, 10, 64] {
            let executor = &mut model.load(2);
            laws::pages_behind_windows_do_not_change_a_bit(executor, &model.config, chunk);
        }
    }
}

#[test]
fn the_portable_path_keeps_the_law_and_agrees_with_the_fast_one() {
    let model = Model::random(config(None), [TensorType::Q8_0; 9]);
    let tokens = tokens(70, 6);
    let mut executor = model.load_portable();
    assert!(executor.facts().features.is_empty());
    let expected = alone(&mut executor, &model.config, &tokens, 1);
    assert_same(
        &expected,
        &alone(&mut executor, &model.config, &tokens, 33),
        "portable",
    );
    let fast = alone(&mut model.load(2), &model.config, &tokens, 70);
    let (position, bits) = &fast.logits[0];
    let values = |bits: &[u32]| bits.iter().map(|&b| f32::from_bits(b)).collect::<Vec<_>>();
    let seen = worker_orcd_kernels::compare(
        &values(&expected.logits[*position as usize].1),
        &values(bits),
    );
    // Rounding before quantization may move single activations by one step.
    assert!(seen.within(2e-2), "{seen:?}");
}

#[test]
fn a_nan_is_a_fault_that_names_its_request() {
    for config in [config(None), config_of_experts(), config_of_gpt_oss()] {
        let mut model = Model::random(config, MIXED);
        model.poison(50);
        laws::a_nan_is_a_fault_that_names_its_request(&mut model.load(2), &model.config);
    }
}

#[test]
fn experts_that_would_share_a_group_of_rows_are_refused_by_name() {
    for (n_embd, n_ff, what) in [(256, 100, "an expert width of 100"), (36, 96, "36")] {
        let mut config = config_of_experts();
        config.n_embd = n_embd;
        if let Some(experts) = &mut config.experts {
            experts.n_ff = n_ff;
        }
        let model = Model::random(config, [TensorType::F32; 9]);
        let device = Device::open(Some(1), Isa::detect()).expect("a thread");
        let Err(Fault::ModelLoad { message }) = model.load_with(device, &options()) else {
            panic!("{what} is taken");
        };
        assert!(
            message.contains(what) && message.contains("multiples of 8"),
            "{message}"
        );
    }
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_allocated() {
    let model = Model::random(config(None), MIXED);
    let load = |kv_cache_bytes| {
        let options = LoadOptions {
            kv_cache_bytes,
            ..options()
        };
        let device = Device::open(Some(1), Isa::detect()).expect("a thread");
        model.load_with(device, &options)
    };
    for bytes in [1 << 50, 100] {
        let fault = load(Some(bytes)).err();
        assert!(
            matches!(fault, Some(Fault::InsufficientMemory { .. })),
            "{bytes}: {fault:?}"
        );
    }
    let executor = load(None).expect("the default fits");
    let geometry = executor.kv_geometry();
    assert_eq!(u64::from(geometry.pages), 8 * 512 / 32);
    assert_eq!(
        executor.memory().kv_capacity_bytes,
        u64::from(geometry.pages) * geometry.page_bytes
    );
}

#[test]
fn progress_ends_at_the_whole() {
    let model = Model::random(config(None), MIXED);
    let mut reports = Vec::new();
    CpuExecutor::load(
        Device::open(Some(2), Isa::detect()).expect("threads"),
        Source {
            config: &model.config,
            weights: &model.weights(),
            file: None,
            retained: None,
        },
        &options(),
        &mut |done, total| {
            reports.push((done, total));
        },
    )
    .expect("a model that fits");
    assert!(reports.is_sorted() && reports.iter().all(|&(done, total)| done <= total));
    let &(done, total) = reports.last().expect("a report");
    assert_eq!(done, total);
}
