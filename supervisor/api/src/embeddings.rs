//! `/v1/embeddings`: reader of requests, writer of answers.

pub mod read;
pub mod written;
