//! Passing of file descriptors that outlive a child, and the manifest of retained weights.
//!
//! Descriptors cross an fd socket of their own, separate from the control socket: each message is one byte, the
//! [`FdKind`], with one descriptor as ancillary data (`SCM_RIGHTS`). Neither side waits on this socket: a child sends
//! its descriptors before [`Ready`](crate::Event::Ready), a supervisor sends its own before `Command::Load`. Descriptors
//! for a serving child cross a second fd socket ([`FdKind::SecondSocket`]), each before the command that refers to it.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Kind of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FdKind {
    /// Model file, opened read-only. Sent by the child that opened it, and to later children. A model in
    /// [several files](mod@crate::model_parts) has one descriptor per file, in order.
    ModelFile,
    /// Memory of the weights, read-only by then. Sent by the child that wrote it, and to later children with its
    /// [`WeightsManifest`].
    Weights,
    /// Memory of a KV cache. Sent by each child that was ordered to share it, and to later children with a
    /// [`KvSource`](crate::KvSource).
    KvCache,
    /// End of the second fd socket, which carries KV caches to a serving child. Sent to each child of a worker with several
    /// devices.
    SecondSocket,
}

/// Layout and checksums of retained weights. Written by the child that loaded them, stored by the supervisor, and verified
/// against the memory by each later child.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsManifest {
    /// [`ChildHello::arena_layout`](crate::ChildHello) of the child that loaded them.
    pub arena_layout: u64,
    /// Size of the memory in bytes.
    pub bytes: u64,
    /// Tensors by ascending offset.
    pub tensors: Vec<PlacedTensor>,
}

/// Tensor in the memory of retained weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedTensor {
    /// Name in the model file. The parts of a split tensor have the name of the whole.
    pub name: String,
    /// GGUF name of the element type.
    pub ty: String,
    pub rows: u64,
    /// Elements per row.
    pub cols: u64,
    /// Offset from the start of the memory, in bytes.
    pub offset: u64,
    pub bytes: u64,
    /// Checksum of the bytes, computed by the device that loaded them.
    pub checksum: u128,
}

/// Error for a byte that is no [`FdKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("unknown descriptor kind {0}")]
pub struct UnknownFdKind(pub u8);

impl FdKind {
    pub const ALL: [Self; 4] = [
        Self::ModelFile,
        Self::Weights,
        Self::KvCache,
        Self::SecondSocket,
    ];

    /// Byte on the wire.
    #[must_use]
    pub fn to_byte(self) -> u8 {
        match self {
            Self::ModelFile => 1,
            Self::Weights => 2,
            Self::KvCache => 3,
            Self::SecondSocket => 4,
        }
    }

    /// Kind of a byte on the wire.
    ///
    /// # Errors
    /// If no kind has this byte.
    pub fn from_byte(byte: u8) -> Result<Self, UnknownFdKind> {
        let mut all = Self::ALL.into_iter();
        all.find(|kind| kind.to_byte() == byte)
            .ok_or(UnknownFdKind(byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_one_kind_or_an_error() {
        let named: Vec<_> = (0..=u8::MAX)
            .filter_map(|byte| FdKind::from_byte(byte).ok())
            .collect();
        assert_eq!(named, FdKind::ALL);
        assert_eq!(FdKind::from_byte(0), Err(UnknownFdKind(0)));
    }
}
