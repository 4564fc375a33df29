//! Where there is no driver, or no kernels were built, one sentence says so.

use crate::options;
use crate::support::{MIXED, Model, config};
use worker_orcd_gpu::device::cuda::CudaExecutor;
use worker_orcd_ipc::{ExitCode, Fault, FaultKind};

#[test]
fn a_device_that_is_not_there_is_one_clear_sentence() {
    let model = Model::random(config(None), MIXED);
    let options = worker_orcd_gpu::device::cuda::CudaOptions {
        // No machine has that many.
        ordinal: 99,
        ..options()
    };
    let fault = CudaExecutor::load(
        &model.config,
        &model.weights(),
        None,
        None,
        &options,
        &mut |_, _| (),
    )
    .expect_err("no such device");
    assert_eq!(
        fault.exit_code(),
        ExitCode::Fault(FaultKind::DeviceUnavailable)
    );
    let Fault::DeviceUnavailable { message } = fault else {
        panic!("{fault}");
    };
    assert!(message.starts_with("cuda:99 "), "{message}");
    assert!(!message.contains('\n'), "{message}");
}
