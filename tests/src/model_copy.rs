//! Private copy of the shallow model, which a test may change.

use crate::model::shallow_model;
use crate::worker::Worker;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use worker_orcd_gpu::model::gguf::parse;

/// Bytes of a block of Q4_1: scale and minimum, then codes.
const BLOCK: usize = 20;
const CODES: usize = 4;

#[derive(Debug)]
pub struct ModelCopy {
    dir: TempDir,
    pub path: PathBuf,
}

impl ModelCopy {
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it copies 45 megabytes")]
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("model.gguf");
        fs::copy(shallow_model(), &path).expect("there is room for a copy");
        Self { dir, path }
    }

    #[must_use]
    pub fn worker(&self) -> Worker {
        Worker::with_model(&self.path).start()
    }

    /// Renames a file with the same header and other weights over it.
    pub fn replace_by_other_weights(&self) {
        let other = self.dir.path().join("other.gguf");
        fs::copy(shallow_model(), &other).expect("there is room for a copy");
        edit_weights(&other);
        fs::rename(&other, &self.path).expect("both are ours");
    }

    pub fn remove(&self) {
        fs::remove_file(&self.path).expect("it is ours");
    }
}

/// Changes codes in a matrix of every layer; scales stay, so that nothing overflows.
pub fn edit_weights(path: &Path) {
    let bytes = fs::read(path).expect("the file is ours");
    let file = OpenOptions::new().write(true).open(path);
    let file = file.expect("the file is ours");
    for (at, edited) in edits(&bytes) {
        file.write_all_at(&edited, at).expect("the file is ours");
    }
}

/// Offsets and new bytes.
fn edits(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let header = parse(bytes).expect("it is a model");
    let tensors = header.tensors().iter();
    let meant = tensors.filter(|it| it.name.ends_with("ffn_down.weight") && it.ty.name() == "Q4_1");
    let edits: Vec<_> = meant
        .map(|tensor| {
            let data = header.tensor(tensor.name).expect("it is in there").data;
            let mut other = data.to_vec();
            for block in other.chunks_exact_mut(BLOCK) {
                block[CODES..].iter_mut().for_each(|codes| *codes ^= 0x55);
            }
            let start = data.as_ptr().addr() - bytes.as_ptr().addr();
            (start as u64, other)
        })
        .collect();
    assert!(edits.len() > 5, "{} matrices are edited", edits.len());
    edits
}
