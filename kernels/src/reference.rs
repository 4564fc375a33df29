//! Scalar code that defines what correct is: one operation a file, under the same name as the
//! fast path in [`cpu`](crate::cpu).
//!
//! Sums run in `f64`, so that a difference found by comparing is the fast path's own. Nothing
//! here is fast, unsafe or aware of blocks of more than one row.

pub mod attention;
pub mod checksum;
pub mod dequantize;
pub mod glu;
pub mod matmul;
pub mod rmsnorm;
pub mod rope;
pub mod routing;
pub mod softmax;
