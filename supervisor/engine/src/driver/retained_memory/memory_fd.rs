//! Descriptor of allocated device memory.
//!
//! Closing the last descriptor of an allocation frees it, and NVIDIA's driver blocks other calls while it tears down a
//! process. Another thread therefore closes the descriptor, and the driver continues.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tokio::runtime::Handle;

#[derive(Debug)]
pub(in crate::driver) struct MemoryFd(Option<OwnedFd>);

impl From<OwnedFd> for MemoryFd {
    fn from(descriptor: OwnedFd) -> Self {
        Self(Some(descriptor))
    }
}

impl AsFd for MemoryFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is taken at the end").as_fd()
    }
}

impl Drop for MemoryFd {
    fn drop(&mut self) {
        let descriptor = self.0.take();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(move || drop(descriptor));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read as _, pipe};
    use std::sync::mpsc::channel;

    /// Pipe and its writer as memory. The reader sees the end of file once that is closed.
    fn kept() -> (PipeReader, MemoryFd) {
        let (reader, writer) = pipe().unwrap();
        (reader, OwnedFd::from(writer).into())
    }

    fn is_open(reader: &PipeReader) -> bool {
        rustix::io::ioctl_fionbio(reader, true).unwrap();
        let mut reader = reader;
        let is_open = reader.read(&mut [0]).is_err();
        rustix::io::ioctl_fionbio(reader, false).unwrap();
        is_open
    }

    #[test]
    fn it_is_closed_on_another_thread_when_that_has_time() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let (reader, memory) = kept();
        let (begin, waits) = channel::<()>();
        runtime.spawn_blocking(move || waits.recv());
        runtime.block_on(async { drop(memory) });
        assert!(is_open(&reader), "the other thread has no time yet");
        drop(begin);
        assert_eq!((&reader).read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn without_a_runtime_it_is_closed_all_the_same() {
        let (reader, memory) = kept();
        drop(memory);
        assert!(!is_open(&reader));
    }
}
