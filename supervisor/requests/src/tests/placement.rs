//! Comparison of the policy with two simpler ones, on simulated children and arrivals of published shapes.
//!
//! The measure is the wait for the first token, in prompt tokens that a device would compute meanwhile. The policy is
//! the journal itself with all its devices, including rebalancing. For the simpler policies each device has a journal
//! of its own, and requests go to them round-robin, or to the one with the fewest requests.

mod arrivals;
mod child;

use crate::testing::{Journal, params, request};
use arrivals::{Arrivals, Turn};
use child::Child;
use std::collections::BTreeMap;
use std::num::NonZeroU8;
use std::time::{Duration, Instant};
use worker_orcd_ipc::{FinishReason, RequestId};
use worker_orcd_lifecycle::SeatId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Ours,
    InTurn,
    Fewest,
}

/// Waits, in prompt tokens.
#[derive(Debug, Clone, Copy)]
struct Waits {
    mean: u64,
    p99: u64,
}

struct Host {
    policy: Policy,
    /// One journal for all children, or one for each.
    journals: Vec<Journal>,
    children: Vec<Child>,
    began_at: Instant,
    /// Time since the beginning, in prompt tokens.
    now: u64,
    /// Turns that wait for their arrival or their first token, by journal and request, each with its arrival time.
    turns: BTreeMap<(usize, RequestId), (Turn, u64)>,
    submitted: usize,
    waits: Vec<u64>,
}

impl Host {
    fn new(policy: Policy, devices: u8) -> Self {
        let (journals, each) = match policy {
            Policy::Ours => (1, devices),
            Policy::InTurn | Policy::Fewest => (devices, 1),
        };
        let journal = |_| Journal::with_devices(1 << 16, NonZeroU8::new(each).unwrap());
        let journals: Vec<_> = (0..journals).map(journal).collect();
        let began_at = journals[0].now;
        let place = |device: u8| match policy {
            Policy::Ours => (0, SeatId(2 * device)),
            Policy::InTurn | Policy::Fewest => (usize::from(device), SeatId(0)),
        };
        let children = (0..devices).map(place).map(Child::new);
        let mut host = Self {
            policy,
            journals,
            children: children.collect(),
            began_at,
            now: 0,
            turns: BTreeMap::new(),
            submitted: 0,
            waits: vec![],
        };
        for child in &host.children {
            let (journal, seat) = child.place;
            let by = child.serves(&host.journals[journal]);
            host.journals[journal].requests.serve(seat, by);
        }
        host
    }

    fn run(mut self, mut arrivals: Arrivals) -> Waits {
        loop {
            let ends = self.children.iter().filter_map(Child::ends_at);
            let (step, turn) = (ends.min(), arrivals.next_at());
            let Some(next) = step.into_iter().chain(turn).min() else {
                return self.score();
            };
            self.now = next;
            let moment = self.began_at + Duration::from_micros(next);
            self.journals.iter_mut().for_each(|it| it.now = moment);
            if turn == Some(next) {
                let turn = arrivals.next().expect("a due arrival");
                self.submit(turn);
            } else {
                self.end_steps(&mut arrivals);
            }
            self.deliver();
        }
    }

    fn submit(&mut self, turn: Turn) {
        let mut new = request(&self.submitted.to_string());
        new.prompt = turn.prompt.clone();
        new.params = params(|it| it.max_tokens = turn.answer);
        let numbers = 0..self.journals.len();
        let fewest = numbers.min_by_key(|number| self.journals[*number].requests.len());
        let journal = match self.policy {
            Policy::Ours => 0,
            Policy::InTurn => self.submitted % self.journals.len(),
            Policy::Fewest => fewest.expect("a journal"),
        };
        self.submitted += 1;
        let (id, _) = self.journals[journal].submit(new);
        self.turns.insert((journal, id), (turn, self.now));
    }

    fn end_steps(&mut self, arrivals: &mut Arrivals) {
        for child in &mut self.children {
            if child.ends_at() != Some(self.now) {
                continue;
            }
            let (journal, seat) = child.place;
            let report = child.end_step();
            for drawn in report.drawn.iter().filter(|drawn| drawn.index == 0) {
                let (_, asked_at) = self.turns[&(journal, drawn.request)];
                self.waits.push(self.now - asked_at);
            }
            for finished in &report.finished {
                // Only the policy calls requests back.
                if finished.reason != FinishReason::Cancelled
                    && let Some((turn, _)) = self.turns.remove(&(journal, finished.request))
                {
                    arrivals.ended(turn, self.now);
                }
            }
            let journal = &mut self.journals[journal];
            let outcome = journal.requests.step(seat, &report, journal.now);
            outcome.expect("a report without violations");
        }
    }

    /// Delivers commands to children and begins their steps.
    fn deliver(&mut self) {
        for child in &mut self.children {
            let (journal, seat) = child.place;
            for command in self.journals[journal].commands_of(seat) {
                let conversation = |id| self.turns[&(journal, id)].0.conversation;
                child.obey(command, conversation);
            }
            child.begin_step(self.now);
        }
    }

    fn score(mut self) -> Waits {
        assert_eq!(
            self.waits.len(),
            self.submitted,
            "every request has an answer"
        );
        self.waits.sort_unstable();
        let count = self.waits.len();
        Waits {
            mean: self.waits.iter().sum::<u64>() / count as u64,
            p99: self.waits[count * 99 / 100],
        }
    }
}

fn waits(policy: Policy, devices: u8, arrivals: fn(u8, u64) -> Arrivals) -> Waits {
    let seeds = [1, 2];
    let runs = seeds.map(|seed| Host::new(policy, devices).run(arrivals(devices, seed)));
    let mean = |of: fn(&Waits) -> u64| runs.iter().map(of).sum::<u64>() / runs.len() as u64;
    Waits {
        mean: mean(|it| it.mean),
        p99: mean(|it| it.p99),
    }
}

/// Tolerance relative to the better of the simpler policies. Single waits vary by chance.
const NOISE: f64 = 0.02;

fn compare(name: &str, devices: u8, arrivals: fn(u8, u64) -> Arrivals) -> (Waits, Waits) {
    let ours = waits(Policy::Ours, devices, arrivals);
    let others = [Policy::InTurn, Policy::Fewest].map(|it| waits(it, devices, arrivals));
    println!("{name}, {devices} devices: {ours:?}, in turn and by number {others:?}");
    let best = |of: fn(&Waits) -> u64| others.iter().map(of).min().expect("two");
    let best = Waits {
        mean: best(|it| it.mean),
        p99: best(|it| it.p99),
    };
    let bound = |of: u64| of as f64 * (1.0 + NOISE);
    assert!(ours.mean as f64 <= bound(best.mean), "{name}: {ours:?}");
    assert!(ours.p99 as f64 <= bound(best.p99), "{name}: {ours:?}");
    (ours, best)
}

#[test]
fn conversations_wait_a_tenth_less_on_two_devices_and_a_third_less_on_eight() {
    for (devices, saved) in [(2, 0.1), (8, 0.33)] {
        let (ours, best) = compare("conversations", devices, Arrivals::conversations);
        let bound = best.mean as f64 * (1.0 - saved);
        assert!(ours.mean as f64 <= bound, "{devices}: {ours:?}");
    }
}

#[test]
fn requests_that_share_little_wait_no_longer_than_by_simpler_policies() {
    for devices in [2, 8] {
        compare("chat", devices, Arrivals::chat);
        compare("bursts", devices, Arrivals::bursts);
    }
}
