//! The driver's end for another one's beginning: what it leaves, and what it finds.

use super::{Driver, Keeping, program};
use crate::child::nursery::see_off;
use crate::child::reap::Process;
use crate::engine::{EngineSettings, Inheritance};
use crate::error_code::ErrorCode;
use crate::estate::living::{LivingChild, Terms};
use crate::estate::{EngineEstate, EngineNote};
use crate::requests::Failure;
use crate::requests::control::Control;
use crate::requests::orphans::PATIENCE;
use crate::requests::record::Record;
use crate::requests::wal::{Clock, Wal};
use futures_util::future::BoxFuture;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::WeakUnboundedSender;
use tokio::sync::oneshot;
use tracing::{error, info, warn};
use worker_orcd_ipc::Generation;
use worker_orcd_lifecycle::{Before, SeatId};

/// Time for the child to let go of what it has. One that takes longer is left behind.
const RECALL: Duration = Duration::from_secs(2);

/// What is known of another driver's children, and what was told of these.
#[derive(Default)]
pub(super) struct Heritage {
    /// The child that serves, until it has a seat here.
    pub(super) child: Option<LivingChild>,
    /// The last child, if none lives on.
    last_child: Option<Generation>,
    /// Digest of the model that another supervisor served, until one serves here.
    digest: Option<[u8; 32]>,
    /// Size of the KV cache of that one's child.
    pub(super) kv_bytes: Option<u64>,
    /// Has its child replaced if its program is another one by now; to be begun when it serves.
    replaced: Option<BoxFuture<'static, ()>>,
    /// What would be left to another driver, as it was last told.
    told: EngineNote,
}

/// The driver is to leave everything to another one.
pub(super) struct Departure {
    heir: oneshot::Sender<EngineEstate>,
    pub(super) until: Instant,
}

impl Heritage {
    /// A child that was made for something else than these settings ask for ends here.
    pub(super) fn of(estate: &mut EngineEstate, settings: &EngineSettings) -> Self {
        let terms = terms(settings);
        let mut child = estate.child.take();
        if let Some(other) = child.take_if(|child| child.note.terms != terms) {
            let pid = other.kill();
            info!(pid, "child_of_other_settings_ended");
            match Process::resume(pid) {
                Ok(process) => drop(tokio::spawn(see_off(process))),
                Err(error) => warn!(%error, "child_not_seen_off"),
            }
        }
        Self {
            child,
            last_child: estate.note.last_child,
            digest: estate.note.digest,
            kv_bytes: estate.note.kv_bytes,
            replaced: None,
            told: EngineNote::default(),
        }
    }

    pub(super) fn before(&self) -> Before {
        match (&self.child, self.last_child) {
            (Some(child), _) => Before::Serving(child.note.generation),
            (None, Some(last)) => Before::Dying(last),
            (None, None) => Before::Nothing,
        }
    }
}

fn terms(settings: &EngineSettings) -> Terms {
    Terms::new(settings.load.clone(), settings.child_confinement)
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
        if let Some(child) = &self.heritage.child {
            let program = self.settings.child_binary.clone();
            let replaced = program::replace(child.note.pid, program, controls.clone());
            self.heritage.replaced = Some(Box::pin(replaced));
        }
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
            let record = Record::restored(request, clock);
            // The log keeps what has ended for a while, by its number.
            shared.registry.number_behind(record.id.0);
            // It was let in once; who comes next waits for it.
            let room = shared.registry.room_for(&record);
            let record = Arc::new(record.with_room(room));
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

    /// Takes from the child what it has, unless nobody serves; everybody's tokens are kept.
    pub(super) fn prepare_to_leave(&mut self, heir: oneshot::Sender<EngineEstate>) {
        self.requests.recall();
        self.departure = Some(Departure {
            heir,
            until: self.now + RECALL,
        });
    }

    /// Who goes on, when everything is as they need it, or cannot be.
    pub(super) fn is_to_leave(&mut self) -> Option<oneshot::Sender<EngineEstate>> {
        let until = self.departure.as_ref()?.until;
        let is_ready = match self.seat_that_serves() {
            Some(seat) => self.requests.is_recalled(seat) && self.seats[seat].may_leave(),
            None => true,
        };
        let departure = self.departure.take_if(|_| is_ready || self.now >= until);
        departure.map(|departure| departure.heir)
    }

    fn seat_that_serves(&self) -> Option<SeatId> {
        let mut seats = self.worker.seats();
        seats.find(|seat| self.worker.seat(*seat).state().takes_work())
    }

    /// Ends, with every child but the one that serves, and leaves everything else.
    pub(super) fn leave(mut self) -> EngineEstate {
        let wal = self.requests.take_log();
        let wal = wal.as_ref().and_then(duplicate);
        let note = EngineNote {
            last_child: Some(self.worker.newest()),
            ..self.estate_note()
        };
        let terms = terms(&self.settings);
        let child = self.seat_that_serves().and_then(|seat| {
            let may_leave = self.requests.is_recalled(seat) && self.seats[seat].may_leave();
            let left = may_leave.then(|| self.seats[seat].leave(terms))?;
            left.inspect_err(|error| warn!(%error, "child_not_left"))
                .ok()
        });
        let kv = self.keeping.copy_kv();
        let note = EngineNote {
            kv: kv.as_ref().map(|(_, source)| *source),
            ..note
        };
        EngineEstate {
            wal,
            kv: kv.map(|(memory, _)| memory),
            child,
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
        if let Some(replaced) = self.heritage.replaced.take() {
            tokio::spawn(replaced);
        }
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
