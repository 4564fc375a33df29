//! Device memory that outlives its child and passes to the next one: the open model file, the weights and the KV cache.
//!
//! ```text
//! first child ── opens ──► model file ──┐               ┌──► header: facts, hyperparameters
//!             └─ packs ──► weights ─────┴─► retained ────┴──► weights: mapped, checked, used
//!                          and manifest                      by each later child
//! ```
//!
//! A change of the model file at its path therefore does not affect running streams, and no later child reads or packs
//! weights. The supervisor holds descriptors. It neither reads nor maps them. Each child has its own KV cache. The
//! cache of the serving child, or of the last one, is lent to later children.
//!
//! Suspect weights are released. Their memory is freed once no process maps them, and the next child loads from the
//! file again. Weights are released if a child finds them changed, if a child dies during their takeover, or if the
//! kernel is out of memory and no other child maps them. Without the open file (no descriptor was left) the next child
//! opens the path again. The model's identity is compared in each case.

mod memory_fd;

use crate::child::Child;
use crate::driver::child_stats::ChildStats;
use crate::driver::seat::Seat;
use crate::engine::snapshot::RetainedSnapshot;
use crate::handoff::{DeviceHandoff, DeviceNote};
use memory_fd::MemoryFd;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;
use tracing::{info, warn};
use worker_orcd_ipc::{
    FdKind, Generation, KvReaders, KvSource, LoadOrder, MAX_MODEL_PARTS, ModelFile, ReadyReport,
    WeightsManifest,
};
use worker_orcd_lifecycle::{ChildEvent, DeathCause};

/// Files of a model, in order.
pub(super) type ModelFiles = Arc<[OwnedFd]>;

#[derive(Debug, Default)]
pub(super) struct RetainedMemory {
    /// Model files, the same for all devices.
    pub(super) model: Option<ModelFiles>,
    weights: Option<RetainedWeights>,
    kv: Option<RetainedKv>,
}

/// KV cache of a child.
#[derive(Debug)]
pub(super) struct RetainedKv {
    memory: MemoryFd,
    source: KvSource,
}

#[derive(Debug)]
struct RetainedWeights {
    memory: MemoryFd,
    manifest: WeightsManifest,
    /// Child that placed the weights. Later children import them.
    placed_by: Generation,
    since: Instant,
    /// Time of the last check of the weights against the manifest by a child.
    verified_at: Instant,
}

impl RetainedMemory {
    /// Retained memory of another supervisor.
    pub(super) fn inherited(
        now: Instant,
        model: Option<ModelFiles>,
        handoff: DeviceHandoff,
    ) -> Self {
        let weights = handoff.weights.zip(handoff.note.weights);
        let kv = handoff.kv.zip(handoff.note.kv);
        Self {
            model,
            weights: weights.map(|(memory, (manifest, placed_by))| RetainedWeights {
                memory: memory.into(),
                manifest,
                placed_by,
                since: now,
                verified_at: now,
            }),
            kv: kv.map(|(memory, source)| RetainedKv {
                memory: memory.into(),
                source,
            }),
        }
    }

    /// Description of the retained memory without the KV cache.
    pub(super) fn note(&self, note: DeviceNote) -> DeviceNote {
        let weights = self.weights.as_ref();
        DeviceNote {
            weights: weights.map(|it| (it.manifest.clone(), it.placed_by)),
            ..note
        }
    }

    /// Duplicate of the KV cache of the serving child, or of the last one.
    pub(super) fn copy_kv(&self) -> Option<(OwnedFd, KvSource)> {
        let kv = self.kv.as_ref()?;
        Some((kv.memory.as_fd().try_clone_to_owned().ok()?, kv.source))
    }

    /// Duplicate of the weights.
    pub(super) fn copy(&self, note: DeviceNote) -> DeviceHandoff {
        let weights = self.weights.as_ref();
        let weights = weights.and_then(|it| it.memory.as_fd().try_clone_to_owned().ok());
        let note = self.note(note);
        DeviceHandoff {
            note: DeviceNote {
                weights: note.weights.filter(|_| weights.is_some()),
                ..note
            },
            weights,
            kv: None,
            child: None,
        }
    }

    pub(super) fn has_model(&self) -> bool {
        self.model.is_some()
    }

    /// Memory in bytes that remains allocated after a child's death. A KV cache is released later, when the next child
    /// has adopted from it. By then the next child's own cache, of equal size, has taken its place here.
    pub(super) fn bytes(&self) -> u64 {
        let manifest = self.weights.as_ref().map(|weights| &weights.manifest);
        let kv = self.kv.as_ref().map_or(0, |kv| kv.source.bytes);
        kv.saturating_add(manifest.map_or(0, |manifest| manifest.bytes))
    }

    pub(super) fn snapshot(&self) -> Option<RetainedSnapshot> {
        self.weights.as_ref().map(|weights| RetainedSnapshot {
            bytes: weights.manifest.bytes,
            placed_by: weights.placed_by.0,
            since: weights.since,
            verified_at: weights.verified_at,
        })
    }

    /// Weights, if a child of this arena layout can read them. During an upgrade the layout of another program may
    /// differ. Its child then reads the model file and computes the tokens again.
    fn weights_laid_out_as(&self, layout: Option<u64>) -> Option<&RetainedWeights> {
        let weights = self.weights.as_ref()?;
        let kept = weights.manifest.arena_layout;
        if layout == Some(kept) {
            return Some(weights);
        }
        info!(kept, asked = layout, "weights_not_readable");
        None
    }

    /// Sends the retained descriptors to the child of a seat. The returned order describes them.
    pub(super) fn hand_out(&self, seat: &mut Seat, order: LoadOrder) -> LoadOrder {
        let model = self.model.as_ref();
        let mut hand_out_file = |file| hand_out(seat, FdKind::ModelFile, file);
        let has_model = model.is_some_and(|files| files.iter().all(&mut hand_out_file));
        let parts = model.map_or(0, |files| files.len() as u16);
        let layout = seat.stats.as_ref().and_then(ChildStats::arena_layout);
        let weights = self
            .weights_laid_out_as(layout)
            .filter(|weights| has_model && hand_out(seat, FdKind::Weights, &weights.memory));
        seat.takes_over = weights.is_some();
        let kv = self
            .kv
            .as_ref()
            .filter(|_| order.kv_readers == KvReaders::Successors && weights.is_some())
            .filter(|kv| hand_out(seat, FdKind::KvCache, &kv.memory));
        let adopts_from = kv.map(|kv| kv.source);
        seat.adopts_from = adopts_from.map(|source| source.child);
        let late_fd_socket = seat.child.as_mut().filter(|_| order.has_second_fd_socket);
        let late_fd_socket = late_fd_socket.map(Child::open_late_fd_socket).transpose();
        let late_fd_socket =
            late_fd_socket.inspect_err(|error| warn!(%error, "late_fd_socket_missing"));
        LoadOrder {
            has_second_fd_socket: matches!(late_fd_socket, Ok(Some(()))),
            model_file: match has_model {
                true => ModelFile::HandedOver { parts },
                false => ModelFile::AtPath,
            },
            weights: weights.map(|weights| weights.manifest.clone()),
            adopts_from,
            ..order
        }
    }

    /// Continues with a child that served under another supervisor: the retained KV cache is its own.
    pub(super) fn goes_on(&mut self, seat: &mut Seat) {
        seat.kv = self.kv.take();
    }

    /// Replaces the retained KV cache by that of the seat's child, which serves from now on.
    pub(super) fn serves(&mut self, seat: &mut Seat) {
        self.kv = seat.kv.take();
    }

    /// Retains the descriptors that the child of a seat has handed over. Called when the child is ready, with its
    /// memory report. The model consists of `model_files` files.
    ///
    /// # Errors
    /// If the child handed over anything else.
    pub(super) fn keep(
        &mut self,
        now: Instant,
        seat: &mut Seat,
        report: &ReadyReport,
        model_files: usize,
    ) -> Result<(), ChildEvent> {
        let manifest = &report.weights;
        let taken_over = std::mem::take(&mut seat.takes_over);
        if let Some(weights) = self.weights.as_mut().filter(|_| taken_over) {
            weights.verified_at = now;
        }
        let Some(child) = &mut seat.child else {
            return Ok(());
        };
        let placed_by = child.generation;
        let mut files = Vec::new();
        for _ in 0..usize::from(MAX_MODEL_PARTS) + FdKind::ALL.len() {
            match child.take() {
                Ok(Some((FdKind::ModelFile, file))) => files.push(file),
                Ok(Some((FdKind::Weights, memory))) => {
                    info!(bytes = manifest.bytes, "weights_kept");
                    self.weights = Some(RetainedWeights {
                        memory: memory.into(),
                        manifest: manifest.clone(),
                        placed_by,
                        since: now,
                        verified_at: now,
                    });
                }
                Ok(Some((FdKind::KvCache, memory))) => {
                    let source = KvSource {
                        child: placed_by,
                        bytes: report.memory.kv_capacity_bytes,
                    };
                    seat.kv = Some(RetainedKv {
                        memory: memory.into(),
                        source,
                    });
                }
                Ok(Some((FdKind::SecondSocket, _))) => {
                    let message = "a descriptor socket from a child".to_owned();
                    return Err(ChildEvent::Violation(message));
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(ChildEvent::Violation(error.to_string()));
                }
                Err(error) => warn!(%error, "descriptor_not_kept"),
            }
        }
        child.watch_fd_socket();
        // An incomplete set of files is no model.
        if self.model.is_none() && files.len() == model_files {
            self.model = Some(files.into());
        }
        if self.model.is_none() {
            warn!("model_file_not_handed_over");
        }
        if self.weights.is_none() {
            warn!("weights_not_handed_over");
        }
        Ok(())
    }

    /// KV cache of `child` of this device, for children of other devices.
    pub(super) fn kv_of(&self, child: Generation) -> Option<(&MemoryFd, KvSource)> {
        let kv = self.kv.as_ref().filter(|kv| kv.source.child == child)?;
        Some((&kv.memory, kv.source))
    }

    /// Releases the KV cache of a dead child if no successor copies from it. Children of other devices hold their own
    /// descriptors until they have copied.
    pub(super) fn release_kv(&mut self, child: Generation) {
        self.kv = self.kv.take().filter(|kv| kv.source.child != child);
    }

    /// Releases weights that are suspect because of a death: the child died during their takeover (`unfinished`), or
    /// for lack of memory. In the latter case they stay while other children map them, because a release would free
    /// nothing.
    pub(super) fn reaped(&mut self, cause: &DeathCause, unfinished: bool, others: bool) {
        let is_unfinished = unfinished && *cause != DeathCause::Dismissed;
        let is_too_large = *cause == DeathCause::OomKilled && !others;
        if is_unfinished || is_too_large {
            self.let_go(cause);
        }
    }

    /// Releases the weights and the KV cache that was computed with them.
    pub(super) fn let_go(&mut self, cause: &DeathCause) {
        self.kv = None;
        if let Some(weights) = self.weights.take() {
            let bytes = weights.manifest.bytes;
            warn!(reason = %cause, bytes, "weights_let_go");
        }
    }
}

fn hand_out(seat: &mut Seat, article: FdKind, descriptor: &impl AsFd) -> bool {
    let Some(child) = &mut seat.child else {
        return false;
    };
    child
        .hand_out(article, descriptor)
        .inspect_err(|error| warn!(%error, ?article, "descriptor_not_sent"))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_and_a_shared_kv_cache_stay_taken_when_a_child_dies() {
        let file = || MemoryFd::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let mut retained = RetainedMemory::default();
        assert_eq!(retained.bytes(), 0);
        let now = Instant::now();
        retained.weights = Some(RetainedWeights {
            memory: file(),
            manifest: WeightsManifest {
                bytes: 100,
                ..WeightsManifest::default()
            },
            placed_by: Generation(1),
            since: now,
            verified_at: now,
        });
        retained.kv = Some(RetainedKv {
            memory: file(),
            source: KvSource {
                child: Generation(1),
                bytes: 20,
            },
        });
        assert_eq!(retained.bytes(), 120);
    }

    #[test]
    fn the_kv_cache_of_a_dead_child_is_let_go_and_that_of_the_next_one_stays() {
        let kv_of = |child| RetainedKv {
            memory: OwnedFd::from(std::fs::File::open("/dev/null").unwrap()).into(),
            source: KvSource {
                child: Generation(child),
                bytes: 20,
            },
        };
        let mut retained = RetainedMemory {
            kv: Some(kv_of(2)),
            ..RetainedMemory::default()
        };
        retained.release_kv(Generation(1));
        assert!(retained.kv_of(Generation(2)).is_some());
        assert!(retained.kv_of(Generation(1)).is_none(), "it has none here");
        retained.release_kv(Generation(2));
        assert_eq!(retained.bytes(), 0);
    }

    #[test]
    fn a_child_that_lays_out_its_arenas_in_another_way_is_given_no_weights() {
        let now = Instant::now();
        let retained = RetainedMemory {
            weights: Some(RetainedWeights {
                memory: OwnedFd::from(std::fs::File::open("/dev/null").unwrap()).into(),
                manifest: WeightsManifest {
                    arena_layout: 7,
                    ..WeightsManifest::default()
                },
                placed_by: Generation(1),
                since: now,
                verified_at: now,
            }),
            ..RetainedMemory::default()
        };
        for (layout, given) in [(Some(7), true), (Some(8), false), (None, false)] {
            let weights = retained.weights_laid_out_as(layout);
            assert_eq!(weights.is_some(), given, "{layout:?}");
        }
    }

    #[test]
    fn weights_are_let_go_where_a_child_was_not_done_with_them_or_where_that_frees_their_memory() {
        let now = Instant::now();
        let kill = DeathCause::Signalled(9);
        for (cause, unfinished, others, kept) in [
            (kill.clone(), true, false, false),
            (DeathCause::Dismissed, true, false, true),
            (kill, false, false, true),
            (DeathCause::OomKilled, false, false, false),
            (DeathCause::OomKilled, false, true, true),
        ] {
            let memory = OwnedFd::from(std::fs::File::open("/dev/null").unwrap()).into();
            let weights = RetainedWeights {
                memory,
                manifest: WeightsManifest::default(),
                placed_by: Generation(1),
                since: now,
                verified_at: now,
            };
            let mut retained = RetainedMemory {
                model: None,
                weights: Some(weights),
                kv: None,
            };
            retained.reaped(&cause, unfinished, others);
            let is_kept = retained.snapshot().is_some();
            assert_eq!(is_kept, kept, "{unfinished}, {others}, {cause}");
        }
    }
}
