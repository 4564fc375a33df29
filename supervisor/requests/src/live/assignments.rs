//! Assignment of requests to children.

use super::ServedBy;
use super::devices::{Devices, Pin};
use super::dispatch::{Dispatch, Place};
use super::probation::{Inquest, Verdict};
use crate::determinism::DeterminismClass;
use crate::fingerprint::Fingerprint;
use crate::placement::{Reservation, Stage};
use crate::prefixes::{Chain, Key, Prefixes};
use crate::record::{OnFault, Record};
use crate::suspicion::{DeathEvidence, RecentDeaths, Suspicion};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU8;
use std::sync::Arc;
use tracing::{info, warn};
use worker_orcd_ipc::{RequestId, SealedPages};
use worker_orcd_lifecycle::SeatId;

#[derive(Debug)]
pub(super) struct Assignments {
    /// Requests by id, which is the order of arrival.
    pub(super) live: BTreeMap<RequestId, Live>,
    /// One entry for each seat, two seats for each device.
    pub(super) seats: Vec<Dispatch>,
    devices: Devices,
    /// Requests that must run alone, in the order of their turns.
    pub(super) suspects: BTreeSet<RequestId>,
    /// Hash key for prefixes. `None` on one device: there is no choice to make.
    pub(super) key: Option<Key>,
}

#[derive(Debug)]
pub(super) struct Live {
    pub(super) record: Arc<Record>,
    pub(super) place: Place,
    /// Reservation on the child that has the request.
    pub(super) reservation: Reservation,
    /// Block hashes of the prompt.
    pub(super) chain: Chain,
    /// Destination of a request that was called back for rebalancing.
    pub(super) goes_to: Option<SeatId>,
    /// The request was already rebalanced once, and is not moved again.
    pub(super) was_moved: bool,
    /// Children that may continue the request.
    pub(super) pin: Pin,
    /// Length of the history at the assignment to the present child.
    pub(super) given_at: u32,
    /// Previous child, if the request left it before its death was judged.
    left: Option<Left>,
    suspicion: Suspicion,
    /// Sealed pages with the first tokens of the request.
    pub(super) sealed: Option<SealedPages>,
    /// Determinism class of the child that sealed the pages. `None`: it served an earlier supervisor.
    pub(super) sealed_by: Option<DeterminismClass>,
}

/// A child that a request left, and the lengths of the history at its assignment and at its departure.
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

    // === accessors ===

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.live.keys().copied().collect()
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.live.values().map(|live| &*live.record)
    }

    /// All records, each with the sealed pages of its first tokens.
    pub(super) fn records_with_pages(
        &self,
    ) -> impl Iterator<Item = (&Record, Option<&SealedPages>)> {
        let live = self.live.values();
        live.map(|live| (&*live.record, live.sealed.as_ref()))
    }

    /// Sets the sealed pages of a request to those of an earlier supervisor's child.
    pub(super) fn has_pages(&mut self, id: RequestId, sealed: SealedPages) {
        if let Some(live) = self.live.get_mut(&id) {
            live.sealed = Some(sealed);
        }
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Live> {
        self.live.get(&id)
    }

    /// Returns the request if it is with the child of `seat`.
    pub(super) fn get_with(&self, id: RequestId, seat: SeatId) -> Option<&Live> {
        let live = self.get(id);
        live.filter(|live| live.place.seat() == Some(seat))
    }

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

    /// Requests that are with the present child of a seat, in order of arrival.
    pub(super) fn of(&self, seat: SeatId) -> impl Iterator<Item = &Live> {
        let live = self.live.values();
        live.filter(move |live| live.place.seat() == Some(seat))
    }

    /// Number of requests that are with a child.
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

    /// Opens a seat for a child that serves.
    pub(super) fn open(&mut self, seat: SeatId, by: ServedBy) {
        self.devices.serves(seat.device(), by.class.clone());
        let prefixes = self.key.as_ref().map(|_| Prefixes::new(by.kv_tokens));
        let dispatch = self.seat(seat);
        dispatch.prefixes = prefixes;
        dispatch.open(by);
    }

    /// Notes that the child of this seat computes the prompt of a request.
    pub(super) fn begun(&mut self, id: RequestId, seat: SeatId) {
        self.advance(id, seat, Stage::Begun);
    }

    /// Notes the first token of a request from the child of this seat.
    pub(super) fn streams(&mut self, id: RequestId, seat: SeatId) {
        self.advance(id, seat, Stage::Streams);
        self.rebalance();
    }

    fn advance(&mut self, id: RequestId, seat: SeatId, stage: Stage) {
        let dispatch = &mut self.seats[usize::from(seat.0)];
        let live = self.live.get_mut(&id);
        let live = live.filter(|live| live.place.seat() == Some(seat));
        if let Some(live) = live.filter(|live| live.reservation.stage() != Stage::Streams) {
            dispatch.load.advance(&mut live.reservation, stage);
            dispatch.queue.remove(&id);
        }
    }

    /// Pins a request to the determinism class of this seat's child, because the child's output now reaches the client.
    pub(super) fn bind(&mut self, id: RequestId, seat: SeatId) {
        let Some(class) = self.seat(seat).class().cloned() else {
            return;
        };
        if let Some(live) = self.live.get_mut(&id) {
            live.pin = Pin::To(class);
        }
    }

    pub(super) fn all_seats(&self) -> impl Iterator<Item = SeatId> + use<> {
        (0..).map(SeatId).take(self.seats.len())
    }

    pub(super) fn seats_mut(&mut self) -> impl Iterator<Item = &mut Dispatch> {
        self.seats.iter_mut()
    }

    // === transitions of a request ===

    /// Adds a request and assigns it to a child if one may have it.
    pub(super) fn admit(&mut self, record: Arc<Record>) {
        let id = record.id;
        let key = self.key.as_ref();
        let live = Live {
            pin: Pin::of(&record),
            chain: key.map_or_else(Chain::default, |key| key.chain(&record.prompt)),
            record,
            place: Place::Waiting,
            reservation: Reservation::default(),
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

    /// Removes a request that ends. [`Self::fill_gap`] then assigns other requests.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<Arc<Record>> {
        let mut live = self.live.remove(&id)?;
        if let Some(seat) = live.place.seat() {
            let dispatch = &mut self.seats[usize::from(seat.0)];
            dispatch.forget(id, live.reservation);
            // The next turn of the conversation will begin with this prompt and answer.
            if let (Some(key), Some(prefixes)) = (&self.key, &mut dispatch.prefixes) {
                let progress = live.record.progress.lock();
                key.lengthen(&mut live.chain, &live.record.prompt, progress.generated());
                prefixes.note(&live.chain);
            }
        }
        Some(live.record)
    }

    /// Assigns requests after a removal. The end of a suspect may let all others continue; any other end may allow
    /// rebalancing.
    pub(super) fn fill_gap(&mut self, removed: RequestId) {
        let was_suspect = self.suspects.remove(&removed);
        if was_suspect || !self.suspects.is_empty() {
            self.hand_out();
        } else {
            self.rebalance();
        }
    }

    /// Returns a request of a dead child to the waiting requests.
    pub(super) fn interrupt(&mut self, id: RequestId, seat: SeatId) -> Option<&Live> {
        if self.place(id)?.seat() != Some(seat) {
            return None;
        }
        self.vacate(id);
        self.get(id)
    }

    /// Removes a request from its child, if it has one.
    pub(super) fn vacate(&mut self, id: RequestId) {
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        if let Some(seat) = live.place.seat() {
            self.seats[usize::from(seat.0)].forget(id, live.reservation);
            live.place = Place::Waiting;
        }
    }

    /// Marks as departed, and returns, the requests of a seat that may continue before its death is judged: those to be
    /// resumed that no earlier death has met at their present place. A single death makes no suspect.
    pub(super) fn depart(&mut self, seat: SeatId) -> Vec<RequestId> {
        let departed: Vec<_> = self.may_depart(seat).collect();
        for id in &departed {
            self.note_departure(*id, seat);
        }
        departed
    }

    /// Requests that [`depart`](Self::depart) would return.
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

    /// Requests that were in flight on a dead child, including those that departed earlier.
    pub(super) fn in_flight(&self, seat: SeatId) -> Vec<RequestId> {
        let had = |live: &&Live| {
            live.place.seat() == Some(seat) || live.left.is_some_and(|left| left.seat == seat)
        };
        let had = self.live.values().filter(had);
        had.map(|live| live.record.id).collect()
    }

    /// Clears the departures from a seat. Returns their number.
    pub(super) fn forget_left(&mut self, seat: SeatId) -> usize {
        let live = self.live.values_mut();
        let left = live.filter_map(|live| live.left.take_if(|left| left.seat == seat));
        left.count()
    }

    // === suspects ===

    /// Judges a request that was with a dead child.
    pub(super) fn accuse(
        &mut self,
        id: RequestId,
        of: &Inquest<'_>,
        recent_deaths: RecentDeaths,
    ) -> Verdict {
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
        let is_at_its_place = live.suspicion.note(DeathEvidence {
            spot,
            history,
            signature: (of.cause.manner(), of.scene.within),
            alone,
        });
        let is_suspect = live.suspicion.is_suspect();
        let job_id = live.record.job_id.as_str();
        if live.suspicion.is_proven(recent_deaths) {
            let deaths = live.suspicion.deaths();
            return Verdict::Proven { deaths };
        }
        if is_suspect {
            // The pages may contain the cause of the deaths, and a waiting suspect would delay the release of their KV
            // cache.
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

    /// Suspects and requests without a token that have the same fingerprint. They would kill as many children again; a
    /// request past the fatal step has shown that it does not.
    pub(super) fn twins(&self, fingerprint: Fingerprint) -> Vec<RequestId> {
        let live = self.live.values();
        let may_kill = live.filter(|it| self.suspects.contains(&it.record.id) || !it.has_tokens());
        let twins = may_kill.filter(|it| Fingerprint::of(&it.record) == fingerprint);
        twins.map(|live| live.record.id).collect()
    }

    /// Clears a suspect once it is past its fatal place. Called for each of its tokens.
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

    /// Assigns requests after a child's last report on a request that left it. The request itself may have waited for
    /// that report, and a suspect may have waited for an empty child.
    pub(super) fn hand_out_after(&mut self, left: RequestId) {
        if !self.suspects.is_empty() || self.place(left) == Some(Place::Waiting) {
            self.hand_out();
        }
    }
}

impl Live {
    /// Number of tokens of the prompt and the answer.
    pub(super) fn history(&self) -> u32 {
        let tokens = self.record.progress.lock().tokens_out();
        self.record.tokens_in().saturating_add(tokens)
    }

    /// True once the present child has drawn a token of the request.
    pub(super) fn streams(&self) -> bool {
        self.reservation.stage() == Stage::Streams
    }

    fn has_tokens(&self) -> bool {
        self.record.progress.lock().tokens_out() > 0
    }
}
