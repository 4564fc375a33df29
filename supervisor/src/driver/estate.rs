//! The driver's end for another one's beginning: what it leaves, and what it finds.

use super::{Driver, Keeping};
use crate::engine::Inheritance;
use crate::error_code::ErrorCode;
use crate::estate::{EngineEstate, EngineNote};
use crate::requests::Failure;
use crate::requests::control::Control;
use crate::requests::orphans::PATIENCE;
use crate::requests::record::Record;
use crate::requests::wal::{Clock, Wal};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tokio::sync::mpsc::WeakUnboundedSender;
use tracing::{error, info, warn};

/// What is known of another driver's children, and what was told of these.
#[derive(Debug, Default)]
pub(super) struct Heritage {
    /// Digest of the model that another supervisor served, until one serves here.
    digest: Option<[u8; 32]>,
    /// Size of the KV cache of that one's child.
    pub(super) kv_bytes: Option<u64>,
    /// What would be left to another driver, as it was last told.
    told: EngineNote,
}

impl Driver {
    /// Goes on with what another driver has left; before the first turn.
    pub(super) fn inherit(
        &mut self,
        inheritance: Inheritance,
        controls: WeakUnboundedSender<Control>,
    ) {
        let now = self.now;
        match Wal::create(now) {
            Ok(wal) => self.requests.keep_log(wal),
            Err(error) => warn!(%error, "wal_missing"),
        }
        let Inheritance { estate, requests } = inheritance;
        self.heritage.digest = estate.note.digest;
        self.heritage.kv_bytes = estate.note.kv_bytes;
        self.keeping = Keeping::inherited(now, estate);
        if requests.is_empty() {
            return;
        }
        let clock = Clock::at(now);
        info!(
            count = requests.len(),
            weights_kept = self.keeping.bytes() > 0,
            "requests_restored"
        );
        let shared = &self.handles.shared;
        for mut request in requests {
            let sealed = request.sealed.take();
            let has_ended = request.end.is_some();
            let record = Arc::new(Record::restored(request, clock));
            if !has_ended {
                shared.registry.readmit(&record);
            }
            shared.orphans.add(Arc::clone(&record));
            self.requests.restore(record, sealed, now);
        }
        self.requests.wake();
        let shared = Arc::clone(shared);
        tokio::spawn(async move { shared.orphans.give_up(PATIENCE, controls).await });
    }

    /// Ends everything, also for whoever submitted in the last moment.
    pub(super) fn say_goodbye(mut self) {
        for record in self.handles.close() {
            self.requests.submit(record);
        }
        let failure = Failure::new(ErrorCode::WorkerUnhealthy, "the worker has ended");
        self.requests.fail_all(&failure, self.now);
        self.requests.wake();
    }

    /// Ends, with every child, and leaves everything else.
    pub(super) fn leave(mut self) -> EngineEstate {
        let wal = self.requests.take_log();
        let wal = wal.as_ref().and_then(duplicate);
        let note = EngineNote {
            last_child: Some(self.worker.newest()),
            ..self.estate_note()
        };
        let kv = self.keeping.copy_kv();
        let note = EngineNote {
            kv: kv.as_ref().map(|(_, source)| *source),
            ..note
        };
        EngineEstate {
            wal,
            kv: kv.map(|(memory, _)| memory),
            ..self.keeping.copy(note)
        }
    }

    /// Duplicates of what would be left.
    pub(super) fn estate(&self) -> EngineEstate {
        let wal = self.requests.log().and_then(duplicate);
        EngineEstate {
            wal,
            ..self.keeping.copy(self.estate_note())
        }
    }

    /// Says that something else than before would be left.
    pub(super) fn tell_of_estate(&mut self) {
        let is_told = self.heritage.told.digest.is_some();
        if !is_told && self.model.is_none() && self.heritage.digest.is_none() {
            return;
        }
        // Its size alone is no news.
        let kv_bytes = None;
        let note = self.keeping.note(self.estate_note());
        let note = EngineNote { kv_bytes, ..note };
        if note != self.heritage.told {
            self.heritage.told = note;
            self.handles.estate_changed();
        }
    }

    fn estate_note(&self) -> EngineNote {
        EngineNote {
            model_path: self.settings.load.model_path.clone(),
            device: Some(self.settings.load.device),
            kv_bytes: self.chronicle.kv_bytes().or(self.heritage.kv_bytes),
            digest: self
                .model
                .as_ref()
                .map(|model| model.digest())
                .or(self.heritage.digest),
            ..EngineNote::default()
        }
    }

    /// A model serves. What another one has begun ends here.
    pub(super) fn compare_with_inherited(&mut self, digest: [u8; 32]) {
        if self.heritage.digest.take().is_some_and(|it| it != digest) {
            warn!("inherited_requests_of_another_model");
            let message = "the worker has another model since it was started again";
            let failure = Failure::new(ErrorCode::WorkerUnhealthy, message);
            self.requests.fail_restored(&failure, self.now);
        }
    }
}

/// What cannot be duplicated is missing.
fn duplicate(descriptor: &impl AsFd) -> Option<OwnedFd> {
    let duplicate = descriptor.as_fd().try_clone_to_owned();
    let failed = |error: &io::Error| error!(%error, "descriptor_not_duplicated");
    duplicate.inspect_err(failed).ok()
}
