//! Sentinel thread: its end signals the process's death before the kernel frees the memory.
//!
//! A process killed by a signal keeps its descriptors until its memory is freed, which takes milliseconds for a large
//! one; only then do its sockets close. All threads share the memory, which goes with the last thread, but a thread may
//! have its own descriptor table, which goes with that thread. So one thread alone holds the socket for descriptors
//! once the model is loaded, and the supervisor receives its end immediately.

use nix::libc;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::mpsc::sync_channel;
use std::thread;

/// Moves the line to a new thread. No other thread keeps it, except as a duplicate.
///
/// # Errors
/// If the thread cannot be started, or the kernel has no per-thread descriptor tables.
pub fn post(line: OwnedFd) -> io::Result<()> {
    let number = line.as_raw_fd();
    let (tell, told) = sync_channel(1);
    let thread = thread::Builder::new().name("sentinel".to_owned());
    let posted = thread.spawn(move || {
        let alone = leave_all_but(number);
        let stays = alone.is_ok();
        // The caller waits for nothing else.
        drop(tell.send(alone));
        if stays {
            loop {
                thread::park();
            }
        }
    });
    let lost = |_| Err(io::Error::other("the thread ended"));
    posted.and_then(|_| told.recv().unwrap_or_else(lost))
}

/// Gives the calling thread its own descriptor table, with this one descriptor.
fn leave_all_but(number: RawFd) -> io::Result<()> {
    let number = number.unsigned_abs();
    let ranges = [(0, number.checked_sub(1)), (number + 1, Some(u32::MAX))];
    for (first, last) in ranges {
        let Some(last) = last else { continue };
        // SAFETY: with this flag it is the thread's own duplicates that are closed, and the thread has no
        // other use for any.
        let result = unsafe {
            libc::syscall(
                libc::SYS_close_range,
                first,
                last,
                libc::CLOSE_RANGE_UNSHARE,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_line_is_open_while_the_process_is_there_and_nothing_else_stays_open_with_it() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let (mut other, kept) = UnixStream::pair().expect("sockets");
        post(theirs.into()).expect("a thread");
        // A duplicate of the thread's would keep it from ending.
        drop(kept);
        assert_eq!(other.read(&mut [0]).expect("the end"), 0);
        ours.set_nonblocking(true).expect("a socket");
        let error = (&ours).read(&mut [0]).expect_err("nothing yet");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
