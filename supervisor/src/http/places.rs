//! Places for connections: as many as there are, and who gives way when there are none.
//!
//! ```text
//! accepted ─→ waiting ─→ sending ─→ answered ─┐     waiting and sending may be told to leave,
//!               ↑                             │     those that have waited longest first;
//!               └──────── answer flushed ─────┘     nobody does while it is answered
//! ```
//!
//! Whoever connects gets a place as long as anybody who is not being answered holds one. So idle
//! clients, however many, keep nobody out: they only push each other out. Nobody is told to leave
//! before its request can have been read, so in a burst of them those who connect wait a moment.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// Time to read a request that is on its way when its connection gets a place.
const GRACE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Places {
    limit: usize,
    free: Arc<Semaphore>,
    /// Places whose holders may be told to leave, the first to go first.
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
    /// It is not told to leave before this.
    safe_until: Instant,
}

/// Sooner is smaller: whoever waits for a request leaves before whoever sends one.
type Order = (Stage, u64);

/// The present doings of a place's holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Nothing was asked, or everything answered.
    Waiting,
    /// A request's head is there, its body not yet.
    Sending,
    /// The request is whole, its answer is not.
    Answered,
}

impl Places {
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

    /// A place, if need be one that somebody else is told to leave. `None` when everybody is
    /// being answered.
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
            places: Arc::clone(self),
            order: Mutex::new(None),
            holder,
            _permit: permit,
        };
        place.enter(Stage::Waiting);
        place
    }

    /// A place for a connection that an earlier supervisor served, beyond the limit where there is none: it is not
    /// dropped because the limit is a smaller one now.
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

    /// Number of connections that were told to leave since the start.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Waits until nobody is left, as long as `patience` lasts.
    pub async fn wait_empty(&self, patience: Duration) {
        let all = u32::try_from(self.limit).unwrap_or(u32::MAX);
        // Whoever is still there after that does not read the end of its answer.
        let _ = tokio::time::timeout(patience, self.free.acquire_many(all)).await;
    }

    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                return Some(permit);
            }
            let Err(safe_until) = self.evict_one()? else {
                // Whoever was told to leave does so at once, and the first to wait is served first.
                return Arc::clone(&self.free).acquire_owned().await.ok();
            };
            tokio::select! {
                permit = Arc::clone(&self.free).acquire_owned() => return permit.ok(),
                () = sleep_until(safe_until) => {}
            }
        }
    }

    /// Tells the first to leave, or says until when it may stay. `None` when nobody may be told.
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

/// Free again when dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    /// The rank by which it may be told to leave; `None` while it may not.
    order: Mutex<Option<Order>>,
    holder: Holder,
    /// `None` beyond the limit.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Place {
    pub fn enter(&self, stage: Stage) {
        let mut order = self.order.lock();
        let mut open = self.places.open.lock();
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

    /// Waits until somebody else needs the place.
    pub async fn told_to_leave(&self) {
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
        tokio::time::timeout(2 * GRACE, place.told_to_leave())
            .await
            .is_ok()
    }

    #[tokio::test]
    async fn who_waited_longest_makes_room_and_who_is_answered_does_not() {
        let places = Places::new(3);
        let first = places.take().await.unwrap();
        let second = places.take().await.unwrap();
        let third = places.take().await.unwrap();
        first.enter(Stage::Answered);
        second.enter(Stage::Sending);
        let newcomer = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take().await }
        });
        assert!(was_told(&third).await, "it waits, the second sends already");
        drop(third);
        let fourth = newcomer.await.unwrap().expect("a place");
        assert_eq!((places.taken(), places.evicted()), (3, 1));
        assert!(!was_told(&first).await && !was_told(&second).await);
        for place in [&first, &second, &fourth] {
            place.enter(Stage::Answered);
        }
        assert!(places.take().await.is_none(), "no connection may be closed");
        first.enter(Stage::Waiting);
        let newcomer = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take().await.is_some() }
        });
        assert!(was_told(&first).await);
        drop(first);
        assert!(newcomer.await.unwrap());
    }

    #[tokio::test]
    async fn nobody_is_told_to_leave_before_its_request_can_have_been_read() {
        let began = Instant::now();
        let places = Places::new(1);
        let first = places.take().await.unwrap();
        let newcomer = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take().await.is_some() }
        });
        first.told_to_leave().await;
        assert!(began.elapsed() >= GRACE);
        drop(first);
        assert!(newcomer.await.unwrap());
    }

    #[tokio::test]
    async fn a_connection_that_is_taken_over_gets_a_place_beyond_the_limit() {
        let places = Places::new(1);
        let within = places.take_over();
        let beyond = places.take_over();
        within.enter(Stage::Answered);
        beyond.enter(Stage::Answered);
        assert!(
            places.take().await.is_none(),
            "the limit holds for new ones"
        );
        drop(beyond);
        assert!(places.take().await.is_none());
        drop(within);
        assert!(places.take().await.is_some());
    }

    #[tokio::test]
    async fn a_request_makes_its_connection_the_last_to_go() {
        let places = Places::new(2);
        let (first, second) = (places.take().await.unwrap(), places.take().await.unwrap());
        first.enter(Stage::Answered);
        first.enter(Stage::Waiting);
        let newcomer = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take().await.is_some() }
        });
        assert!(was_told(&second).await && !was_told(&first).await);
        drop(second);
        assert!(newcomer.await.unwrap());
        places.wait_empty(Duration::from_millis(1)).await;
        assert_eq!(places.taken(), 1, "patience ended first");
    }
}
