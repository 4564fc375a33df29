//! A length that is announced is not a length that is allocated.
//!
//! A counting allocator watches the largest single block that a thread asks for, because the
//! danger is one: ten hostile bytes that make the process ask for a petabyte and abort.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use worker_orcd_ipc::{
    CodecError, Command, Envelope, FrameError, FrameReader, Generation, MAX_FRAME_BYTES, Preamble,
    decode, encode,
};

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Watching;

fn note(bytes: usize) {
    // While a thread is torn down its cell is gone; nothing is measured there.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call is passed on unchanged to `System`, which upholds the contract; `note`
// does not allocate, because the cell is const-initialised and has no destructor.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise about `layout` is handed on as it is.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from `System` through this allocator, with this layout.
        unsafe { System.dealloc(block, layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        // SAFETY: as in `dealloc`; `new_size` is the caller's promise, handed on.
        unsafe { System.realloc(block, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

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

/// `Command::Submit`, request 1, and then a prompt of `length` tokens that never come.
fn submission_announcing(length: u64) -> Vec<u8> {
    let mut bytes = vec![1, 1];
    bytes.extend(announced(length));
    bytes
}

/// `Command::Load` with a path of `length` bytes that never come.
fn load_announcing(length: u64) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(announced(length));
    bytes
}

const PAGE: usize = 64 << 10;

/// serde reserves at most this for a list before the list's items have come.
const SERDE_RESERVE: usize = 1 << 20;

#[test]
fn a_list_of_any_announced_length_costs_no_more_than_serde_reserves() {
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
fn what_is_announced_within_the_limit_but_missing_costs_at_most_a_frame() {
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
fn a_frame_beyond_the_limit_is_refused_on_its_header_alone() {
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
fn the_largest_frame_allowed_is_not_allocated_before_its_bytes_come() {
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
