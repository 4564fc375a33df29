//! The closed list of misdeeds, and the names they are asked for by.

use crate::device::misdeed::DeviceMisdeed;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A Rust panic: last words, then exit code 72.
    Panic,
    /// SIGABRT, without last words.
    Abort,
    /// A write to a page that may not be written: SIGSEGV from the hardware.
    Segfault,
    /// Leaves without a word, and claims that all is well.
    ExitZero,
    /// The step never ends; heartbeats go on.
    Hang,
    /// Says nothing any more, heartbeats included.
    Stall,
    /// Heartbeats without pause.
    Flood,
    /// Bytes that are no frame.
    Garbage,
    /// Five bytes a second.
    Drip,
    /// A NaN among the logits, which the device's own check has to find.
    NonFinite,
    /// A token that is not in the vocabulary, past the child's own check.
    WrongToken,
    /// More memory than there is was asked for.
    OutOfMemory,
    /// SIGSTOP to itself.
    Stop,
    /// SIGKILL to itself a moment later, while the device computes.
    Kill,
    /// A kernel stores through a pointer to nowhere.
    IllegalAddress,
    /// A kernel loads 16 bytes from an odd place.
    Misaligned,
    /// A kernel traps.
    Trap,
    /// A kernel never ends; heartbeats go on.
    EndlessKernel,
    /// More device memory than the device has was asked for, of NVIDIA's driver.
    DeviceOutOfMemory,
    /// All that is left of the device's memory is taken, and work goes on. No step needs any, so
    /// this one is no death.
    DeviceFull,
    /// A bit of the first page of the KV cache changes, and the process aborts. The cache must be shared,
    /// or the bit would be gone with the process.
    FlippedPage,
    /// A bit of the weights changes after their checksums were taken and before they are sealed. No
    /// step is its moment: the child that places the weights does it.
    FlippedBit,
    /// Reads a file that is none of the child's.
    ReadFile,
    /// Makes a socket of the network.
    OpenSocket,
    /// Starts another program in its own place.
    RunProgram,
}

impl Kind {
    /// Every kind that a group has.
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

    /// What a confined child is refused, and goes on.
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

    /// The fault that the device itself has to make, where it must be the device.
    #[must_use]
    pub fn of_device(self) -> Option<DeviceMisdeed> {
        match self {
            Self::IllegalAddress => Some(DeviceMisdeed::IllegalAddress),
            Self::Misaligned => Some(DeviceMisdeed::Misaligned),
            Self::Trap => Some(DeviceMisdeed::Trap),
            Self::EndlessKernel => Some(DeviceMisdeed::EndlessKernel),
            Self::DeviceOutOfMemory => Some(DeviceMisdeed::OutOfMemory),
            Self::DeviceFull => Some(DeviceMisdeed::Full),
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
