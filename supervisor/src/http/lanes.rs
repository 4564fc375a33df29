//! Where texts are worked on: short ones at once, longer ones on other threads, some at a time.
//!
//! A runtime thread that works is one on which streams, probes and everybody's sockets stand
//! still. What takes longer than a moment goes to a blocking thread, in one of two lanes, each
//! with as many places as there are cores: whoever sends megabytes waits for others who do.

use std::num::NonZeroUsize;
use tokio::sync::Semaphore;

/// A millisecond at most, even in a text of spaces, which takes a tokenizer longest.
const INLINE_BYTES: usize = 1 << 10;

/// Tens of milliseconds.
const SHORT_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub struct Lanes {
    short: Semaphore,
    long: Semaphore,
}

impl Default for Lanes {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            short: Semaphore::new(cores),
            long: Semaphore::new(cores),
        }
    }
}

impl Lanes {
    /// Does the work on a text of so many bytes; `None` when it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if bytes <= INLINE_BYTES {
            return Some(work());
        }
        let lane = if bytes <= SHORT_BYTES {
            &self.short
        } else {
            &self.long
        };
        let _place = lane.acquire().await;
        tokio::task::spawn_blocking(work).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::thread;

    #[tokio::test]
    async fn a_short_text_waits_for_no_long_one() {
        let lanes = Arc::new(Lanes::default());
        let (go_on, wait) = mpsc::channel::<()>();
        let wait = Arc::new(parking_lot::Mutex::new(wait));
        let long: Vec<_> = (0..64)
            .map(|_| {
                let (lanes, wait) = (Arc::clone(&lanes), Arc::clone(&wait));
                tokio::spawn(async move {
                    let work = move || wait.lock().recv().is_ok();
                    lanes.run(SHORT_BYTES + 1, work).await
                })
            })
            .collect();
        tokio::task::yield_now().await;
        let here = thread::current().id();
        let elsewhere = lanes.run(SHORT_BYTES, || thread::current().id()).await;
        assert_ne!(elsewhere, Some(here));
        let inline = lanes.run(INLINE_BYTES, || thread::current().id()).await;
        assert_eq!(inline, Some(here));
        for _ in 0..64 {
            go_on.send(()).unwrap();
        }
        for task in long {
            assert_eq!(task.await.unwrap(), Some(true));
        }
    }

    #[tokio::test]
    async fn a_panic_is_told_and_costs_no_place() {
        let lanes = Lanes::default();
        for _ in 0..100 {
            let work = || -> () { panic!("as ordered") };
            assert_eq!(lanes.run(usize::MAX, work).await, None);
        }
        assert_eq!(lanes.run(usize::MAX, || 1).await, Some(1));
    }
}
