//! Answers constrained by a grammar, from a model with random weights.

use super::*;
use rustix::process::{Resource, Rlimit, prlimit};
use std::collections::BTreeMap;
use worker_orcd_ipc::Grammar;

type Answer = (Vec<TokenId>, FinishReason);

impl Supervisor {
    /// Runs the submissions in parallel.
    fn answers(&mut self, submissions: &[Submission]) -> BTreeMap<u64, Answer> {
        for submission in submissions {
            self.send(&Command::Submit(Box::new(submission.clone())));
        }
        let mut drawn: BTreeMap<u64, Vec<TokenId>> = BTreeMap::new();
        let mut answers = BTreeMap::new();
        while answers.len() < submissions.len() {
            let report = self.until(|event| match event {
                Event::Step(report) => Some(report),
                Event::Fault(fault) => panic!("{fault}"),
                _ => None,
            });
            for row in report.drawn {
                drawn.entry(row.request.0).or_default().push(row.token);
            }
            for end in report.finished {
                let tokens = drawn.remove(&end.request.0).unwrap_or_default();
                answers.insert(end.request.0, (tokens, end.reason));
            }
        }
        answers
    }

    /// The tokens, and the maximum number of them in one report.
    fn run(&mut self, submission: &Submission) -> (Vec<TokenId>, usize) {
        self.send(&Command::Submit(Box::new(submission.clone())));
        let (mut tokens, mut most) = (Vec::new(), 0);
        loop {
            let report = self.until(|event| match event {
                Event::Step(report) => Some(report),
                Event::Fault(fault) => panic!("{fault}"),
                _ => None,
            });
            most = most.max(report.drawn.len());
            tokens.extend(report.drawn.iter().map(|row| row.token));
            if !report.finished.is_empty() {
                return (tokens, most);
            }
        }
    }

    fn answer(&mut self, submission: &Submission) -> Answer {
        let mut answers = self.answers(std::slice::from_ref(submission));
        answers.remove(&submission.request.0).unwrap()
    }
}

fn held_to(request: u64, grammar: Grammar) -> Submission {
    let mut submission = submission(request, 0.8);
    let params = Arc::make_mut(&mut submission.params);
    params.max_tokens = 200;
    params.ignore_eos = false;
    params.sampling.seed = request;
    params.grammar = Some(Arc::new(grammar));
    submission
}

fn schema() -> Grammar {
    let text = r#"{
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "word": {"type": "string", "pattern": "^[a-z]{1,8}$"}
        },
        "required": ["ok", "count", "word"],
        "additionalProperties": false
    }"#;
    Grammar::JsonSchema(text.to_owned())
}

/// The vocabulary has a token for each byte.
fn text(tokens: &[TokenId]) -> String {
    let bytes = tokens.iter().filter_map(|token| u8::try_from(token.0).ok());
    String::from_utf8(bytes.collect()).expect("whole characters")
}

#[test]
fn an_answer_is_valid_and_another_child_goes_on_where_one_died() {
    let mut supervisor = Supervisor::start();
    supervisor.load_tiny(Architecture::Llama);
    let mut last = None;
    for request in 1..10 {
        let submission = held_to(request, schema());
        let (tokens, reason) = supervisor.answer(&submission);
        assert_eq!(reason, FinishReason::EndOfSequence);
        let value: serde_json::Value = serde_json::from_str(&text(&tokens)).unwrap();
        assert!(value["ok"].is_boolean() && value["count"].as_u64().unwrap() <= 99);
        let word = value["word"].as_str().unwrap();
        assert!((1..=8).contains(&word.len()) && word.bytes().all(|c| c.is_ascii_lowercase()));
        last = Some((submission, tokens));
    }
    let (whole, tokens) = last.unwrap();
    let mut next = Supervisor::start();
    next.load_tiny(Architecture::Llama);
    for known in [0, 1, 7, tokens.len() - 1] {
        let rest = Submission {
            generated: tokens[..known].to_vec(),
            ..whole.clone()
        };
        let (behind, reason) = next.answer(&rest);
        assert_eq!(
            (&behind[..], reason),
            (&tokens[known..], FinishReason::EndOfSequence)
        );
    }
}

/// Log probabilities disable forced tokens: every token is sampled.
#[test]
fn forced_tokens_are_those_that_would_be_drawn() {
    let mut supervisor = Supervisor::start();
    supervisor.load_tiny(Architecture::Llama);
    for request in (1..20).step_by(2) {
        let forced = held_to(request, schema());
        let mut drawn = Submission {
            request: RequestId(request + 1),
            ..forced.clone()
        };
        Arc::make_mut(&mut drawn.params).logprobs = Some(0);
        let (taken, told_at_once) = supervisor.run(&forced);
        let (tokens, one_by_one) = supervisor.run(&drawn);
        assert_eq!(text(&taken), text(&tokens));
        // The name of a property is several tokens here.
        assert!(told_at_once > 2, "{told_at_once}");
        assert_eq!(one_by_one, 1);
    }
}

#[test]
fn neighbours_get_what_they_get_alone() {
    let mut supervisor = Supervisor::start();
    supervisor.load_tiny(Architecture::Qwen3);
    let mut free = submission(1, 0.8);
    Arc::make_mut(&mut free.params).max_tokens = 60;
    let all = [
        free,
        held_to(2, schema()),
        held_to(3, Grammar::Regex("(ab|cd){5,20}".to_owned())),
        held_to(4, Grammar::Choice(vec!["yes".to_owned(), "no".to_owned()])),
        held_to(
            5,
            Grammar::Lark("start: \"(\" start \")\" | \"x\"".to_owned()),
        ),
        // It waits for a slot, and its prompt is one token.
        Submission {
            prompt: vec![TokenId(65)],
            ..held_to(6, Grammar::Regex("[0-9]{30}".to_owned()))
        },
    ];
    let together = supervisor.answers(&all);
    for submission in &all {
        let alone = supervisor.answer(submission);
        assert_eq!(together[&submission.request.0], alone, "{submission:?}");
    }
    assert!(["yes", "no"].contains(&&text(&together[&4].0)[..]));
    assert_eq!(text(&together[&6].0).len(), 30);
}

#[test]
fn a_grammar_that_fails_ends_its_request_alone() {
    let mut supervisor = Supervisor::start();
    supervisor.load_tiny(Architecture::Llama);
    let bad = [
        (2, Grammar::JsonSchema("{".to_owned()), "EOF while parsing"),
        (3, Grammar::Regex("(".to_owned()), "unclosed group"),
        (4, Grammar::Lark("start: other".to_owned()), "other"),
    ];
    let mut all = vec![submission(1, 0.0)];
    all.extend(
        bad.iter()
            .map(|(request, grammar, _)| held_to(*request, grammar.clone())),
    );
    let answers = supervisor.answers(&all);
    for (request, grammar, words) in bad {
        let (tokens, FinishReason::GrammarFailed { message }) = &answers[&request] else {
            panic!("{grammar:?}: {:?}", answers[&request]);
        };
        assert!(tokens.is_empty() && message.contains(words), "{message}");
    }
    assert_eq!(answers[&1].0, supervisor.generate(&submission(5, 0.0)));
}

/// The failure is not the request's, and another child can continue it.
#[test]
fn threads_that_cannot_be_started_end_the_child_and_not_the_request() {
    let mut supervisor = Supervisor::start();
    supervisor.load_tiny(Architecture::Llama);
    // Room for its present work, but not for the stack of a compiler thread.
    let id = supervisor.child.id();
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let mut words = status.split_whitespace();
    words.find(|word| *word == "VmSize:").unwrap();
    let kilobytes: u64 = words.next().unwrap().parse().unwrap();
    let bytes = (kilobytes + (16 << 10)) << 10;
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    let process = rustix::process::Pid::from_raw(id as i32);
    prlimit(process, Resource::As, limit).unwrap();
    supervisor.send(&Command::Submit(Box::new(held_to(1, schema()))));
    let fault = supervisor.until(|event| match event {
        Event::Fault(fault) => Some(fault),
        Event::Step(report) if !report.finished.is_empty() => panic!("{:?}", report.finished),
        _ => None,
    });
    assert!(matches!(fault, Fault::Io { .. }), "{fault}");
    assert!(
        fault.to_string().contains("a thread cannot be started"),
        "{fault}"
    );
    let code = ExitCode::Fault(FaultKind::Io);
    assert_eq!(supervisor.exit_code(), Some(code));
}

#[test]
fn who_is_cancelled_under_a_grammar_leaves_nothing_behind() {
    let mut supervisor = Supervisor::start();
    supervisor.load_tiny(Architecture::Llama);
    for request in 1..30 {
        let endless = held_to(request, Grammar::Regex("[a-z]+!".to_owned()));
        supervisor.send(&Command::Submit(Box::new(endless)));
        if request % 3 == 0 {
            supervisor.until(|event| match event {
                Event::Step(report) => (!report.drawn.is_empty()).then_some(()),
                _ => None,
            });
        }
        let request = RequestId(request);
        supervisor.send(&Command::Cancel { request });
        supervisor.until(|event| match event {
            Event::Step(report) => report.finished.first().map(|_| ()),
            _ => None,
        });
    }
    let idle = supervisor.until(|event| match event {
        Event::Heartbeat(beat) if beat.load.running == 0 => Some(beat),
        _ => None,
    });
    assert_eq!((idle.load.waiting, idle.memory.kv_used_bytes), (0, 0));
}
