//! Actions of a compromised child: the kernel refuses them, and the stream goes on. Without confinement the same
//! actions succeed, so the confinement is the cause of the refusal.

use serde_json::{Value, json};
use worker_orcd_gpu::fault_injection::Kind;
use worker_orcd_tests::worker::unique;
use worker_orcd_tests::{Client, Worker, WorkerBuilder, wait};

/// Prompt tokens of the first request; each action happens at the third token of its request.
const FIRST_PROMPT: usize = 11;

/// Worker with a first child that performs each action in a request of its own.
fn tempted() -> WorkerBuilder {
    let rules = Kind::ESCAPES
        .iter()
        .zip(FIRST_PROMPT..)
        .map(|(kind, tokens)| {
            let (kind, position) = (kind.name(), tokens + 2);
            format!("{kind}@generation=1,prompt-tokens={tokens},position={position}")
        });
    Worker::shallow()
        .faults(&rules.collect::<Vec<_>>().join(";"))
        .arg("--max-restart-delay", "50ms")
}

/// Text and recoveries of a request with so many prompt tokens.
fn ask(client: &Client, prompt_tokens: usize) -> (String, Value) {
    let transcript = client
        .execute(&json!({
            "job_id": format!("job-{}", unique()), "prompt": "a".to_owned() + &" a".repeat(prompt_tokens - 1),
            "max_tokens": 8, "temperature": 0.8, "seed": 5, "ignore_eos": true,
        }))
        .transcript();
    let end = transcript.end();
    assert_eq!(
        (&end["tokens_in"], &end["tokens_out"]),
        (&json!(prompt_tokens), &json!(8))
    );
    (transcript.text(), end["recoveries"].clone())
}

/// Waits for output of the child, which has a pipe of its own.
fn wait_said(worker: &Worker, words: &str) {
    wait::until(words, || worker.log.text().contains(words).then_some(()));
}

fn impairment(client: &Client) -> Option<Value> {
    let impaired = client.health()["impaired"].clone();
    let mut all = impaired.as_array().expect("a list").clone().into_iter();
    all.find(|it| it["what"] == "child_confinement")
}

/// Requests every action, and the same texts from a child without actions.
fn is_refused_all_and_goes_on(worker: &Worker) -> Vec<String> {
    let client = worker.client();
    let prompts = FIRST_PROMPT..FIRST_PROMPT + Kind::ESCAPES.len();
    let tempted: Vec<_> = prompts.clone().map(|tokens| ask(&client, tokens)).collect();
    for kind in Kind::ESCAPES {
        wait_said(worker, &format!("{} was refused", kind.name()));
    }
    assert_eq!(worker.generation(), Some(1), "nobody died of it");
    assert_eq!(impairment(&client), None);
    worker.replace_child();
    for (tokens, tempted) in prompts.zip(&tempted) {
        assert_eq!(&ask(&client, tokens), tempted, "{tokens}");
    }
    assert!(!worker.log.text().contains("went through"));
    tempted.into_iter().map(|(text, _)| text).collect()
}

#[test]
fn a_confined_child_reads_no_other_file_opens_no_socket_starts_no_program_and_goes_on() {
    is_refused_all_and_goes_on(&tempted().start());
}

/// Runs with a standby, so that children on the card share memory too; and compared with an unconfined worker.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_confined_child_on_a_card_is_refused_the_same_and_its_driver_lacks_nothing() {
    let on_the_card = || {
        tempted()
            .arg("--device", "cuda:0")
            .arg("--kv-cache-size", "256MiB")
    };
    let worker = on_the_card().flag("--standby").start();
    wait::until("a child to stand by", || {
        let health = worker.client().health();
        (health["standby"]["state"] == "standing_by").then_some(())
    });
    let child = worker.child_pid().expect("a child serves");
    let open = std::fs::read_dir(format!("/proc/{child}/fd")).expect("a process");
    let open = open
        .flatten()
        .filter_map(|it| std::fs::read_link(it.path()).ok());
    for path in open.filter(|path| path.is_absolute()) {
        println!("open in the child: {}", path.display());
    }
    let confined = is_refused_all_and_goes_on(&worker);
    println!("{}", worker.log.text());
    drop(worker);
    let free = on_the_card()
        .arg("--child-confinement", "off")
        .env("WORKER_ORCD_FAULTS", "")
        .start();
    let client = free.client();
    for (text, tokens) in confined.iter().zip(FIRST_PROMPT..) {
        assert_eq!(&ask(&client, tokens).0, text);
    }
}

#[test]
fn without_confinement_the_same_deeds_go_through_and_that_is_told() {
    let worker = tempted().arg("--child-confinement", "off").start();
    let client = worker.client();
    let told = impairment(&client).expect("it is told");
    assert_eq!(told["because"], "it was switched off", "{told}");
    let recoveries = (FIRST_PROMPT..).zip(Kind::ESCAPES).map(|(tokens, kind)| {
        let (_, recoveries) = ask(&client, tokens);
        (kind, recoveries)
    });
    for (kind, recoveries) in recoveries {
        // Executing another program ends the child.
        let deaths = u64::from(kind == Kind::RunProgram);
        assert_eq!(recoveries, deaths, "{}", kind.name());
        if deaths == 0 {
            wait_said(&worker, &format!("{} went through", kind.name()));
        }
    }
    assert_eq!(worker.generation(), Some(2));
}
