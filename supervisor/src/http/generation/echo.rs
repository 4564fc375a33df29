//! Echo: answers that begin with their prompt, without the tokens that the tokenizer added.

use super::lost;
use super::prompt::Encoded;
use crate::http::App;
use crate::http::error::ApiError;
use std::sync::Arc;
use worker_orcd_api::request::Input;
use worker_orcd_engine::LoadedModel;
use worker_orcd_ipc::TokenId;
use worker_orcd_text::Text;

impl App {
    /// Tokens of a prompt that fits and that the answer can begin with.
    pub(super) async fn prepare_echoed(
        &self,
        model: &Arc<LoadedModel>,
        input: Input,
        is_echoed: bool,
        truncate: Option<u32>,
    ) -> Result<Encoded, ApiError> {
        let given = is_echoed.then(|| input.text().map(str::to_owned));
        let mut prompt = self.prepare(model, input, truncate).await?;
        if let Some(given) = given {
            prompt.echo = Some(self.hidden(model, given, &prompt.tokens).await?);
        }
        Ok(prompt)
    }

    /// Length of the text that the tokenizer added before a client's text, in bytes.
    async fn hidden(
        &self,
        model: &LoadedModel,
        given: Option<String>,
        tokens: &[TokenId],
    ) -> Result<u32, ApiError> {
        let Some(given) = given else {
            return Ok(0);
        };
        let (text, tokens) = (Arc::clone(&model.text), tokens.to_vec());
        let bytes = given.len();
        let work = move || hidden(&text, &given, &tokens);
        self.pool.run(bytes, work).await.ok_or_else(lost)
    }
}

/// Zero if the tokens have another text: a tokenizer may replace characters.
fn hidden(text: &Text, given: &str, tokens: &[TokenId]) -> u32 {
    let bytes = tokens.iter().map(|token| text.bytes_written(*token));
    let written: Vec<u8> = bytes.flatten().copied().collect();
    let before = written.strip_suffix(given.as_bytes());
    before.map_or(0, |before| before.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_requests::testing::{EOS, text};

    #[test]
    fn what_the_tokenizer_put_before_a_text_is_not_of_the_text() {
        let tokens = [EOS, TokenId(0), TokenId(2), TokenId(3)];
        for (given, expected) in [("a\u{e9}", 5), ("<eos>a\u{e9}", 0), ("b", 0)] {
            assert_eq!(hidden(&text(), given, &tokens), expected, "{given}");
        }
    }
}
