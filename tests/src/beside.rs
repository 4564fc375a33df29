//! A stream beside an attack: the bytes and the pace that it has alone.
//!
//! A scripted child speaks once a [`BEAT`], and a null child computes for one, so that what a gap
//! between two tokens has beyond that is the supervisor's. Who attacks leaves the two cores to the
//! supervisor, as somebody on another machine does.
//!
//! A death is one long gap. An attack that kills lets [`GAPS`] tokens pass behind each death, so
//! that the long gaps are the hundredth of which the pace says nothing; what else a death costs
//! shows.

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

/// As much again, which is what a gap may have more than alone, has room for the scheduling of two
/// busy cores, and none for a text that is worked on by a thread that others wait for.
const BEAT: Duration = Duration::from_millis(30);

/// How many times as long as alone 99 of 100 gaps may be.
const TIMES_ALONE: u32 = 2;

/// So many at least: of fewer, the 99th of 100 would be the longest.
pub const GAPS: usize = 110;

/// For the other gaps, a first token and `/livez`: generous on a busy machine, and a fraction of
/// what attacks took that held up everybody.
const PATIENCE: Duration = Duration::from_secs(2);

/// For the gap of a death: the wait before a third child, a load, and a replay.
const PATIENCE_WITH_DEATHS: Duration = Duration::from_secs(8);

/// Of which one has to keep the pace.
const ATTEMPTS: usize = 5;

/// Whoever measures has the machine to itself.
static MEASURING: Mutex<()> = Mutex::new(());

/// A good child whose streams a [`Bystander`] can measure.
#[must_use]
pub fn on_the_beat() -> Script {
    Script::behave().token_interval_ms(BEAT.as_millis() as u64)
}

/// A worker whose child computes nothing, but for a beat in each step, whoever is in it.
#[must_use]
pub fn a_beat_a_step() -> WorkerBuilder {
    Worker::null().env("NULL_CHILD_STEP_MICROS", &BEAT.as_micros().to_string())
}

/// An honest client that asks for the same again and again, and reads the same each time.
#[derive(Debug, Clone)]
pub struct Bystander {
    client: Client,
    /// Where the pace alone is measured.
    calm: Client,
    body: Value,
    /// Streams at once.
    company: usize,
    outlives_deaths: bool,
    tokens: Arc<AtomicUsize>,
}

/// A stream that was begun and not yet read to its end.
#[derive(Debug)]
pub struct Begun {
    stream: EventStream,
    text: String,
    last: Option<SseEvent>,
    tokens: Arc<AtomicUsize>,
}

/// What streams said, one behind another, and how fast.
#[derive(Debug, Default)]
struct Reading {
    texts: BTreeSet<String>,
    /// Between two tokens of one stream.
    gaps: Vec<Duration>,
    /// The longest time without an event, also before the first.
    silence: Duration,
    recoveries: u64,
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
        Self {
            calm: client.clone(),
            client,
            body,
            company: 1,
            outlives_deaths: false,
            tokens: Arc::default(),
        }
    }

    /// So many streams at once, of which no two have the same prompt. Each keeps its pace.
    #[must_use]
    pub fn in_company(mut self, streams: usize) -> Self {
        self.company = streams;
        self
    }

    /// The attack kills children. It has to let [`GAPS`] tokens pass behind each death.
    #[must_use]
    pub fn that_outlives_deaths(mut self) -> Self {
        self.outlives_deaths = true;
        self
    }

    /// The worker of the client has a trouble from its start on; this is one without.
    #[must_use]
    pub fn compared_with(mut self, calm: Client) -> Self {
        self.calm = calm;
        self
    }

    /// The text while nothing else happens.
    #[must_use]
    pub fn alone(&self) -> String {
        let (text, end) = self.begin().end();
        assert_eq!(end["recoveries"], 0, "{end}");
        text
    }

    /// Reads the first token.
    #[must_use]
    pub fn begin(&self) -> Begun {
        self.begin_at(&self.client, 0)
    }

    /// A stream of each of the company, one behind the other.
    #[must_use]
    pub fn begin_all(&self) -> Vec<Begun> {
        let places = 0..self.company;
        places
            .map(|place| self.begin_at(&self.client, place))
            .collect()
    }

    /// `place`: in the company.
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

    /// Tokens that were read until now: the clock of an attack, as long as somebody else reads.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens.load(Ordering::SeqCst)
    }

    /// Waits until each of the company has read so many tokens more, on average.
    pub fn wait_tokens(&self, more: usize) {
        let goal = self.tokens() + more * self.company;
        wait::until("bystanders to read on", || {
            (self.tokens() >= goal).then_some(())
        });
    }

    /// Reads streams while `attack` lasts, and `/livez` beside them. Panics unless each stream is
    /// whole, has the bytes that it has alone, and keeps the pace that it has alone.
    ///
    /// A machine that does other things as well may hold up everybody for a while: the pace beside
    /// the attack is compared with that before and with that behind it, and measured again.
    pub fn keeps_pace_beside<T: Send>(&self, mut attack: impl FnMut() -> T + Send) -> T {
        let _measuring = MEASURING.lock();
        let mut slow = Vec::new();
        let mut alone = self.read_alone();
        while slow.len() < ATTEMPTS {
            let (result, beside) = self.read_beside(&self.client, &mut attack);
            if self.is_kept(&alone, &beside) {
                return result;
            }
            slow.push(told(&alone, &beside));
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

    /// Panics where anything but the pace is not as it is alone.
    fn is_kept(&self, alone: &[Reading], beside: &[Reading]) -> bool {
        println!("{}", told(alone, beside));
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

    /// The attack begins when the first streams have begun.
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
        // An assertion that failed in there has failed out here.
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

fn told(alone: &[Reading], beside: &[Reading]) -> String {
    let pairs = alone.iter().zip(beside);
    let told = pairs.map(|(alone, beside)| format!("alone {alone}, beside the attack {beside}"));
    told.collect::<Vec<_>>().join("\n")
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
            self.tokens.fetch_add(1, Ordering::SeqCst);
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

/// The thread that calls, and those that it starts.
fn give_way() {
    rustix::process::setpriority_process(None, 19).expect("anybody may give way");
}
