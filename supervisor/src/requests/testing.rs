//! A journal in memory, with a small vocabulary, for tests.

#![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

use crate::requests::control::Control;
use crate::requests::record::{NewRequest, OnFault, Record, StreamEvent};
use crate::requests::registry::{Admitted, Registry};
use crate::requests::stream::RequestStream;
use crate::requests::{Kin, Requests, ServedBy};
use crate::text::Text;
use std::num::NonZeroU8;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use worker_orcd_ipc::{
    ClientId, Command, DeviceFacts, Drawn, FinishReason, Finished, RequestId, Sampling, StepReport,
    TokenId, TokenKind, TokenizerFacts, TokenizerKind,
};
use worker_orcd_lifecycle::SeatId;

/// The only one, where a test does not say otherwise.
pub(crate) const SEAT: SeatId = SeatId(0);

pub(crate) const EOS: TokenId = TokenId(4);

pub(crate) const QUARANTINE_FOR: Duration = Duration::from_secs(600);

/// Tokens 0 to 3 are `a`, `b`, the first half and the second half of `é`; 4 ends generation; 5 begins a character
/// of three bytes, and 6 is a byte that never follows it.
pub(crate) fn text() -> Arc<Text> {
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

pub(crate) fn kin(device: &str) -> Kin {
    Kin::of(&DeviceFacts {
        id: device.to_owned(),
        name: "a device".to_owned(),
        uuid: None,
        driver: None,
        compute_capability: None,
        features: vec![],
        threads: None,
    })
}

pub(crate) fn request(job_id: &str) -> NewRequest {
    NewRequest {
        job_id: job_id.to_owned(),
        part_of: None,
        client: ClientId::default(),
        prompt: vec![TokenId(0), TokenId(1)],
        sampling: Sampling::default(),
        max_tokens: 8,
        stop: vec![],
        ignore_eos: false,
        shown: vec![],
        logprobs: None,
        echo: None,
        grammar: None,
        logit_bias: vec![],
        thinking: None,
        embeds: None,
        deadline: None,
        on_fault: None,
        presentation: String::new(),
    }
}

pub(crate) struct Journal {
    pub requests: Requests,
    pub registry: Arc<Registry>,
    pub text: Arc<Text>,
    pub now: Instant,
    pub on_fault: OnFault,
    clients: u64,
    controls: mpsc::UnboundedSender<Control>,
    inbox: mpsc::UnboundedReceiver<Control>,
}

impl Journal {
    /// A journal with a child that takes work.
    pub(crate) fn serving() -> Self {
        Self::with_slots(4)
    }

    pub(crate) fn with_slots(slots: usize) -> Self {
        let mut journal = Self::with_devices(slots, NonZeroU8::MIN);
        journal.serve(SEAT);
        journal
    }

    pub(crate) fn reader_of(&self, record: Arc<Record>) -> RequestStream {
        RequestStream::new(record, self.controls.clone())
    }

    /// None of which has a child yet.
    pub(crate) fn with_devices(slots: usize, devices: NonZeroU8) -> Self {
        let registry = Arc::new(Registry::new(slots, slots, QUARANTINE_FOR));
        let (controls, inbox) = mpsc::unbounded_channel();
        Self {
            requests: Requests::new(Arc::clone(&registry), devices),
            registry,
            text: text(),
            now: Instant::now(),
            on_fault: OnFault::Resume,
            clients: 0,
            controls,
            inbox,
        }
    }

    /// A child as good as any other serves in this seat.
    pub(crate) fn serve(&mut self, seat: SeatId) {
        self.serve_by(seat, kin("cpu"), 1024);
    }

    pub(crate) fn serve_by(&mut self, seat: SeatId, kin: Kin, slots: usize) {
        let by = ServedBy {
            text: Arc::clone(&self.text),
            kin,
            slots,
            kv_tokens: 1 << 20,
        };
        self.requests.serve(seat, by);
    }

    /// Submits a request of a client of its own, so that there is room for as many as there are
    /// places.
    pub(crate) fn submit(&mut self, request: NewRequest) -> (RequestId, RequestStream) {
        self.clients += 1;
        self.submit_of(ClientId(self.clients), request)
    }

    pub(crate) fn submit_of(
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
        (id, RequestStream::new(record, self.controls.clone()))
    }

    pub(crate) fn commands(&mut self) -> Vec<Command> {
        self.commands_of(SEAT)
    }

    pub(crate) fn commands_of(&mut self, seat: SeatId) -> Vec<Command> {
        std::iter::from_fn(|| self.requests.next_command(seat)).collect()
    }

    /// Runs what clients caused by going away.
    pub(crate) fn run_controls(&mut self) {
        while let Ok(control) = self.inbox.try_recv() {
            match control {
                Control::Abandon(id) => self.requests.abandon(id, self.now),
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn later(&mut self, time: Duration) {
        self.now += time;
    }
}

pub(crate) fn step(
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
        logprobs: vec![],
        finished: finished.iter().map(end).collect(),
        sealed: vec![],
    }
}

/// Everything that can be read now, and whether the stream is over.
pub(crate) fn read(stream: &mut RequestStream) -> (Vec<StreamEvent>, bool) {
    let mut out = vec![];
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match stream.poll_next(&mut context, &mut out) {
            Poll::Ready(true) => {}
            Poll::Ready(false) => return (out, true),
            Poll::Pending => return (out, false),
        }
    }
}

pub(crate) fn text_of(events: &[StreamEvent]) -> String {
    let piece = |event: &StreamEvent| match event {
        StreamEvent::Text(piece) => piece.text.clone(),
        StreamEvent::Finished(_) | StreamEvent::Embedded(_) | StreamEvent::Failed(_) => {
            String::new()
        }
    };
    events.iter().map(piece).collect()
}
