//! Byte stream from a hostile peer, in reads of varying size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use worker_orcd_ipc::FrameReader;

fuzz_target!(|stream: &[u8]| {
    let whole = frames(stream, usize::MAX);
    for read_size in [1, 7] {
        assert_eq!(
            frames(stream, read_size),
            whole,
            "reads of {read_size} bytes"
        );
    }
});

/// All frames up to the first error, and whether there was one.
fn frames(stream: &[u8], read_size: usize) -> (Vec<Vec<u8>>, bool) {
    let mut reader = FrameReader::new();
    let mut frames = Vec::new();
    for piece in stream.chunks(read_size) {
        reader.push(piece);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame.to_vec()),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}
