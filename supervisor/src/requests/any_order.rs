//! Properties of requests, whatever happens in whatever order: each ends once, none is stuck while
//! a child serves, and nobody pays for a query of death but the query itself.

use crate::error_code::ErrorCode;
use crate::requests::record::{NewRequest, StreamEvent};
use crate::requests::scene::{Scene, Within};
use crate::requests::stream::RequestStream;
use crate::requests::testing::{Journal, read, request, step};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU8;
use std::time::Duration;
use worker_orcd_ipc::{Command, Drawn, DrawnLogprobs, FinishReason, Logprobs, RequestId, TokenId};
use worker_orcd_lifecycle::{DeathCause, SeatId};

/// The token that a killer's prompt begins with, and the step of it that kills.
const POISON: TokenId = TokenId(3);
const FATAL_INDEX: u32 = 2;

const MAX_TOKENS: u32 = 40;

/// Steps of a prompt and layers of a step: what chance can hit.
const PROMPT: u32 = 100;
const LAYERS: u32 = 30;

#[derive(Debug, Clone, Copy)]
enum Move {
    Submit {
        killer: bool,
        deadline: bool,
    },
    /// Steps of this seat's child: in each, every request that it has moves on by one token, or
    /// kills.
    Steps(u8, usize),
    Cancel(usize),
    Leave(usize),
    /// A child that an operator killed: whose doing it was is clear.
    Kill(u8),
    /// A death that any request might have caused, wherever chance finds the child: at this
    /// position of each prompt, behind this layer.
    Crash {
        seat: u8,
        position: u32,
        layer: u32,
    },
    /// The next child is ready.
    Serve(u8),
    Pass(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let seat = || 0_u8..4;
    let one = prop_oneof![
        4 => (prop::bool::weighted(0.2), prop::bool::weighted(0.3))
            .prop_map(|(killer, deadline)| Move::Submit { killer, deadline }),
        8 => (seat(), 1usize..16).prop_map(|(seat, count)| Move::Steps(seat, count)),
        1 => (0usize..8).prop_map(Move::Cancel),
        1 => (0usize..8).prop_map(Move::Leave),
        1 => seat().prop_map(Move::Kill),
        1 => (seat(), 0..PROMPT, 0..LAYERS)
            .prop_map(|(seat, position, layer)| Move::Crash { seat, position, layer }),
        3 => seat().prop_map(Move::Serve),
        1 => (0u64..2_000).prop_map(Move::Pass),
    ];
    prop::collection::vec(one, 0..80)
}

struct Client {
    id: RequestId,
    killer: bool,
    cancelled: bool,
    /// `None` once it has left.
    stream: Option<RequestStream>,
    text: String,
    /// It wants log probabilities.
    lists: bool,
    /// Those of its tokens: each is less by one than the one before.
    listed: Vec<f32>,
    ends: Vec<Result<(), ErrorCode>>,
}

struct World {
    journal: Journal,
    clients: Vec<Client>,
    /// One in each seat.
    children: Vec<Child>,
    /// Every second one has its requests go on before the burial.
    deaths: u32,
}

#[derive(Default)]
struct Child {
    serving: bool,
    /// Requests that it runs, and the index of each one's next token.
    running: BTreeMap<RequestId, u32>,
    /// Answers to cancellations, for its next step.
    answers: Vec<(RequestId, FinishReason)>,
    /// Requests that had a token from this child.
    moved: BTreeSet<RequestId>,
}

impl World {
    fn new(seats: u8) -> Self {
        let mut world = Self {
            journal: Journal::with_seats(4, NonZeroU8::new(seats).unwrap()),
            clients: vec![],
            children: (0..seats).map(|_| Child::default()).collect(),
            deaths: 0,
        };
        (0..seats).for_each(|seat| world.serve(seat));
        world
    }

    fn make(&mut self, step: Move) {
        let now = self.journal.now;
        match step {
            Move::Submit { killer, deadline } => self.submit(killer, deadline),
            Move::Steps(seat, count) => {
                for _ in 0..count {
                    self.step(self.seat(seat));
                    self.deliver();
                }
            }
            Move::Cancel(nth) => {
                if let Some(client) = self.clients.get_mut(nth) {
                    client.cancelled = true;
                    self.journal.requests.cancel(client.id, now);
                }
            }
            Move::Leave(nth) => {
                if let Some(client) = self.clients.get_mut(nth) {
                    client.stream = None;
                }
                self.journal.run_controls();
            }
            Move::Kill(seat) => {
                let seat = self.seat(seat);
                self.die(seat, &DeathCause::Signalled(9), &Scene::default());
            }
            Move::Crash {
                seat,
                position,
                layer,
            } => {
                let seat = self.seat(seat);
                let scene = self.scene(seat, Within::Layer(layer), |_| position);
                self.die(seat, &DeathCause::Signalled(11), &scene);
            }
            Move::Serve(seat) => self.serve(seat),
            Move::Pass(ms) => {
                self.journal.later(Duration::from_millis(ms));
                self.journal.requests.expire(self.journal.now);
            }
        }
        self.deliver();
        self.read();
    }

    fn seat(&self, number: u8) -> SeatId {
        SeatId(number % self.children.len() as u8)
    }

    fn child(&mut self, seat: SeatId) -> &mut Child {
        &mut self.children[usize::from(seat.0)]
    }

    fn serve(&mut self, seat: u8) {
        let seat = self.seat(seat);
        let was_serving = std::mem::replace(&mut self.child(seat).serving, true);
        if !was_serving {
            let text = self.journal.text.clone();
            self.journal.requests.serve(seat, text);
        }
    }

    fn submit(&mut self, killer: bool, deadline: bool) {
        let lists = self.clients.len().is_multiple_of(2);
        let mut new = NewRequest {
            logprobs: lists.then_some(1),
            max_tokens: MAX_TOKENS,
            deadline: deadline.then_some(Duration::from_secs(3)),
            ..request(&format!("job {}", self.clients.len()))
        };
        new.prompt = vec![TokenId(0); PROMPT as usize];
        // Every killer is another one, so that each has to be found by itself.
        if killer {
            new.prompt[..=self.clients.len()].fill(POISON);
        }
        if self.journal.registry.live() == self.journal.registry.capacity() {
            return;
        }
        let (id, stream) = self.journal.submit(new);
        self.clients.push(Client {
            id,
            killer,
            cancelled: false,
            stream: Some(stream),
            text: String::new(),
            lists,
            listed: vec![],
            ends: vec![],
        });
    }

    /// The children read their commands.
    fn deliver(&mut self) {
        for number in 0..self.children.len() as u8 {
            let commands = self.journal.commands_of(SeatId(number));
            commands
                .into_iter()
                .for_each(|command| self.obey(SeatId(number), command));
        }
        for child in &self.children {
            let mut running = child.running.keys();
            let suspected = running.any(|id| self.journal.requests.is_suspect(*id));
            let company = child.running.len() > 1;
            assert!(!suspected || !company, "a suspect has company");
        }
    }

    fn obey(&mut self, seat: SeatId, command: Command) {
        match command {
            Command::Submit(submission) => {
                assert!(self.child(seat).serving, "given to nobody");
                let (id, next) = (submission.request, submission.generated.len() as u32);
                let mut elsewhere = self.children.iter();
                assert!(
                    elsewhere.all(|child| !child.running.contains_key(&id)),
                    "given twice"
                );
                self.child(seat).running.insert(id, next);
            }
            Command::Cancel { request } => {
                let child = self.child(seat);
                if child.running.remove(&request).is_some() {
                    child.answers.push((request, FinishReason::Cancelled));
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self, seat: SeatId) {
        let child = &self.children[usize::from(seat.0)];
        if !child.serving {
            return;
        }
        let fatal =
            |client: &Client| client.killer && child.running.get(&client.id) == Some(&FATAL_INDEX);
        if self.clients.iter().any(fatal) {
            let scene = self.scene(seat, Within::Beginning, |next| PROMPT - 1 + next);
            return self.die(seat, &DeathCause::Signalled(11), &scene);
        }
        let mut tokens = vec![];
        let child = self.child(seat);
        let mut ends = std::mem::take(&mut child.answers);
        child.running.retain(|id, next| {
            child.moved.insert(*id);
            tokens.push((*id, *next, *next % 2));
            *next += 1;
            if *next == MAX_TOKENS {
                ends.push((*id, FinishReason::MaxTokens));
            }
            *next < MAX_TOKENS
        });
        let mut report = step(&tokens, &ends);
        let lists = |id: RequestId| self.clients.iter().any(|it| it.id == id && it.lists);
        let listed = report.drawn.iter().filter(|drawn| lists(drawn.request));
        report.logprobs = listed.map(logprobs_of).collect();
        let now = self.journal.now;
        self.journal
            .requests
            .step(seat, &report, now)
            .expect("an honest child");
    }

    /// The scene of a death. A request without a token yet is in its prompt, and in no step before
    /// its last one.
    fn scene(&self, seat: SeatId, within: Within, position: impl Fn(u32) -> u32) -> Scene {
        let child = &self.children[usize::from(seat.0)];
        let running = child.running.iter();
        let in_prompt = running.filter(|(id, _)| !child.moved.contains(id));
        let prompts = in_prompt.map(|(id, next)| {
            let at = position(*next);
            (*id, at..at + 1)
        });
        Scene {
            within: Some(within),
            prompts: prompts.collect(),
            stopped: false,
        }
    }

    fn die(&mut self, seat: SeatId, cause: &DeathCause, scene: &Scene) {
        let child = std::mem::take(self.child(seat));
        if child.serving {
            let now = self.journal.now;
            self.journal.requests.suspend(seat);
            if self.deaths.is_multiple_of(2) {
                self.journal.requests.release(seat);
            }
            self.deaths += 1;
            self.journal.requests.bury(seat, cause, scene, now);
        }
    }

    fn read(&mut self) {
        for client in &mut self.clients {
            let Some(stream) = &mut client.stream else {
                continue;
            };
            for event in read(stream).0 {
                assert_eq!(client.ends, [], "something follows the end");
                match event {
                    StreamEvent::Text(piece) => {
                        client.text.push_str(&piece.text);
                        let tokens = piece.logprobs.iter().flat_map(|listed| &listed.tokens);
                        let known = tokens.filter_map(|it| it.logprobs.as_ref());
                        client.listed.extend(known.map(|it| it.of_token));
                    }
                    StreamEvent::Finished(_) | StreamEvent::Embedded(_) => {
                        client.ends.push(Ok(()));
                    }
                    StreamEvent::Failed(failure) => client.ends.push(Err(failure.code)),
                }
            }
        }
    }
}

fn logprobs_of(drawn: &Drawn) -> DrawnLogprobs {
    DrawnLogprobs {
        request: drawn.request,
        index: drawn.index,
        logprobs: Logprobs {
            of_token: -(drawn.index as f32),
            top: vec![(TokenId(0), -1.0)],
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_request_ends_exactly_once_and_only_killers_are_quarantined(
        moves in moves(),
        seats in prop::sample::select(vec![1_u8, 2, 4]),
    ) {
        let mut world = World::new(seats);
        for step in moves {
            world.make(step);
        }
        // Each of at most twelve has its tokens, seven deaths and a turn alone ahead of it.
        for _ in 0..1000 {
            if world.journal.requests.is_empty() {
                break;
            }
            for seat in 0..seats {
                world.make(Move::Serve(seat));
                world.make(Move::Steps(seat, 1));
            }
        }
        prop_assert_eq!(world.journal.requests.len(), 0, "stuck");
        prop_assert_eq!(world.journal.registry.live(), 0);
        prop_assert_eq!(world.journal.requests.next_deadline(), None);
        prop_assert_eq!(world.journal.requests.on_probation(), 0);
        for client in world.clients.iter().filter(|client| client.stream.is_some()) {
            prop_assert_eq!(client.ends.len(), 1, "{} has no end", client.id);
            match client.ends[0] {
                Ok(()) => {
                    prop_assert!(!client.killer);
                    let whole = "ab".repeat(MAX_TOKENS as usize / 2);
                    prop_assert_eq!(&client.text, &whole, "a token was lost or given twice");
                    let listed = if client.lists { MAX_TOKENS } else { 0 };
                    let listed: Vec<f32> = (0..listed).map(|index| -(index as f32)).collect();
                    prop_assert_eq!(&client.listed, &listed);
                }
                Err(ErrorCode::Cancelled) => prop_assert!(client.cancelled),
                Err(ErrorCode::InferenceTimeout) => {}
                Err(ErrorCode::Quarantined) => prop_assert!(client.killer, "{}", client.id),
                Err(other) => prop_assert!(false, "{} ended with {}", client.id, other),
            }
        }
    }
}
