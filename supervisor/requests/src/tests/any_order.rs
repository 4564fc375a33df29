//! Properties of requests under any order of events. Each request ends exactly once. None is stuck while a child
//! serves. None continues with a child that computes different bits. Only queries of death are quarantined.

mod devices;

use crate::error_code::ErrorCode;
use crate::record::{NewRequest, StreamEvent};
use crate::scene::{Scene, Within};
use crate::stream::RequestStream;
use crate::testing::{Journal, params, read, request, step};
use devices::Child;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::num::NonZeroU8;
use std::time::Duration;
use worker_orcd_ipc::{Command, Drawn, DrawnLogprobs, FinishReason, Logprobs, RequestId, TokenId};
use worker_orcd_lifecycle::{DeathCause, DeviceId};

/// First token of a killer's prompt. The step of token `FATAL_INDEX` kills the child.
const POISON: TokenId = TokenId(3);
const FATAL_INDEX: u32 = 2;

const MAX_TOKENS: u32 = 40;

/// Positions of a prompt and, in `LAYERS`, layers of a step at which a random death can occur.
const PROMPT: u32 = 100;
const LAYERS: u32 = 30;

/// Simulated workers: the determinism class of each device.
const KINS: [&[&str]; 6] = [
    &["a"],
    &["a", "a"],
    &["a", "b"],
    &["a", "a", "a"],
    &["a", "a", "b"],
    &["b", "a", "a"],
];

#[derive(Debug, Clone, Copy)]
enum Move {
    Submit {
        killer: bool,
        deadline: bool,
    },
    /// Steps of this device's child. Each step advances every running request by one token, or kills the child.
    Steps(u8, usize),
    Cancel(usize),
    Leave(usize),
    /// Kill of the child by an operator. The cause is known, so no request is suspected.
    Kill(u8),
    /// Death of unknown cause at one position of each prompt and after one layer. Any request may have caused it.
    Crash {
        device: u8,
        position: u32,
        layer: u32,
    },
    /// Readiness of the device's next child.
    Serve(u8),
    /// Drain of a child: all its requests are called back, then it is dismissed.
    Withdraw(u8),
    /// Loss of the device for further children. The flag: the present child dies before this, not after it.
    Strand(u8, bool),
    Readmit(u8),
    Pass(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let device = || 0_u8..6;
    let one = prop_oneof![
        8 => (prop::bool::weighted(0.2), prop::bool::weighted(0.3))
            .prop_map(|(killer, deadline)| Move::Submit { killer, deadline }),
        16 => (device(), 1usize..16).prop_map(|(device, count)| Move::Steps(device, count)),
        2 => (0usize..8).prop_map(Move::Cancel),
        2 => (0usize..8).prop_map(Move::Leave),
        2 => device().prop_map(Move::Kill),
        2 => (device(), 0..PROMPT, 0..LAYERS)
            .prop_map(|(device, position, layer)| Move::Crash { device, position, layer }),
        6 => device().prop_map(Move::Serve),
        1 => device().prop_map(Move::Withdraw),
        1 => (device(), any::<bool>()).prop_map(|(device, first)| Move::Strand(device, first)),
        1 => device().prop_map(Move::Readmit),
        2 => (0u64..2_000).prop_map(Move::Pass),
    ];
    prop::collection::vec(one, 0..80)
}

struct Client {
    id: RequestId,
    killer: bool,
    cancelled: bool,
    /// Determinism class of the child that drew the first token.
    class: Option<&'static str>,
    /// `None` once the client has disconnected.
    stream: Option<RequestStream>,
    text: String,
    /// Log probabilities are requested.
    lists: bool,
    /// Log probabilities of the listed tokens. Each is less by one than the previous one.
    listed: Vec<f32>,
    ends: Vec<Result<(), ErrorCode>>,
}

struct World {
    journal: Journal,
    clients: Vec<Client>,
    /// Children by device. `kins`: their determinism classes.
    children: Vec<Child>,
    kins: &'static [&'static str],
    stranded: BTreeSet<DeviceId>,
    /// Determinism classes that had no device in use at some time.
    lost: BTreeSet<&'static str>,
    /// Number of deaths. At every second one, the requests continue before the dead child is reaped.
    deaths: u32,
}

impl World {
    fn new(kins: &'static [&'static str]) -> Self {
        let devices = kins.len() as u8;
        let mut world = Self {
            journal: Journal::with_devices(4, NonZeroU8::new(devices).unwrap()),
            clients: vec![],
            children: kins.iter().map(|_| Child::default()).collect(),
            kins,
            stranded: BTreeSet::new(),
            lost: BTreeSet::new(),
            deaths: 0,
        };
        (0..devices).for_each(|device| world.serve(device));
        world
    }

    fn make(&mut self, step: Move) {
        let now = self.journal.now;
        match step {
            Move::Submit { killer, deadline } => self.submit(killer, deadline),
            Move::Steps(device, count) => {
                for _ in 0..count {
                    self.step(self.device(device));
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
            Move::Kill(device) => {
                let device = self.device(device);
                self.die(device, &DeathCause::Signalled(9), &Scene::default());
            }
            Move::Crash {
                device,
                position,
                layer,
            } => {
                let device = self.device(device);
                let scene = self.scene(device, Within::Layer(layer), |_| position);
                self.die(device, &DeathCause::Signalled(11), &scene);
            }
            Move::Serve(device) => self.serve(device),
            Move::Withdraw(device) => self.withdraw(self.device(device)),
            Move::Strand(device, dies_first) => self.strand(self.device(device), dies_first),
            Move::Readmit(device) => {
                let device = self.device(device);
                self.stranded.remove(&device);
                self.journal.requests.readmit(device);
            }
            Move::Pass(ms) => {
                self.journal.later(Duration::from_millis(ms));
                self.journal.requests.expire(self.journal.now);
            }
        }
        self.deliver();
        self.dismiss();
        self.read();
    }

    fn submit(&mut self, killer: bool, deadline: bool) {
        let lists = self.clients.len().is_multiple_of(2);
        let mut new = NewRequest {
            params: params(|it| {
                it.logprobs = lists.then_some(1);
                it.max_tokens = MAX_TOKENS;
            }),
            timeout: deadline.then_some(Duration::from_secs(3)),
            ..request(&format!("job {}", self.clients.len()))
        };
        new.prompt = vec![TokenId(0); PROMPT as usize];
        // Each killer has a different fingerprint, so each must be found separately.
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
            class: None,
            stream: Some(stream),
            text: String::new(),
            lists,
            listed: vec![],
            ends: vec![],
        });
    }

    /// Delivers commands to the children.
    fn deliver(&mut self) {
        for number in 0..self.children.len() as u8 {
            let device = DeviceId(number);
            let commands = self.journal.commands_of(self.seat(device));
            commands
                .into_iter()
                .for_each(|command| self.obey(device, command));
        }
        for child in &self.children {
            let suspected = child.has().any(|id| self.journal.requests.is_suspect(id));
            let company = child.has().count() > 1;
            assert!(!suspected || !company, "a suspect does not run alone");
        }
    }

    fn obey(&mut self, device: DeviceId, command: Command) {
        match command {
            Command::Submit(submission) => {
                assert!(self.child(device).serving, "assigned to an empty seat");
                assert!(!self.child(device).withdrawn, "the child is withdrawn");
                let (id, next) = (submission.request, submission.generated.len() as u32);
                let mut elsewhere = self.children.iter();
                let nobody_has_it = elsewhere.all(|child| child.has().all(|it| it != id));
                assert!(nobody_has_it, "assigned twice");
                let client = self.clients.iter().find(|it| it.id == id);
                if let Some(began_on) = client.and_then(|it| it.class) {
                    assert_eq!(began_on, self.class(device), "continued in another class");
                }
                self.child(device).queue.push((id, next));
            }
            Command::Cancel { request } => {
                let child = self.child(device);
                if child.has().any(|id| id == request) {
                    child.running.remove(&request);
                    child.queue.retain(|(id, _)| *id != request);
                    child.answers.push((request, FinishReason::Cancelled));
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self, device: DeviceId) {
        let (seat, class) = (self.seat(device), self.class(device));
        let child = &mut self.children[usize::from(device.0)];
        if !child.serving {
            return;
        }
        let began = child.begin();
        let child = &self.children[usize::from(device.0)];
        let fatal =
            |client: &Client| client.killer && child.running.get(&client.id) == Some(&FATAL_INDEX);
        if self.clients.iter().any(fatal) {
            let scene = self.scene(device, Within::Beginning, |next| PROMPT - 1 + next);
            return self.die(device, &DeathCause::Signalled(11), &scene);
        }
        let mut tokens = vec![];
        let child = self.child(device);
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
        report.began = began;
        for (id, _, _) in tokens {
            let client = self.clients.iter_mut().find(|it| it.id == id);
            client.expect("a client").class.get_or_insert(class);
        }
        let lists = |id: RequestId| self.clients.iter().any(|it| it.id == id && it.lists);
        let listed = report.drawn.iter().filter(|drawn| lists(drawn.request));
        report.logprobs = listed.map(logprobs_of).collect();
        let now = self.journal.now;
        self.journal
            .requests
            .step(seat, &report, now)
            .expect("a report without violations");
    }

    /// Scene of a death. A request without a token from this child is in its prompt, at `position`.
    fn scene(&self, device: DeviceId, within: Within, position: impl Fn(u32) -> u32) -> Scene {
        let child = &self.children[usize::from(device.0)];
        let running = child.running.iter();
        let in_prompt = running.filter(|(id, _)| !child.moved.contains(id));
        let prompts = in_prompt.map(|(id, next)| {
            let at = position(*next);
            (*id, at..at + 1)
        });
        Scene {
            within: Some(within),
            drafting: None,
            prompts: prompts.collect(),
            stopped: false,
        }
    }

    fn read(&mut self) {
        for client in &mut self.clients {
            let Some(stream) = &mut client.stream else {
                continue;
            };
            for event in read(stream).0 {
                assert_eq!(client.ends, [], "an event follows the end");
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
            rank: 1,
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
        kins in prop::sample::select(KINS.to_vec()),
    ) {
        let mut world = World::new(kins);
        for step in moves {
            world.make(step);
        }
        // Bound: each of at most twelve requests can have all its tokens, seven deaths and one turn alone ahead of it.
        for _ in 0..1000 {
            if world.journal.requests.is_empty() {
                break;
            }
            for device in 0..kins.len() as u8 {
                world.make(Move::Serve(device));
                world.make(Move::Steps(device, 1));
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
                    prop_assert_eq!(&client.text, &whole, "a token is lost or repeated");
                    let listed = if client.lists { MAX_TOKENS } else { 0 };
                    let listed: Vec<f32> = (0..listed).map(|index| -(index as f32)).collect();
                    prop_assert_eq!(&client.listed, &listed);
                }
                Err(ErrorCode::Cancelled) => prop_assert!(client.cancelled),
                Err(ErrorCode::InferenceTimeout) => {}
                Err(ErrorCode::WorkerUnhealthy) => {
                    let is_lost = client.class.is_some_and(|class| world.lost.contains(class));
                    prop_assert!(is_lost, "{} could have continued", client.id);
                }
                Err(ErrorCode::Quarantined) => prop_assert!(client.killer, "{}", client.id),
                Err(other) => prop_assert!(false, "{} ended with {}", client.id, other),
            }
        }
    }
}
