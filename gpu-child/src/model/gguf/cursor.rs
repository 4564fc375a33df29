//! Bounds-checked reader of little-endian values in a slice.

use super::GgufError;

#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// Reads `count` bytes. `at`: name of the item, for errors.
    pub(super) fn take(&mut self, count: u64, at: &str) -> Result<&'a [u8], GgufError> {
        let left = self.left();
        if count > left {
            return Err(GgufError::Truncated {
                at: at.to_owned(),
                needed: count,
                left,
            });
        }
        // `count` is at most a slice's length here, so it fits.
        let end = self.at + count as usize;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, at: &str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, at)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, at: &str) -> Result<u32, GgufError> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, at: &str) -> Result<u64, GgufError> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// Reads a number of items of at least `min_bytes` each. A number that exceeds the rest of the file is refused
    /// before any allocation.
    pub(super) fn count(&mut self, min_bytes: u64, at: &str) -> Result<u64, GgufError> {
        let count = self.u64(at)?;
        let left = self.left();
        if count > left / min_bytes {
            return Err(GgufError::Count {
                at: at.to_owned(),
                count,
                left,
            });
        }
        Ok(count)
    }

    /// A `u64` length and that many bytes.
    pub(super) fn string(&mut self, at: &str) -> Result<&'a [u8], GgufError> {
        let length = self.u64(at)?;
        self.take(length, at)
    }

    pub(super) fn name(&mut self, limit: u64, at: &str) -> Result<&'a str, GgufError> {
        let length = self.u64(at)?;
        if length > limit {
            return Err(GgufError::LongName {
                at: at.to_owned(),
                length,
                limit,
            });
        }
        let bytes = self.take(length, at)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::Utf8 { at: at.to_owned() })
    }
}
