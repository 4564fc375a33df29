//! What outlives a child: descriptors that the supervisor keeps, and what is written about them.
//!
//! Descriptors cross a socket of their own: one byte that says what a descriptor is, and with it the
//! descriptor itself (`SCM_RIGHTS`). The control socket carries words and no rights, this one rights
//! and no words. It is quiet: a child hands over before it says [`Ready`](crate::Event::Ready), and a
//! supervisor hands out before it orders to load, so neither ever waits here for the other. What comes later
//! comes through a socket of its own, the [`Article::Mailbox`], before the word that says so.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The meaning of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Article {
    /// The open model file, read-only. Up from the child that opened it, down to the next ones. A model in
    /// [several files](mod@crate::model_parts) is as many of these, in their order.
    ModelFile,
    /// The memory that the weights lie in, which nobody can write any more. Up from the child that
    /// wrote it, down to the next ones with its [`WeightsManifest`].
    Weights,
    /// The memory of the KV cache. Up from each child that was ordered to share it, down to the next one
    /// with a [`KvSource`](crate::KvSource).
    KvCache,
    /// One end of a socket through which more KV caches come down while the child serves. Down to each child of a
    /// worker of several devices.
    Mailbox,
}

/// What lies where in the memory that the weights are in. Written by the child that placed them,
/// kept by the supervisor, and held against what lies there by each child that takes over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsManifest {
    /// [`ChildHello::arena_layout`](crate::ChildHello) of the child that placed them.
    pub arena_layout: u64,
    /// Size of the memory.
    pub bytes: u64,
    /// In the order in which they lie.
    pub tensors: Vec<PlacedTensor>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedTensor {
    /// As the model file calls it; each part of a tensor that was cut up has the name of the whole.
    pub name: String,
    /// Type of its elements, as GGUF calls it.
    pub ty: String,
    pub rows: u64,
    /// Elements of a row.
    pub cols: u64,
    /// Bytes from the start of the memory.
    pub offset: u64,
    pub bytes: u64,
    /// Of its bytes, as the device that placed them takes it.
    pub checksum: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("byte {0} names nothing that is kept")]
pub struct NotAnArticle(pub u8);

impl Article {
    pub const ALL: [Self; 4] = [Self::ModelFile, Self::Weights, Self::KvCache, Self::Mailbox];

    #[must_use]
    pub fn to_byte(self) -> u8 {
        match self {
            Self::ModelFile => 1,
            Self::Weights => 2,
            Self::KvCache => 3,
            Self::Mailbox => 4,
        }
    }

    /// # Errors
    /// When no article has that byte.
    pub fn from_byte(byte: u8) -> Result<Self, NotAnArticle> {
        let mut all = Self::ALL.into_iter();
        all.find(|article| article.to_byte() == byte)
            .ok_or(NotAnArticle(byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_one_article_or_none() {
        let named: Vec<_> = (0..=u8::MAX)
            .filter_map(|byte| Article::from_byte(byte).ok())
            .collect();
        assert_eq!(named, Article::ALL);
        assert_eq!(Article::from_byte(0), Err(NotAnArticle(0)));
    }
}
