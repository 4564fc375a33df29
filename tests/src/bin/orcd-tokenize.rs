//! `orcd-tokenize MODEL`: the supervisor's text code, with one JSON line per input and output.
//!
//! `{"text": "…", "whole": bool}` gives `{"ids": […]}`, with the model's BOS and EOS when `whole`; `{"ids": […]}` gives
//! `{"text": "…", "streamed": "…"}`, decoded at once and token by token. The child's reader provides the tokenizer, as
//! in production.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use worker_orcd_gpu::model::{GgufFile, tokenizer_facts};
use worker_orcd_ipc::TokenId;
use worker_orcd_text::{Detokenizer, Text};

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Request {
    Encode { text: String, whole: bool },
    Decode { ids: Vec<u32> },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Ids { ids: Vec<u32> },
    Text { text: String, streamed: String },
}

fn main() -> Result<()> {
    let path: PathBuf = std::env::args_os()
        .nth(1)
        .context("usage: orcd-tokenize MODEL")?
        .into();
    let file = GgufFile::open(&path)?;
    let text = Text::from_facts(&tokenizer_facts(&file.header()?)?)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let answer = answer(&text, serde_json::from_str(&line?)?)?;
        serde_json::to_writer(&mut out, &answer)?;
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

fn answer(model: &Text, request: Request) -> Result<Answer> {
    Ok(match request {
        Request::Encode { text, whole } => {
            let ids = if whole {
                model.encode(&text)?
            } else {
                model.tokenizer().encode_plain(&text)?
            };
            Answer::Ids {
                ids: ids.into_iter().map(|id| id.0).collect(),
            }
        }
        Request::Decode { ids } => {
            let ids: Vec<_> = ids.into_iter().map(TokenId).collect();
            Answer::Text {
                text: model.decode(&ids),
                streamed: streamed(model, &ids),
            }
        }
    })
}

/// Concatenation of a client's pieces.
fn streamed(model: &Text, ids: &[TokenId]) -> String {
    let mut detokenizer = Detokenizer::default();
    let mut pieces = Vec::new();
    for &id in ids {
        let mut piece = String::new();
        detokenizer.push(model.bytes(id), &mut piece);
        pieces.push(piece);
    }
    let mut rest = String::new();
    detokenizer.finish(&mut rest);
    pieces.concat() + &rest
}
