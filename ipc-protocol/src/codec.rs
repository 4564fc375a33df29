//! Encoding and decoding of messages. The only file that uses bincode.
//!
//! The format is bincode 2's standard configuration: little endian, variable-length integers. The size limit is
//! mandatory: without it, a malicious frame of ten bytes that announces a huge vector aborts the process.

use crate::frame::MAX_FRAME_BYTES;
use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Error of [`encode`] or [`decode`].
#[derive(Debug, Error)]
pub enum CodecError {
    /// The message is larger than [`MAX_FRAME_BYTES`], or bincode failed.
    #[error("message cannot be encoded: {0}")]
    Encode(String),
    /// The bytes are not a message of the expected type, or announce more than [`MAX_FRAME_BYTES`].
    #[error("message cannot be decoded: {0}")]
    Decode(String),
    /// Number of bytes after the message.
    #[error("{0} unexpected bytes follow the message in its frame")]
    TrailingBytes(usize),
}

const CONFIG: Configuration<LittleEndian, Varint, Limit<MAX_FRAME_BYTES>> =
    bincode::config::standard().with_limit::<MAX_FRAME_BYTES>();

/// Encodes a message as the payload of one frame.
///
/// # Errors
/// [`CodecError::Encode`] if the message is larger than [`MAX_FRAME_BYTES`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = bincode::serde::encode_to_vec(message, CONFIG)
        .map_err(|error| CodecError::Encode(error.to_string()))?;
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(CodecError::Encode(format!(
            "{} bytes exceed the maximum of {MAX_FRAME_BYTES} bytes",
            bytes.len()
        )));
    }
    Ok(bytes)
}

/// Decodes the payload of one frame, which must be exactly one message.
///
/// # Errors
/// [`CodecError::Decode`] if the bytes are not such a message or announce more than the limit;
/// [`CodecError::TrailingBytes`] if bytes follow it.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, CodecError> {
    let (message, used) = bincode::serde::decode_from_slice(payload, CONFIG)
        .map_err(|error| CodecError::Decode(error.to_string()))?;
    match payload.len() - used {
        0 => Ok(message),
        left => Err(CodecError::TrailingBytes(left)),
    }
}
