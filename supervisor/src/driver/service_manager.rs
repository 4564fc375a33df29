//! Words for the service manager that started this worker, by sd_notify(3): systemd, or whoever else set
//! `NOTIFY_SOCKET`.
//!
//! | word | when |
//! |---|---|
//! | `READY=1` | the first child serves |
//! | `STATUS=` | state, load, restarts, devices that are out, the last death: once a second at most, and when the state or a device's standing is another |
//! | `WATCHDOG=1` | twice in the time that `WATCHDOG_USEC` gives |
//! | `EXTEND_TIMEOUT_USEC=` | while a model is got, until the first child serves, and while the worker ends: its own deadlines end both |
//! | `STOPPING=1` | nothing new is accepted |
//!
//! Each comes from a turn of the driver, or of what gets a model before there is one, so a driver that stands still is silent, and the watchdog ends the
//! worker. A thread of their own sends them: a service manager that does not read must not stop streams. A word
//! that finds no room is said again: at the next turn, or with the next figures.

use crate::engine::EngineSnapshot;
use sd_notify::NotifyState;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use tracing::warn;

/// Words that may wait to be sent.
const ROOM: usize = 16;

/// The least time between two `STATUS=` of the same state, and the time between two `EXTEND_TIMEOUT_USEC=`.
const PERIOD: Duration = Duration::from_secs(1);

/// The longest `STATUS=`.
const STATUS_CHARS: usize = 300;

/// Of them, what says why one device is out of use.
const REASON_CHARS: usize = 80;

/// The time that is asked for each [`PERIOD`]: several may be lost.
const EXTENSION: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Ready,
    Status(String),
    Watchdog,
    Extend,
    Stopping,
}

#[derive(Debug, Default)]
pub(crate) struct ServiceManager {
    /// `None`: nobody listens.
    words: Option<SyncSender<Word>>,
    /// Time between two words for the watchdog, if there is one.
    pulse: Option<Duration>,
    pulse_at: Option<Instant>,
    /// It has been told that the worker is ready, or that it is ending.
    is_ready: bool,
    is_stopping: bool,
    extended_at: Option<Instant>,
    /// The state of the last status, and the standing of each device: others are told at once.
    state: &'static str,
    standings: Vec<&'static str>,
    status: String,
    status_at: Option<Instant>,
}

impl ServiceManager {
    /// The one that started this process, if any.
    pub(crate) fn of_this_process() -> Self {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return Self::default();
        }
        let (words, inbox) = sync_channel(ROOM);
        let sender = thread::Builder::new().name("service-manager".to_owned());
        match sender.spawn(move || send_all(&inbox)) {
            Ok(_) => Self::of(words, sd_notify::watchdog_enabled()),
            Err(error) => {
                warn!(%error, "service_manager_without_a_thread");
                Self::default()
            }
        }
    }

    fn of(words: SyncSender<Word>, watchdog: Option<Duration>) -> Self {
        Self {
            words: Some(words),
            pulse: watchdog.map(|within| within / 2),
            ..Self::default()
        }
    }

    /// The moment at which [`ServiceManager::turn`] has something to say although nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.words.as_ref()?;
        let pulse = self.pulse_at.zip(self.pulse).map(|(at, every)| at + every);
        let extension = self.extended_at.filter(|_| self.is_in_between());
        let extension = extension.map(|at| at + PERIOD);
        pulse.into_iter().chain(extension).min()
    }

    /// Says what is due whatever happens.
    pub(crate) fn turn(&mut self, now: Instant) {
        if self.words.is_none() {
            return;
        }
        if let Some(every) = self.pulse
            && is_due(self.pulse_at, every, now)
        {
            self.pulse_at = Some(now);
            self.say(Word::Watchdog);
        }
        if self.is_in_between() && is_due(self.extended_at, PERIOD, now) {
            self.extended_at = Some(now);
            self.say(Word::Extend);
        }
    }

    /// Says how far a start is that has no engine yet.
    pub(crate) fn tell_of_the_start(&mut self, words: &str) {
        self.say(Word::Status(one_line(words)));
    }

    /// Says what is new.
    pub(super) fn tell(&mut self, now: Instant, snapshot: &EngineSnapshot) {
        if self.words.is_none() {
            return;
        }
        if snapshot.serving && !self.is_ready {
            self.is_ready = self.say(Word::Ready);
        }
        if (snapshot.draining || snapshot.failed) && !self.is_stopping {
            self.is_stopping = self.say(Word::Stopping);
        }
        let standings: Vec<_> = snapshot.devices.iter().map(|it| it.standing).collect();
        let is_another = self.state != snapshot.state || self.standings != standings;
        if is_another || is_due(self.status_at, PERIOD, now) {
            let status = in_words(snapshot);
            if status != self.status && self.say(Word::Status(status.clone())) {
                (self.state, self.status) = (snapshot.state, status);
                self.standings = standings;
                self.status_at = Some(now);
            }
        }
    }

    /// It begins, or ends, and systemd waits for it.
    fn is_in_between(&self) -> bool {
        !self.is_ready || self.is_stopping
    }

    /// False where the word has found no room.
    fn say(&mut self, word: Word) -> bool {
        let sent = self.words.as_ref().map(|words| words.try_send(word));
        if let Some(Err(TrySendError::Disconnected(_))) = sent {
            self.words = None;
        }
        matches!(sent, Some(Ok(())))
    }
}

fn is_due(last: Option<Instant>, every: Duration, now: Instant) -> bool {
    last.is_none_or(|last| now >= last + every)
}

/// A line for `systemctl status`.
fn in_words(snapshot: &EngineSnapshot) -> String {
    let load = &snapshot.load;
    let of_children = load.children.map(|(load, _)| load).unwrap_or_default();
    let (running, waiting) = (of_children.running, of_children.waiting as usize);
    let mut line = format!(
        "{}: {running} running, {} waiting, {:.0} tokens/s, {} restarts",
        snapshot.state,
        waiting + load.unassigned,
        load.tokens_per_second,
        snapshot.faults.restarts
    );
    for device in snapshot.devices.iter().filter(|it| it.out_since.is_some()) {
        let (number, id) = (device.place, &device.id);
        let why = device.reason.as_deref().unwrap_or_default();
        let why: String = why.chars().take(REASON_CHARS).collect();
        line += &format!(", device {number} ({id}) {}: {why}", device.standing);
    }
    let last = snapshot.faults.last.as_ref();
    if let Some(burial) = last.and_then(|death| death.burial.as_ref()) {
        line += &format!(", the last because: {}", burial.cause);
    }
    one_line(&line)
}

/// A line break would begin another word, and a child may say anything.
fn one_line(text: &str) -> String {
    let chars = text.chars().take(STATUS_CHARS);
    chars
        .map(|it| if it.is_control() { ' ' } else { it })
        .collect()
}

/// Runs until the driver is gone.
fn send_all(words: &Receiver<Word>) {
    let mut is_told = false;
    for word in words {
        if let Err(error) = send(&word) {
            // Once is enough.
            if !std::mem::replace(&mut is_told, true) {
                warn!(%error, "service_manager_notify_failed");
            }
        }
    }
}

fn send(word: &Word) -> io::Result<()> {
    let word = match word {
        Word::Ready => NotifyState::Ready,
        Word::Status(status) => NotifyState::Status(status),
        Word::Watchdog => NotifyState::Watchdog,
        Word::Extend => NotifyState::ExtendTimeoutUsec(EXTENSION.as_micros() as u32),
        Word::Stopping => NotifyState::Stopping,
    };
    sd_notify::notify(&[word])
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;

    fn manager(watchdog: Option<Duration>) -> (ServiceManager, Receiver<Word>) {
        let (words, inbox) = sync_channel(ROOM);
        (ServiceManager::of(words, watchdog), inbox)
    }

    fn said(inbox: &Receiver<Word>) -> Vec<Word> {
        inbox.try_iter().collect()
    }

    #[test]
    fn time_is_asked_for_until_the_worker_is_ready_and_again_when_it_ends() {
        let (mut manager, inbox) = manager(None);
        let start = Instant::now();
        let mut snapshot = EngineSnapshot::before_anything(start);
        manager.turn(start);
        manager.turn(start + PERIOD / 2);
        manager.turn(start + PERIOD);
        assert_eq!(said(&inbox), [Word::Extend, Word::Extend]);
        assert_eq!(manager.deadline(), Some(start + 2 * PERIOD));
        snapshot.serving = true;
        manager.tell(start, &snapshot);
        manager.tell(start, &snapshot);
        let [Word::Ready, Word::Status(_)] = &said(&inbox)[..] else {
            panic!("ready once");
        };
        manager.turn(start + 3 * PERIOD);
        assert_eq!((said(&inbox), manager.deadline()), (vec![], None));
        snapshot.draining = true;
        manager.tell(start, &snapshot);
        manager.turn(start + 3 * PERIOD);
        assert_eq!(said(&inbox), [Word::Stopping, Word::Extend]);
    }

    #[test]
    fn the_watchdog_hears_twice_in_its_time() {
        let within = Duration::from_secs(10);
        let (mut manager, inbox) = manager(Some(within));
        let start = Instant::now();
        manager.is_ready = true;
        for ms in (0..=20_000).step_by(100) {
            manager.turn(start + Duration::from_millis(ms));
        }
        assert_eq!(said(&inbox), [const { Word::Watchdog }; 5]);
        assert_eq!(manager.deadline(), Some(start + 2 * within + within / 2));
    }

    #[test]
    fn another_state_is_told_at_once_and_other_figures_once_a_second() {
        let (mut manager, inbox) = manager(None);
        let start = Instant::now();
        let mut snapshot = EngineSnapshot::before_anything(start);
        let mut told = |ms, state, restarts| {
            (snapshot.state, snapshot.faults.restarts) = (state, restarts);
            manager.tell(start + Duration::from_millis(ms), &snapshot);
            said(&inbox).len()
        };
        let told = [
            told(0, "loading", 0),
            told(10, "loading", 1),
            told(20, "backoff", 1),
            told(1000, "backoff", 2),
            told(1020, "backoff", 2),
            told(3000, "backoff", 2),
        ];
        assert_eq!(told, [1, 0, 1, 0, 1, 0]);
    }

    #[test]
    fn a_device_that_goes_out_of_use_is_told_at_once_with_its_reason() {
        let (mut manager, inbox) = manager(None);
        let start = Instant::now();
        let mut snapshot = EngineSnapshot::before_anything(start);
        snapshot.state = "serving";
        let mut device = snapshot.devices[0].clone();
        (device.place, device.id) = (1, "cuda:3".to_owned());
        snapshot.devices.push(device);
        manager.tell(start, &snapshot);
        drop(said(&inbox));
        let out = &mut snapshot.devices[1];
        (out.standing, out.out_since) = ("condemned", Some(start));
        out.reason = Some(format!("Xid 79{}", "x".repeat(10_000)));
        manager.tell(start + Duration::from_millis(1), &snapshot);
        let [Word::Status(status)] = &said(&inbox)[..] else {
            panic!("one status");
        };
        assert!(
            status.contains(", device 1 (cuda:3) condemned: Xid 79x"),
            "{status}"
        );
        assert!(!status.contains("device 0"), "{status}");
        assert!(status.chars().count() < STATUS_CHARS, "{status}");
    }

    #[test]
    fn what_a_child_says_begins_no_word_of_its_own() {
        assert_eq!(one_line("it lies\nMAINPID=1"), "it lies MAINPID=1");
        let long = one_line(&"x".repeat(10_000));
        assert_eq!(long.chars().count(), STATUS_CHARS);
    }

    #[test]
    fn one_that_does_not_read_is_told_again_that_the_worker_is_ready() {
        let (mut manager, inbox) = manager(None);
        for _ in 0..2 * ROOM {
            manager.say(Word::Watchdog);
        }
        let start = Instant::now();
        let mut snapshot = EngineSnapshot::before_anything(start);
        snapshot.serving = true;
        manager.tell(start, &snapshot);
        assert_eq!(said(&inbox).len(), ROOM);
        manager.tell(start, &snapshot);
        let [Word::Ready, Word::Status(_)] = &said(&inbox)[..] else {
            panic!("notified again");
        };
        drop(inbox);
        manager.say(Word::Watchdog);
        assert_eq!(manager.deadline(), None);
    }
}
