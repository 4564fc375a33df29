//! Emulation of NVIDIA's driver, as far as the child uses it, for tests without a GPU: memory is the process's own, and
//! an interpreter of PTX runs the kernels.

mod driver;
mod fatbin;
pub mod machine;
pub mod ptx;
