//! Who gives out memory in the supervisor: jemalloc, because it gives back.
//!
//! A burst of large bodies leaves the C library's allocator with memory between live pieces that
//! it keeps for good. jemalloc returns pages that were not used for some seconds, on a thread of
//! its own, so that it happens when nothing else does.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;
