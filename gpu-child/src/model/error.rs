//! Reasons for which a valid GGUF file cannot be served. Every variant names the key or tensor.

use super::GgufError;
use super::catalogue::refusal;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum ModelError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("{}", refusal(.0))]
    UnknownArchitecture(String),
    #[error("key {key}: {message}")]
    BadValue { key: String, message: String },
    #[error("{feature} is not supported ({key})")]
    Unsupported { key: String, feature: String },
    #[error("tensor {0} is missing")]
    MissingTensor(String),
    #[error("tensor {tensor}: {found:?} where the configuration says {expected:?}")]
    Shape {
        tensor: String,
        expected: Vec<usize>,
        found: Vec<usize>,
    },
    #[error("tensor {tensor}: type {found} is not supported here; {expected} is")]
    TensorType {
        tensor: String,
        expected: &'static str,
        found: &'static str,
    },
    #[error("tensor {0} is not part of this architecture as it is implemented")]
    UnexpectedTensor(String),
}

impl ModelError {
    pub(super) fn bad_value(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self::BadValue {
            key: key.into(),
            message: message.into(),
        }
    }

    pub(super) fn unsupported(key: impl Into<String>, feature: impl Into<String>) -> Self {
        Self::Unsupported {
            key: key.into(),
            feature: feature.into(),
        }
    }
}
