//! Weights taken over from another process: the same bits, or a specific fault.

use crate::support::{MIXED, Model, alone, config, options, tokens};
use worker_orcd_gpu::device::cpu::{CpuExecutor, Device};
use worker_orcd_gpu::device::{RetainedWeights, Source};
use worker_orcd_ipc::{DeviceError, Fault, WeightsManifest};
use worker_orcd_kernels::cpu::Isa;

/// Retained weights of a dropped executor.
fn left_by(executor: CpuExecutor) -> RetainedWeights {
    RetainedWeights {
        memory: executor.share_weights().expect("a descriptor"),
        manifest: executor.manifest().clone(),
    }
}

fn take_over(model: &Model, kept: RetainedWeights, threads: u32) -> Result<CpuExecutor, Fault> {
    let weights = model.weights();
    let options = options();
    CpuExecutor::load(
        Device::open(Some(threads), Isa::detect())?,
        Source {
            config: &model.config,
            weights: &weights,
            file: None,
            retained: Some(kept),
        },
        &options,
        &mut |_, _| (),
    )
}

#[test]
fn weights_that_were_taken_over_compute_the_same_bits() {
    for model in [
        Model::random(config(None), MIXED),
        Model::random_tied(config(None), MIXED),
    ] {
        let tokens = tokens(70, 4);
        let mut executor = model.load(2);
        let expected = alone(&mut executor, &model.config, &tokens, 7);
        let mut kept = left_by(executor);
        for threads in [1, 3] {
            let mut successor = take_over(&model, kept, threads).expect("taken over");
            assert_eq!(alone(&mut successor, &model.config, &tokens, 7), expected);
            kept = left_by(successor);
        }
    }
}

#[test]
fn every_tensor_is_in_the_manifest_and_no_two_share_a_byte() {
    let model = Model::random(config(None), MIXED);
    let WeightsManifest { bytes, tensors, .. } = left_by(model.load(1)).manifest;
    let weights = model.weights();
    // Seven matrices, three of them with a bias, and four norms; embedding, output and last norm.
    assert_eq!(tensors.len(), weights.layers.len() * (7 + 3 + 4) + 3);
    let mut end = 0;
    for tensor in &tensors {
        assert!(tensor.offset >= end, "{tensor:?}");
        end = tensor.offset + tensor.bytes;
    }
    assert!(end <= bytes);
}

#[test]
fn a_tensor_that_has_changed_is_named() {
    let model = Model::random(config(None), MIXED);
    let mut kept = left_by(model.load(1));
    let changed = kept.manifest.tensors.len() / 2;
    let tensor = &mut kept.manifest.tensors[changed];
    tensor.checksum ^= 1;
    let name = tensor.name.clone();
    match take_over(&model, kept, 2).expect_err("another checksum") {
        Fault::Device { error, message } => {
            assert_eq!(error, DeviceError::WeightsChanged);
            assert!(message.starts_with(&name), "{message}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn weights_of_another_layout_are_refused() {
    let kept = left_by(Model::random_tied(config(None), MIXED).load(1));
    let other = Model::random(config(None), MIXED);
    let fault = take_over(&other, kept, 1).expect_err("another layout");
    assert!(matches!(fault, Fault::ModelLoad { .. }), "{fault}");
}
