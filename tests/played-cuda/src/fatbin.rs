//! Fatbins as nvcc writes them: the same kernels for several architectures, one entry of them as PTX.
//!
//! ```text
//! file    magic u32, version u16, bytes of this header u16, bytes of all entries u64
//! entry   kind u16 at 0, bytes of its header u32 at 4, of its payload u64 at 8, of that without the padding
//!         u32 at 16, architecture u32 at 28, bytes of the text u64 at 56 (zero where it is not compressed)
//! ```
//!
//! NVIDIA documents none of this; it was found in fatbins of CUDA 12 and 13.

use ruzstd::decoding::StreamingDecoder;
use std::io::Read;

const MAGIC: u32 = 0xba55_ed50;
const KIND_PTX: u16 = 1;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Bytes of a file's header, which has the file's length.
pub const HEADER_BYTES: usize = 16;

/// Length of the whole file, in bytes.
///
/// # Errors
/// The header is not a fatbin's.
pub fn bytes(header: &[u8; HEADER_BYTES]) -> Result<usize, String> {
    if u32::from_le_bytes(field(header, 0)?) != MAGIC {
        return Err("no fatbin: another magic number".to_owned());
    }
    let own = u16::from_le_bytes(field(header, 6)?);
    let entries = size(u64::from_le_bytes(field(header, 8)?))?;
    usize::from(own)
        .checked_add(entries)
        .filter(|bytes| *bytes >= HEADER_BYTES)
        .ok_or_else(|| "a fatbin of an impossible size".to_owned())
}

/// PTX for the latest architecture that this one runs.
///
/// # Errors
/// The image is not a fatbin, has no such PTX, or uses an unknown compression.
pub fn ptx(image: &[u8], architecture: u32) -> Result<String, String> {
    let end = bytes(&field(image, 0)?)?;
    let image = image.get(..end).ok_or("a fatbin that is cut short")?;
    let mut at = usize::from(u16::from_le_bytes(field(image, 6)?));
    let mut found: Option<Entry<'_>> = None;
    while at < end {
        let entry = Entry::at(image, at)?;
        at = entry.end;
        let runs = entry.kind == KIND_PTX && entry.architecture <= architecture;
        let is_later = |than: &Entry<'_>| entry.architecture > than.architecture;
        if runs && found.as_ref().is_none_or(is_later) {
            found = Some(entry);
        }
    }
    let entry = found.ok_or_else(|| format!("no PTX for compute capability {architecture}"))?;
    entry.text()
}

struct Entry<'a> {
    kind: u16,
    architecture: u32,
    payload: &'a [u8],
    /// Uncompressed bytes of the payload; zero if it is not compressed.
    text_bytes: usize,
    /// Offset of the next entry.
    end: usize,
}

impl<'a> Entry<'a> {
    fn at(image: &'a [u8], at: usize) -> Result<Self, String> {
        let short = || "an entry that is cut short".to_owned();
        let entry = &image[at..];
        let header_bytes = u32::from_le_bytes(field(entry, 4)?) as usize;
        let padded = size(u64::from_le_bytes(field(entry, 8)?))?;
        let packed = u32::from_le_bytes(field(entry, 16)?) as usize;
        let bytes = header_bytes.checked_add(padded).ok_or_else(short)?;
        let payload = entry.get(header_bytes..bytes).ok_or_else(short)?;
        if bytes == 0 {
            return Err("an entry without a size".to_owned());
        }
        // Without compression the field of compressed bytes is zero.
        let payload = match packed {
            0 => payload,
            packed => payload.get(..packed).ok_or_else(short)?,
        };
        Ok(Self {
            kind: u16::from_le_bytes(field(entry, 0)?),
            architecture: u32::from_le_bytes(field(entry, 28)?),
            payload,
            text_bytes: size(u64::from_le_bytes(field(entry, 56)?))?,
            end: at + bytes,
        })
    }

    fn text(&self) -> Result<String, String> {
        let unpacked = if self.payload.starts_with(&ZSTD_MAGIC) {
            unpack(self.payload)?
        } else if self.text_bytes == 0 {
            self.payload.to_vec()
        } else {
            return Err("PTX that is packed otherwise than by zstd".to_owned());
        };
        if self.text_bytes != 0 && self.text_bytes != unpacked.len() {
            let (told, found) = (self.text_bytes, unpacked.len());
            return Err(format!("PTX of {told} bytes was unpacked to {found}"));
        }
        let mut text = String::from_utf8(unpacked).map_err(|error| error.to_string())?;
        // Like a C string it ends with zeros; without compression they are padding.
        text.truncate(text.trim_end_matches('\0').len());
        Ok(text)
    }
}

fn unpack(frame: &[u8]) -> Result<Vec<u8>, String> {
    let refused = |error: &dyn std::fmt::Display| format!("PTX cannot be unpacked: {error}");
    let mut decoder = StreamingDecoder::new(frame).map_err(|error| refused(&error))?;
    let mut unpacked = Vec::new();
    decoder
        .read_to_end(&mut unpacked)
        .map_err(|error| refused(&error))?;
    Ok(unpacked)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], String> {
    let found = bytes
        .get(at..at + N)
        .and_then(|found| found.try_into().ok());
    found.ok_or_else(|| "a header that is cut short".to_owned())
}

fn size(bytes: u64) -> Result<usize, String> {
    usize::try_from(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    const TEXT: &str = ".version 9.0\n.target sm_80\n.address_size 64\n";

    fn entry(kind: u16, architecture: u32, payload: &[u8], text_bytes: usize) -> Vec<u8> {
        let padded = payload.len().next_multiple_of(8);
        let packed = if text_bytes == 0 { 0 } else { payload.len() };
        let mut entry = vec![0; 64];
        entry[0..2].copy_from_slice(&kind.to_le_bytes());
        entry[4..8].copy_from_slice(&64_u32.to_le_bytes());
        entry[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
        entry[16..20].copy_from_slice(&(packed as u32).to_le_bytes());
        entry[28..32].copy_from_slice(&architecture.to_le_bytes());
        entry[56..64].copy_from_slice(&(text_bytes as u64).to_le_bytes());
        entry.extend(payload);
        entry.resize(64 + padded, 0);
        entry
    }

    fn fatbin(entries: &[Vec<u8>]) -> Vec<u8> {
        let entries = entries.concat();
        let mut file = MAGIC.to_le_bytes().to_vec();
        file.extend([1, 0, 16, 0]);
        file.extend((entries.len() as u64).to_le_bytes());
        file.extend(entries);
        file
    }

    fn packed() -> Vec<u8> {
        compress_to_vec(TEXT.as_bytes(), CompressionLevel::Fastest)
    }

    #[test]
    fn text_is_found_behind_other_entries() {
        let plain = [TEXT.as_bytes(), b"\0"].concat();
        for text in [
            entry(KIND_PTX, 80, &plain, 0),
            entry(KIND_PTX, 80, &packed(), TEXT.len()),
        ] {
            let file = fatbin(&[entry(2, 80, b"a program", 0), text]);
            assert_eq!(bytes(&field(&file, 0).unwrap()), Ok(file.len()));
            assert_eq!(ptx(&file, 80).as_deref(), Ok(TEXT));
        }
    }

    #[test]
    fn of_several_texts_the_latest_that_runs_is_taken() {
        let of = |architecture, text: &str| entry(KIND_PTX, architecture, text.as_bytes(), 0);
        let file = fatbin(&[of(75, "older"), of(80, "ours"), of(90, "later")]);
        assert_eq!(ptx(&file, 80).as_deref(), Ok("ours"));
    }

    #[test]
    fn what_is_no_fatbin_is_refused() {
        let whole = fatbin(&[entry(KIND_PTX, 80, &packed(), TEXT.len())]);
        assert!(ptx(&whole, 80).is_ok());
        for bytes in 0..whole.len() {
            assert!(ptx(&whole[..bytes], 80).is_err(), "{bytes} bytes");
        }
        assert!(ptx(&fatbin(&[entry(2, 80, b"a program", 0)]), 80).is_err());
        assert!(ptx(&fatbin(&[entry(KIND_PTX, 80, b"packed", 20)]), 80).is_err());
        assert!(ptx(&fatbin(&[entry(KIND_PTX, 80, &packed(), 3)]), 80).is_err());
    }
}
