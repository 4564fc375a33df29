//! Tensor formats and operations.
//!
//! * [`tensor_type`]: the GGUF types this project computes with, and their block shapes.

pub mod tensor_type;

pub use tensor_type::TensorType;
