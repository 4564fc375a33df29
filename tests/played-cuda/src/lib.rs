//! NVIDIA's driver as far as the child uses it, for tests on machines without a GPU: memory is the process's
//! own, and kernels are run by an interpreter of their PTX.

mod driver;
mod fatbin;
pub mod machine;
pub mod ptx;
