//! Error messages without a driver or without compiled kernels: one sentence each.

use worker_orcd_gpu::device::cuda::Device;
use worker_orcd_ipc::{ExitCode, Fault, FaultKind};

#[test]
fn a_device_that_is_not_there_is_one_clear_sentence() {
    // An ordinal that exists on no machine.
    let fault = Device::open(99).expect_err("no such device");
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
