//! Script of the scripted child: its faults and their times.
//!
//! A script is JSON in [`SCRIPT_VARIABLE`]. The harness writes a wrapper script that sets the variable, so that it does
//! not depend on the environment that the supervisor passes on.

use serde::{Deserialize, Serialize};
use worker_orcd_ipc::TokenId;

pub const SCRIPT_VARIABLE: &str = "SCRIPTED_CHILD";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// Time of the fault. Meaningless with [`Act::Behave`].
    pub moment: Moment,
    pub act: Act,
    /// Last generation with the fault; later children behave.
    pub faulty_generations: u32,
    /// Time between two tokens of one request.
    pub token_interval_ms: u64,
    pub max_running: u32,
    /// Blocks SIGTERM in any case.
    pub ignore_sigterm: bool,
    /// Ignores `Command::Shutdown`.
    pub ignore_shutdown: bool,
    /// Starts a grandchild that holds the child's pipes and its socket open.
    pub fork: bool,
    /// CUDA device that the program reports as usable; `None` reports none.
    pub could_use: Option<String>,
    /// Chat template of its model; `None` is one for any conversation.
    pub chat_template: Option<String>,
    /// Additional merges of its tokenizer; each makes one more token.
    pub merges: Vec<String>,
    /// Additional control tokens of its vocabulary.
    pub controls: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// Instead of the hello, after the socket is connected.
    BeforeHello,
    /// Handshake: after the hello, before the load order.
    Handshaking,
    /// Load: after the load order and one progress report.
    Loading,
    /// Service: after `Ready`.
    Serving,
    /// Stream: after this many tokens, of any request.
    MidStream(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    Behave,
    // === Violations of the protocol ===
    /// Preamble of another version.
    OtherVersion,
    /// Bytes that are no preamble or no frame.
    Garbage,
    /// Half a frame, and then the end.
    TruncatedFrame,
    /// Header with a length above the limit of a frame.
    OversizedFrame,
    /// Message with a byte behind it.
    TrailingBytes,
    /// Frame with bytes that decode to no message.
    UnknownMessage,
    /// Ready report with a tokenizer that does not decode; then silence.
    NonsenseTokenizer,
    /// Second preamble.
    SecondHello,
    /// Message of another generation.
    WrongGeneration,
    /// Token for an unknown request.
    UnknownRequest,
    TokenOutOfRange,
    /// Token index that is one too high.
    WrongIndex,
    /// End of an unknown request.
    UnknownFinish,
    /// Compile-time feature that the supervisor does not accept.
    ForbiddenFeature,
    /// Another process's id in the hello.
    WrongPid,
    // === Floods, delays and silence ===
    /// Heartbeats without pause, as fast as the socket takes them.
    Flood,
    /// One byte of a frame at a time, ten a second.
    SlowDrip,
    /// Silence; commands are read.
    Stall,
    /// Heartbeats with one step that never ends.
    StuckStep,
    /// Step of 500 ms, which heartbeats report as overdue.
    LateStep,
    /// Load progress that does not advance.
    StuckLoad,
    /// Commands are not read any more; heartbeats and tokens go on.
    NeverRead,
    /// SIGSTOP to itself.
    Stop,
    /// Closes the socket and keeps the process.
    CloseSocket,
    // === Ends ===
    Exit(i32),
    Signal(i32),
    /// Reports a fault of the device, and exits with its code.
    FaultDevice,
    FaultModelLoad,
    FaultInsufficientMemory,
    FaultNonFinite,
}

impl Script {
    #[must_use]
    pub fn behave() -> Self {
        Self {
            moment: Moment::Serving,
            act: Act::Behave,
            faulty_generations: 0,
            token_interval_ms: 5,
            max_running: 16,
            ignore_sigterm: false,
            ignore_shutdown: false,
            fork: false,
            could_use: None,
            chat_template: None,
            merges: Vec::new(),
            controls: Vec::new(),
        }
    }

    /// Script that makes the first child fail.
    #[must_use]
    pub fn once(moment: Moment, act: Act) -> Self {
        Self {
            moment,
            act,
            faulty_generations: 1,
            ..Self::behave()
        }
    }

    /// Script that makes every child fail.
    #[must_use]
    pub fn always(moment: Moment, act: Act) -> Self {
        Self {
            faulty_generations: u32::MAX,
            ..Self::once(moment, act)
        }
    }

    #[must_use]
    pub fn token_interval_ms(mut self, interval: u64) -> Self {
        self.token_interval_ms = interval;
        self
    }

    /// Reports this device as usable when it probes for CUDA.
    #[must_use]
    pub fn could_use(mut self, device: &str) -> Self {
        self.could_use = Some(device.to_owned());
        self
    }

    #[must_use]
    pub fn chat_template(mut self, template: String) -> Self {
        self.chat_template = Some(template);
        self
    }

    #[must_use]
    pub fn controls(mut self, texts: &[&str]) -> Self {
        self.controls = texts.iter().map(|text| (*text).to_owned()).collect();
        self
    }

    /// Adds tokens for runs of `a` of up to `letters`, a power of two.
    #[must_use]
    pub fn merging_runs_up_to(mut self, letters: usize) -> Self {
        let halves = (0..).map(|power| "a".repeat(1 << power));
        let halves = halves.take_while(|half| 2 * half.len() <= letters);
        self.merges = halves.map(|half| format!("{half} {half}")).collect();
        self
    }

    #[must_use]
    pub fn max_running(mut self, sequences: u32) -> Self {
        self.max_running = sequences;
        self
    }
}

/// End-of-sequence token, which ends an answer if a prompt contains it; the 256 before it are the bytes.
pub const EOS: TokenId = TokenId(256);
pub const VOCAB_SIZE: u32 = 257;

/// Token that a scripted child generates at `index`: the prompt's bytes, repeated. It depends on the history only, so a
/// test can predict every stream.
#[must_use]
pub fn scripted_token(prompt: &[TokenId], index: usize) -> TokenId {
    prompt[index % prompt.len()]
}

/// Text of `count` scripted tokens after an ASCII prompt.
#[must_use]
pub fn scripted_text(prompt: &str, count: usize) -> String {
    prompt.chars().cycle().take(count).collect()
}
