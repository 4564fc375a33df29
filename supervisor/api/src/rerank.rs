//! `/v1/rerank`: reader of requests, writer of answers.

pub mod read;
pub mod written;
