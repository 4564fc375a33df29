//! Ids of tool calls: a pure function of the answer's id and the call's index, so that another supervisor generates the
//! same.

use sha2::{Digest as _, Sha256};
use worker_orcd_text::hex::hex;
use worker_orcd_text::tools::Syntax;

/// Ids of one answer's calls.
#[derive(Debug)]
pub(super) struct CallIds {
    /// Prefix of the API's ids.
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

    /// Mistral's templates accept only ids of nine letters and digits.
    pub(super) fn id(&self, index: usize) -> String {
        let digest = Sha256::digest(format!("{}:{index}", self.answer));
        let digits = hex(&digest);
        match self.syntax {
            Some(Syntax::Mistral) => digits[..9].to_owned(),
            _ => format!("{}{}", self.prefix, &digits[..24]),
        }
    }
}
