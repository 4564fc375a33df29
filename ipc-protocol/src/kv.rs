//! Pages of a KV cache that outlive the child that computed them.
//!
//! What was written of a page is never written again: it is sealed by its checksum. A child tells which
//! sealed pages hold a request's tokens; the supervisor keeps that and gives it to the next child with the
//! request. The pages themselves stay where they are, in memory that the next child has a descriptor of
//! ([`Article::KvCache`](crate::Article::KvCache)): the next child of the same device, or one that serves on
//! another. It copies a page, and believes the copy if its checksum
//! is the same.

use crate::ids::{Generation, RequestId};
use serde::{Deserialize, Serialize};

/// Layers whose keys and values of some positions lie in pages of their own are in groups, of which there are so many at most.
pub const MAX_LAYER_GROUPS: usize = 8;

/// A page, as far as it is sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedPage {
    /// Index in its child's KV cache.
    pub page: u32,
    /// Positions that are sealed, from its first on. All of them but in the last block of a request.
    pub tokens: u32,
    /// Of these positions' bytes, as the device that wrote them takes it.
    pub checksum: u128,
}

impl SealedPage {
    /// In place of a page that its request has given back: the windows of its layers have left it behind.
    pub const GIVEN_BACK: Self = Self {
        page: 0,
        tokens: 0,
        checksum: 0,
    };
}

/// Sealed pages in one child's KV cache that hold the first tokens of a request, in order: of each block of positions one
/// for each group of layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedPages {
    pub child: Generation,
    pub pages: Vec<SealedPage>,
}

/// More sealed pages of a request, or more of its last ones; or none, where it has given up its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealing {
    pub request: RequestId,
    /// Pages of this request that were told before and still count.
    pub first: u32,
    pub pages: Vec<SealedPage>,
}

/// Who copies pages of a child's KV cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvReaders {
    #[default]
    Nobody,
    /// Children of other devices, when it dies. Its own device needs room for one KV cache at a time.
    Siblings,
    /// These, and the next child of its device, which is loaded beside it and needs as much room again.
    Heirs,
}

impl KvReaders {
    #[must_use]
    pub fn is_shared(self) -> bool {
        self != Self::Nobody
    }
}

/// The KV cache of another child, whose memory waits on the socket for descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvSource {
    pub child: Generation,
    pub bytes: u64,
}
