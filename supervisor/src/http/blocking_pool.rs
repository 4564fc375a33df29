//! Blocking pool for work on texts: short texts are processed inline, longer ones on other threads.
//!
//! A busy runtime thread delays streams, probes and sockets. So longer work runs on other threads, in two queues with
//! as many slots as cores: long texts wait only for other long texts.

use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio::sync::{Semaphore, oneshot};

/// Longest text that is processed inline, in bytes; `cargo xtask bench latency` measures its time.
const INLINE_BYTES: usize = 1 << 10;

/// Longest text of the short queue, in bytes: tens of milliseconds of work.
const SHORT_BYTES: usize = 64 << 10;

/// Nice value of threads that process long texts: they get the idle time of the cores.
const NICENESS: i32 = 10;

#[derive(Debug)]
pub struct BlockingPool {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Default for BlockingPool {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            short: Arc::new(Semaphore::new(cores)),
            long: Arc::new(Semaphore::new(cores)),
        }
    }
}

impl BlockingPool {
    /// Runs work on a text of `bytes` bytes. `None`: it panicked, or the system has no thread.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if bytes <= INLINE_BYTES {
            return Some(work());
        }
        let queue = if bytes <= SHORT_BYTES {
            &self.short
        } else {
            &self.long
        };
        let place = Arc::clone(queue).acquire_owned().await;
        // The closure owns the slot: if the client disconnects, its work still runs.
        let placed = move || {
            let _place = place;
            work()
        };
        on_new_thread(placed).await
    }
}

/// Runs work on a new thread with low priority. `None`: it panicked, or the system has no thread. The runtime's
/// blocking threads are unsuitable: a lowered priority cannot be raised again, and they also build models, for which
/// streams wait.
pub async fn on_new_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    let work = move || {
        give_way();
        // The receiver may be gone.
        let _ = answer.send(work());
    };
    std::thread::Builder::new()
        .name("text".to_owned())
        .spawn(work)
        .ok()?;
    answered.await.ok()
}

fn give_way() {
    // On failure the normal priority stays.
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice < NICENESS) {
        let _ = rustix::process::setpriority_process(None, NICENESS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[tokio::test]
    async fn a_short_text_waits_for_no_long_one() {
        let pool = Arc::new(BlockingPool::default());
        let (go_on, wait) = mpsc::channel::<()>();
        let wait = Arc::new(parking_lot::Mutex::new(wait));
        let long: Vec<_> = (0..64)
            .map(|_| {
                let (pool, wait) = (Arc::clone(&pool), Arc::clone(&wait));
                tokio::spawn(async move {
                    let work = move || wait.lock().recv().is_ok();
                    pool.run(SHORT_BYTES + 1, work).await
                })
            })
            .collect();
        tokio::task::yield_now().await;
        let here = thread::current().id();
        let elsewhere = pool.run(SHORT_BYTES, || thread::current().id()).await;
        assert_ne!(elsewhere, Some(here));
        let nice = || rustix::process::getpriority_process(None).unwrap();
        assert_eq!(
            pool.run(SHORT_BYTES, nice).await,
            Some(NICENESS.max(nice()))
        );
        let inline = pool.run(INLINE_BYTES, || thread::current().id()).await;
        assert_eq!(inline, Some(here));
        for _ in 0..64 {
            go_on.send(()).unwrap();
        }
        for task in long {
            assert_eq!(task.await.unwrap(), Some(true));
        }
    }

    #[tokio::test]
    async fn who_leaves_keeps_the_place_until_the_work_is_done() {
        let pool = BlockingPool::default();
        let slots = pool.long.available_permits();
        let (go_on, wait) = mpsc::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let work = move || {
            let _ = begun.send(());
            let _ = wait.recv();
        };
        tokio::select! {
            biased;
            _ = pool.run(usize::MAX, work) => panic!("the work waits"),
            _ = has_begun => {}
        }
        assert_eq!(pool.long.available_permits(), slots - 1);
        drop(go_on);
        drop(pool.long.acquire_many(slots as u32).await.unwrap());
    }

    #[tokio::test]
    async fn a_panic_is_told_and_costs_no_place() {
        let pool = BlockingPool::default();
        for _ in 0..100 {
            let work = || -> () { panic!("as ordered") };
            assert_eq!(pool.run(usize::MAX, work).await, None);
        }
        assert_eq!(pool.run(usize::MAX, || 1).await, Some(1));
    }
}
