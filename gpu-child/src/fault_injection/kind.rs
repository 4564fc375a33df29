//! The closed list of faults, and their names in rules.

use crate::device::injected_fault::DeviceFault;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A Rust panic: final event, then exit code 72.
    Panic,
    /// SIGABRT, without a final event.
    Abort,
    /// A write to a read-only page: SIGSEGV from the hardware.
    Segfault,
    /// Exits without a message, with success.
    ExitZero,
    /// The step never ends; heartbeats continue.
    Hang,
    /// No further output, heartbeats included.
    Stall,
    /// Heartbeats without pause.
    Flood,
    /// Bytes that are no frame.
    Garbage,
    /// Five bytes a second.
    Drip,
    /// A NaN among the logits, for the device's own check to detect.
    NonFinite,
    /// A token outside the vocabulary, past the child's own check.
    WrongToken,
    /// An allocation beyond the memory.
    OutOfMemory,
    /// SIGSTOP to itself.
    Stop,
    /// SIGKILL to itself a moment later, while the device computes.
    Kill,
    /// A kernel stores through an invalid pointer.
    IllegalAddress,
    /// A kernel loads 16 bytes from a misaligned address.
    Misaligned,
    /// A kernel traps.
    Trap,
    /// A kernel never ends; heartbeats continue.
    EndlessKernel,
    /// An allocation beyond the device's memory, by NVIDIA's driver.
    DeviceOutOfMemory,
    /// Allocates the rest of the device's memory, then continues. No step allocates any, so this fault is no death.
    DeviceFull,
    /// Flips a bit of the first page of the KV cache, and aborts. The cache must be shared, or the bit would be lost
    /// with the process.
    FlippedPage,
    /// Flips a bit of the weights after their checksums were computed and before they are sealed. Independent of steps:
    /// the child that loads the weights does it.
    FlippedBit,
    /// Reads a file that is not the child's.
    ReadFile,
    /// Creates a network socket.
    OpenSocket,
    /// Replaces itself by another program.
    RunProgram,
}

impl Kind {
    /// Every kind that is in a group.
    pub const ALL: [Self; 20] = [
        Self::Panic,
        Self::Abort,
        Self::Segfault,
        Self::ExitZero,
        Self::Hang,
        Self::Stall,
        Self::Flood,
        Self::Garbage,
        Self::Drip,
        Self::NonFinite,
        Self::WrongToken,
        Self::OutOfMemory,
        Self::Stop,
        Self::Kill,
        Self::IllegalAddress,
        Self::Misaligned,
        Self::Trap,
        Self::EndlessKernel,
        Self::DeviceOutOfMemory,
        Self::DeviceFull,
    ];

    /// Actions that a confined child is refused; it continues.
    pub const ESCAPES: [Self; 3] = [Self::ReadFile, Self::OpenSocket, Self::RunProgram];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Abort => "abort",
            Self::Segfault => "segfault",
            Self::ExitZero => "exit-zero",
            Self::Hang => "hang",
            Self::Stall => "stall",
            Self::Flood => "flood",
            Self::Garbage => "garbage",
            Self::Drip => "drip",
            Self::NonFinite => "nan",
            Self::WrongToken => "wrong-token",
            Self::OutOfMemory => "out-of-memory",
            Self::Stop => "stop",
            Self::Kill => "kill",
            Self::IllegalAddress => "illegal-address",
            Self::Misaligned => "misaligned",
            Self::Trap => "trap",
            Self::EndlessKernel => "endless-kernel",
            Self::DeviceOutOfMemory => "device-out-of-memory",
            Self::DeviceFull => "device-full",
            Self::FlippedPage => "flipped-page",
            Self::FlippedBit => "flipped-bit",
            Self::ReadFile => "read-file",
            Self::OpenSocket => "open-socket",
            Self::RunProgram => "run-program",
        }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let flips = [Self::FlippedPage, Self::FlippedBit];
        let mut all = Self::ALL.into_iter().chain(flips).chain(Self::ESCAPES);
        all.find(|kind| kind.name() == name)
    }

    /// The fault that the device itself must inject, if it is a device's.
    #[must_use]
    pub fn of_device(self) -> Option<DeviceFault> {
        match self {
            Self::IllegalAddress => Some(DeviceFault::IllegalAddress),
            Self::Misaligned => Some(DeviceFault::Misaligned),
            Self::Trap => Some(DeviceFault::Trap),
            Self::EndlessKernel => Some(DeviceFault::EndlessKernel),
            Self::DeviceOutOfMemory => Some(DeviceFault::OutOfMemory),
            Self::DeviceFull => Some(DeviceFault::Full),
            Self::Panic
            | Self::Abort
            | Self::Segfault
            | Self::ExitZero
            | Self::Hang
            | Self::Stall
            | Self::Flood
            | Self::Garbage
            | Self::Drip
            | Self::NonFinite
            | Self::WrongToken
            | Self::OutOfMemory
            | Self::Stop
            | Self::Kill
            | Self::FlippedPage
            | Self::FlippedBit
            | Self::ReadFile
            | Self::OpenSocket
            | Self::RunProgram => None,
        }
    }
}
