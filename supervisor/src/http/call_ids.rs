//! Ids of calls: a pure function of the answer's id and of the call's number, so that another supervisor gives the
//! same.

use crate::hex::hex;
use sha2::{Digest as _, Sha256};
use worker_orcd_text::tools::Syntax;

/// The ids of one answer's calls.
#[derive(Debug)]
pub(super) struct CallIds {
    /// What the API's own ids begin with.
    prefix: &'static str,
    answer: String,
    syntax: Option<Syntax>,
}

impl CallIds {
    pub(super) fn new(prefix: &'static str, answer: &str, syntax: Option<Syntax>) -> Self {
        Self {
            prefix,
            answer: answer.to_owned(),
            syntax,
        }
    }

    /// Mistral's templates refuse ids that are not nine letters and digits.
    pub(super) fn id(&self, index: usize) -> String {
        let digest = Sha256::digest(format!("{}:{index}", self.answer));
        let digits = hex(&digest);
        match self.syntax {
            Some(Syntax::Mistral) => digits[..9].to_owned(),
            _ => format!("{}{}", self.prefix, &digits[..24]),
        }
    }
}
