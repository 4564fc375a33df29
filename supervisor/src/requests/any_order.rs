//! Whatever happens to requests, in whatever order: none ends twice, none never, none is stuck
//! while a child serves, and nobody pays for a query of death but the query itself.

use crate::error_code::ErrorCode;
use crate::requests::record::{NewRequest, StreamEvent};
use crate::requests::scene::{Scene, Within};
use crate::requests::stream::RequestStream;
use crate::requests::testing::{Journal, read, request, step};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use worker_orcd_ipc::{Command, FinishReason, RequestId, TokenId};
use worker_orcd_lifecycle::DeathCause;

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
    /// So many times, every request that the child has moves on by one token, or kills.
    Steps(usize),
    Cancel(usize),
    Leave(usize),
    /// By an operator: whose doing it was is clear.
    Kill,
    /// Of a cause that anybody might have been, wherever chance finds the child: at this
    /// position of each prompt, behind this layer.
    Crash {
        position: u32,
        layer: u32,
    },
    /// The next child is ready.
    Serve,
    Pass(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => (prop::bool::weighted(0.2), prop::bool::weighted(0.3))
            .prop_map(|(killer, deadline)| Move::Submit { killer, deadline }),
        8 => (1usize..16).prop_map(Move::Steps),
        1 => (0usize..8).prop_map(Move::Cancel),
        1 => (0usize..8).prop_map(Move::Leave),
        1 => Just(Move::Kill),
        1 => (0..PROMPT, 0..LAYERS)
            .prop_map(|(position, layer)| Move::Crash { position, layer }),
        3 => Just(Move::Serve),
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
    ends: Vec<Result<(), ErrorCode>>,
}

struct World {
    journal: Journal,
    serving: bool,
    clients: Vec<Client>,
    /// What the child runs, and the index of each one's next token.
    running: BTreeMap<RequestId, u32>,
    /// Its answers to cancellations, for its next step.
    answers: Vec<(RequestId, FinishReason)>,
    /// What of it had a token from this child.
    moved: BTreeSet<RequestId>,
}

impl World {
    fn new() -> Self {
        Self {
            journal: Journal::serving(),
            serving: true,
            clients: vec![],
            running: BTreeMap::new(),
            answers: vec![],
            moved: BTreeSet::new(),
        }
    }

    fn make(&mut self, step: Move) {
        let now = self.journal.now;
        match step {
            Move::Submit { killer, deadline } => self.submit(killer, deadline),
            Move::Steps(count) => {
                for _ in 0..count {
                    self.step();
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
            Move::Kill => self.die(&DeathCause::Signalled(9), &Scene::default()),
            Move::Crash { position, layer } => {
                let scene = self.scene(Within::Layer(layer), |_| position);
                self.die(&DeathCause::Signalled(11), &scene);
            }
            Move::Serve => {
                if !self.serving {
                    self.serving = true;
                    self.journal.requests.serve(self.journal.text.clone());
                }
            }
            Move::Pass(ms) => {
                self.journal.later(Duration::from_millis(ms));
                self.journal.requests.expire(self.journal.now);
            }
        }
        self.deliver();
        self.read();
    }

    fn submit(&mut self, killer: bool, deadline: bool) {
        let mut new = NewRequest {
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
            ends: vec![],
        });
    }

    /// The child reads its commands.
    fn deliver(&mut self) {
        for command in self.journal.commands() {
            match command {
                Command::Submit(submission) => {
                    assert!(self.serving, "given to nobody");
                    let next = submission.generated.len() as u32;
                    let before = self.running.insert(submission.request, next);
                    assert_eq!(before, None, "given twice");
                }
                Command::Cancel { request } => {
                    if self.running.remove(&request).is_some() {
                        self.answers.push((request, FinishReason::Cancelled));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        let on_probation = self.journal.requests.on_probation() > 0;
        assert!(
            !on_probation || self.running.len() <= 1,
            "a suspect has company"
        );
    }

    fn step(&mut self) {
        if !self.serving {
            return;
        }
        let fatal =
            |client: &Client| client.killer && self.running.get(&client.id) == Some(&FATAL_INDEX);
        if self.clients.iter().any(fatal) {
            let scene = self.scene(Within::Beginning, |next| PROMPT - 1 + next);
            return self.die(&DeathCause::Signalled(11), &scene);
        }
        let mut tokens = vec![];
        let mut ends = std::mem::take(&mut self.answers);
        self.running.retain(|id, next| {
            self.moved.insert(*id);
            tokens.push((*id, *next, *next % 2));
            *next += 1;
            if *next == MAX_TOKENS {
                ends.push((*id, FinishReason::MaxTokens));
            }
            *next < MAX_TOKENS
        });
        let now = self.journal.now;
        self.journal
            .requests
            .step(&step(&tokens, &ends), now)
            .expect("an honest child");
    }

    /// Who has had no token yet is in its prompt, and in no step before its last one.
    fn scene(&self, within: Within, position: impl Fn(u32) -> u32) -> Scene {
        let in_prompt = self
            .running
            .iter()
            .filter(|(id, _)| !self.moved.contains(id));
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

    fn die(&mut self, cause: &DeathCause, scene: &Scene) {
        if self.serving {
            self.serving = false;
            self.running.clear();
            self.moved.clear();
            self.answers.clear();
            self.journal.requests.suspend();
            self.journal.requests.bury(cause, scene, self.journal.now);
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
                    StreamEvent::Text(piece) => client.text.push_str(&piece.text),
                    StreamEvent::Finished(_) => client.ends.push(Ok(())),
                    StreamEvent::Failed(failure) => client.ends.push(Err(failure.code)),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_request_ends_exactly_once_and_only_killers_are_quarantined(moves in moves()) {
        let mut world = World::new();
        for step in moves {
            world.make(step);
        }
        // Each of at most twelve has its tokens, seven deaths and a turn alone ahead of it.
        for _ in 0..1000 {
            if world.journal.requests.is_empty() {
                break;
            }
            world.make(Move::Serve);
            world.make(Move::Steps(1));
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
                }
                Err(ErrorCode::Cancelled) => prop_assert!(client.cancelled),
                Err(ErrorCode::InferenceTimeout) => {}
                Err(ErrorCode::Quarantined) => prop_assert!(client.killer, "{}", client.id),
                Err(other) => prop_assert!(false, "{} ended with {}", client.id, other),
            }
        }
    }
}
