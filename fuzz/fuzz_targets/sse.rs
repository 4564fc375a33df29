//! Tokens of any bytes, stop strings and ends, written as events by each API and read back.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../checks/sse.rs"]
mod sse;

fuzz_target!(|data: &[u8]| {
    sse::check(data);
});
