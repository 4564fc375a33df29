use super::super::devices::enter;
use super::super::errors::given;
use super::super::memory::{cuMemAlloc_v2, cuMemAllocHost_v2, cuMemFree_v2, cuMemFreeHost};
use super::super::streams;
use super::*;
use parking_lot::Mutex;
use std::sync::mpsc::{Sender, channel};

const DONE: CUresult = CUresult::CUDA_SUCCESS;
const BYTES: usize = 1000;

fn device_memory() -> u64 {
    enter();
    given(|place| cuMemAlloc_v2(place, BYTES)).unwrap()
}

struct Pinned(*mut u8);

impl Pinned {
    fn new() -> Self {
        enter();
        let mut place = std::mem::MaybeUninit::uninit();
        assert_eq!(cuMemAllocHost_v2(Some(&mut place), BYTES), DONE);
        // SAFETY: the call has succeeded.
        Self(unsafe { place.assume_init() }.cast())
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: this value owns an allocation of that size.
        unsafe { slice::from_raw_parts_mut(self.0, BYTES) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        assert_eq!(cuMemFreeHost(self.0.cast()), DONE);
    }
}

fn upload(to: u64, from: &[u8], stream: CUstream) -> CUresult {
    // SAFETY: as many bytes; these tests do not drop pinned ones before they are copied.
    unsafe { cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), stream) }
}

fn download(to: &mut [u8], from: u64, stream: CUstream) -> CUresult {
    // SAFETY: as for `upload`.
    unsafe { cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), stream) }
}

/// Keeps a stream busy until the sender is dropped.
fn hold(stream: CUstream) -> Sender<()> {
    let (hold, held) = channel();
    let held = Mutex::new(held);
    let work = move || {
        let _ = held.lock().recv();
        Ok(())
    };
    Stream::of(stream).unwrap().add(Arc::new(work)).unwrap();
    hold
}

#[test]
fn what_was_copied_to_the_device_comes_back() {
    let (stream, memory) = (streams::stream(), device_memory());
    let sent: Vec<u8> = (0..BYTES).map(|at| at as u8).collect();
    assert_eq!(upload(memory, &sent, stream), DONE);
    assert_eq!(cuMemsetD8Async(memory + 10, 0xff, 20, stream), DONE);
    let mut received = vec![0; BYTES];
    assert_eq!(download(&mut received, memory, stream), DONE);
    assert_eq!(received[..10], sent[..10]);
    assert!(received[10..30].iter().all(|byte| *byte == 0xff));
    assert_eq!(received[30..], sent[30..]);
    assert_eq!(cuMemFree_v2(memory), DONE);
}

#[test]
fn of_host_memory_only_pinned_memory_is_copied_later() {
    let (stream, memory) = (streams::stream(), device_memory());
    let (mut pinned, mut copy) = (Pinned::new(), Pinned::new());
    let mut plain = [1; 2];
    pinned.bytes().fill(1);
    copy.bytes().fill(0);
    let held = hold(stream);
    assert_eq!(upload(memory, &plain, stream), DONE);
    assert_eq!(upload(memory + 2, &pinned.bytes()[..2], stream), DONE);
    assert_eq!(download(&mut copy.bytes()[..4], memory, stream), DONE);
    plain.fill(2);
    pinned.bytes().fill(2);
    assert_eq!(copy.bytes()[..4], [0; 4]);
    drop(held);
    assert_eq!(streams::cuStreamSynchronize(stream), DONE);
    assert_eq!(copy.bytes()[..4], [1, 1, 2, 2]);
    assert_eq!(plain, [2; 2]);
    assert_eq!(cuMemFree_v2(memory), DONE);
}

#[test]
fn what_is_beyond_an_allocation_is_not_copied() {
    let (stream, memory) = (streams::stream(), device_memory());
    let refused = CUresult::CUDA_ERROR_INVALID_VALUE;
    let mut bytes = [0; 8];
    for start in [memory + BYTES as u64 - 7, 0, u64::MAX - 2] {
        assert_eq!(upload(start, &bytes, stream), refused);
        assert_eq!(download(&mut bytes, start, stream), refused);
        assert_eq!(cuMemsetD8Async(start, 0, 8, stream), refused);
    }
    assert_eq!(upload(0, &[], stream), DONE);
    let nowhere = CUresult::CUDA_ERROR_INVALID_HANDLE;
    assert_eq!(upload(memory, &bytes, ptr::null_mut()), nowhere);
    assert_eq!(cuMemFree_v2(memory), DONE);
}
