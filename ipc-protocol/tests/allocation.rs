//! Announced lengths are not allocated in advance.
//!
//! The allocator records the largest single block that a thread allocates. The attack to detect is one block: ten malicious
//! bytes that make the process allocate a petabyte and abort.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use worker_orcd_ipc::{
    CodecError, Command, Envelope, FrameError, FrameReader, Generation, MAX_FRAME_BYTES, Preamble,
    decode, encode,
};

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct RecordingAllocator;

fn record(bytes: usize) {
    // The cell is inaccessible while its thread is torn down; nothing is measured then.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: each call is forwarded unchanged to `System`, which fulfils the contract; `record` does not allocate, because the
// cell is const-initialised and has no destructor.
unsafe impl GlobalAlloc for RecordingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record(layout.size());
        // SAFETY: the caller's guarantee about `layout` is forwarded.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from `System` through this allocator, with this layout.
        unsafe { System.dealloc(block, layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        record(new_size);
        // SAFETY: as in `dealloc`; the caller's guarantee about `new_size` is forwarded.
        unsafe { System.realloc(block, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator;

fn largest_block_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    LARGEST.with(|largest| largest.set(0));
    let result = work();
    (result, LARGEST.with(Cell::get))
}

/// bincode's variable-length integer in its longest form.
fn announced(length: u64) -> Vec<u8> {
    let mut bytes = vec![253];
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes
}

/// `Command::Submit` of request 1 with a prompt of `length` tokens, of which none follow.
fn submission_announcing(length: u64) -> Vec<u8> {
    let mut bytes = vec![1, 1];
    bytes.extend(announced(length));
    bytes
}

/// `Command::Load` with a path of `length` bytes, of which none follow.
fn load_announcing(length: u64) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(announced(length));
    bytes
}

const PAGE: usize = 64 << 10;

/// Maximum that serde reserves for a list before it reads the items.
const SERDE_RESERVE: usize = 1 << 20;

#[test]
fn an_announced_list_costs_no_more_than_serde_reserves() {
    for length in [MAX_FRAME_BYTES as u64 + 1, 1 << 32, 1 << 60, u64::MAX] {
        let payload = submission_announcing(length);
        let (result, largest) = largest_block_of(|| decode::<Command>(&payload));
        assert!(
            matches!(result, Err(CodecError::Decode(_))),
            "{length}: {result:?}"
        );
        assert!(
            largest <= SERDE_RESERVE,
            "{length}: a block of {largest} bytes"
        );
    }
}

#[test]
fn a_string_beyond_the_limit_is_refused_before_anything_is_allocated() {
    for length in [MAX_FRAME_BYTES as u64 + 1, 1 << 32, 1 << 60, u64::MAX] {
        let payload = load_announcing(length);
        let (result, largest) = largest_block_of(|| decode::<Command>(&payload));
        assert!(
            matches!(result, Err(CodecError::Decode(_))),
            "{length}: {result:?}"
        );
        assert!(largest < PAGE, "{length}: a block of {largest} bytes");
    }
}

#[test]
fn a_missing_length_within_the_limit_costs_at_most_one_frame() {
    for length in [1 << 20, MAX_FRAME_BYTES as u64 - 64] {
        for payload in [submission_announcing(length), load_announcing(length)] {
            let (result, largest) = largest_block_of(|| decode::<Command>(&payload));
            assert!(result.is_err(), "{length}");
            assert!(
                largest <= MAX_FRAME_BYTES,
                "{length}: a block of {largest} bytes"
            );
        }
    }
}

#[test]
fn a_frame_beyond_the_limit_is_refused_by_its_header() {
    for length in [MAX_FRAME_BYTES as u32 + 1, 1 << 30, u32::MAX] {
        let mut stream = Preamble::OURS.to_bytes().to_vec();
        stream.extend_from_slice(&length.to_le_bytes());
        let (result, largest) = largest_block_of(|| {
            let mut reader = FrameReader::new();
            reader.push(&stream);
            reader.next_frame().map(|frame| frame.map(<[u8]>::to_vec))
        });
        assert_eq!(
            result,
            Err(FrameError::TooLarge {
                announced: length as usize
            })
        );
        assert!(largest < PAGE, "{length}: a block of {largest} bytes");
    }
}

#[test]
fn the_largest_frame_is_not_allocated_before_its_bytes_arrive() {
    let mut stream = Preamble::OURS.to_bytes().to_vec();
    stream.extend_from_slice(&(MAX_FRAME_BYTES as u32).to_le_bytes());
    let (pending, largest) = largest_block_of(|| {
        let mut reader = FrameReader::new();
        reader.push(&stream);
        assert_eq!(reader.next_frame(), Ok(None));
        reader.pending_bytes()
    });
    assert_eq!(pending, 4);
    assert!(largest < PAGE, "a block of {largest} bytes");
}

#[test]
fn a_message_larger_than_a_frame_cannot_be_sent() {
    let message = worker_orcd_ipc::Fault::Io {
        message: "x".repeat(MAX_FRAME_BYTES),
    };
    let envelope = Envelope {
        generation: Generation::FIRST,
        event: worker_orcd_ipc::Event::Fault(message),
    };
    assert!(matches!(encode(&envelope), Err(CodecError::Encode(_))));
}
