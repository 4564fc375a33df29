//! Changes of the model file of a running worker: no stream goes on with another model.

use nix::sys::stat::Mode;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};
use worker_orcd_tests::model_copy::edit_weights;
use worker_orcd_tests::worker::describe;
use worker_orcd_tests::{Bystander, ModelCopy, Unreapable, Worker, wait};

const PROMPT: &str = "<|im_start|>user\nTell me about the sea, the wind and the mountains.\
                      <|im_end|>\n<|im_start|>assistant\n";
const MODEL_LOAD: i32 = 65;
const MODEL_CHANGED: i32 = 90;

/// Changes one value of the header, four bytes of the file.
fn edit_rope_base(path: &Path) {
    const KEY: &[u8] = b"llama.rope.freq_base";
    let bytes = fs::read(path).unwrap();
    let key = bytes.windows(KEY.len()).position(|window| window == KEY);
    // The key is followed by a type, then the value.
    let at = key.expect("the model says its base") + KEY.len() + 4;
    let base = f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&(base / 2.0).to_le_bytes(), at as u64)
        .unwrap();
}

fn body(max_tokens: u32) -> Value {
    json!({
        "prompt": PROMPT, "max_tokens": max_tokens,
        "temperature": 0.7, "seed": 11, "ignore_eos": true,
    })
}

/// Begins a stream, runs `meanwhile` on the file, and kills two children one after the other.
fn outlives_two_deaths(meanwhile: impl Fn(&ModelCopy)) {
    let copy = ModelCopy::new();
    let worker = copy.worker();
    let bystander = Bystander::new(worker.client(), body(300));
    let alone = bystander.alone();
    let health = worker.client().health();
    assert_eq!(health["model"]["kept_open"], true, "{health}");
    let mut stream = bystander.begin();
    stream.more(9);
    meanwhile(&copy);
    for _ in 0..2 {
        worker.replace_child();
        stream.more(10);
    }
    let (text, end) = stream.end();
    assert_eq!(text, alone);
    assert_eq!(end["recoveries"], 2);
    let identity = &worker.client().health()["model"]["identity"];
    assert_eq!(*identity, health["model"]["identity"]);
}

#[test]
fn another_file_under_the_same_name_changes_no_byte_of_a_running_stream() {
    outlives_two_deaths(ModelCopy::replace_by_other_weights);
}

#[test]
fn a_deleted_file_changes_no_byte_of_a_running_stream() {
    outlives_two_deaths(ModelCopy::remove);
}

/// Device, and number of remaining tokens when the file changes.
#[derive(Clone, Copy)]
struct Place {
    device: &'static str,
    max_tokens: u32,
}

const CPU: Place = Place {
    device: "cpu",
    max_tokens: 200,
};

const CARD: Place = Place {
    device: "cuda:0",
    max_tokens: 1900,
};

impl Place {
    fn worker(self, copy: &ModelCopy) -> Worker {
        let worker = Worker::with_model(&copy.path);
        worker.arg("--device", self.device).start()
    }
}

/// Begins a stream, edits the file in place, and kills the child.
fn ends_with_one_error_and_takes_the_file_at_the_next_start(on: Place, edit: fn(&Path)) {
    let copy = ModelCopy::new();
    let mut worker = on.worker(&copy);
    let bystander = Bystander::new(worker.client(), body(on.max_tokens));
    let expected = bystander.alone();
    let mut stream = bystander.begin();
    stream.more(9);
    edit(&copy.path);
    let client = worker.client();
    let struck = Instant::now();
    worker.kill_child();
    // The tracer delays the reaping of the next child until the checks are done.
    let (_, spawned) = wait::until("the next child", || worker.log.next("child_spawn", struck));
    let held = Unreapable::hold(pid_of(&spawned));
    wait::until("the reason in /health", || {
        let health = client.health();
        let reason = health["reason"].as_str()?;
        reason
            .contains("model file was changed in place")
            .then_some(())
    });
    drop(held);

    let (text, last) = stream.rest();
    assert!(expected.starts_with(&text), "{text:?} in {expected:?}");
    assert!(text.len() < expected.len(), "it was not over");
    let error = last.json();
    assert_eq!(
        (last.name.as_str(), &error["code"]),
        ("error", &json!("WORKER_UNHEALTHY"))
    );
    assert_eq!(error["retriable"], true, "{error}");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("changed in place"),
        "{error}"
    );

    let status = worker.wait_exit();
    assert_eq!(status.code(), Some(MODEL_CHANGED), "{}", describe(status));
    let labels: Vec<_> = worker.crash_reports().iter().map(label).collect();
    assert!(labels.contains(&json!("model_changed")), "{labels:?}");
    assert!(!worker.log.text().contains("QUARANTINED"));

    let worker = on.worker(&copy);
    let other = Bystander::new(worker.client(), body(on.max_tokens)).alone();
    assert_ne!(other, expected, "the edit is taken");
}

fn label(report: &Value) -> Value {
    report["cause"]["label"].clone()
}

fn pid_of(spawned: &Value) -> u32 {
    let fields = spawned.get("fields").unwrap_or(spawned);
    fields["pid"].as_u64().expect("a pid") as u32
}

#[test]
fn a_file_that_is_cut_short_in_place_ends_the_worker_at_the_next_death() {
    let copy = ModelCopy::new();
    let mut worker = copy.worker();
    let mut stream = Bystander::new(worker.client(), body(200)).begin();
    stream.more(9);
    let file = OpenOptions::new().write(true).open(&copy.path).unwrap();
    file.set_len(1 << 20).unwrap();
    worker.kill_child();
    let (_, last) = stream.rest();
    let error = last.json();
    assert_eq!(error["code"], "WORKER_UNHEALTHY", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("changed in place"), "{message}");
    let status = worker.wait_exit();
    assert_eq!(status.code(), Some(MODEL_CHANGED), "{}", describe(status));
    assert_eq!(
        worker.crash_reports().len(),
        2,
        "the kill, and the one load"
    );
}

#[test]
fn weights_edited_in_place_change_no_byte_of_a_running_stream() {
    outlives_two_deaths(|copy| edit_weights(&copy.path));
}

#[test]
fn a_hyperparameter_edited_in_place_ends_the_streams_before_a_wrong_byte() {
    ends_with_one_error_and_takes_the_file_at_the_next_start(CPU, edit_rope_base);
}

#[test]
fn what_is_no_regular_file_is_refused_at_once_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo.gguf");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    for (path, kind) in [
        (fifo.as_path(), "a FIFO"),
        (Path::new("/dev/zero"), "a character device"),
    ] {
        let mut worker = Worker::with_model(path).spawn();
        // Far below the load deadline: the open must not block.
        let status = worker.wait_exit_within(Duration::from_secs(20));
        assert_eq!(
            status.code(),
            Some(MODEL_LOAD),
            "{kind}: {}",
            worker.log.text()
        );
        assert!(worker.log.text().contains(kind), "{}", worker.log.text());
    }
}

#[test]
fn the_supervisor_does_not_open_the_model_file() {
    let copy = ModelCopy::new();
    let worker = copy.worker();
    // Its memory comes from the child: it is passed once, and not again at a restart.
    let kept = |worker: &Worker| {
        let open = fs::read_dir(format!("/proc/{}/fd", worker.pid())).unwrap();
        let targets = open
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.filter(|target| *target == copy.path).count()
    };
    assert_eq!(kept(&worker), 1);
    worker.replace_child();
    assert_eq!(kept(&worker), 1);
    let maps = File::open(format!("/proc/{}/maps", worker.pid())).unwrap();
    let maps = std::io::read_to_string(maps).unwrap();
    assert!(!maps.contains("model.gguf"), "it is mapped");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn an_edited_file_ends_streams_on_a_card_before_a_wrong_byte() {
    ends_with_one_error_and_takes_the_file_at_the_next_start(CARD, edit_rope_base);
}
