//! What the scripted child is told to do wrong, and when.
//!
//! A script is one word per part in [`SCRIPT_VARIABLE`], as JSON. It reaches the child through
//! a wrapper script that the harness writes, so that it does not depend on which variables the
//! supervisor passes on.

use serde::{Deserialize, Serialize};
use worker_orcd_ipc::TokenId;

pub const SCRIPT_VARIABLE: &str = "SCRIPTED_CHILD";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// When it goes wrong. [`Act::Behave`] makes this meaningless.
    pub moment: Moment,
    pub act: Act,
    /// Children up to this generation go wrong; later ones behave.
    pub faulty_generations: u32,
    /// Time between two tokens of one request.
    pub token_interval_ms: u64,
    pub max_running: u32,
    /// SIGTERM is blocked, whatever else happens.
    pub ignore_sigterm: bool,
    /// `Command::Shutdown` is answered by nothing.
    pub ignore_shutdown: bool,
    /// A grandchild is started that holds the child's pipes and its socket open.
    pub fork: bool,
    /// The CUDA device that its program says it could compute on; `None` says that there is none.
    pub could_use: Option<String>,
    /// What its model file would say; `None` is one that suits any conversation.
    pub chat_template: Option<String>,
    /// What its tokenizer merges besides; each makes one more token.
    pub merges: Vec<String>,
    /// Control tokens that its vocabulary has besides.
    pub controls: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// In place of the hello, once the socket is connected.
    BeforeHello,
    /// After the hello, before the load order came.
    Handshaking,
    /// After the load order and one progress report.
    Loading,
    /// After `Ready`.
    Serving,
    /// After this many tokens, of whichever request.
    MidStream(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    Behave,
    // === Says what no child of this protocol says ===
    /// A preamble of another version.
    OtherVersion,
    /// Bytes that are no preamble or no frame.
    Garbage,
    /// Half a frame, and then the end.
    TruncatedFrame,
    /// A header that announces more than a frame may hold.
    OversizedFrame,
    /// A message with a byte behind it.
    TrailingBytes,
    /// A frame whose bytes decode to no message.
    UnknownMessage,
    /// That it is ready, with a tokenizer that is no message; then nothing more.
    NonsenseTokenizer,
    /// The preamble a second time.
    SecondHello,
    /// Words of a child that does not exist.
    WrongGeneration,
    /// A token for a request that nobody made.
    UnknownRequest,
    TokenOutOfRange,
    /// The next token's index, one too high.
    WrongIndex,
    /// A request's end, before it was asked for.
    UnknownFinish,
    /// A compile-time feature that the supervisor was not told to accept.
    ForbiddenFeature,
    /// Another process's id in the hello.
    WrongPid,
    // === Too much, too slow, or nothing at all ===
    /// Heartbeats without pause, as fast as the socket takes them.
    Flood,
    /// One byte of a frame at a time, ten a second.
    SlowDrip,
    /// Nothing more is said, but commands are read.
    Stall,
    /// Heartbeats that tell of one step that never ends.
    StuckStep,
    /// A step of half a second, of which heartbeats say that it is overdue.
    LateStep,
    /// Load progress that does not advance.
    StuckLoad,
    /// Commands are not read any more; heartbeats and tokens go on.
    NeverRead,
    /// SIGSTOP to itself.
    Stop,
    /// The socket is closed, but the process stays.
    CloseSocket,
    // === Ends ===
    Exit(i32),
    Signal(i32),
    /// Says that the device failed, and exits with the code of that fault.
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

    /// Goes wrong in the first child only.
    #[must_use]
    pub fn once(moment: Moment, act: Act) -> Self {
        Self {
            moment,
            act,
            faulty_generations: 1,
            ..Self::behave()
        }
    }

    /// Goes wrong in every child.
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

    /// When it is asked for a CUDA device, says that there is this one.
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

    /// Runs of `a` become tokens of up to so many letters, a power of two.
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

/// The end-of-sequence token, which ends an answer where a prompt has it; the 256 before it are the bytes.
pub const EOS: TokenId = TokenId(256);
pub const VOCAB_SIZE: u32 = 257;

/// The token that a scripted child generates at `index`: the prompt's bytes, over and over. A
/// function of nothing but the history, so that a test knows every stream beforehand.
#[must_use]
pub fn scripted_token(prompt: &[TokenId], index: usize) -> TokenId {
    prompt[index % prompt.len()]
}

/// The text of `count` scripted tokens behind an ASCII prompt.
#[must_use]
pub fn scripted_text(prompt: &str, count: usize) -> String {
    prompt.chars().cycle().take(count).collect()
}
