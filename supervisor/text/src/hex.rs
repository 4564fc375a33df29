//! Hexadecimal text of bytes: two lower-case digits each.

use std::fmt::Write as _;

/// Digits of `bytes`.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // A write to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
