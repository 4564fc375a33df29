//! Payload of one frame from a hostile peer, read as a message of either direction.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};
use worker_orcd_ipc::{Command, Envelope, decode, encode};

fuzz_target!(|payload: &[u8]| {
    survives::<Command>(payload);
    survives::<Envelope>(payload);
});

/// Asserts that a decoded message can be encoded and decoded again. Compares bytes, because a float may be NaN.
fn survives<T: Serialize + DeserializeOwned>(payload: &[u8]) {
    let Ok(message) = decode::<T>(payload) else {
        return;
    };
    let again = encode(&message).expect("what came in a frame fits a frame");
    let twice = decode::<T>(&again).expect("our own bytes decode");
    assert_eq!(encode(&twice).expect("and encode"), again);
}
