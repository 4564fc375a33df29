//! `/tokenize`, `/detokenize`, `/apply-template`: readers of requests, writers of answers.

pub mod read;
pub mod written;
