//! Messages to bytes and back: the only file that names bincode.
//!
//! bincode 2's standard configuration (little endian, variable-length integers), always with a
//! limit: without one, a ten-byte hostile frame that announces a huge vector aborts the process.

use crate::frame::MAX_FRAME_BYTES;
use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum CodecError {
    #[error("cannot be encoded: {0}")]
    Encode(String),
    #[error("cannot be decoded: {0}")]
    Decode(String),
    #[error("{0} bytes follow the message in its frame")]
    TrailingBytes(usize),
}

const CONFIG: Configuration<LittleEndian, Varint, Limit<MAX_FRAME_BYTES>> =
    bincode::config::standard().with_limit::<MAX_FRAME_BYTES>();

/// # Errors
/// [`CodecError::Encode`] when the message is larger than [`MAX_FRAME_BYTES`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = bincode::serde::encode_to_vec(message, CONFIG)
        .map_err(|error| CodecError::Encode(error.to_string()))?;
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(CodecError::Encode(format!(
            "{} bytes exceed a frame",
            bytes.len()
        )));
    }
    Ok(bytes)
}

/// Reads exactly one message out of one frame's payload.
///
/// # Errors
/// When the bytes are no such message, announce more than the limit, or go on after it.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, CodecError> {
    let (message, used) = bincode::serde::decode_from_slice(payload, CONFIG)
        .map_err(|error| CodecError::Decode(error.to_string()))?;
    match payload.len() - used {
        0 => Ok(message),
        left => Err(CodecError::TrailingBytes(left)),
    }
}
