//! Framing of a byte stream: `u32` little-endian payload length, then the payload.
//!
//! Sans-IO: received bytes are pushed in, complete frames are taken out. Each side sends one [`Preamble`] before its first
//! frame.

use crate::PROTOCOL_VERSION;
use thiserror::Error;

/// Maximum payload of 32 MiB. The largest message is `Ready` with a vocabulary: about 5 MB for 152,000 tokens.
pub const MAX_FRAME_BYTES: usize = 32 << 20;

/// Size of a [`Preamble`] in bytes.
pub const PREAMBLE_BYTES: usize = 8;

const MAGIC: [u8; 4] = *b"ORCD";
const HEADER_BYTES: usize = 4;

/// Buffer capacity that a reader keeps between frames: the tokens of a step with thousands of sequences.
const KEPT_BYTES: usize = 1 << 20;

/// Error of a byte stream. After it the connection is unusable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The stream does not start with the magic number.
    #[error("the peer does not speak this protocol: its first bytes are {0:02x?}")]
    NotOurs([u8; 4]),
    /// The peer has another [`PROTOCOL_VERSION`].
    #[error(
        "the peer has protocol version {theirs}, this side has version {ours}: install both from one build"
    )]
    Version { ours: u16, theirs: u16 },
    #[error("the preamble's reserved bytes are not zero")]
    Reserved,
    /// The announced payload is larger than [`MAX_FRAME_BYTES`].
    #[error("a frame announces {announced} bytes; the maximum is {MAX_FRAME_BYTES}")]
    TooLarge { announced: usize },
    #[error("a frame is empty")]
    Empty,
}

/// First bytes of each direction: `ORCD`, version (`u16` little endian), two zero bytes.
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

    /// Validates a received preamble.
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::Version`] or [`FrameError::Reserved`].
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

/// Appends a payload with its length header to `out`.
///
/// # Errors
/// [`FrameError::Empty`] or [`FrameError::TooLarge`].
pub fn write_frame(out: &mut Vec<u8>, payload: &[u8]) -> Result<(), FrameError> {
    let header = checked_length(payload.len())?;
    out.extend_from_slice(&header.to_le_bytes());
    out.extend_from_slice(payload);
    Ok(())
}

/// Reader of frames from received bytes. The buffer holds the frames that were not taken yet.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    /// Number of bytes in `buffer` that belong to taken frames.
    consumed: usize,
    preamble_seen: bool,
}

impl FrameReader {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        // The remaining bytes move to the front here, not in `next_frame`, which runs once per frame.
        if self.consumed > 0 {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
            // The buffer of a vocabulary (`Ready`) would otherwise stay allocated for the child's life.
            if self.buffer.capacity() > KEPT_BYTES {
                self.buffer.shrink_to(KEPT_BYTES);
            }
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Payload of the next complete frame. `None`: more bytes are needed. After an error, drop the connection.
    ///
    /// # Errors
    /// An invalid preamble or header, before its frame is complete.
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

    /// Number of bytes that were pushed and not taken. At the end of a stream a nonzero value means a truncated frame.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.rest().len()
    }

    /// Bytes that were pushed and not taken.
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
