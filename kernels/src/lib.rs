//! Tensor formats and operations.
//!
//! * [`tensor_type`]: the GGUF types this project computes with, and their block shapes.
//! * [`activation`]: what a gated feed-forward part may have.
//! * [`mod@reference`]: scalar code, written to be read, that defines what correct is.
//! * [`cpu`]: fast paths of the same operations, AVX2 where the machine has it and portable
//!   where it has not, each tested against the reference.
//! * [`mod@compare`]: how far two rows are apart, for tests and for the trace comparison.
//! * [`synthetic`]: random but well-formed rows of any type, for tests and benchmarks.
//!
//! Deliberately absent: models, threads, memory. An operation here reads slices and writes
//! slices; who calls it, on how many threads and over which arena, is the device's business.

pub mod activation;
pub mod compare;
pub mod cpu;
pub mod reference;
pub mod synthetic;
pub mod tensor_type;

pub use activation::Activation;
pub use compare::{Difference, compare};
pub use reference::dequantize::dequantize_row;
pub use reference::routing::Weighing;
pub use tensor_type::TensorType;
