//! The answer of `/tokenize`, written as it goes: as values of JSON it would take many times its length.

use crate::engine::LoadedModel;
use crate::http::sse::write_json;
use crate::text::Text;
use worker_orcd_ipc::TokenId;

pub(super) fn tokens(
    model: &LoadedModel,
    tokens: &[TokenId],
    pieces: bool,
    texts: bool,
) -> Vec<u8> {
    let text = &model.text;
    let mut out = Vec::new();
    out.extend_from_slice(b"{\"tokens\":");
    write_list(&mut out, tokens, |out, id| match pieces {
        false => write_json(out, &id.0),
        true => {
            out.extend_from_slice(b"{\"id\":");
            write_json(out, &id.0);
            out.extend_from_slice(b",\"piece\":");
            write_piece(out, text, id);
            out.push(b'}');
        }
    });
    out.extend_from_slice(b",\"count\":");
    write_json(&mut out, &tokens.len());
    out.extend_from_slice(b",\"max_model_len\":");
    write_json(&mut out, &model.max_sequence_tokens);
    out.extend_from_slice(b",\"token_strs\":");
    match texts {
        false => out.extend_from_slice(b"null"),
        true => write_list(&mut out, tokens, |out, id| {
            write_json(out, &String::from_utf8_lossy(text.bytes_written(id)));
        }),
    }
    out.push(b'}');
    out
}

/// Bytes that are no text are a list of numbers, as llama-server has it.
fn write_piece(out: &mut Vec<u8>, text: &Text, id: TokenId) {
    let bytes = text.bytes_written(id);
    match std::str::from_utf8(bytes) {
        Ok(piece) => write_json(out, &piece),
        Err(_) => write_json(out, &bytes),
    }
}

fn write_list(out: &mut Vec<u8>, tokens: &[TokenId], write: impl Fn(&mut Vec<u8>, TokenId)) {
    out.push(b'[');
    for (index, id) in tokens.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(out, *id);
    }
    out.push(b']');
}
