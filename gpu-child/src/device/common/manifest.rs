//! The manifest of an arena of weights: made while tensors are placed, and held against the arena
//! that an earlier child left behind.

use super::arena_layout::ARENA_LAYOUT;
use super::placement::Layout;
use crate::model::TensorView;
use std::os::fd::OwnedFd;
use worker_orcd_ipc::{DeviceError, Fault, PlacedTensor, WeightsManifest};

/// Weights that an earlier child has placed.
#[derive(Debug)]
pub struct RetainedWeights {
    pub memory: OwnedFd,
    pub manifest: WeightsManifest,
}

impl RetainedWeights {
    /// # Errors
    /// If no descriptor is left.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self {
            memory: self.memory.try_clone()?,
            manifest: self.manifest.clone(),
        })
    }
}

/// Places of tensors, before their bytes are there.
#[derive(Debug, Default)]
pub struct WeightsLayout<const ALIGNMENT: u64> {
    layout: Layout<ALIGNMENT>,
    tensors: Vec<PlacedTensor>,
}

impl<const ALIGNMENT: u64> WeightsLayout<ALIGNMENT> {
    /// The offset of a tensor of the file, which takes so many bytes where it is placed.
    pub fn place(&mut self, tensor: &TensorView<'_>, bytes: u64) -> u64 {
        let (rows, cols) = (tensor.rows as u64, tensor.cols as u64);
        self.place_as(tensor.name, tensor.ty.name(), rows, cols, bytes)
    }

    /// The offset of `rows` by `cols` elements that are no tensor of the file.
    pub fn place_as(&mut self, name: &str, ty: &str, rows: u64, cols: u64, bytes: u64) -> u64 {
        let offset = self.layout.place(bytes);
        self.tensors.push(PlacedTensor {
            name: name.to_owned(),
            ty: ty.to_owned(),
            rows,
            cols,
            offset,
            bytes,
            checksum: 0,
        });
        offset
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    #[must_use]
    pub fn tensors(&self) -> &[PlacedTensor] {
        &self.tensors
    }

    /// The manifest, with the checksum of each tensor in order.
    #[must_use]
    pub fn sign(mut self, checksums: &[u128]) -> WeightsManifest {
        assert_eq!(checksums.len(), self.tensors.len(), "one for each tensor");
        for (tensor, &checksum) in self.tensors.iter_mut().zip(checksums) {
            tensor.checksum = checksum;
        }
        WeightsManifest {
            arena_layout: ARENA_LAYOUT,
            bytes: self.layout.bytes(),
            tensors: self.tensors,
        }
    }

    /// Whether the arena is laid out as these tensors are.
    ///
    /// # Errors
    /// [`Fault::ModelLoad`]: the file is another one by now.
    pub fn compare(&self, manifest: &WeightsManifest) -> Result<(), Fault> {
        let unsigned = |tensor: &PlacedTensor| PlacedTensor {
            checksum: 0,
            ..tensor.clone()
        };
        let tensors = manifest.tensors.iter().map(unsigned);
        if manifest.bytes == self.bytes() && tensors.eq(self.tensors.iter().cloned()) {
            return Ok(());
        }
        let message = "the file has other tensors than those that are in memory".to_owned();
        Err(Fault::ModelLoad { message })
    }
}

/// Holds checksums of what lies in an arena against those of its manifest.
///
/// # Errors
/// [`DeviceError::WeightsChanged`] with the name of the first tensor that has another one.
pub fn verify(manifest: &WeightsManifest, found: &[u128]) -> Result<(), Fault> {
    for (tensor, found) in manifest.tensors.iter().zip(found) {
        if tensor.checksum != *found {
            return Err(Fault::Device {
                error: DeviceError::WeightsChanged,
                message: format!(
                    "{} has the checksum {found:032x}, and had {:032x} when it was placed",
                    tensor.name, tensor.checksum
                ),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_kernels::TensorType;

    fn layout(names: &[&'static str]) -> WeightsLayout<64> {
        let mut layout = WeightsLayout::default();
        for name in names {
            let tensor = TensorView {
                name,
                ty: TensorType::F16,
                rows: 3,
                cols: 16,
                data: &[],
                runs: None,
            };
            layout.place(&tensor, 96);
        }
        layout
    }

    #[test]
    fn a_manifest_says_what_lies_where() {
        let manifest = layout(&["a", "b"]).sign(&[5, 6]);
        assert_eq!(manifest.bytes, 256);
        let second = &manifest.tensors[1];
        assert_eq!((&*second.name, &*second.ty), ("b", "F16"));
        assert_eq!((second.rows, second.cols), (3, 16));
        assert_eq!((second.offset, second.bytes, second.checksum), (128, 96, 6));
        assert_eq!(layout(&["a", "b"]).compare(&manifest), Ok(()));
    }

    #[test]
    fn other_tensors_and_other_bytes_are_told_apart() {
        let manifest = layout(&["a", "b"]).sign(&[5, 6]);
        for other in [&["a"] as &[_], &["a", "c"], &["a", "b", "b"]] {
            let fault = layout(other).compare(&manifest).expect_err("another file");
            assert!(matches!(fault, Fault::ModelLoad { .. }), "{fault}");
        }
        assert_eq!(verify(&manifest, &[5, 6]), Ok(()));
        let fault = verify(&manifest, &[5, 7]).expect_err("other bytes");
        assert!(fault.to_string().contains("b has the checksum"), "{fault}");
        let Fault::Device { error, .. } = fault else {
            panic!("{fault}")
        };
        assert_eq!(error, DeviceError::WeightsChanged);
    }
}
