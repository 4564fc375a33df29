//! Thread pool for numbered work items.
//!
//! A job is a number of items and a function of an item's index. The caller and the workers claim items from one word,
//! `epoch | items left`; the caller returns when every item is done. A worker that is asleep or off its core therefore
//! delays no job: it finds no item left. Workers spin briefly after a job, because the next one of the same step
//! follows in microseconds, and then park.
//!
//! An item that panics counts as done; the panic continues in the caller. The assignment of items to threads is random,
//! so an item's result may depend on its index only.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Rounds of `PAUSE` before a worker parks: some 50 microseconds, which covers the serial parts between two jobs of a
/// step and costs a busy machine little.
const SPINS_BEFORE_PARK: u32 = 2_000;
/// Rounds before the waiting caller yields its core, which a worker may need.
const SPINS_BEFORE_YIELD: u32 = 2_000;

type Function = dyn Fn(usize) + Sync;

struct ParallelFor {
    items: u32,
    function: *const Function,
}

struct Shared {
    /// Upper half: number of the job; lower half: unclaimed items.
    state: AtomicU64,
    /// Written by the caller only while no item is claimed, read only by threads with a claim.
    job: UnsafeCell<Option<ParallelFor>>,
    done: AtomicU32,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

// SAFETY: `job` is the only part that is not `Sync` by itself; the protocol in its comment, kept
// by `claim` and `Pool::run`, makes every read happen between the write before the job was
// published and the end of the job.
unsafe impl Sync for Shared {}
// SAFETY: the function pointer inside `job` is `Sync` behind the pointer, so it may be called
// from any thread.
unsafe impl Send for Shared {}

struct Worker {
    thread: JoinHandle<()>,
    sleeping: Arc<AtomicBool>,
}

/// Worker threads. Not `Sync`: the types exclude two callers, and an item that starts a job.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    not_sync: PhantomData<Cell<()>>,
}

impl Pool {
    /// Starts `threads - 1` threads: the caller is one of them.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            done: AtomicU32::new(0),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let mut pool = Self {
            shared,
            workers: Vec::new(),
            not_sync: PhantomData,
        };
        for index in 1..threads {
            let (shared, sleeping) = (pool.shared.clone(), Arc::new(AtomicBool::new(false)));
            let flag = sleeping.clone();
            let thread = thread::Builder::new()
                .name(format!("compute-{index}"))
                .spawn(move || work(&shared, &flag))?;
            pool.workers.push(Worker { thread, sleeping });
        }
        Ok(pool)
    }

    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `function(0)` to `function(items - 1)`, in any order, and returns when all are done.
    ///
    /// # Panics
    /// If an item panics, with its panic.
    pub fn run(&self, items: usize, function: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || items <= 1 {
            (0..items).for_each(function);
            return;
        }
        let items = u32::try_from(items).expect("items of a job fit 32 bits");
        self.publish(items, function);
        while claim_and_run(&self.shared) {}
        self.wait_for(items);
        let panic = self
            .shared
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn publish(&self, items: u32, function: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes. The pointer is called only by threads with a claim, and `run` does not
        // return before every claimed item is done.
        let function = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Function>(function)
        };
        let epoch = (self.shared.state.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        // SAFETY: the job before this one has no item left and none running, so no thread reads.
        unsafe { *self.shared.job.get() = Some(ParallelFor { items, function }) };
        self.shared.done.store(0, Ordering::Relaxed);
        // SeqCst pairs with the worker's own: either it sees this job, or we see it asleep.
        self.shared
            .state
            .store(epoch << 32 | u64::from(items), Ordering::SeqCst);
        for worker in &self.workers {
            if worker.sleeping.swap(false, Ordering::SeqCst) {
                worker.thread.thread().unpark();
            }
        }
    }

    fn wait_for(&self, items: u32) {
        let mut spins = 0;
        while self.shared.done.load(Ordering::Acquire) < items {
            if spins < SPINS_BEFORE_YIELD {
                spins += 1;
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread.thread().unpark();
            // A worker cannot panic: items are caught.
            let _ = worker.thread.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads())
            .finish()
    }
}

/// Claims one item and runs it. False if none is left.
fn claim_and_run(shared: &Shared) -> bool {
    let one_less = |state: u64| (state as u32 != 0).then(|| state - 1);
    let claim = shared
        .state
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
    let Ok(state) = claim else {
        return false;
    };
    // SAFETY: this thread holds a claim, so the job was published and cannot be replaced before
    // `done` counts this item.
    let job = unsafe { (*shared.job.get()).as_ref() };
    if let Some(job) = job {
        let index = (job.items - state as u32) as usize;
        // SAFETY: the caller of `run` keeps the function alive until this item is done.
        let function = unsafe { &*job.function };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| function(index))) {
            shared
                .panic
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(panic);
        }
    }
    shared.done.fetch_add(1, Ordering::Release);
    true
}

fn work(shared: &Shared, sleeping: &AtomicBool) {
    let mut idle = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        if claim_and_run(shared) {
            idle = 0;
        } else if idle < SPINS_BEFORE_PARK {
            idle += 1;
            std::hint::spin_loop();
        } else {
            park(shared, sleeping);
            idle = 0;
        }
    }
}

fn park(shared: &Shared, sleeping: &AtomicBool) {
    sleeping.store(true, Ordering::SeqCst);
    let idle = || shared.state.load(Ordering::SeqCst) as u32 == 0;
    // `unpark` before `park` makes `park` return at once, so nothing is missed in between.
    while idle() && sleeping.load(Ordering::SeqCst) && !shared.stop.load(Ordering::SeqCst) {
        thread::park();
    }
    sleeping.store(false, Ordering::SeqCst);
}

/// A slice written by several items, each its own part.
#[derive(Debug)]
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    of: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out `&mut [T]` under the contract that parts do not overlap, which is equivalent to sending parts of
// one `&mut [T]` to threads.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            of: PhantomData,
        }
    }

    /// Exclusive access to a part.
    ///
    /// # Safety
    /// No two parts that live at the same time overlap.
    ///
    /// # Panics
    /// If the part is not inside the slice.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller promises that parts do not overlap"
    )]
    pub unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(
            start <= self.len && len <= self.len - start,
            "part of the slice"
        );
        // SAFETY: in bounds as just checked; exclusive as guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }

    /// Access to a part that is not written.
    ///
    /// # Safety
    /// No [`part`](Self::part) that lives at the same time overlaps it.
    ///
    /// # Panics
    /// If the part is not inside the slice.
    #[must_use]
    pub unsafe fn shared(&self, start: usize, len: usize) -> &[T] {
        assert!(
            start <= self.len && len <= self.len - start,
            "part of the slice"
        );
        // SAFETY: in bounds as just checked; not written as guaranteed by the caller.
        unsafe { std::slice::from_raw_parts(self.start.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::{Duration, Instant};

    #[test]
    fn every_item_runs_once_whatever_the_number_of_threads() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads).expect("threads");
            for items in [0, 1, 2, 7, 100] {
                for _ in 0..200 {
                    let counts: Vec<AtomicUsize> =
                        (0..items).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(items, &|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(
                        counts
                            .iter()
                            .all(|count| count.load(Ordering::Relaxed) == 1)
                    );
                }
            }
        }
    }

    #[test]
    fn parked_workers_wake_for_the_next_job() {
        let pool = Pool::new(2).expect("threads");
        for _ in 0..3 {
            let deadline = Instant::now() + Duration::from_secs(20);
            while !pool.workers[0].sleeping.load(Ordering::SeqCst) {
                assert!(Instant::now() < deadline, "an idle worker parks");
                thread::sleep(Duration::from_millis(1));
            }
            let seen = Mutex::new(Vec::new());
            // Items long enough that the worker is awake before the caller has run them all.
            pool.run(8, &|_| {
                thread::sleep(Duration::from_millis(5));
                seen.lock().unwrap().push(thread::current().id());
            });
            let seen = seen.into_inner().unwrap();
            assert!(
                seen.iter().any(|&id| id != thread::current().id()),
                "the worker took part"
            );
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).expect("threads");
        for _ in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(50, &|i| assert!(i != 17, "seventeen"));
            }));
            assert!(result.is_err());
            let sum = AtomicUsize::new(0);
            pool.run(10, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 45);
        }
    }

    #[test]
    #[should_panic(expected = "part of the slice")]
    fn a_part_outside_the_slice_is_refused() {
        let mut values = [0; 4];
        let parts = Disjoint::new(&mut values);
        // SAFETY: the only part.
        let _ = unsafe { parts.part(3, 2) };
    }
}
