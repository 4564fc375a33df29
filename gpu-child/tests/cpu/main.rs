//! The CPU device from outside: the law of the boundary, and the arithmetic behind it.

mod exactness;
mod reference;
#[path = "../support/mod.rs"]
mod support;
