//! `tokenizer.ggml.suppress_tokens`: tokens that are not sampled, such as those that stand for images.
//!
//! llama.cpp's sampler gives them a bias of minus infinity, and ignores ids outside the vocabulary.

use super::error::ModelError;
use super::gguf::{Header, Value};
use std::collections::BTreeSet;
use worker_orcd_ipc::TokenId;

const KEY: &str = "tokenizer.ggml.suppress_tokens";

/// Tokens that are not sampled unless nothing else is allowed, in ascending order.
///
/// # Errors
/// If the key is not a list of integers.
pub fn suppressed_tokens(header: &Header<'_>, vocab_size: u32) -> Result<Vec<TokenId>, ModelError> {
    let Some(array) = header.array(KEY)? else {
        return Ok(Vec::new());
    };
    // As large as the vocabulary at most, however long the list is.
    let mut tokens = BTreeSet::new();
    for value in array.values() {
        let is_integer = matches!(value, Value::Signed(_) | Value::Unsigned(_));
        if !is_integer {
            return Err(ModelError::bad_value(KEY, "must be a list of integers"));
        }
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        tokens.extend(id.filter(|id| *id < vocab_size).map(TokenId));
    }
    Ok(tokens.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gguf::parse;
    use crate::model::{GgufBuilder, Meta};

    fn read(file: &GgufBuilder) -> Result<Vec<TokenId>, ModelError> {
        suppressed_tokens(&parse(&file.build()).unwrap(), 10)
    }

    #[test]
    fn a_list_is_read_without_ids_outside_the_vocabulary() {
        assert_eq!(read(&GgufBuilder::new()).unwrap(), []);
        let list = GgufBuilder::new().meta(KEY, Meta::I32s(vec![9, 3, 10, -1, 3]));
        assert_eq!(read(&list).unwrap(), [3, 9].map(TokenId));
        for wrong in [Meta::F32s(vec![1.0]), Meta::U32(3)] {
            let refused = read(&GgufBuilder::new().meta(KEY, wrong)).unwrap_err();
            assert!(refused.to_string().contains(KEY), "{refused}");
        }
    }
}
