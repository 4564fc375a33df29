//! The allocator of the supervisor: mimalloc, because it gives memory back.
//!
//! A burst of large bodies leaves the C library's allocator with memory between live pieces that
//! it keeps for good. mimalloc returns pages to the kernel soon after they were freed. It needs no
//! more than a C compiler to be built.
//!
//! It is built not to ask for huge pages (feature `no_thp`): with them one live byte holds 2 MiB, and the kernel
//! fills what was given back or never written with zeros and counts it again, whenever it comes by.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
