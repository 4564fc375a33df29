//! Connection slots: their number, and eviction.
//!
//! ```text
//! accepted ─→ waiting ─→ sending ─→ answered ─┐     waiting and sending: evictable,
//!               ↑                             │     the longest waiting first;
//!               └──────── answer flushed ─────┘     answered: not evictable
//! ```
//!
//! A new connection gets a slot as long as one is held without an answer in progress. So idle clients block no others:
//! they only evict each other. A connection is not evicted before its request could be read, so in a burst new
//! connections wait a short time.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// Time after a connection gets a slot in which its request can be read.
const GRACE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct ConnectionSlots {
    limit: usize,
    free: Arc<Semaphore>,
    /// Evictable slots, in the order of eviction.
    open: Mutex<Open>,
    evicted: AtomicU64,
}

#[derive(Debug, Default)]
struct Open {
    clock: u64,
    holders: BTreeMap<Order, Holder>,
}

#[derive(Debug, Clone)]
struct Holder {
    leave: Arc<Notify>,
    /// Earliest eviction.
    safe_until: Instant,
}

/// Order of eviction, lowest first: waiting connections before sending ones.
type Order = (Stage, u64);

/// Stage of a slot's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No request in progress.
    Waiting,
    /// The request's head has arrived, its body not yet.
    Sending,
    /// The request is complete, its answer is not.
    Answered,
}

impl ConnectionSlots {
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            limit,
            free: Arc::new(Semaphore::new(limit)),
            open: Mutex::default(),
            evicted: AtomicU64::new(0),
        })
    }

    /// Takes a slot, if necessary by eviction. `None` if all have answers in progress.
    pub async fn take(self: &Arc<Self>) -> Option<Place> {
        let permit = self.permit().await?;
        Some(self.place(Some(permit)))
    }

    fn place(self: &Arc<Self>, permit: Option<OwnedSemaphorePermit>) -> Place {
        let holder = Holder {
            leave: Arc::new(Notify::new()),
            safe_until: Instant::now() + GRACE,
        };
        let place = Place {
            slots: Arc::clone(self),
            order: Mutex::new(None),
            holder,
            _permit: permit,
        };
        place.enter(Stage::Waiting);
        place
    }

    /// Takes a slot for a connection of an earlier supervisor. Exceeds the limit if it is full: a lower limit must not
    /// drop the connection.
    #[must_use]
    pub fn take_over(self: &Arc<Self>) -> Place {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok();
        self.place(permit)
    }

    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    #[must_use]
    pub fn taken(&self) -> usize {
        self.limit - self.free.available_permits().min(self.limit)
    }

    /// Number of evicted connections since the start.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Waits until all slots are free, for at most `patience`.
    pub async fn wait_empty(&self, patience: Duration) {
        let all = u32::try_from(self.limit).unwrap_or(u32::MAX);
        // A connection that is still open after that does not read the end of its answer.
        let _ = tokio::time::timeout(patience, self.free.acquire_many(all)).await;
    }

    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                return Some(permit);
            }
            let Err(safe_until) = self.evict_one()? else {
                // An evicted connection leaves at once, and the first waiter is served first.
                return Arc::clone(&self.free).acquire_owned().await.ok();
            };
            tokio::select! {
                permit = Arc::clone(&self.free).acquire_owned() => return permit.ok(),
                () = sleep_until(safe_until) => {}
            }
        }
    }

    /// Evicts the first connection, or returns the time from which it may be evicted. `None` if no slot is evictable.
    fn evict_one(&self) -> Option<Result<(), Instant>> {
        let mut open = self.open.lock();
        let first = open.holders.first_entry()?;
        let safe_until = first.get().safe_until;
        if safe_until > Instant::now() {
            return Some(Err(safe_until));
        }
        first.remove().leave.notify_one();
        self.evicted.fetch_add(1, Ordering::Relaxed);
        Some(Ok(()))
    }
}

/// Slot, returned when dropped.
#[derive(Debug)]
pub struct Place {
    slots: Arc<ConnectionSlots>,
    /// Rank of eviction; `None` while it is not evictable.
    order: Mutex<Option<Order>>,
    holder: Holder,
    /// `None` beyond the limit.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Place {
    pub fn enter(&self, stage: Stage) {
        let mut order = self.order.lock();
        let mut open = self.slots.open.lock();
        if let Some(before) = order.take() {
            open.holders.remove(&before);
        }
        if stage != Stage::Answered {
            open.clock += 1;
            let now = (stage, open.clock);
            open.holders.insert(now, self.holder.clone());
            *order = Some(now);
        }
    }

    /// Waits until the connection is evicted.
    pub async fn until_evicted(&self) {
        self.holder.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.enter(Stage::Answered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn was_told(place: &Place) -> bool {
        tokio::time::timeout(2 * GRACE, place.until_evicted())
            .await
            .is_ok()
    }

    #[tokio::test]
    async fn who_waited_longest_makes_room_and_who_is_answered_does_not() {
        let slots = ConnectionSlots::new(3);
        let first = slots.take().await.unwrap();
        let second = slots.take().await.unwrap();
        let third = slots.take().await.unwrap();
        first.enter(Stage::Answered);
        second.enter(Stage::Sending);
        let newcomer = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.take().await }
        });
        assert!(was_told(&third).await, "it waits, the second sends already");
        drop(third);
        let fourth = newcomer.await.unwrap().expect("a place");
        assert_eq!((slots.taken(), slots.evicted()), (3, 1));
        assert!(!was_told(&first).await && !was_told(&second).await);
        for place in [&first, &second, &fourth] {
            place.enter(Stage::Answered);
        }
        assert!(slots.take().await.is_none(), "no connection may be closed");
        first.enter(Stage::Waiting);
        let newcomer = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.take().await.is_some() }
        });
        assert!(was_told(&first).await);
        drop(first);
        assert!(newcomer.await.unwrap());
    }

    #[tokio::test]
    async fn nobody_is_told_to_leave_before_its_request_can_have_been_read() {
        let began = Instant::now();
        let slots = ConnectionSlots::new(1);
        let first = slots.take().await.unwrap();
        let newcomer = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.take().await.is_some() }
        });
        first.until_evicted().await;
        assert!(began.elapsed() >= GRACE);
        drop(first);
        assert!(newcomer.await.unwrap());
    }

    #[tokio::test]
    async fn a_connection_that_is_taken_over_gets_a_place_beyond_the_limit() {
        let slots = ConnectionSlots::new(1);
        let within = slots.take_over();
        let beyond = slots.take_over();
        within.enter(Stage::Answered);
        beyond.enter(Stage::Answered);
        assert!(slots.take().await.is_none(), "the limit holds for new ones");
        drop(beyond);
        assert!(slots.take().await.is_none());
        drop(within);
        assert!(slots.take().await.is_some());
    }

    #[tokio::test]
    async fn a_request_makes_its_connection_the_last_to_go() {
        let slots = ConnectionSlots::new(2);
        let (first, second) = (slots.take().await.unwrap(), slots.take().await.unwrap());
        first.enter(Stage::Answered);
        first.enter(Stage::Waiting);
        let newcomer = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.take().await.is_some() }
        });
        assert!(was_told(&second).await && !was_told(&first).await);
        drop(second);
        assert!(newcomer.await.unwrap());
        slots.wait_empty(Duration::from_millis(1)).await;
        assert_eq!(slots.taken(), 1, "patience ended first");
    }
}
