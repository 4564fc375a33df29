//! Streams beside an attack, compared with the bytes and the pace that they have alone.
//!
//! A scripted child sends a token per [`BEAT`], and a null child computes for one, so that the rest of a gap between
//! two tokens is the supervisor's. Attackers give way on the two cores, as if they ran on another machine.
//!
//! A death is one long gap. An attack that kills lets [`GAPS`] tokens pass after each death, so that long gaps are the
//! hundredth which the 99th percentile excludes; any other cost of a death shows.

use crate::client::{Client, EventStream, SseEvent};
use crate::script::Script;
use crate::wait;
use crate::worker::{Worker, WorkerBuilder, request, unique};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// 30 ms. A gap may grow by as much again: room for the scheduling of two busy cores, and none for a text that is
/// processed on a thread that others wait for.
const BEAT: Duration = Duration::from_millis(30);

/// Limit of the 99th percentile of gaps, as a multiple of the undisturbed one.
const TIMES_ALONE: u32 = 2;

/// Minimum of measured gaps: of fewer, the 99th percentile would be the longest.
pub const GAPS: usize = 110;

/// 2 s for the other gaps, a first token and `/livez`: generous on a busy machine, and a fraction of the time that
/// blocking attacks took.
const PATIENCE: Duration = Duration::from_secs(2);

/// 8 s for the gap of a death: the delay before a third child, a load, and a replay.
const PATIENCE_WITH_DEATHS: Duration = Duration::from_secs(8);

/// Attempts, one of which has to keep the pace.
const ATTEMPTS: usize = 5;

/// Lock of the machine: measurements run alone.
static MEASURING: Mutex<()> = Mutex::new(());

/// Well-behaved scripted child for the streams of a [`Bystander`].
#[must_use]
pub fn on_the_beat() -> Script {
    Script::behave().token_interval_ms(BEAT.as_millis() as u64)
}

/// Worker with a null child that takes a beat per step.
#[must_use]
pub fn a_beat_a_step() -> WorkerBuilder {
    Worker::null().env("NULL_CHILD_STEP_MICROS", &BEAT.as_micros().to_string())
}

/// Honest client that repeats the same request and expects the same answer.
#[derive(Debug, Clone)]
pub struct Bystander {
    client: Client,
    /// Worker without the attack.
    calm: Client,
    body: Value,
    /// Concurrent streams.
    company: usize,
    outlives_deaths: bool,
    tokens: Arc<AtomicUsize>,
}

/// Stream that has begun and is not read to its end.
#[derive(Debug)]
pub struct Begun {
    stream: EventStream,
    text: String,
    last: Option<SseEvent>,
    tokens: Arc<AtomicUsize>,
}

/// Texts of consecutive streams, and their pace.
#[derive(Debug, Default)]
struct Reading {
    texts: BTreeSet<String>,
    /// Gaps between two tokens of one stream.
    gaps: Vec<Duration>,
    /// Longest time without an event, also before the first.
    silence: Duration,
    recoveries: u64,
}

impl Bystander {
    /// Bystander of a worker with a child [`on_the_beat`].
    #[must_use]
    pub fn of_a_script(client: Client) -> Self {
        Self::new(client, request("an honest prompt ", GAPS as u32 + 1))
    }

    /// Bystander with `body` for `/execute`; each stream has its own id.
    #[must_use]
    pub fn new(client: Client, body: Value) -> Self {
        Self {
            calm: client.clone(),
            client,
            body,
            company: 1,
            outlives_deaths: false,
            tokens: Arc::default(),
        }
    }

    /// Sets the number of concurrent streams, with different prompts. Each has to keep its pace.
    #[must_use]
    pub fn among(mut self, streams: usize) -> Self {
        self.company = streams;
        self
    }

    /// Declares that the attack kills children. It has to let [`GAPS`] tokens pass after each death.
    #[must_use]
    pub fn that_outlives_deaths(mut self) -> Self {
        self.outlives_deaths = true;
        self
    }

    /// Sets the undisturbed worker, if the attacked one is disturbed from its start.
    #[must_use]
    pub fn compared_with(mut self, calm: Client) -> Self {
        self.calm = calm;
        self
    }

    /// Text without a disturbance.
    #[must_use]
    pub fn alone(&self) -> String {
        let (text, end) = self.begin().end();
        assert_eq!(end["recoveries"], 0, "{end}");
        text
    }

    /// Begins a stream and reads its first token.
    #[must_use]
    pub fn begin(&self) -> Begun {
        self.begin_at(&self.client, 0)
    }

    /// Begins a stream of each prompt, one after the other.
    #[must_use]
    pub fn begin_all(&self) -> Vec<Begun> {
        let places = 0..self.company;
        places
            .map(|place| self.begin_at(&self.client, place))
            .collect()
    }

    /// Begins the stream of prompt `place`.
    fn begin_at(&self, client: &Client, place: usize) -> Begun {
        let mut body = self.body.clone();
        body["job_id"] = json!(format!("bystander-{}", unique()));
        if place > 0 {
            let prompt = self.body["prompt"].as_str().expect("a prompt of text");
            body["prompt"] = json!(format!("{place} {prompt}"));
        }
        let mut begun = Begun {
            stream: client.execute(&body),
            text: String::new(),
            last: None,
            tokens: Arc::clone(&self.tokens),
        };
        begun.more(1);
        begun
    }

    /// Tokens read so far: clock of an attack, while another thread reads.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens.load(Ordering::SeqCst)
    }

    /// Waits until the streams have read `more` tokens each, on average.
    pub fn wait_tokens(&self, more: usize) {
        let goal = self.tokens() + more * self.company;
        wait::until("bystanders to read on", || {
            (self.tokens() >= goal).then_some(())
        });
    }

    /// Reads streams while `attack` runs, and `/livez` beside them. Panics unless each stream is complete and has its
    /// undisturbed bytes and pace.
    ///
    /// Other load of the machine may delay all streams: the pace beside the attack is compared with those before and
    /// after it, and measured again.
    pub fn keeps_pace_beside<T: Send>(&self, mut attack: impl FnMut() -> T + Send) -> T {
        let _measuring = MEASURING.lock();
        let mut slow = Vec::new();
        let mut alone = self.read_alone();
        while slow.len() < ATTEMPTS {
            let (result, beside) = self.read_beside(&self.client, &mut attack);
            if self.is_kept(&alone, &beside) {
                return result;
            }
            slow.push(described(&alone, &beside));
            alone = self.read_alone();
            if self.is_kept(&alone, &beside) {
                return result;
            }
        }
        panic!("the pace was lost each time: {slow:#?}");
    }

    fn read_alone(&self) -> Vec<Reading> {
        let ((), alone) = self.read_beside(&self.calm, || ());
        for reading in &alone {
            assert_eq!(reading.texts.len(), 1, "it is the same each time");
            assert_eq!(reading.recoveries, 0);
        }
        alone
    }

    /// True if the pace is kept. Panics if anything else differs.
    fn is_kept(&self, alone: &[Reading], beside: &[Reading]) -> bool {
        println!("{}", described(alone, beside));
        let recoveries: u64 = beside.iter().map(|it| it.recoveries).sum();
        let deaths = self.outlives_deaths;
        assert_eq!(recoveries > 0, deaths, "{recoveries} recoveries");
        let patience = if deaths {
            PATIENCE_WITH_DEATHS
        } else {
            PATIENCE
        };
        let mut pairs = alone.iter().zip(beside);
        pairs.all(|(alone, beside)| {
            assert_eq!(beside.texts, alone.texts);
            beside.p99() <= alone.p99() * TIMES_ALONE && beside.silence < patience
        })
    }

    /// Starts the attack when the first streams have begun.
    fn read_beside<T: Send>(
        &self,
        client: &Client,
        attack: impl FnOnce() -> T + Send,
    ) -> (T, Vec<Reading>) {
        let places = 0..self.company;
        let begun: Vec<_> = places.map(|place| self.begin_at(client, place)).collect();
        let (result, readings) = thread::scope(|scope| {
            let attack = scope.spawn(|| {
                give_way();
                attack()
            });
            let is_over = || attack.is_finished();
            let readings = thread::scope(|scope| {
                scope.spawn(|| probe(client, is_over));
                let readers: Vec<_> = (0..)
                    .zip(begun)
                    .map(|(place, stream)| {
                        scope.spawn(move || self.read_on(client, place, stream, is_over))
                    })
                    .collect();
                readers.into_iter().map(|it| it.join()).collect::<Vec<_>>()
            });
            (attack.join(), readings)
        });
        // Assertions in the threads fail the test.
        let unwind = |panic| resume_unwind(panic);
        let readings = readings.into_iter().map(|it| it.unwrap_or_else(unwind));
        (
            result.unwrap_or_else(|panic| resume_unwind(panic)),
            readings.collect(),
        )
    }

    fn read_on(
        &self,
        client: &Client,
        place: usize,
        mut stream: Begun,
        is_over: impl Fn() -> bool,
    ) -> Reading {
        let mut reading = Reading::default();
        loop {
            reading.read(stream, &is_over);
            if is_over() && reading.gaps.len() >= GAPS {
                return reading;
            }
            let asked = Instant::now();
            stream = self.begin_at(client, place);
            reading.silence = reading.silence.max(asked.elapsed());
        }
    }
}

fn probe(client: &Client, is_over: impl Fn() -> bool) {
    while !is_over() {
        let asked = Instant::now();
        assert_eq!(client.get("/livez").status, 200);
        let took = asked.elapsed();
        assert!(took < PATIENCE, "/livez took {took:?}");
        thread::sleep(BEAT);
    }
}

fn described(alone: &[Reading], beside: &[Reading]) -> String {
    let pairs = alone.iter().zip(beside);
    let told = pairs.map(|(alone, beside)| format!("alone {alone}, beside the attack {beside}"));
    told.collect::<Vec<_>>().join("\n")
}

impl Begun {
    /// Reads `tokens` more tokens.
    pub fn more(&mut self, tokens: usize) {
        let mut left = tokens;
        while left > 0 {
            let event = self.next().expect("more tokens");
            left -= usize::from(event.name == "token");
        }
    }

    /// The text so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Reads to the end: the whole text, and the `end` event.
    #[must_use]
    pub fn end(self) -> (String, Value) {
        let (text, last) = self.rest();
        assert_eq!(last.name, "end", "{last:?}");
        (text, last.json())
    }

    /// Reads to the end: the whole text, and the last event.
    #[must_use]
    pub fn rest(mut self) -> (String, SseEvent) {
        while self.next().is_some() {}
        (self.text, self.last.expect("a terminal event"))
    }

    fn next(&mut self) -> Option<SseEvent> {
        let event = self.stream.next()?;
        if event.name == "token" {
            self.tokens.fetch_add(1, Ordering::SeqCst);
            self.text += event.json()["t"].as_str().expect("t is text");
        }
        self.last = Some(event.clone());
        Some(event)
    }
}

impl Reading {
    /// Reads to the end. Gaps after the attack count if there were few beside it.
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
        self.recoveries += end["recoveries"].as_u64().expect("a number");
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
        let deaths = self.recoveries;
        write!(
            f,
            "{p99:.1?} for 99 of 100 of {count} gaps, {silence:.1?} at most, {deaths} recoveries"
        )
    }
}

/// Lowers the priority of the calling thread and its future threads.
fn give_way() {
    rustix::process::setpriority_process(None, 19).expect("anybody may give way");
}
