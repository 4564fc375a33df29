//! Concurrent processing of a list.

use anyhow::Result;
use std::sync::Mutex;
use std::thread;

/// Calls `run` with each item, in order, in `count` threads.
///
/// # Errors
/// The first error. Running items end, and no other begins.
pub fn run<T: Sync>(
    items: &[T],
    count: usize,
    run: impl Fn(&T) -> Result<()> + Sync,
) -> Result<()> {
    let left = Mutex::new(items.iter());
    let next = || left.lock().expect("no holder panics").next();
    let end = || *left.lock().expect("no holder panics") = [].iter();
    let lane = || -> Result<()> {
        while let Some(item) = next() {
            run(item).inspect_err(|_| end())?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..count).map(|_| scope.spawn(lane)).collect();
        let ends: Vec<_> = lanes.into_iter().map(|it| it.join()).collect();
        ends.into_iter()
            .try_for_each(|it| it.expect("a lane does not panic"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn each_item_is_taken_once_and_none_behind_an_error() {
        let sum = AtomicUsize::new(0);
        let add = |item: &usize| {
            sum.fetch_add(*item, Ordering::Relaxed);
            Ok(())
        };
        run(&[1, 2, 3, 4], 3, add).expect("nothing fails");
        assert_eq!(sum.into_inner(), 10);
        let begun = AtomicUsize::new(0);
        let fail = |_: &usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            bail!("it fails")
        };
        run(&[0; 100], 2, fail).expect_err("the first one");
        assert!(begun.into_inner() <= 2);
    }
}
