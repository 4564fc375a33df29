//! Tensor formats and operations.
//!
//! * [`tensor_type`]: the supported GGUF types, and their block shapes.
//! * [`activation`]: the gated units of feed-forward parts.
//! * [`mod@reference`]: readable scalar code that defines correct results.
//! * [`cpu`]: fast paths of the same operations, AVX2 if the machine has it and portable if not, each tested against
//!   the reference.
//! * [`mod@compare`]: distance of two rows, for tests and for the trace comparison.
//! * [`synthetic`]: random but well-formed rows of any type, for tests and benchmarks.
//!
//! Deliberately absent: models, threads, memory. An operation here reads slices and writes slices; the device chooses
//! the threads and the memory.

pub mod activation;
pub mod compare;
pub mod cpu;
pub mod reference;
pub mod synthetic;
pub mod tensor_type;

pub use activation::Activation;
pub use compare::{Difference, compare};
pub use reference::dequantize::dequantize_row;
pub use reference::routing::{Router, Weighing};
pub use tensor_type::TensorType;
