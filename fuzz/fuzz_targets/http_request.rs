//! Request body from an untrusted client, read by each endpoint that takes one.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../checks/http_request.rs"]
mod http_request;

fuzz_target!(|data: &[u8]| {
    http_request::check(data);
});
