//! `worker-orcd chat`, through pipes and at a terminal, with a running worker.

use serde_json::{Value, json};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::NamedTempFile;
use worker_orcd_tests::log::Log;
use worker_orcd_tests::worker::binary;
use worker_orcd_tests::{Client, Script, Worker, wait};

fn url(client: &Client) -> String {
    format!("http://{}", client.address)
}

fn chat(client: &Client, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("tested-worker-orcd"));
    command
        .args(["chat", "--url", &url(client)])
        .args(arguments);
    command.env_remove("OPENAI_API_KEY");
    command
}

/// Output of the command with this input through a pipe.
fn piped(mut command: Command, text: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    process.wait_with_output().unwrap()
}

/// Greedy answer of the API.
fn likeliest(client: &Client, messages: &Value) -> String {
    let body = json!({"messages": messages, "max_tokens": 8, "temperature": 0});
    let answer = client.post("/v1/chat/completions", &body).json();
    let text = &answer["choices"][0]["message"]["content"];
    text.as_str().expect("an answer").to_owned()
}

const LIKELIEST: [&str; 4] = ["--max-tokens", "8", "--temperature", "0"];

fn key_file(key: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "{key}").unwrap();
    file
}

fn path(file: &NamedTempFile) -> &str {
    Path::to_str(file.path()).unwrap()
}

#[test]
fn a_question_through_a_pipe_is_answered_as_the_api_answers_it() {
    let (right, wrong) = (key_file("right"), key_file("wrong"));
    let worker = Worker::shallow()
        .arg("--api-key-file", path(&right))
        .start();
    let client = worker.client().with_key("right");
    let question = "Why is the sky blue?\nIn one word.";
    let system = json!({"role": "system", "content": "Be short."});
    let messages = json!([system, {"role": "user", "content": question}]);
    let expected = format!("{}\n", likeliest(&client, &messages));

    let flags = ["--system", "Be short.", "--api-key-file", path(&right)];
    let asked = chat(&client, &[&LIKELIEST[..], &flags].concat());
    let output = piped(asked, &format!("{question}\n"));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);

    // Arguments after the command are equivalent, and so is a key in the environment.
    let mut asked = chat(
        &client,
        &[&LIKELIEST[..], &flags[..2], &[question]].concat(),
    );
    let output = asked.env("OPENAI_API_KEY", "right").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);

    let output = piped(chat(&client, &["--api-key-file", path(&wrong)]), "hello");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(
        said.contains("401") && said.contains("a valid key is needed"),
        "{said}"
    );
}

#[test]
fn a_conversation_at_a_terminal_goes_on() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let (first, second) = ("Name a colour.", "And another?");
    let user = |text: &str| json!({"role": "user", "content": text});
    let answer = likeliest(&client, &json!([user(first)]));
    let said = json!({"role": "assistant", "content": answer});
    let expected = likeliest(&client, &json!([user(first), said, user(second)]));
    let alone = likeliest(&client, &json!([user(second)]));
    assert_ne!(expected, alone, "the conversation makes no difference");

    let asked = chat(&client, &LIKELIEST);
    let mut terminal = Command::new("python3")
        .args(["-c", "import pty, sys; pty.spawn(sys.argv[1:])"])
        .arg(asked.get_program())
        .args(asked.get_args())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let log = Log::default();
    log.follow(terminal.stdout.take().expect("piped"));
    let mut keyboard = terminal.stdin.take().expect("piped");
    for (line, answer) in [(first, answer), (second, expected)] {
        writeln!(keyboard, "{line}").unwrap();
        // Last line of the answer.
        let last = answer.lines().last().unwrap_or_default().to_owned();
        wait::until(&last, || log.text().contains(&last).then_some(()));
    }
    keyboard.write_all(b"\x04").unwrap();
    assert!(
        terminal.wait().expect("our own child").success(),
        "{}",
        log.text()
    );
}

#[test]
fn what_is_no_answer_is_an_error() {
    let worker = Worker::scripted(Script::behave()).start();
    let output = piped(chat(&worker.client(), &["--max-tokens", "0"]), "hello");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        said.contains("400") && said.contains("max_tokens must be from 1"),
        "{said}"
    );
    let address = worker.client().address;
    drop(worker);
    let nobody = piped(chat(&Client::new(address), &[]), "hello");
    let said = String::from_utf8(nobody.stderr).unwrap();
    assert!(
        !nobody.status.success() && said.contains("refused"),
        "{said}"
    );
}
