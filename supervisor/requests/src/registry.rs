//! Admission control: a bounded number of live requests, with a reserve for clients that have none.

use crate::fingerprint::Fingerprint;
use crate::logprob_memory::{LogprobMemory, LogprobReservation, MOST_BYTES};
use crate::quarantine::{Quarantine, Quarantined};
use crate::record::{NewRequest, Record};
use crate::refusal::Refusal;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};
use worker_orcd_ipc::{ClientId, RequestId};

#[derive(Debug)]
pub struct Registry {
    max_queue: usize,
    /// Reservations are made under the lock of `inner`. Their release needs no lock.
    logprob_memory: LogprobMemory,
    inner: Mutex<Inner>,
    quarantine: Mutex<Quarantine>,
}

#[derive(Debug)]
struct Inner {
    next_id: u64,
    by_job: HashMap<String, Entrant>,
    /// Number of live requests of each client that has any.
    by_client: HashMap<ClientId, usize>,
    /// Number of sequences that the children decode at once.
    slots: usize,
    closed: Option<Refusal>,
    /// Moving average of the duration of requests, in seconds.
    mean_seconds: f64,
}

#[derive(Debug)]
struct Entrant {
    id: RequestId,
    client: ClientId,
    part_of: Option<String>,
}

#[derive(Debug)]
pub struct Admitted {
    pub id: RequestId,
    /// Reserved memory for log probabilities of the prompt.
    pub room: Option<LogprobReservation>,
}

/// One in this many places of the queue is reserved for clients without a request.
const PLACES_PER_KEPT_ONE: usize = 8;

/// Weight of a new duration in the moving average, which covers about the last dozen requests.
const MEAN_WEIGHT: f64 = 1.0 / 8.0;

/// Range of `retry_after`, in seconds. A shorter delay causes busy retries, a longer one loses clients.
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
            logprob_memory: LogprobMemory::default(),
            inner: Mutex::new(inner),
            quarantine: Mutex::new(Quarantine::new(quarantine_for)),
        }
    }

    /// Makes all later requests have larger ids than `number`.
    pub fn number_behind(&self, number: u64) {
        let mut inner = self.inner.lock();
        inner.next_id = inner.next_id.max(number);
    }

    /// Checks a request against the quarantine.
    ///
    /// # Errors
    /// [`Refusal::Quarantined`].
    pub fn inspect(&self, request: &NewRequest, now: Instant) -> Result<(), Refusal> {
        // With an empty quarantine no prompt need be hashed.
        if self.quarantine.lock().is_empty() {
            return Ok(());
        }
        let fingerprint = Fingerprint::of(request);
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

    /// Admits all requests of one client or none, and numbers them in order.
    ///
    /// # Errors
    /// The [`Refusal`] for the client.
    pub fn admit(&self, requests: &[NewRequest]) -> Result<Vec<Admitted>, Refusal> {
        let mut inner = self.inner.lock();
        if let Some(refusal) = &inner.closed {
            return Err(refusal.clone());
        }
        let is_known = |request: &NewRequest| inner.by_job.contains_key(&request.job_id);
        if requests.iter().any(is_known) {
            return Err(Refusal::Duplicate);
        }
        let places = (inner.slots + self.max_queue).saturating_sub(inner.by_job.len());
        let retry_after = inner.retry_after();
        if places < requests.len() {
            return Err(Refusal::QueueFull { retry_after });
        }
        let has_others = |it: &NewRequest| inner.by_client.contains_key(&it.client);
        let shares = requests.len() > 1 || requests.iter().any(has_others);
        // The requests would take a reserved place.
        if shares && places - requests.len() < self.kept_places() {
            return Err(Refusal::ShareFull { retry_after });
        }
        let bytes = requests.iter().map(NewRequest::prompt_logprob_bytes).sum();
        if bytes > MOST_BYTES {
            return Err(Refusal::TellsTooMuch { bytes });
        }
        if bytes > self.logprob_memory.left() {
            return Err(Refusal::ToldPromptsFull { retry_after });
        }
        let enter = |it: &NewRequest| Admitted {
            id: inner.enter(it),
            room: self.logprob_memory.take(it.prompt_logprob_bytes()),
        };
        Ok(requests.iter().map(enter).collect())
    }

    /// Maximum number of requests that one call can admit on an idle worker.
    #[must_use]
    pub fn most_together(&self) -> usize {
        let capacity = self.capacity();
        capacity.saturating_sub(self.kept_places()).max(1)
    }

    /// Admits a restored request under its old id.
    pub fn readmit(&self, record: &Record) {
        let mut inner = self.inner.lock();
        let entrant = Entrant {
            id: record.id,
            client: record.client,
            part_of: record.part_of.clone(),
        };
        inner.by_job.insert(record.job_id.clone(), entrant);
        *inner.by_client.entry(record.client).or_default() += 1;
    }

    /// Reserves memory for the prompt log probabilities of a restored request, even beyond the limit: the earlier
    /// supervisor had admitted it.
    pub fn room_for(&self, record: &Record) -> Option<LogprobReservation> {
        self.logprob_memory.take(record.prompt_logprob_bytes())
    }

    /// Number of reserved places. A queue of one place has none.
    fn kept_places(&self) -> usize {
        match self.max_queue {
            0 | 1 => 0,
            max_queue => max_queue.div_ceil(PLACES_PER_KEPT_ONE),
        }
    }

    /// Releases the place and the job id of an ended request. `took` is its duration.
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

    /// Ids of the job, or of all parts of the answer, with this id. `owner`: if set, only requests of that client are
    /// found.
    #[must_use]
    pub fn find(&self, job_id: &str, owner: Option<ClientId>) -> Vec<RequestId> {
        let inner = self.inner.lock();
        let found: Vec<_> = match inner.by_job.get(job_id) {
            Some(job) => vec![job],
            None => {
                let is_part = |it: &&Entrant| it.part_of.as_deref() == Some(job_id);
                inner.by_job.values().filter(is_part).collect()
            }
        };
        let is_theirs = |it: &&Entrant| owner.is_none_or(|owner| owner == it.client);
        let theirs = found.into_iter().filter(is_theirs);
        theirs.map(|it| it.id).collect()
    }

    #[must_use]
    pub fn live(&self) -> usize {
        self.inner.lock().by_job.len()
    }

    /// Maximum number of live requests.
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

    /// Refuses all later requests. Only the first reason counts.
    pub fn close(&self, refusal: Refusal) {
        self.inner.lock().closed.get_or_insert(refusal);
    }
}

impl Inner {
    fn enter(&mut self, request: &NewRequest) -> RequestId {
        self.next_id += 1;
        let (id, client) = (RequestId(self.next_id), request.client);
        let entrant = Entrant {
            id,
            client,
            part_of: request.part_of.clone(),
        };
        self.by_job.insert(request.job_id.clone(), entrant);
        *self.by_client.entry(client).or_default() += 1;
        id
    }

    fn leave(&mut self, client: ClientId) {
        if let Entry::Occupied(mut live) = self.by_client.entry(client) {
            *live.get_mut() -= 1;
            if *live.get() == 0 {
                live.remove();
            }
        }
    }

    /// Estimated time until a place is free, from the average duration of requests.
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
    use crate::error_code::ErrorCode;
    use crate::testing::request;

    const ANN: ClientId = ClientId(1);
    const BOB: ClientId = ClientId(2);
    const CLAIRE: ClientId = ClientId(3);

    fn asked(job_id: &str, client: ClientId) -> NewRequest {
        NewRequest {
            client,
            ..request(job_id)
        }
    }

    fn admit(registry: &Registry, job_id: &str, client: ClientId) -> Result<RequestId, Refusal> {
        let admitted = registry.admit(&[asked(job_id, client)])?;
        Ok(admitted[0].id)
    }

    #[test]
    fn parts_of_an_answer_come_in_together_or_not_at_all_and_are_found_by_its_name() {
        let parts = |answer: &str, count: usize| -> Vec<_> {
            let part = |number| NewRequest {
                part_of: Some(answer.to_owned()),
                ..asked(&format!("{answer}.{number}"), ANN)
            };
            (0..count).map(part).collect()
        };
        // Eight places, one of them reserved.
        let registry = Registry::new(2, 6, Duration::ZERO);
        assert_eq!(registry.most_together(), 7);
        for (count, code) in [(9, "is full"), (8, "kept")] {
            let refusal = registry.admit(&parts("a", count)).unwrap_err();
            assert!(refusal.to_string().contains(code), "{refusal}");
        }
        assert_eq!(registry.live(), 0);
        let ids = registry.admit(&parts("a", 5)).unwrap();
        let ids: Vec<_> = ids.into_iter().map(|it| it.id).collect();
        assert!(ids.is_sorted());
        assert!(
            registry.admit(&parts("b", 3)).is_err(),
            "two places are left for the client"
        );
        assert_eq!(registry.live(), 5);
        registry.release("a.1", ids[1], Duration::ZERO);
        let mut found = registry.find("a", Some(ANN));
        found.sort();
        assert_eq!(found, [ids[0], ids[2], ids[3], ids[4]]);
        assert_eq!(registry.find("a.2", None), [ids[2]]);
        assert_eq!(registry.find("a", Some(BOB)), []);
        let again = registry.admit(&parts("a", 1));
        assert!(matches!(again, Err(Refusal::Duplicate)));
    }

    #[test]
    fn a_live_job_id_is_refused_and_a_released_one_is_not() {
        let registry = Registry::new(1, 1, Duration::ZERO);
        let id = admit(&registry, "a", ANN).unwrap();
        assert_eq!(admit(&registry, "a", ANN), Err(Refusal::Duplicate));
        registry.release("a", id, Duration::ZERO);
        assert_ne!(
            admit(&registry, "a", ANN).unwrap(),
            id,
            "ids are never reused"
        );
    }

    #[test]
    fn beyond_slots_and_queue_nobody_comes_in_until_somebody_leaves() {
        let registry = Registry::new(2, 1, Duration::ZERO);
        let first = admit(&registry, "1", ANN).unwrap();
        admit(&registry, "2", ANN).unwrap();
        admit(&registry, "3", ANN).unwrap();
        assert!(matches!(
            admit(&registry, "4", ANN),
            Err(Refusal::QueueFull { .. })
        ));
        registry.release("1", first, Duration::from_secs(1));
        admit(&registry, "4", ANN).unwrap();
    }

    #[test]
    fn one_client_cannot_take_every_place() {
        let registry = Registry::new(4, 16, Duration::ZERO);
        let fill = |client: ClientId| {
            (0..)
                .map(|n| admit(&registry, &format!("{client:?} {n}"), client))
                .take_while(Result::is_ok)
                .count()
        };
        assert_eq!(fill(ANN), 18, "two of sixteen places are reserved");
        let refusal = admit(&registry, "more", ANN).unwrap_err();
        assert!(matches!(refusal, Refusal::ShareFull { .. }), "{refusal}");
        assert_eq!(refusal.code(), ErrorCode::QueueFull);
        assert!(refusal.retry_after().is_some());
        assert_eq!(fill(BOB), 1);
        assert_eq!(fill(CLAIRE), 1);
        assert_eq!(fill(ClientId(4)), 0, "the reserve is used up");
        let bobs = registry.find(&format!("{BOB:?} 0"), Some(BOB))[0];
        registry.release(&format!("{BOB:?} 0"), bobs, Duration::ZERO);
        assert_eq!(fill(ANN), 0);
        assert_eq!(fill(BOB), 1, "the client has no other request");
    }

    #[test]
    fn the_retry_hint_grows_with_the_queue_and_stays_sane() {
        let hint = |mean: Duration| {
            let registry = Registry::new(1, 3, Duration::ZERO);
            for _ in 0..64 {
                let id = admit(&registry, "warm", ANN).unwrap();
                registry.release("warm", id, mean);
            }
            for (client, job) in ["1", "2", "3", "4"].into_iter().enumerate() {
                admit(&registry, job, ClientId(client as u64)).unwrap();
            }
            match admit(&registry, "5", ANN) {
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
        assert_eq!(admit(&registry, "a", ANN), Err(Refusal::Draining));
    }
}
