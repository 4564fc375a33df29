//! A stream beside an attack: the bytes and the pace that it has alone.
//!
//! A scripted child speaks once a [`BEAT`], so that what a gap between two tokens has beyond that
//! is the supervisor's. Who attacks leaves the two cores to the supervisor, as somebody on another
//! machine does.

use crate::client::{Client, EventStream, SseEvent};
use crate::script::Script;
use crate::worker::{request, unique};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// As much again, which is what a gap may have more than alone, has room for the scheduling of two
/// busy cores, and none for a text that is worked on by a thread that others wait for.
const BEAT: Duration = Duration::from_millis(30);

/// How many times as long as alone 99 of 100 gaps may be.
const TIMES_ALONE: u32 = 2;

/// So many at least: of fewer, the 99th of 100 would be the longest.
const GAPS: usize = 110;

/// For the other gaps, a first token and `/livez`: generous on a busy machine, and a fraction of
/// what attacks took that held up everybody.
const PATIENCE: Duration = Duration::from_secs(2);

/// Of which one has to keep the pace.
const ATTEMPTS: usize = 5;

/// Whoever measures has the machine to itself.
static MEASURING: Mutex<()> = Mutex::new(());

/// A good child whose streams a [`Bystander`] can measure.
#[must_use]
pub fn on_the_beat() -> Script {
    Script::behave().token_interval_ms(BEAT.as_millis() as u64)
}

/// An honest client that asks for the same again and again, and reads the same each time.
#[derive(Debug, Clone)]
pub struct Bystander {
    client: Client,
    body: Value,
}

/// A stream that was begun and not yet read to its end.
#[derive(Debug)]
pub struct Begun {
    stream: EventStream,
    text: String,
    last: Option<SseEvent>,
}

/// What streams said, one behind another, and how fast.
#[derive(Debug, Default)]
struct Reading {
    texts: BTreeSet<String>,
    /// Between two tokens of one stream.
    gaps: Vec<Duration>,
    /// The longest time without an event, also before the first.
    silence: Duration,
}

impl Bystander {
    /// Of a worker whose child is [`on_the_beat`].
    #[must_use]
    pub fn of_a_script(client: Client) -> Self {
        Self::new(client, request("an honest prompt ", GAPS as u32 + 1))
    }

    /// `body` is one for `/execute`; each stream has an id of its own.
    #[must_use]
    pub fn new(client: Client, body: Value) -> Self {
        Self { client, body }
    }

    /// The text while nothing else happens.
    #[must_use]
    pub fn alone(&self) -> String {
        let (text, end) = self.begin().end();
        assert_eq!(end["recoveries"], 0, "{end}");
        text
    }

    /// Reads the first token. For attacks that kill children or want their time: a gap is then
    /// that of a recovery or of a step, and only the bytes are those alone.
    #[must_use]
    pub fn begin(&self) -> Begun {
        let mut body = self.body.clone();
        body["job_id"] = json!(format!("bystander-{}", unique()));
        let mut begun = Begun {
            stream: self.client.execute(&body),
            text: String::new(),
            last: None,
        };
        begun.more(1);
        begun
    }

    /// Reads streams while `attack` lasts, and `/livez` beside them. Panics unless each stream is
    /// whole, has the bytes that it has alone, and keeps the pace that it has alone.
    ///
    /// A machine that does other things as well may hold up everybody for a while: then the pace
    /// alone and that beside it are measured again.
    pub fn keeps_pace_beside<T: Send>(&self, mut attack: impl FnMut() -> T + Send) -> T {
        let mut slow = Vec::new();
        while slow.len() < ATTEMPTS {
            let (result, alone, beside) = self.compare(&mut attack);
            if beside.p99() <= alone.p99() * TIMES_ALONE && beside.silence < PATIENCE {
                return result;
            }
            slow.push(format!("alone {alone}, beside the attack {beside}"));
        }
        panic!("the pace was lost each time: {slow:#?}");
    }

    fn compare<T: Send>(&self, attack: impl FnOnce() -> T + Send) -> (T, Reading, Reading) {
        let _measuring = MEASURING.lock();
        let ((), alone) = self.read_beside(|| ());
        let (result, beside) = self.read_beside(attack);
        println!("alone {alone}, beside the attack {beside}");
        assert_eq!(alone.texts.len(), 1, "it is the same each time");
        assert_eq!(beside.texts, alone.texts);
        (result, alone, beside)
    }

    /// The attack begins when the first stream has begun.
    fn read_beside<T: Send>(&self, attack: impl FnOnce() -> T + Send) -> (T, Reading) {
        let mut reading = Reading::default();
        let mut stream = self.begin();
        let result = thread::scope(|scope| {
            let attack = scope.spawn(|| {
                give_way();
                attack()
            });
            let is_over = || attack.is_finished();
            thread::scope(|scope| {
                scope.spawn(|| self.probe(is_over));
                loop {
                    reading.read(stream, is_over);
                    if is_over() && reading.gaps.len() >= GAPS {
                        return;
                    }
                    let asked = Instant::now();
                    stream = self.begin();
                    reading.silence = reading.silence.max(asked.elapsed());
                }
            });
            attack.join()
        });
        // An assertion that failed in there has failed out here.
        (result.unwrap_or_else(|panic| resume_unwind(panic)), reading)
    }

    fn probe(&self, is_over: impl Fn() -> bool) {
        while !is_over() {
            let asked = Instant::now();
            assert_eq!(self.client.get("/livez").status, 200);
            let took = asked.elapsed();
            assert!(took < PATIENCE, "/livez took {took:?}");
            thread::sleep(BEAT);
        }
    }
}

impl Begun {
    /// Reads so many tokens more.
    pub fn more(&mut self, tokens: usize) {
        let mut left = tokens;
        while left > 0 {
            let event = self.next().expect("more tokens");
            left -= usize::from(event.name == "token");
        }
    }

    /// Reads on: the whole text, and what its `end` says.
    #[must_use]
    pub fn end(self) -> (String, Value) {
        let (text, last) = self.rest();
        assert_eq!(last.name, "end", "{last:?}");
        (text, last.json())
    }

    /// Reads on: the whole text, and the last event.
    #[must_use]
    pub fn rest(mut self) -> (String, SseEvent) {
        while self.next().is_some() {}
        (self.text, self.last.expect("a terminal event"))
    }

    fn next(&mut self) -> Option<SseEvent> {
        let event = self.stream.next()?;
        if event.name == "token" {
            self.text += event.json()["t"].as_str().expect("t is text");
        }
        self.last = Some(event.clone());
        Some(event)
    }
}

impl Reading {
    /// To the end. Gaps behind the attack count where there were few beside it.
    fn read(&mut self, mut stream: Begun, is_over: impl Fn() -> bool) {
        let mut last = Instant::now();
        while let Some(event) = stream.next() {
            let gap = last.elapsed();
            last = Instant::now();
            self.silence = self.silence.max(gap);
            if event.name == "token" && (!is_over() || self.gaps.len() < GAPS) {
                self.gaps.push(gap);
            }
        }
        let (text, end) = stream.end();
        assert_eq!(end["recoveries"], 0, "{end}");
        self.texts.insert(text);
    }

    fn p99(&self) -> Duration {
        let mut gaps = self.gaps.clone();
        gaps.sort_unstable();
        gaps[(gaps.len() * 99).div_ceil(100) - 1]
    }
}

impl Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p99, count, silence) = (self.p99(), self.gaps.len(), self.silence);
        write!(
            f,
            "{p99:.1?} for 99 of 100 of {count} gaps, {silence:.1?} at most"
        )
    }
}

/// The thread that calls, and those that it starts.
fn give_way() {
    rustix::process::setpriority_process(None, 19).expect("anybody may give way");
}
