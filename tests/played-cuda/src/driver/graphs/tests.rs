use super::super::copies::{cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2, cuMemsetD8Async};
use super::super::errors::given;
use super::super::memory::{cuMemAlloc_v2, cuMemFree_v2};
use super::super::streams::{cuStreamSynchronize, stream};
use super::*;
use std::ffi::c_void;
use std::mem::MaybeUninit;

const DONE: CUresult = CUresult::CUDA_SUCCESS;

/// Output of a call that succeeds.
fn made<P>(call: impl FnOnce(Place<'_, *mut P>) -> CUresult) -> *mut P {
    let mut place = MaybeUninit::uninit();
    assert_eq!(call(Some(&mut place)), DONE);
    // SAFETY: the call has succeeded.
    unsafe { place.assume_init() }
}

#[test]
fn what_was_recorded_is_done_at_each_launch() {
    let stream = stream();
    let memory = given(|place| cuMemAlloc_v2(place, 8)).unwrap();
    let byte = Box::leak(Box::new(1_u8));
    let (source, mut seen) = (&raw mut *byte, [0_u8; 8]);
    let mut look = |stream| {
        // SAFETY: as many bytes, and the call waits for them.
        let result =
            unsafe { cuMemcpyDtoHAsync_v2(seen.as_mut_ptr().cast::<c_void>(), memory, 8, stream) };
        assert_eq!(result, DONE);
        seen
    };
    assert_eq!(cuMemsetD8Async(memory, 9, 8, stream), DONE);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    assert_eq!(cuStreamBeginCapture_v2(stream, mode), DONE);
    assert_eq!(cuMemsetD8Async(memory, 5, 4, stream), DONE);
    // SAFETY: one byte, which outlives the graph.
    let copied = unsafe { cuMemcpyHtoDAsync_v2(memory + 1, source.cast(), 1, stream) };
    assert_eq!(copied, DONE);
    let waited = cuStreamSynchronize(stream);
    assert_eq!(waited, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let graph = made(|place| cuStreamEndCapture(stream, place));
    assert_eq!(look(stream), [9; 8]);
    let executable = made(|place| cuGraphInstantiateWithFlags(place, graph, 0));
    assert_eq!(cuGraphDestroy(graph), DONE);
    assert_eq!(cuGraphUpload(executable, stream), DONE);
    assert_eq!(look(stream), [9; 8]);
    for value in [1, 2] {
        // SAFETY: recorded work does not run now.
        unsafe { source.write(value) };
        assert_eq!(cuMemsetD8Async(memory, 9, 8, stream), DONE);
        assert_eq!(cuGraphLaunch(executable, stream), DONE);
        assert_eq!(look(stream), [5, value, 5, 5, 9, 9, 9, 9]);
    }
    assert_eq!(cuGraphExecDestroy(executable), DONE);
    let again = cuGraphLaunch(executable, stream);
    assert_eq!(again, CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(cuMemFree_v2(memory), DONE);
}
