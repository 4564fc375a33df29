//! A model and a draft model with the same logits: the layers of the first behind those of the second add zeros.

use crate::gguf_patch::with_layers;
use crate::model::real_model;
use crate::worker::{Worker, WorkerBuilder};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use worker_orcd_gpu::model::gguf::parse;

const LAYERS: u32 = 20;
const LAYERS_OF_DRAFT: u32 = 1;

#[derive(Debug)]
pub struct Twins {
    _dir: TempDir,
    pub served: PathBuf,
    pub draft: PathBuf,
}

impl Twins {
    /// # Panics
    /// The files cannot be written.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it copies 100 megabytes")]
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let [served, draft] = ["served.gguf", "draft.gguf"].map(|name| dir.path().join(name));
        let model = real_model();
        with_layers(&model, LAYERS, &served).expect("a copy with fewer layers");
        with_layers(&model, LAYERS_OF_DRAFT, &draft).expect("a copy with fewer layers");
        clear_layers_from(LAYERS_OF_DRAFT, &served);
        Self {
            _dir: dir,
            served,
            draft,
        }
    }

    /// The served model alone.
    #[must_use]
    pub fn plain(&self) -> WorkerBuilder {
        Worker::with_model(&self.served)
    }

    /// Both models.
    #[must_use]
    pub fn drafting(&self) -> WorkerBuilder {
        self.plain().arg("--draft-model", self.draft.display())
    }
}

/// Clears what the layers from this one on add to the residual stream.
fn clear_layers_from(first: u32, path: &Path) {
    let mut bytes = fs::read(path).expect("the file is ours");
    let header = parse(&bytes).expect("it is a model");
    let adds =
        |name: &str| name.ends_with("attn_output.weight") || name.ends_with("ffn_down.weight");
    let is_behind = |name: &str| {
        let layer = name
            .strip_prefix("blk.")
            .and_then(|it| it.split('.').next());
        layer.is_some_and(|it| it.parse::<u32>().is_ok_and(|layer| layer >= first))
    };
    let names = header.tensors().iter().map(|tensor| tensor.name);
    let cleared: Vec<_> = names
        .filter(|name| adds(name) && is_behind(name))
        .map(|name| {
            let data = header.tensor(name).expect("it is in there").data;
            let start = data.as_ptr().addr() - bytes.as_ptr().addr();
            start..start + data.len()
        })
        .collect();
    assert_eq!(cleared.len() as u32, 2 * (LAYERS - first));
    for range in cleared {
        bytes[range].fill(0);
    }
    fs::write(path, bytes).expect("the file is ours");
}
