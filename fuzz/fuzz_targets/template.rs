//! Templates of any bytes, compiled; and messages that resemble a template's own tokens.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../checks/template.rs"]
mod template;

fuzz_target!(|data: &[u8]| {
    template::check(data);
});
