//! Copies of a real model with one change: another chat template, or fewer layers.

use std::fs;
use std::io;
use std::path::Path;
use worker_orcd_gpu::model::gguf::parse;

const KEY: &str = "tokenizer.chat_template";
/// Default of GGUF; tensor data starts at a multiple of it.
const ALIGNMENT: usize = 32;
/// Position of the number of tensors, behind magic and version.
const TENSOR_COUNT: usize = 8;

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

/// Writes the first `layers` layers of `model` to `to`: a model of the same vocabulary, template and widths that computes
/// less, and whose text means nothing.
///
/// # Errors
/// The file cannot be read or written, or is no GGUF with as many layers.
pub fn with_layers(model: &Path, layers: u32, to: &Path) -> io::Result<()> {
    let bytes = fs::read(model)?;
    let header = parse(&bytes).map_err(io::Error::other)?;
    let missing = |what: &str| io::Error::other(format!("the model has no {what}"));
    let position = |text: &str| text.as_ptr().addr() - bytes.as_ptr().addr();
    // The table of tensors begins with the length of the first name.
    let first = header.tensors().first().ok_or_else(|| missing("tensors"))?;
    let mut out = bytes[..position(first.name) - size_of::<u64>()].to_vec();
    let count = header.keys().find(|key| key.ends_with(".block_count"));
    let count = count.ok_or_else(|| missing("layers"))?;
    // Behind a key is the type of its value.
    let value = position(count) + count.len() + size_of::<u32>();
    if header.u32(count).map_err(io::Error::other)? < Some(layers) {
        return Err(missing(&format!("{layers} layers")));
    }
    out[value..value + size_of::<u32>()].copy_from_slice(&layers.to_le_bytes());
    let is_kept = |name: &str| layer_of(name).is_none_or(|layer| layer < layers);
    let kept = header.tensors().iter().filter(|it| is_kept(it.name));
    let kept: Vec<_> = kept.collect();
    out[TENSOR_COUNT..TENSOR_COUNT + size_of::<u64>()]
        .copy_from_slice(&(kept.len() as u64).to_le_bytes());
    let mut data = Vec::new();
    for tensor in kept {
        let dims = tensor.dims.iter().rposition(|dim| *dim != 1);
        let dims = &tensor.dims[..=dims.unwrap_or_default()];
        out.extend((tensor.name.len() as u64).to_le_bytes());
        out.extend(tensor.name.as_bytes());
        out.extend((dims.len() as u32).to_le_bytes());
        out.extend(dims.iter().flat_map(|dim| (*dim as u64).to_le_bytes()));
        out.extend((tensor.ty as u32).to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        let view = header.tensor(tensor.name);
        data.extend(view.ok_or_else(|| missing(tensor.name))?.data);
        data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out.extend(data);
    fs::write(to, out)
}

/// Layer of a tensor such as `blk.3.attn_q.weight`.
fn layer_of(tensor: &str) -> Option<u32> {
    let (layer, _) = tensor.strip_prefix("blk.")?.split_once('.')?;
    layer.parse().ok()
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
    fn a_model_of_fewer_layers_has_the_first_ones_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a.gguf"), dir.path().join("b.gguf"));
        let model = tiny_model(Architecture::Llama);
        fs::write(&from, model.build()).unwrap();
        let before = fs::read(&from).unwrap();
        let before = parse(&before).unwrap();
        let layers = before.u32("llama.block_count").unwrap().unwrap();
        for fewer in 1..=layers {
            with_layers(&from, fewer, &to).unwrap();
            let after = fs::read(&to).unwrap();
            let after = parse(&after).unwrap();
            assert_eq!(after.u32("llama.block_count").unwrap(), Some(fewer));
            assert_eq!(after.keys().count(), before.keys().count());
            let is_gone = |name: &str| layer_of(name).is_some_and(|layer| layer >= fewer);
            for tensor in before.tensors() {
                let kept = after.tensor(tensor.name);
                assert_eq!(kept.is_none(), is_gone(tensor.name), "{}", tensor.name);
                if let Some(kept) = kept {
                    let whole = before.tensor(tensor.name).unwrap();
                    assert_eq!(
                        (kept.ty, kept.rows, kept.cols),
                        (whole.ty, whole.rows, whole.cols)
                    );
                    assert_eq!(kept.data, whole.data, "{}", tensor.name);
                }
            }
        }
        assert!(layers > 1, "{layers} layers");
        assert!(with_layers(&from, layers + 1, &to).is_err());
    }

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
