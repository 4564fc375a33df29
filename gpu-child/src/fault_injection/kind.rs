//! The closed list of misdeeds, and the names they are asked for by.

/// What goes wrong.
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
    /// A NaN among the logits, which the sampler's own check has to find.
    NonFinite,
    /// A token that is not in the vocabulary, past the child's own check.
    WrongToken,
    /// More memory than there is was asked for.
    OutOfMemory,
    /// SIGSTOP to itself.
    Stop,
}

impl Kind {
    pub const ALL: [Self; 13] = [
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
    ];

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
        }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
