//! What an engine leaves to the engine of another supervisor: the journal's log, and memory that outlives
//! children, and a child that [lives on](living). [`parcel`] is how it gets there.

pub(crate) mod living;
pub(crate) mod parcel;

use living::{ChildNote, LivingChild};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use worker_orcd_ipc::{DeviceSelector, Generation, KvSource, WeightsManifest};

/// Descriptors, and what they are.
#[derive(Debug, Default)]
pub struct EngineEstate {
    pub note: EngineNote,
    pub wal: Option<OwnedFd>,
    pub model: Option<OwnedFd>,
    pub weights: Option<OwnedFd>,
    /// The KV cache of the last child.
    pub kv: Option<OwnedFd>,
    pub(crate) child: Option<LivingChild>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineNote {
    /// The model as it was asked for. Weights of another one are no use.
    pub model_path: String,
    pub device: Option<DeviceSelector>,
    /// Digest of the model that streams began with, once there is one.
    pub digest: Option<[u8; 32]>,
    pub weights: Option<(WeightsManifest, Generation)>,
    /// The child that was begun last, where it may still be dying.
    pub last_child: Option<Generation>,
    /// Size of the KV cache of the child that served.
    pub kv_bytes: Option<u64>,
    pub kv: Option<KvSource>,
    pub(crate) child: Option<ChildNote>,
    pub has_wal: bool,
    pub has_model: bool,
}

impl EngineEstate {
    /// The note, and the descriptors in the order in which [`from_parts`](Self::from_parts) takes them.
    #[must_use]
    pub fn parts(&self) -> (EngineNote, Vec<BorrowedFd<'_>>) {
        let note = EngineNote {
            has_wal: self.wal.is_some(),
            has_model: self.model.is_some(),
            child: self.child.as_ref().map(|child| child.note.clone()),
            ..self.note.clone()
        };
        let all = [&self.wal, &self.model, &self.weights, &self.kv];
        let descriptors = all.into_iter().flatten().map(|it| it.as_fd());
        let child = self.child.iter().flat_map(LivingChild::descriptors);
        (note, descriptors.chain(child).collect())
    }

    /// # Errors
    /// When there are fewer descriptors than the note says.
    pub fn from_parts(
        note: EngineNote,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> io::Result<Self> {
        let mut take = |is_there: bool| match (is_there, is_there.then(|| descriptors.next())) {
            (true, Some(None) | None) => Err(io::Error::from(ErrorKind::UnexpectedEof)),
            (_, descriptor) => Ok(descriptor.flatten()),
        };
        let [wal, model, weights, kv] = [
            note.has_wal,
            note.has_model,
            note.weights.is_some(),
            note.kv.is_some(),
        ]
        .map(&mut take);
        let child = note.child.clone();
        let child = child.map(|child| LivingChild::from_parts(child, descriptors));
        Ok(Self {
            wal: wal?,
            model: model?,
            weights: weights?,
            kv: kv?,
            child: child.transpose()?,
            note,
        })
    }

    /// Keeps the memory only where it is that of the same model on the same device.
    pub fn keep_for(&mut self, model_path: &str, device: DeviceSelector) {
        if self.note.model_path != model_path || self.note.device != Some(device) {
            (self.model, self.weights, self.note.weights) = (None, None, None);
            (self.kv, self.note.kv) = (None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estate() -> EngineEstate {
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        EngineEstate {
            note: EngineNote {
                model_path: "a.gguf".to_owned(),
                device: Some(DeviceSelector::Cpu),
                digest: Some([7; 32]),
                weights: Some((WeightsManifest::default(), Generation(3))),
                ..EngineNote::default()
            },
            wal: Some(file()),
            model: None,
            weights: Some(file()),
            kv: None,
            child: None,
        }
    }

    #[test]
    fn it_is_put_together_as_it_was_taken_apart() {
        let estate = estate();
        let (note, descriptors) = estate.parts();
        let owned = |it: BorrowedFd<'_>| it.try_clone_to_owned().unwrap();
        let mut descriptors = descriptors.into_iter().map(owned);
        let again = EngineEstate::from_parts(note.clone(), &mut descriptors).unwrap();
        assert!(again.wal.is_some() && again.model.is_none() && again.weights.is_some());
        assert_eq!(again.parts().0, note);
        let too_few = EngineEstate::from_parts(note, &mut std::iter::empty());
        assert!(too_few.is_err());
    }

    #[test]
    fn memory_of_another_model_or_device_is_let_go() {
        for (path, device, kept) in [
            ("a.gguf", DeviceSelector::Cpu, true),
            ("b.gguf", DeviceSelector::Cpu, false),
            ("a.gguf", DeviceSelector::Cuda(0), false),
        ] {
            let mut estate = estate();
            estate.keep_for(path, device);
            assert_eq!(estate.weights.is_some(), kept, "{path} {device:?}");
            assert!(estate.wal.is_some(), "the journal goes on or says why not");
        }
    }
}
