//! What a GGUF file says: header, configuration, tensors by role, tokenizer facts.

pub mod config;
pub mod gguf;
pub mod tokenizer_facts;
pub mod weights;

pub use config::{Architecture, ModelConfig, RopeStyle};
pub use gguf::{GgufError, GgufFile, TensorView};
pub use weights::{LayerWeights, Linear, ModelWeights};
