//! A byte stream cut into frames: `u32` little-endian payload length, then the payload.
//!
//! Sans-IO: bytes are pushed in as they come, frames are taken out when they are whole. Each
//! side sends one [`Preamble`] before its first frame.

use crate::PROTOCOL_VERSION;
use thiserror::Error;

/// 32 MiB: the largest message is `Ready` with a vocabulary (about 5 MB for 152 k tokens).
pub const MAX_FRAME_BYTES: usize = 32 << 20;

pub const PREAMBLE_BYTES: usize = 8;

const MAGIC: [u8; 4] = *b"ORCD";
const HEADER_BYTES: usize = 4;

/// Bytes that a reader keeps allocated between frames: a step's tokens for thousands of sequences.
const KEPT_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    #[error("the peer does not speak this protocol: it began with {0:02x?}")]
    NotOurs([u8; 4]),
    #[error("the peer speaks protocol version {theirs}, this is version {ours}")]
    Version { ours: u16, theirs: u16 },
    #[error("the preamble's reserved bytes are not zero")]
    Reserved,
    #[error("a frame of {announced} bytes was announced; at most {MAX_FRAME_BYTES} are allowed")]
    TooLarge { announced: usize },
    #[error("an empty frame")]
    Empty,
}

/// `ORCD`, version (`u16` little endian), two zero bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    pub version: u16,
}

impl Preamble {
    pub const OURS: Self = Self {
        version: PROTOCOL_VERSION,
    };

    #[must_use]
    pub fn to_bytes(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes
    }

    /// # Errors
    /// When the magic is not ours, the version differs, or a reserved byte is set.
    pub fn check(bytes: [u8; PREAMBLE_BYTES]) -> Result<(), FrameError> {
        let [m0, m1, m2, m3, v0, v1, r0, r1] = bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(FrameError::NotOurs([m0, m1, m2, m3]));
        }
        let theirs = u16::from_le_bytes([v0, v1]);
        if theirs != PROTOCOL_VERSION {
            return Err(FrameError::Version {
                ours: PROTOCOL_VERSION,
                theirs,
            });
        }
        if [r0, r1] != [0, 0] {
            return Err(FrameError::Reserved);
        }
        Ok(())
    }
}

/// Adds the length header in front of a payload.
///
/// # Errors
/// When the payload is empty or larger than [`MAX_FRAME_BYTES`].
pub fn write_frame(out: &mut Vec<u8>, payload: &[u8]) -> Result<(), FrameError> {
    let header = checked_length(payload.len())?;
    out.extend_from_slice(&header.to_le_bytes());
    out.extend_from_slice(payload);
    Ok(())
}

/// Collects bytes and gives back whole frames. Holds at most one frame that is not whole, plus
/// what was pushed behind it.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were already handed out.
    consumed: usize,
    preamble_seen: bool,
}

impl FrameReader {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, bytes: &[u8]) {
        // Moving the rest to the front only when something new comes keeps `next_frame` cheap.
        if self.consumed > 0 {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
            // One vocabulary (`Ready`) must not cost its megabytes for as long as the child lives.
            if self.buffer.capacity() > KEPT_BYTES {
                self.buffer.shrink_to(KEPT_BYTES);
            }
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole payload, or `None` until more bytes are pushed. After an error the stream
    /// cannot be trusted any more; drop the connection.
    ///
    /// # Errors
    /// As soon as the bytes seen so far prove the peer wrong, before its frame is whole.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        if !self.preamble_seen {
            let Some(bytes) = self.rest().first_chunk::<PREAMBLE_BYTES>() else {
                return Ok(None);
            };
            Preamble::check(*bytes)?;
            self.preamble_seen = true;
            self.consumed += PREAMBLE_BYTES;
        }
        let Some(header) = self.rest().first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        checked_length(length)?;
        let start = self.consumed + HEADER_BYTES;
        let end = start + length;
        if self.buffer.len() < end {
            return Ok(None);
        }
        self.consumed = end;
        Ok(Some(&self.buffer[start..end]))
    }

    /// Bytes pushed but not yet part of a whole frame: at the end of a stream, anything but zero
    /// means that the peer was cut off in the middle of a word.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.rest().len()
    }

    /// Bytes pushed but not yet part of a whole frame that was taken.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.buffer[self.consumed..]
    }
}

fn checked_length(length: usize) -> Result<u32, FrameError> {
    match u32::try_from(length) {
        Ok(0) => Err(FrameError::Empty),
        Ok(header) if length <= MAX_FRAME_BYTES => Ok(header),
        _ => Err(FrameError::TooLarge { announced: length }),
    }
}
