//! Which request is with which child.

use super::ServedBy;
use super::devices::{Bond, Devices};
use super::dispatch::{Dispatch, Place};
use super::probation::{Inquest, Verdict};
use crate::fingerprint::Fingerprint;
use crate::kin::Kin;
use crate::placement::{Hold, Stage};
use crate::prefixes::{Chain, Key, Prefixes};
use crate::record::{OnFault, Record};
use crate::suspicion::{Sighting, Suspicion, Toll};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU8;
use std::sync::Arc;
use tracing::{info, warn};
use worker_orcd_ipc::{RequestId, SealedPages};
use worker_orcd_lifecycle::SeatId;

#[derive(Debug)]
pub(super) struct Assignments {
    /// Requests by number, hence in the order of arrival.
    pub(super) live: BTreeMap<RequestId, Live>,
    /// One for each seat: two for each device.
    pub(super) seats: Vec<Dispatch>,
    devices: Devices,
    /// Each of them runs alone in its seat, in this order.
    pub(super) suspects: BTreeSet<RequestId>,
    /// Where there is a choice of devices, what a child has computed before is known by it.
    pub(super) key: Option<Key>,
}

#[derive(Debug)]
pub(super) struct Live {
    pub(super) record: Arc<Record>,
    pub(super) place: Place,
    /// What it takes of the child that has it.
    pub(super) hold: Hold,
    /// Of its prompt.
    pub(super) chain: Chain,
    /// It was called back to go there.
    pub(super) goes_to: Option<SeatId>,
    /// It was called back to go elsewhere, once: nobody goes to and fro.
    pub(super) was_moved: bool,
    /// The children that may go on with it.
    pub(super) bond: Bond,
    /// Length of its history when the child got it.
    pub(super) given_at: u32,
    /// The child that it left before that one was buried.
    left: Option<Left>,
    suspicion: Suspicion,
    /// Pages of a child that hold its first tokens.
    pub(super) sealed: Option<SealedPages>,
    /// Kin of that child; `None` where another supervisor had it.
    pub(super) sealed_by: Option<Kin>,
}

/// A child that a request left, and the request as it was then.
#[derive(Debug, Clone, Copy)]
struct Left {
    seat: SeatId,
    given_at: u32,
    history: u32,
}

impl Assignments {
    pub(super) fn new(devices: NonZeroU8) -> Self {
        let seats = 2 * usize::from(devices.get());
        Self {
            live: BTreeMap::new(),
            seats: (0..seats).map(|_| Dispatch::default()).collect(),
            devices: Devices::new(devices),
            suspects: BTreeSet::new(),
            key: (devices.get() > 1).then(Key::default),
        }
    }

    // === looking ===

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.live.keys().copied().collect()
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.live.values().map(|live| &*live.record)
    }

    /// With the pages of a child that hold its first tokens.
    pub(super) fn records_with_pages(
        &self,
    ) -> impl Iterator<Item = (&Record, Option<&SealedPages>)> {
        let live = self.live.values();
        live.map(|live| (&*live.record, live.sealed.as_ref()))
    }

    /// Another child has sealed pages of it.
    pub(super) fn has_pages(&mut self, id: RequestId, sealed: SealedPages) {
        if let Some(live) = self.live.get_mut(&id) {
            live.sealed = Some(sealed);
        }
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Live> {
        self.live.get(&id)
    }

    /// The request, if the child of that seat has it.
    pub(super) fn get_with(&self, id: RequestId, seat: SeatId) -> Option<&Live> {
        let live = self.get(id);
        live.filter(|live| live.place.seat() == Some(seat))
    }

    /// As [`get_with`](Self::get_with).
    pub(super) fn get_mut_with(&mut self, id: RequestId, seat: SeatId) -> Option<&mut Live> {
        let live = self.live.get_mut(&id);
        live.filter(|live| live.place.seat() == Some(seat))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Live> {
        self.live.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Live> {
        self.live.values_mut()
    }

    pub(super) fn place(&self, id: RequestId) -> Option<Place> {
        self.get(id).map(|live| live.place)
    }

    /// Requests that the present child of a seat was given, in the order of arrival.
    pub(super) fn of(&self, seat: SeatId) -> impl Iterator<Item = &Live> {
        let live = self.live.values();
        live.filter(move |live| live.place.seat() == Some(seat))
    }

    /// Those that a child was given.
    pub(super) fn with_child(&self) -> usize {
        let seats = self.live.values().filter_map(|live| live.place.seat());
        seats.count()
    }

    pub(super) fn suspects(&self) -> &BTreeSet<RequestId> {
        &self.suspects
    }

    pub(super) fn seat(&mut self, seat: SeatId) -> &mut Dispatch {
        &mut self.seats[usize::from(seat.0)]
    }

    pub(super) fn devices(&self) -> &Devices {
        &self.devices
    }

    pub(super) fn devices_mut(&mut self) -> &mut Devices {
        &mut self.devices
    }

    /// A child serves in this seat.
    pub(super) fn open(&mut self, seat: SeatId, by: ServedBy) {
        self.devices.serves(seat.device(), by.kin.clone());
        let prefixes = self.key.as_ref().map(|_| Prefixes::new(by.kv_tokens));
        let dispatch = self.seat(seat);
        dispatch.prefixes = prefixes;
        dispatch.open(by);
    }

    /// The child of this seat computes the prompt of this request.
    pub(super) fn begun(&mut self, id: RequestId, seat: SeatId) {
        self.advance(id, seat, Stage::Begun);
    }

    /// The child of this seat has told a token of this request.
    pub(super) fn streams(&mut self, id: RequestId, seat: SeatId) {
        self.advance(id, seat, Stage::Streams);
        self.level();
    }

    fn advance(&mut self, id: RequestId, seat: SeatId, stage: Stage) {
        let dispatch = &mut self.seats[usize::from(seat.0)];
        let live = self.live.get_mut(&id);
        let live = live.filter(|live| live.place.seat() == Some(seat));
        if let Some(live) = live.filter(|live| live.hold.stage() != Stage::Streams) {
            dispatch.burden.advance(&mut live.hold, stage);
            dispatch.queue.remove(&id);
        }
    }

    /// What the child of this seat computed is being told: only its kin can go on.
    pub(super) fn bind(&mut self, id: RequestId, seat: SeatId) {
        let Some(kin) = self.seat(seat).kin().cloned() else {
            return;
        };
        if let Some(live) = self.live.get_mut(&id) {
            live.bond = Bond::To(kin);
        }
    }

    pub(super) fn all_seats(&self) -> impl Iterator<Item = SeatId> + use<> {
        (0..).map(SeatId).take(self.seats.len())
    }

    pub(super) fn seats_mut(&mut self) -> impl Iterator<Item = &mut Dispatch> {
        self.seats.iter_mut()
    }

    // === a request ===

    /// Admits a request, which goes to a child if one may have it.
    pub(super) fn admit(&mut self, record: Arc<Record>) {
        let id = record.id;
        let key = self.key.as_ref();
        let live = Live {
            bond: Bond::of(&record),
            chain: key.map_or_else(Chain::default, |key| key.chain(&record.prompt)),
            record,
            place: Place::Waiting,
            hold: Hold::default(),
            goes_to: None,
            was_moved: false,
            given_at: 0,
            left: None,
            suspicion: Suspicion::default(),
            sealed: None,
            sealed_by: None,
        };
        self.live.insert(id, live);
        if let Some(seat) = self.seat_for(id) {
            self.hand_over(id, seat);
        }
    }

    /// Removes a request that ends. [`Self::fill_gap`] gives others its turn.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<Arc<Record>> {
        let mut live = self.live.remove(&id)?;
        if let Some(seat) = live.place.seat() {
            let dispatch = &mut self.seats[usize::from(seat.0)];
            dispatch.forget(id, live.hold);
            // The next request may be the next one of this conversation.
            if let (Some(key), Some(prefixes)) = (&self.key, &mut dispatch.prefixes) {
                let progress = live.record.progress.lock();
                key.lengthen(&mut live.chain, &live.record.prompt, progress.generated());
                prefixes.note(&live.chain);
            }
        }
        Some(live.record)
    }

    /// The last suspect gives way to everybody, any other end may leave the child to the next.
    pub(super) fn fill_gap(&mut self, removed: RequestId) {
        let was_suspect = self.suspects.remove(&removed);
        if was_suspect || !self.suspects.is_empty() {
            self.hand_out();
        } else {
            self.level();
        }
    }

    /// Puts a request whose child is gone back to those who wait.
    pub(super) fn interrupt(&mut self, id: RequestId, seat: SeatId) -> Option<&Live> {
        if self.place(id)?.seat() != Some(seat) {
            return None;
        }
        self.vacate(id);
        self.get(id)
    }

    /// No child has it any more.
    pub(super) fn vacate(&mut self, id: RequestId) {
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        if let Some(seat) = live.place.seat() {
            self.seats[usize::from(seat.0)].forget(id, live.hold);
            live.place = Place::Waiting;
        }
    }

    /// Requests of a seat that no other death has met at the place where they are, so that its own makes
    /// none of them a suspect, and that are to go on. They are noted as they are now.
    pub(super) fn depart(&mut self, seat: SeatId) -> Vec<RequestId> {
        let departed: Vec<_> = self.may_depart(seat).collect();
        for id in &departed {
            self.note_departure(*id, seat);
        }
        departed
    }

    /// Those whom [`depart`](Self::depart) would have go.
    pub(super) fn may_depart(&self, seat: SeatId) -> impl Iterator<Item = RequestId> {
        let may_depart = self.live.values().filter(move |live| {
            let goes_on = live.record.on_fault == OnFault::Resume;
            let is_with = live.place == Place::With(seat);
            let is_clean = || live.suspicion.is_clean_at(live.history());
            is_with && goes_on && live.left.is_none() && is_clean()
        });
        may_depart.map(|live| live.record.id)
    }

    pub(super) fn note_departure(&mut self, id: RequestId, seat: SeatId) {
        if let Some(live) = self.live.get_mut(&id) {
            live.left = Some(Left {
                seat,
                given_at: live.given_at,
                history: live.history(),
            });
        }
    }

    /// Requests that the dead child of a seat had, also those that have left it.
    pub(super) fn bereft(&self, seat: SeatId) -> Vec<RequestId> {
        let had = |live: &&Live| {
            live.place.seat() == Some(seat) || live.left.is_some_and(|left| left.seat == seat)
        };
        let had = self.live.values().filter(had);
        had.map(|live| live.record.id).collect()
    }

    /// How many they were.
    pub(super) fn forget_left(&mut self, seat: SeatId) -> usize {
        let live = self.live.values_mut();
        let left = live.filter_map(|live| live.left.take_if(|left| left.seat == seat));
        left.count()
    }

    // === suspects ===

    /// The verdict of a death about a request that was with the child.
    pub(super) fn accuse(&mut self, id: RequestId, of: &Inquest<'_>, toll: Toll) -> Verdict {
        let Some(live) = self.live.get_mut(&id) else {
            return Verdict::Unchanged;
        };
        let left = live.left.filter(|left| left.seat == of.seat);
        let (history, given_at) = match left {
            Some(left) => (left.history, left.given_at),
            None => (live.history(), live.given_at),
        };
        let spot = of.scene.spot(id, history, history > given_at);
        if spot.is_none() && !of.may_be_beside_a_step() {
            return Verdict::Unchanged;
        }
        let alone = of.alone && self.suspects.contains(&id);
        let is_at_its_place = live.suspicion.note(Sighting {
            spot,
            history,
            signature: (of.cause.manner(), of.scene.within),
            alone,
        });
        let is_suspect = live.suspicion.is_suspect();
        let job_id = live.record.job_id.as_str();
        if live.suspicion.is_proven(toll) {
            let deaths = live.suspicion.deaths();
            return Verdict::Proven { deaths };
        }
        if is_suspect {
            // What kills may lie in them, and their memory is waited for.
            live.sealed = None;
        }
        if is_suspect && self.suspects.insert(id) {
            warn!(job_id, request = id.0, "job_on_probation");
            return Verdict::OnProbation;
        }
        if !is_suspect && self.suspects.remove(&id) {
            info!(job_id, request = id.0, "job_off_probation");
        }
        match alone && is_at_its_place {
            true => Verdict::AloneAtItsPlace,
            false => Verdict::Unchanged,
        }
    }

    /// The same request in other jobs would kill as many children again; one that got past the fatal step
    /// has shown that it does not.
    pub(super) fn twins(&self, fingerprint: Fingerprint) -> Vec<RequestId> {
        let live = self.live.values();
        let may_kill = live.filter(|it| self.suspects.contains(&it.record.id) || !it.has_tokens());
        let twins = may_kill.filter(|it| Fingerprint::of(&it.record) == fingerprint);
        twins.map(|live| live.record.id).collect()
    }

    /// Called for each token of a suspect.
    pub(super) fn acquit_if_past(&mut self, id: RequestId) {
        let Some(live) = self.live.get(&id) else {
            return;
        };
        if live.suspicion.is_acquitted_at(live.history()) {
            info!(job_id = live.record.job_id, request = id.0, "job_cleared");
            self.suspects.remove(&id);
            self.hand_out();
        }
    }

    /// A child has said its last word on a request. That one may wait for it, and a suspect until the child has
    /// nothing else.
    pub(super) fn hand_out_after(&mut self, left: RequestId) {
        if !self.suspects.is_empty() || self.place(left) == Some(Place::Waiting) {
            self.hand_out();
        }
    }
}

impl Live {
    /// Tokens of its prompt and its answer.
    pub(super) fn history(&self) -> u32 {
        let tokens = self.record.progress.lock().tokens_out();
        self.record.tokens_in().saturating_add(tokens)
    }

    /// It has tokens of the child that has it.
    pub(super) fn streams(&self) -> bool {
        self.hold.stage() == Stage::Streams
    }

    fn has_tokens(&self) -> bool {
        self.record.progress.lock().tokens_out() > 0
    }
}
