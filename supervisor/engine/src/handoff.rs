//! Handoff state that an engine leaves to the engine of another supervisor: the write-ahead log, memory that outlives
//! children, and a [child](living). [`passage`] carries it through `exec`, and [`bundle`] through the descriptor store
//! of a service manager.

pub mod bundle;
pub(crate) mod living;
pub mod passage;

use living::{ChildNote, LivingChild};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use worker_orcd_ipc::{DeviceSelector, Generation, KvSource, WeightsManifest};
use worker_orcd_lifecycle::OutOfServiceReason;

/// Handoff state: descriptors and their description.
#[derive(Debug, Default)]
pub struct EngineHandoff {
    pub note: EngineNote,
    pub wal: Option<OwnedFd>,
    /// Model files in order. Empty if they are not retained.
    pub model: Vec<OwnedFd>,
    /// Devices in the order of the worker's list.
    pub devices: Vec<DeviceHandoff>,
}

/// Handoff state of one device.
#[derive(Debug, Default)]
pub struct DeviceHandoff {
    pub note: DeviceNote,
    pub weights: Option<OwnedFd>,
    /// KV cache of the last child.
    pub kv: Option<OwnedFd>,
    pub(crate) child: Option<LivingChild>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineNote {
    /// Configured model path. Weights of another model are of no use.
    pub model_path: String,
    /// Digest of the model that streams began with, once known.
    pub digest: Option<[u8; 32]>,
    /// Newest child, if it may still be dying.
    pub last_child: Option<Generation>,
    pub devices: Vec<DeviceNote>,
    pub has_wal: bool,
    pub model_files: u16,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNote {
    pub selector: Option<DeviceSelector>,
    pub weights: Option<(WeightsManifest, Generation)>,
    /// Size in bytes of the KV cache of the child that served.
    pub kv_bytes: Option<u64>,
    pub kv: Option<KvSource>,
    /// Out-of-service reason of the device, if it is out of service.
    pub out_of_service: Option<OutOfServiceReason>,
    pub(crate) child: Option<ChildNote>,
}

impl EngineHandoff {
    /// Note, and descriptors in the order of [`from_parts`](Self::from_parts).
    #[must_use]
    pub fn parts(&self) -> (EngineNote, Vec<BorrowedFd<'_>>) {
        let (notes, of_devices): (Vec<_>, Vec<_>) =
            self.devices.iter().map(DeviceHandoff::parts).unzip();
        let note = EngineNote {
            has_wal: self.wal.is_some(),
            model_files: self.model.len() as u16,
            devices: notes,
            ..self.note.clone()
        };
        let own = self.wal.iter().chain(&self.model).map(|it| it.as_fd());
        let descriptors = own.chain(of_devices.into_iter().flatten());
        (note, descriptors.collect())
    }

    /// # Errors
    /// If there are fewer descriptors than the note requires.
    pub fn from_parts(
        note: EngineNote,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> io::Result<Self> {
        let wal = take_if(note.has_wal, descriptors)?;
        let model: io::Result<_> = (0..note.model_files).map(|_| take(descriptors)).collect();
        let notes = note.devices.iter().cloned();
        let devices: io::Result<_> = notes
            .map(|note| DeviceHandoff::from_parts(note, descriptors))
            .collect();
        Ok(Self {
            note,
            wal,
            model: model?,
            devices: devices?,
        })
    }

    /// Process ids of the children.
    pub fn children(&self) -> impl Iterator<Item = u32> {
        let children = self.devices.iter().filter_map(|it| it.child.as_ref());
        children.map(|it| it.note.pid)
    }

    /// Sorts the state of each device to its index in the list, and drops the memory of another model. Returns the
    /// children of devices that are not in the list.
    pub(crate) fn arrange(
        &mut self,
        model_path: &str,
        devices: &[DeviceSelector],
    ) -> Vec<LivingChild> {
        let mut found = std::mem::take(&mut self.devices);
        for device in devices {
            let is_it = |it: &DeviceHandoff| it.note.selector == Some(*device);
            let place = found.iter().position(is_it);
            let handoff = place.map(|place| found.remove(place));
            self.devices.push(handoff.unwrap_or_default());
        }
        if self.note.model_path != model_path {
            self.model.clear();
            self.devices.iter_mut().for_each(DeviceHandoff::let_go);
        }
        found.into_iter().filter_map(|it| it.child).collect()
    }
}

impl DeviceHandoff {
    fn parts(&self) -> (DeviceNote, Vec<BorrowedFd<'_>>) {
        let note = DeviceNote {
            child: self.child.as_ref().map(|child| child.note.clone()),
            ..self.note.clone()
        };
        let memory = [&self.weights, &self.kv].into_iter().flatten();
        let child = self.child.iter().flat_map(LivingChild::descriptors);
        let descriptors = memory.map(|it| it.as_fd()).chain(child).collect();
        (note, descriptors)
    }

    fn from_parts(
        note: DeviceNote,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> io::Result<Self> {
        let weights = take_if(note.weights.is_some(), descriptors)?;
        let kv = take_if(note.kv.is_some(), descriptors)?;
        let child = note.child.clone();
        let child = child.map(|child| LivingChild::from_parts(child, descriptors));
        Ok(Self {
            weights,
            kv,
            child: child.transpose()?,
            note,
        })
    }

    fn let_go(&mut self) {
        (self.weights, self.note.weights) = (None, None);
        self.let_go_of_kv();
    }

    pub(crate) fn let_go_of_kv(&mut self) {
        (self.kv, self.note.kv) = (None, None);
    }
}

fn take_if(
    is_there: bool,
    descriptors: &mut impl Iterator<Item = OwnedFd>,
) -> io::Result<Option<OwnedFd>> {
    is_there.then(|| take(descriptors)).transpose()
}

fn take(descriptors: &mut impl Iterator<Item = OwnedFd>) -> io::Result<OwnedFd> {
    descriptors.next().ok_or(ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn of_device(selector: DeviceSelector, placed_by: u32) -> DeviceHandoff {
        DeviceHandoff {
            note: DeviceNote {
                selector: Some(selector),
                weights: Some((WeightsManifest::default(), Generation(placed_by))),
                ..DeviceNote::default()
            },
            weights: Some(file()),
            kv: None,
            child: None,
        }
    }

    fn handoff() -> EngineHandoff {
        EngineHandoff {
            note: EngineNote {
                model_path: "a.gguf".to_owned(),
                digest: Some([7; 32]),
                ..EngineNote::default()
            },
            wal: Some(file()),
            model: vec![file(), file()],
            devices: vec![
                of_device(DeviceSelector::Cuda(1), 3),
                of_device(DeviceSelector::Cuda(0), 4),
            ],
        }
    }

    fn placed_by(handoff: &EngineHandoff) -> Vec<Option<u32>> {
        let kept = |it: &DeviceHandoff| {
            assert_eq!(it.weights.is_some(), it.note.weights.is_some());
            it.note.weights.as_ref().map(|(_, child)| child.0)
        };
        handoff.devices.iter().map(kept).collect()
    }

    #[test]
    fn it_is_put_together_as_it_was_taken_apart() {
        let handoff = handoff();
        let (note, descriptors) = handoff.parts();
        let owned = |it: BorrowedFd<'_>| it.try_clone_to_owned().unwrap();
        let mut descriptors = descriptors.into_iter().map(owned);
        let again = EngineHandoff::from_parts(note.clone(), &mut descriptors).unwrap();
        assert!(again.wal.is_some() && again.model.len() == 2);
        assert_eq!(placed_by(&again), [Some(3), Some(4)]);
        assert_eq!(again.parts().0, note);
        let too_few = EngineHandoff::from_parts(note, &mut std::iter::empty());
        assert!(too_few.is_err());
    }

    #[test]
    fn memory_goes_to_its_own_device_and_that_of_another_model_is_let_go() {
        let [first, second, cpu] = [
            DeviceSelector::Cuda(0),
            DeviceSelector::Cuda(1),
            DeviceSelector::Cpu,
        ];
        for (path, devices, kept) in [
            ("a.gguf", vec![first, second], vec![Some(4), Some(3)]),
            ("a.gguf", vec![second, second], vec![Some(3), None]),
            ("a.gguf", vec![cpu], vec![None]),
            ("b.gguf", vec![first, second], vec![None, None]),
        ] {
            let mut handoff = handoff();
            assert!(handoff.arrange(path, &devices).is_empty());
            assert_eq!(placed_by(&handoff), kept, "{path} {devices:?}");
            assert_eq!(handoff.model.is_empty(), path != "a.gguf");
            assert!(handoff.wal.is_some(), "the journal goes on or says why not");
        }
    }
}
