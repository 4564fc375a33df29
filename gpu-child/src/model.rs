//! The contents of a GGUF file: header, configuration, tensors by role, tokenizer facts.
//!
//! ```text
//!            ┌─ config (+ rope) ──── ModelConfig ─┐
//! gguf ──────┼─ weights (+ layer) ── ModelWeights ┴─ the device
//! (Header)   ├─ tokenizer_facts ──── TokenizerFacts ┐
//!            ├─ sampling_advice ──── SamplingAdvice ┤
//!            └─ model_facts (+ rerank) ModelFacts ──┴─ the supervisor
//! ```
//!
//! Deliberately absent: arithmetic, and device memory. A file is refused before the first byte is uploaded, with the
//! name of the invalid key or tensor.

mod architecture;
pub mod catalogue;
pub mod config;
mod delta_net;
mod error;
mod experts;
pub mod gguf;
pub mod gguf_builder;
mod heads;
mod layer;
mod layer_inputs;
mod mamba;
mod model_facts;
mod positions;
mod recurrent;
mod rerank;
mod rope;
mod sampling_advice;
mod shared_kv;
mod short_conv;
mod suppressed_tokens;
pub mod tiny_model;
pub mod tokenizer_facts;
pub mod weights;
mod yarn;

pub use architecture::Architecture;
pub use config::ModelConfig;
pub use delta_net::DeltaNetConfig;
pub use error::ModelError;
pub use experts::{ExpertsConfig, MAX_EXPERTS};
pub use gguf::{GgufError, GgufFile, Header, Runs, TensorView};
pub use gguf_builder::{GgufBuilder, Meta};
pub use heads::Heads;
pub use layer::{
    Attention, Block, DeltaNet, DenseBeside, Experts, FeedForward, GatedUnit, KvOrigin, Layer,
    LayerInput, LayerInputs, Linear, Mamba, Mapping, Mixer, ModelWeights, SharedExpert, ShortConv,
};
pub use mamba::MambaConfig;
pub use model_facts::model_facts;
pub use positions::{Positions, Temperature, Window};
pub use recurrent::{Recurrence, RecurrentLayers};
pub use rerank::rank_head;
pub use sampling_advice::sampling_advice;
pub use short_conv::ShortConvConfig;
pub use suppressed_tokens::suppressed_tokens;
pub use tokenizer_facts::tokenizer_facts;
pub use weights::{FileLinear, FileWeights};
