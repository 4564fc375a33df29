//! Allocator of the supervisor: mimalloc, because it returns memory to the kernel.
//!
//! After a burst of large bodies the C library's allocator retains free memory between live blocks. mimalloc returns
//! pages to the kernel soon after they are freed. Its build needs only a C compiler.
//!
//! Transparent huge pages are disabled (feature `no_thp`). With them one live byte holds 2 MiB, and the kernel fills
//! returned or unwritten pages with zeros and counts them again.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
