//! Scalar code that defines correct results: one operation a file, under the same name as the fast path in
//! [`cpu`](crate::cpu).
//!
//! Sums run in `f64`, so that a difference in a comparison is the fast path's own. Deliberately absent: optimizations,
//! unsafe code, and blocks of more than one row.

pub mod attention;
pub mod checksum;
pub mod delta_net;
pub mod dequantize;
pub mod glu;
pub mod mamba;
pub mod matmul;
pub mod rmsnorm;
pub mod rope;
pub mod routing;
pub mod short_conv;
pub mod softcap;
pub mod softmax;
