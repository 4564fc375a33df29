//! Admission of requests: one door for all, with a bound behind it.

use crate::error_code::ErrorCode;
use crate::requests::fingerprint::Fingerprint;
use crate::requests::quarantine::{Quarantine, Quarantined};
use crate::requests::record::{Failure, NewRequest, Record};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};
use thiserror::Error;
use worker_orcd_ipc::{ClientId, RequestId};

/// Why a request was not accepted. Nothing of it was kept.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("a job with this id is running")]
    Duplicate,
    #[error("the queue is full; try again in {} s", .retry_after.as_secs())]
    QueueFull { retry_after: Duration },
    /// Places are left, but this client has no right to them.
    #[error(
        "this client has requests in the queue, and its last places are kept for others; try again \
         in {} s",
        .retry_after.as_secs()
    )]
    ShareFull { retry_after: Duration },
    #[error("the worker is shutting down")]
    Draining,
    /// The same request killed a child that had nothing else to do.
    #[error(
        "this request killed the children that ran it, and is refused for another {} s",
        .left.as_secs().max(1)
    )]
    Quarantined { left: Duration },
    /// A worker without a model yet, or one that has failed.
    #[error("the worker cannot serve: {0}")]
    Unavailable(String),
}

impl Refusal {
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Duplicate => ErrorCode::DuplicateJob,
            Self::QueueFull { .. } | Self::ShareFull { .. } => ErrorCode::QueueFull,
            Self::Quarantined { .. } => ErrorCode::Quarantined,
            Self::Draining | Self::Unavailable(_) => ErrorCode::WorkerUnhealthy,
        }
    }

    /// Time after which another try may help, where that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::QueueFull { retry_after } | Self::ShareFull { retry_after } => Some(*retry_after),
            Self::Duplicate | Self::Draining | Self::Quarantined { .. } | Self::Unavailable(_) => {
                None
            }
        }
    }

    #[must_use]
    pub fn to_failure(&self) -> Failure {
        Failure::new(self.code(), self.to_string())
    }
}

#[derive(Debug)]
pub struct Registry {
    max_queue: usize,
    inner: Mutex<Inner>,
    quarantine: Mutex<Quarantine>,
}

#[derive(Debug)]
struct Inner {
    next_id: u64,
    by_job: HashMap<String, Entrant>,
    /// Live requests of each client that has any.
    by_client: HashMap<ClientId, usize>,
    /// Sequences that the child decodes at once.
    slots: usize,
    closed: Option<Refusal>,
    /// Mean time that requests took lately, in seconds.
    mean_seconds: f64,
}

#[derive(Debug)]
struct Entrant {
    id: RequestId,
    client: ClientId,
}

/// One place in so many of the queue is kept for clients that have no request here.
const PLACES_PER_KEPT_ONE: usize = 8;

/// The mean follows the last dozen or so.
const MEAN_WEIGHT: f64 = 1.0 / 8.0;

/// Sooner is a busy loop, later is a lost customer.
const RETRY_AFTER_SECONDS: (f64, f64) = (1.0, 60.0);

impl Registry {
    #[must_use]
    pub fn new(slots: usize, max_queue: usize, quarantine_for: Duration) -> Self {
        let inner = Inner {
            next_id: 0,
            by_job: HashMap::new(),
            by_client: HashMap::new(),
            slots,
            closed: None,
            mean_seconds: 0.0,
        };
        Self {
            max_queue,
            inner: Mutex::new(inner),
            quarantine: Mutex::new(Quarantine::new(quarantine_for)),
        }
    }

    /// Requests from now on have larger numbers than `number`.
    pub fn number_behind(&self, number: u64) {
        let mut inner = self.inner.lock();
        inner.next_id = inner.next_id.max(number);
    }

    /// Lets a request in that is not known to kill.
    ///
    /// # Errors
    /// [`Refusal::Quarantined`].
    pub fn inspect(&self, request: &NewRequest, now: Instant) -> Result<(), Refusal> {
        // In a worker that never met one, nobody's prompt is hashed.
        if self.quarantine.lock().is_empty() {
            return Ok(());
        }
        let fingerprint = Fingerprint::of_request(request);
        match self.quarantine.lock().refused_for(fingerprint, now) {
            Some(left) => Err(Refusal::Quarantined { left }),
            None => Ok(()),
        }
    }

    pub fn quarantine(&self, fingerprint: Fingerprint, now: Instant) {
        self.quarantine.lock().add(fingerprint, now);
    }

    #[must_use]
    pub fn quarantined(&self, now: Instant) -> Vec<Quarantined> {
        self.quarantine.lock().list(now)
    }

    /// Lets a job in and numbers it.
    ///
    /// # Errors
    /// The [`Refusal`] that the client is told.
    pub fn admit(&self, job_id: &str, client: ClientId) -> Result<RequestId, Refusal> {
        let mut inner = self.inner.lock();
        if let Some(refusal) = &inner.closed {
            return Err(refusal.clone());
        }
        if inner.by_job.contains_key(job_id) {
            return Err(Refusal::Duplicate);
        }
        let places = (inner.slots + self.max_queue).saturating_sub(inner.by_job.len());
        let retry_after = inner.retry_after();
        if places == 0 {
            return Err(Refusal::QueueFull { retry_after });
        }
        if places <= self.kept_places() && inner.by_client.contains_key(&client) {
            return Err(Refusal::ShareFull { retry_after });
        }
        inner.next_id += 1;
        let id = RequestId(inner.next_id);
        inner
            .by_job
            .insert(job_id.to_owned(), Entrant { id, client });
        *inner.by_client.entry(client).or_default() += 1;
        Ok(id)
    }

    /// Lets a request in that the supervisor before this one let in, with its number.
    pub(crate) fn readmit(&self, record: &Record) {
        let mut inner = self.inner.lock();
        inner.next_id = inner.next_id.max(record.id.0);
        let entrant = Entrant {
            id: record.id,
            client: record.client,
        };
        inner.by_job.insert(record.job_id.clone(), entrant);
        *inner.by_client.entry(record.client).or_default() += 1;
    }

    /// A queue of one is nobody's to share.
    fn kept_places(&self) -> usize {
        match self.max_queue {
            0 | 1 => 0,
            max_queue => max_queue.div_ceil(PLACES_PER_KEPT_ONE),
        }
    }

    /// The job has ended: its id may be used again and its place is free.
    pub fn release(&self, job_id: &str, id: RequestId, took: Duration) {
        let mut inner = self.inner.lock();
        let seconds = took.as_secs_f64();
        inner.mean_seconds += (seconds - inner.mean_seconds) * MEAN_WEIGHT;
        if let Entry::Occupied(entry) = inner.by_job.entry(job_id.to_owned())
            && entry.get().id == id
        {
            let client = entry.remove().client;
            inner.leave(client);
        }
    }

    /// The request of a job; with an owner, only among that client's jobs.
    #[must_use]
    pub fn find(&self, job_id: &str, owner: Option<ClientId>) -> Option<RequestId> {
        let inner = self.inner.lock();
        let found = inner.by_job.get(job_id)?;
        let is_theirs = owner.is_none_or(|owner| owner == found.client);
        is_theirs.then_some(found.id)
    }

    #[must_use]
    pub fn live(&self) -> usize {
        self.inner.lock().by_job.len()
    }

    /// Requests that may be live at once.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.inner.lock().slots + self.max_queue
    }

    pub fn set_slots(&self, slots: usize) {
        self.inner.lock().slots = slots;
    }

    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.lock().closed.is_some()
    }

    #[must_use]
    pub fn is_draining(&self) -> bool {
        matches!(self.inner.lock().closed, Some(Refusal::Draining))
    }

    /// Lets nobody in from now on; the first reason stands.
    pub fn close(&self, refusal: Refusal) {
        self.inner.lock().closed.get_or_insert(refusal);
    }
}

impl Inner {
    fn leave(&mut self, client: ClientId) {
        if let Entry::Occupied(mut live) = self.by_client.entry(client) {
            *live.get_mut() -= 1;
            if *live.get() == 0 {
                live.remove();
            }
        }
    }

    /// About when a place will be free, if requests go on taking as long as they did.
    fn retry_after(&self) -> Duration {
        let per_slot = self.by_job.len() as f64 / self.slots.max(1) as f64;
        let (least, most) = RETRY_AFTER_SECONDS;
        let waiting = (per_slot - 1.0).max(0.0) * self.mean_seconds;
        Duration::from_secs_f64(waiting.clamp(least, most).ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: ClientId = ClientId(1);
    const BOB: ClientId = ClientId(2);
    const CLAIRE: ClientId = ClientId(3);

    #[test]
    fn a_live_job_id_is_refused_and_a_released_one_is_not() {
        let registry = Registry::new(1, 1, Duration::ZERO);
        let id = registry.admit("a", ANN).unwrap();
        assert_eq!(registry.admit("a", ANN), Err(Refusal::Duplicate));
        registry.release("a", id, Duration::ZERO);
        assert_ne!(
            registry.admit("a", ANN).unwrap(),
            id,
            "numbers are never reused"
        );
    }

    #[test]
    fn beyond_slots_and_queue_nobody_comes_in_until_somebody_leaves() {
        let registry = Registry::new(2, 1, Duration::ZERO);
        let first = registry.admit("1", ANN).unwrap();
        registry.admit("2", ANN).unwrap();
        registry.admit("3", ANN).unwrap();
        assert!(matches!(
            registry.admit("4", ANN),
            Err(Refusal::QueueFull { .. })
        ));
        registry.release("1", first, Duration::from_secs(1));
        registry.admit("4", ANN).unwrap();
    }

    #[test]
    fn one_client_cannot_take_every_place() {
        let registry = Registry::new(4, 16, Duration::ZERO);
        let fill = |client: ClientId| {
            (0..)
                .map(|n| registry.admit(&format!("{client:?} {n}"), client))
                .take_while(Result::is_ok)
                .count()
        };
        assert_eq!(fill(ANN), 18, "two of sixteen places are kept");
        let refusal = registry.admit("more", ANN).unwrap_err();
        assert!(matches!(refusal, Refusal::ShareFull { .. }), "{refusal}");
        assert_eq!(refusal.code(), ErrorCode::QueueFull);
        assert!(refusal.retry_after().is_some());
        assert_eq!(fill(BOB), 1);
        assert_eq!(fill(CLAIRE), 1);
        assert_eq!(fill(ClientId(4)), 0, "as many as were kept");
        let bobs = registry.find(&format!("{BOB:?} 0"), Some(BOB)).unwrap();
        registry.release(&format!("{BOB:?} 0"), bobs, Duration::ZERO);
        assert_eq!(fill(ANN), 0);
        assert_eq!(fill(BOB), 1, "he has no other any more");
    }

    #[test]
    fn the_retry_hint_grows_with_the_queue_and_stays_sane() {
        let hint = |mean: Duration| {
            let registry = Registry::new(1, 3, Duration::ZERO);
            for _ in 0..64 {
                let id = registry.admit("warm", ANN).unwrap();
                registry.release("warm", id, mean);
            }
            for (client, job) in ["1", "2", "3", "4"].into_iter().enumerate() {
                registry.admit(job, ClientId(client as u64)).unwrap();
            }
            match registry.admit("5", ANN) {
                Err(Refusal::QueueFull { retry_after }) => retry_after.as_secs(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(hint(Duration::from_millis(1)), 1);
        assert_eq!(hint(Duration::from_secs(4)), 12);
        assert_eq!(hint(Duration::from_secs(3600)), 60);
    }

    #[test]
    fn a_closed_door_says_why_and_the_first_reason_stands() {
        let registry = Registry::new(1, 1, Duration::ZERO);
        registry.close(Refusal::Draining);
        registry.close(Refusal::Unavailable("failed".to_owned()));
        assert_eq!(registry.admit("a", ANN), Err(Refusal::Draining));
    }
}
