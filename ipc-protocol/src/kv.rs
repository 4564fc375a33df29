//! Adoption of KV pages: pages of a dead child's KV cache are copied instead of computed again.
//!
//! Written positions of a page never change; a page is sealed by a checksum of them. A child reports the sealed pages of each
//! request. The supervisor stores them and passes them on with the request. The pages stay in memory of which the next
//! child, on the same device or serving on another one, has a descriptor ([`FdKind::KvCache`](crate::FdKind::KvCache)). It
//! copies a page, and uses the copy only if the checksum matches.

use crate::ids::{Generation, RequestId};
use serde::{Deserialize, Serialize};

/// Maximum number of pages of a block of positions: one for each group of layers, or for each part of their recurrent states.
pub const MAX_PAGE_GROUPS: usize = 512;

/// Sealed part of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedPage {
    /// Index in its child's KV cache.
    pub page: u32,
    /// Number of sealed positions, from the first one. Only the last block of a request may be partial.
    pub tokens: u32,
    /// Checksum of these positions' bytes, computed by the device that wrote them.
    pub checksum: u128,
}

impl SealedPage {
    /// Placeholder for a freed page: it is outside the sliding windows of its layers.
    pub const GIVEN_BACK: Self = Self {
        page: 0,
        tokens: 0,
        checksum: 0,
    };
}

/// Sealed pages of one child with the first tokens of a request: for each block of positions, one page per layer group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedPages {
    pub child: Generation,
    pub pages: Vec<SealedPage>,
}

/// Change of a request's sealed pages: new pages, or more positions of its last ones. Without pages, the request has freed
/// its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealing {
    pub request: RequestId,
    /// Number of previously reported pages of this request that stay valid.
    pub first: u32,
    pub pages: Vec<SealedPage>,
}

/// Children that may copy pages of a child's KV cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvReaders {
    #[default]
    None,
    /// Children of other devices, after its death. Its own device needs memory for one KV cache.
    Siblings,
    /// Siblings, and the next child of its device. That one is loaded beside it, so the device needs memory for two KV caches.
    Successors,
}

impl KvReaders {
    /// True if the KV cache must outlive its child.
    #[must_use]
    pub fn is_shared(self) -> bool {
        self != Self::None
    }
}

/// KV cache of another child. The descriptor of its memory is in the fd socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvSource {
    pub child: Generation,
    /// Size in bytes.
    pub bytes: u64,
}
