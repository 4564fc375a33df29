//! Journal in memory with a small vocabulary, for tests.

#![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

use crate::record::{NewRequest, OnFault, Record, StreamEvent};
use crate::registry::{Admitted, Registry};
use crate::stream::{Abandon, RequestStream};
use crate::{DeterminismClass, Requests, ServedBy};
use std::num::NonZeroU8;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use worker_orcd_ipc::{
    ClientId, Command, DeviceFacts, Drawn, FinishReason, Finished, GenerationParams, RequestId,
    StepReport, TokenId, TokenKind, TokenizerFacts, TokenizerKind,
};
use worker_orcd_lifecycle::SeatId;
use worker_orcd_text::Text;

/// Default seat of tests.
pub const SEAT: SeatId = SeatId(0);

pub const EOS: TokenId = TokenId(4);

pub const QUARANTINE_FOR: Duration = Duration::from_secs(600);

/// Vocabulary: tokens 0 to 3 are `a`, `b`, and the two halves of `é`; 4 ends generation; 5 begins a character of three
/// bytes; 6 is a byte that never follows 5.
pub fn text() -> Arc<Text> {
    let tokens = ["a", "b", "\u{c3}", "\u{a9}", "<eos>", "\u{e0}", "\u{122}"];
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    kinds[EOS.index()] = TokenKind::Control;
    let facts = TokenizerFacts {
        kind: TokenizerKind::ByteLevelBpe,
        pre: "gpt-2".to_owned(),
        tokens: tokens.map(str::to_owned).to_vec(),
        kinds,
        scores: vec![],
        merges: vec![],
        bos: None,
        eos: Some(EOS),
        end_of_generation: vec![EOS],
        unknown: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        chat_template: None,
    };
    Arc::new(Text::from_facts(&facts).expect("a small vocabulary"))
}

pub fn class(device: &str) -> DeterminismClass {
    DeterminismClass::of(&DeviceFacts {
        id: device.to_owned(),
        name: "a device".to_owned(),
        uuid: None,
        driver: None,
        compute_capability: None,
        features: vec![],
        threads: None,
    })
}

pub fn request(job_id: &str) -> NewRequest {
    NewRequest {
        job_id: job_id.to_owned(),
        prompt: vec![TokenId(0), TokenId(1)],
        params: params(|_| ()),
        ..NewRequest::default()
    }
}

/// Parameters of [`request`], changed.
pub fn params(change: impl FnOnce(&mut GenerationParams)) -> Arc<GenerationParams> {
    let mut params = GenerationParams {
        max_tokens: 8,
        ..GenerationParams::default()
    };
    change(&mut params);
    Arc::new(params)
}

#[derive(Debug)]
pub struct Journal {
    pub requests: Requests,
    pub registry: Arc<Registry>,
    pub text: Arc<Text>,
    pub now: Instant,
    pub on_fault: OnFault,
    clients: u64,
    abandon: Abandon,
    abandoned: mpsc::Receiver<RequestId>,
}

impl Journal {
    /// Journal with a serving child of four slots.
    pub fn serving() -> Self {
        Self::with_slots(4)
    }

    pub fn with_slots(slots: usize) -> Self {
        let mut journal = Self::with_devices(slots, NonZeroU8::MIN);
        journal.serve(SEAT);
        journal
    }

    pub fn reader_of(&self, record: Arc<Record>) -> RequestStream {
        RequestStream::new(record, self.abandon.clone())
    }

    /// Journal without children.
    pub fn with_devices(slots: usize, devices: NonZeroU8) -> Self {
        let registry = Arc::new(Registry::new(slots, slots, QUARANTINE_FOR));
        let (sender, abandoned) = mpsc::channel();
        Self {
            requests: Requests::new(Arc::clone(&registry), devices),
            registry,
            text: text(),
            now: Instant::now(),
            on_fault: OnFault::Resume,
            clients: 0,
            abandon: Abandon::new(move |id| {
                // The receiver is gone if the journal was dropped.
                let _ = sender.send(id);
            }),
            abandoned,
        }
    }

    /// Opens a seat for a default child.
    pub fn serve(&mut self, seat: SeatId) {
        self.serve_by(seat, class("cpu"), 1024);
    }

    pub fn serve_by(&mut self, seat: SeatId, class: DeterminismClass, slots: usize) {
        let by = ServedBy {
            text: Arc::clone(&self.text),
            class,
            slots,
            kv_tokens: 1 << 20,
        };
        self.requests.serve(seat, by);
    }

    /// Submits a request of a new client, so that the share of a client does not limit admission.
    pub fn submit(&mut self, request: NewRequest) -> (RequestId, RequestStream) {
        self.clients += 1;
        self.submit_of(ClientId(self.clients), request)
    }

    pub fn submit_of(
        &mut self,
        client: ClientId,
        mut request: NewRequest,
    ) -> (RequestId, RequestStream) {
        request.client = client;
        let admitted = self.registry.admit(std::slice::from_ref(&request));
        let Admitted { id, room } = admitted.expect("room").remove(0);
        let record = Record::new(id, request, self.on_fault, self.now);
        let record = Arc::new(record.with_room(room));
        self.requests.submit(Arc::clone(&record));
        (id, RequestStream::new(record, self.abandon.clone()))
    }

    pub fn commands(&mut self) -> Vec<Command> {
        self.commands_of(SEAT)
    }

    pub fn commands_of(&mut self, seat: SeatId) -> Vec<Command> {
        std::iter::from_fn(|| self.requests.next_command(seat)).collect()
    }

    /// Applies the cancellations of dropped streams.
    pub fn run_controls(&mut self) {
        while let Ok(id) = self.abandoned.try_recv() {
            self.requests.abandon(id, self.now);
        }
    }

    pub fn later(&mut self, time: Duration) {
        self.now += time;
    }
}

pub fn step(
    tokens: &[(RequestId, u32, u32)],
    finished: &[(RequestId, FinishReason)],
) -> StepReport {
    let drawn = |&(request, index, token): &_| Drawn {
        request,
        index,
        token: TokenId(token),
    };
    let end = |(request, reason): &(RequestId, FinishReason)| Finished {
        request: *request,
        reason: reason.clone(),
    };
    StepReport {
        step: 1,
        began: vec![],
        scored: vec![],
        drawn: tokens.iter().map(drawn).collect(),
        drafted: vec![],
        logprobs: vec![],
        finished: finished.iter().map(end).collect(),
        sealed: vec![],
    }
}

/// All events that can be read now, and whether the stream is over.
pub fn read(stream: &mut RequestStream) -> (Vec<StreamEvent>, bool) {
    let mut out = vec![];
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match stream.poll_next(&mut context, |event| out.push(event)) {
            Poll::Ready(true) => {}
            Poll::Ready(false) => return (out, true),
            Poll::Pending => return (out, false),
        }
    }
}

pub fn text_of(events: &[StreamEvent]) -> String {
    let piece = |event: &StreamEvent| match event {
        StreamEvent::Text(piece) => piece.text.clone(),
        StreamEvent::Finished(_) | StreamEvent::Embedded(_) | StreamEvent::Failed(_) => {
            String::new()
        }
    };
    events.iter().map(piece).collect()
}
