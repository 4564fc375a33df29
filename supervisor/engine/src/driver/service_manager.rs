//! Notifications by sd_notify(3) to the service manager that started this worker: systemd, or any other that sets
//! `NOTIFY_SOCKET`.
//!
//! | notification | time |
//! |---|---|
//! | `READY=1` | the first child serves |
//! | `STATUS=` | state, load, restarts, devices out, last death: at most once a second, and at a change of state |
//! | `WATCHDOG=1` | twice in the time of `WATCHDOG_USEC` |
//! | `EXTEND_TIMEOUT_USEC=` | during a download, until the first child serves, and while the worker ends |
//! | `STOPPING=1` | new requests are refused |
//!
//! Own deadlines end both a start and an end. The driver's turns send each notification, or the model download before
//! them. A driver that hangs is therefore silent, and the watchdog ends the worker. A separate thread sends, because a
//! service manager that does not read must not block streams. A full queue defers a notification to the next turn.

use crate::engine::EngineSnapshot;
use sd_notify::NotifyState;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use tracing::warn;

/// Capacity of the queue of notifications.
const ROOM: usize = 16;

/// Least time between two `STATUS=` of the same state, and time between two `EXTEND_TIMEOUT_USEC=`.
const PERIOD: Duration = Duration::from_secs(1);

/// Maximum length of `STATUS=` in characters.
const STATUS_CHARS: usize = 300;

/// Maximum part of it for the reason of one device that is out of service.
const REASON_CHARS: usize = 80;

/// Extension per [`PERIOD`]. It covers several lost notifications.
const EXTENSION: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Ready,
    Status(String),
    Watchdog,
    Extend,
    Stopping,
}

/// Notifications that were sent, and the queue for further ones.
#[derive(Debug, Default)]
pub struct ServiceManager {
    /// Queue to the sending thread. `None`: no service manager.
    words: Option<SyncSender<Word>>,
    /// Time between two watchdog notifications, if the watchdog is enabled.
    pulse: Option<Duration>,
    pulse_at: Option<Instant>,
    /// True once `READY=1` is queued. `is_stopping`: true once `STOPPING=1` is queued.
    is_ready: bool,
    is_stopping: bool,
    extended_at: Option<Instant>,
    /// State in the last status. `statuses`: status of each device. A change of either is sent at once.
    state: &'static str,
    statuses: Vec<&'static str>,
    status: String,
    status_at: Option<Instant>,
}

impl ServiceManager {
    /// Service manager of this process, if any.
    #[must_use]
    pub fn of_this_process() -> Self {
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

    /// Time at which [`ServiceManager::turn`] is due without an event.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.words.as_ref()?;
        let pulse = self.pulse_at.zip(self.pulse).map(|(at, every)| at + every);
        let extension = self.extended_at.filter(|_| self.is_in_between());
        let extension = extension.map(|at| at + PERIOD);
        pulse.into_iter().chain(extension).min()
    }

    /// Queues the notifications that are due by time.
    pub fn turn(&mut self, now: Instant) {
        if self.words.is_none() {
            return;
        }
        if let Some(every) = self.pulse
            && is_due(self.pulse_at, every, now)
        {
            self.pulse_at = Some(now);
            self.notify(Word::Watchdog);
        }
        if self.is_in_between() && is_due(self.extended_at, PERIOD, now) {
            self.extended_at = Some(now);
            self.notify(Word::Extend);
        }
    }

    /// Reports the progress of a start that has no engine yet.
    pub fn report_start(&mut self, words: &str) {
        self.notify(Word::Status(one_line(words)));
    }

    /// Reports changes.
    pub(super) fn update(&mut self, now: Instant, snapshot: &EngineSnapshot) {
        if self.words.is_none() {
            return;
        }
        if snapshot.serving && !self.is_ready {
            self.is_ready = self.notify(Word::Ready);
        }
        if (snapshot.draining || snapshot.failed) && !self.is_stopping {
            self.is_stopping = self.notify(Word::Stopping);
        }
        let statuses: Vec<_> = snapshot.devices.iter().map(|it| it.status).collect();
        let is_another = self.state != snapshot.state || self.statuses != statuses;
        if is_another || is_due(self.status_at, PERIOD, now) {
            let status = in_words(snapshot);
            if status != self.status && self.notify(Word::Status(status.clone())) {
                (self.state, self.status) = (snapshot.state, status);
                self.statuses = statuses;
                self.status_at = Some(now);
            }
        }
    }

    /// True while the worker starts or ends and systemd's timeout runs.
    fn is_in_between(&self) -> bool {
        !self.is_ready || self.is_stopping
    }

    /// Queues a notification. False: the queue is full.
    fn notify(&mut self, word: Word) -> bool {
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

/// Status line for `systemctl status`.
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
        line += &format!(", device {number} ({id}) {}: {why}", device.status);
    }
    let last = snapshot.faults.last.as_ref();
    if let Some(reaping) = last.and_then(|death| death.reaping.as_ref()) {
        line += &format!(", the last because: {}", reaping.cause);
    }
    one_line(&line)
}

/// Text without control characters. A line break would start another notification, and the text may come from a child.
fn one_line(text: &str) -> String {
    let chars = text.chars().take(STATUS_CHARS);
    chars
        .map(|it| if it.is_control() { ' ' } else { it })
        .collect()
}

/// Sends notifications until the driver is dropped.
fn send_all(words: &Receiver<Word>) {
    let mut is_told = false;
    for word in words {
        if let Err(error) = send(&word) {
            // Only the first failure is logged.
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

    fn sent(inbox: &Receiver<Word>) -> Vec<Word> {
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
        assert_eq!(sent(&inbox), [Word::Extend, Word::Extend]);
        assert_eq!(manager.deadline(), Some(start + 2 * PERIOD));
        snapshot.serving = true;
        manager.update(start, &snapshot);
        manager.update(start, &snapshot);
        let [Word::Ready, Word::Status(_)] = &sent(&inbox)[..] else {
            panic!("ready once");
        };
        manager.turn(start + 3 * PERIOD);
        assert_eq!((sent(&inbox), manager.deadline()), (vec![], None));
        snapshot.draining = true;
        manager.update(start, &snapshot);
        manager.turn(start + 3 * PERIOD);
        assert_eq!(sent(&inbox), [Word::Stopping, Word::Extend]);
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
        assert_eq!(sent(&inbox), [const { Word::Watchdog }; 5]);
        assert_eq!(manager.deadline(), Some(start + 2 * within + within / 2));
    }

    #[test]
    fn another_state_is_told_at_once_and_other_figures_once_a_second() {
        let (mut manager, inbox) = manager(None);
        let start = Instant::now();
        let mut snapshot = EngineSnapshot::before_anything(start);
        let mut sent = |ms, state, restarts| {
            (snapshot.state, snapshot.faults.restarts) = (state, restarts);
            manager.update(start + Duration::from_millis(ms), &snapshot);
            sent(&inbox).len()
        };
        let sent = [
            sent(0, "loading", 0),
            sent(10, "loading", 1),
            sent(20, "backoff", 1),
            sent(1000, "backoff", 2),
            sent(1020, "backoff", 2),
            sent(3000, "backoff", 2),
        ];
        assert_eq!(sent, [1, 0, 1, 0, 1, 0]);
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
        manager.update(start, &snapshot);
        drop(sent(&inbox));
        let out = &mut snapshot.devices[1];
        (out.status, out.out_since) = ("condemned", Some(start));
        out.reason = Some(format!("Xid 79{}", "x".repeat(10_000)));
        manager.update(start + Duration::from_millis(1), &snapshot);
        let [Word::Status(status)] = &sent(&inbox)[..] else {
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
            manager.notify(Word::Watchdog);
        }
        let start = Instant::now();
        let mut snapshot = EngineSnapshot::before_anything(start);
        snapshot.serving = true;
        manager.update(start, &snapshot);
        assert_eq!(sent(&inbox).len(), ROOM);
        manager.update(start, &snapshot);
        let [Word::Ready, Word::Status(_)] = &sent(&inbox)[..] else {
            panic!("notified again");
        };
        drop(inbox);
        manager.notify(Word::Watchdog);
        assert_eq!(manager.deadline(), None);
    }
}
