//! Copy of a real model with another chat template and no other change.

use std::fs;
use std::io;
use std::path::Path;
use worker_orcd_gpu::model::gguf::parse;

const KEY: &str = "tokenizer.chat_template";
/// Default of GGUF; tensor data starts at a multiple of it.
const ALIGNMENT: usize = 32;

/// Writes a copy of `model` to `to` with the chat template `template`, padded by a comment: the header grows by a
/// multiple of the alignment, so no tensor has to move within it.
///
/// # Errors
/// The file cannot be read or written, is no GGUF, or has no template.
pub fn with_chat_template(model: &Path, template: &str, to: &Path) -> io::Result<()> {
    let bytes = fs::read(model)?;
    let header = parse(&bytes).map_err(io::Error::other)?;
    let old = header.str(KEY).map_err(io::Error::other)?;
    let old = old.ok_or_else(|| io::Error::other("the model has no chat template"))?;
    let start = old.as_ptr() as usize - bytes.as_ptr() as usize;
    let template = padded(template, old.len());
    let length = (template.len() as u64).to_le_bytes();
    let parts = [
        &bytes[..start - length.len()],
        &length,
        template.as_bytes(),
        &bytes[start + old.len()..],
    ];
    fs::write(to, parts.concat())
}

/// Template padded to `old_bytes` plus or minus whole alignments.
fn padded(template: &str, old_bytes: usize) -> String {
    let comment = "{##}";
    let least = template.len() + comment.len();
    let more = (ALIGNMENT + old_bytes % ALIGNMENT - least % ALIGNMENT) % ALIGNMENT;
    format!("{template}{{#{}#}}", " ".repeat(more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_gpu::model::Architecture;
    use worker_orcd_gpu::model::tiny_model::tiny_model;

    #[test]
    fn only_the_template_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a.gguf"), dir.path().join("b.gguf"));
        let model = tiny_model(Architecture::Llama).without_meta(KEY);
        fs::write(&from, model.meta(KEY, "{{ old }}").build()).unwrap();
        let before = fs::read(&from).unwrap();
        let before = parse(&before).unwrap();
        for length in 0..70 {
            with_chat_template(&from, &"x".repeat(length), &to).unwrap();
            let after = fs::read(&to).unwrap();
            let after = parse(&after).unwrap();
            let template = after.str(KEY).unwrap().unwrap();
            assert!(template.starts_with(&"x".repeat(length)));
            assert_eq!(after.tensors().len(), before.tensors().len());
            for tensor in before.tensors() {
                let data = |header: &worker_orcd_gpu::model::gguf::Header<'_>| {
                    header.tensor(tensor.name).unwrap().data.to_vec()
                };
                assert_eq!(data(&before), data(&after), "{}", tensor.name);
            }
        }
    }
}
