//! The allocator of the supervisor: mimalloc, because it gives memory back.
//!
//! A burst of large bodies leaves the C library's allocator with memory between live pieces that
//! it keeps for good. mimalloc returns pages to the kernel soon after they were freed. It needs no
//! more than a C compiler to be built.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
