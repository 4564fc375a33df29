//! `worker-orcd pull`, and a worker with a missing model, against a hub that breaks off, sends wrong bytes and changes
//! its files.

use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Output;
use worker_orcd_gpu::model::Architecture;
use worker_orcd_gpu::model::tiny_model::tiny_model;
use worker_orcd_tests::hub::{pull, pull_as, pull_with, pulled};
use worker_orcd_tests::{FakeHub, Held, Worker, WorkerBuilder, wait};

/// Variable with the folder of pulled models.
const CACHE: &str = "XDG_CACHE_HOME";

const MODEL_BYTES: usize = 400_000;

/// Model with padding bytes of that value after its last tensor.
fn model(of: u8) -> Vec<u8> {
    let mut bytes = tiny_model(Architecture::Llama).build();
    assert!(bytes.len() < MODEL_BYTES, "{}", bytes.len());
    bytes.resize(MODEL_BYTES, of);
    bytes
}

/// Worker that finds its model by this variable.
fn serving(model: &str, variable: &str, folder: &Path) -> Worker {
    let folder = folder.to_str().unwrap();
    Worker::with_model(model).env(variable, folder).start()
}

fn refused(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    said
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| match entry.path() {
            path if path.is_dir() => files(&path),
            path => vec![path],
        })
        .collect()
}

#[test]
fn a_transfer_that_breaks_off_goes_on_where_it_was_and_is_whole() {
    let cache = tempfile::tempdir().unwrap();
    let whole = model(1);
    let hub = FakeHub::start(vec![Held::new("a/b", "m.gguf", &whole).cut_after(70_000)]);
    let said = refused(&pull(&hub, cache.path(), "a/b:m.gguf"));
    assert!(said.contains("70000 of 400000 bytes"), "{said}");
    let partial = files(cache.path());
    assert_eq!(partial.len(), 1);
    assert!(partial[0].to_str().unwrap().ends_with(".partial"));
    hub.hold(vec![Held::new("a/b", "m.gguf", &whole)]);
    let path = pulled(&pull(&hub, cache.path(), "a/b:m.gguf"));
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    assert_eq!(hub.starts(), [0, 70_000]);
    assert_eq!(files(cache.path()), std::slice::from_ref(&path));
    // The second pull transfers nothing.
    assert_eq!(pulled(&pull(&hub, cache.path(), "a/b")), path);
    assert_eq!(hub.starts().len(), 2);
}

/// Progress is suitable for a journal, too: lines, and none that is redrawn.
#[test]
fn how_far_a_transfer_is_is_said_in_lines() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(vec![Held::new("a/b", "m.gguf", &model(1))]);
    let output = pull(&hub, cache.path(), "a/b:m.gguf");
    pulled(&output);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains('\r'), "{said:?}");
    let lines: Vec<_> = said.lines().collect();
    assert!(
        lines[0].starts_with("getting http://") && lines[0].ends_with("m.gguf, 0.4 MB"),
        "{said}"
    );
    let here = "m.gguf is here: 0.4 of 0.4 MB (100 %), ";
    assert!(
        lines[1].starts_with(here) && lines[1].ends_with(" MB/s"),
        "{said}"
    );
}

#[test]
fn bytes_of_two_files_are_never_joined() {
    let cache = tempfile::tempdir().unwrap();
    let (one, other) = (model(1), model(2));
    let hub = FakeHub::start(vec![Held::new("a/b", "m.gguf", &one).cut_after(70_000)]);
    refused(&pull(&hub, cache.path(), "a/b:m.gguf"));
    // The same name in another repository, and then another file under the first name.
    hub.hold(vec![
        Held::new("a/c", "m.gguf", &other),
        Held::new("a/b", "m.gguf", &other),
    ]);
    for name in ["a/c:m.gguf", "a/b:m.gguf"] {
        let path = pulled(&pull(&hub, cache.path(), name));
        assert_eq!(std::fs::read(&path).unwrap(), other, "{name}");
    }
    assert_eq!(hub.starts(), [0, 0, 0]);
}

#[test]
fn what_is_not_as_promised_gets_no_name_and_is_removed() {
    let promised = model(1);
    let longer = [promised.as_slice(), b"more"].concat();
    for sent in [model(2), longer] {
        let cache = tempfile::tempdir().unwrap();
        let lie = Held::new("a/b", "m.gguf", &promised).but_sends(&sent);
        let hub = FakeHub::start(vec![lie]);
        let said = refused(&pull(&hub, cache.path(), "a/b:m.gguf"));
        assert!(said.contains("not what the hub promised"), "{said}");
        assert!(files(cache.path()).is_empty());
    }
}

#[test]
fn what_is_no_model_or_none_that_can_be_served_never_gets_a_name() {
    for (bytes, why, is_kept) in [
        (Vec::new(), "is empty", false),
        (b"<html>".to_vec(), "no GGUF file", false),
        // Another version may support it.
        ([b"GGUF".as_slice(), &[0; 100]].concat(), "version", true),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let hub = FakeHub::start(vec![Held::new("a/b", "m.gguf", &bytes)]);
        let said = refused(&pull(&hub, cache.path(), "a/b:m.gguf"));
        assert!(said.contains(why), "{said}");
        let left = files(cache.path());
        assert_eq!(left.len(), usize::from(is_kept), "{why}: {left:?}");
        let named = cache.path().join("worker-orcd/a/b/m.gguf");
        assert!(!named.exists());
    }
}

/// A separate program reads every pulled file: without it the pull fails.
#[test]
fn the_child_s_program_alone_looks_into_what_was_pulled() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(vec![Held::new("a/b", "m.gguf", &model(1))]);
    let said = refused(&pull_with(
        &hub,
        cache.path(),
        "a/b:m.gguf",
        Path::new("/nonexistent"),
    ));
    assert!(said.contains("/nonexistent cannot be asked"), "{said}");
}

#[test]
fn a_hub_without_headers_or_ranges_is_served_by_its_listing_and_from_the_start() {
    let cache = tempfile::tempdir().unwrap();
    let whole = model(3);
    let held = || Held::new("a/b", "q4/m.gguf", &whole).without_headers();
    let hub = FakeHub::start(vec![held().cut_after(70_000)]);
    refused(&pull(&hub, cache.path(), "a/b"));
    hub.hold(vec![held().without_ranges()]);
    let path = pulled(&pull(&hub, cache.path(), "a/b"));
    assert!(path.ends_with("a/b/q4/m.gguf"), "{path:?}");
    assert_eq!(std::fs::read(&path).unwrap(), whole);
}

#[test]
fn a_repository_of_many_files_is_asked_which() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(vec![
        Held::new("a/b", "one.gguf", &model(1)),
        Held::new("a/b", "two.gguf", &model(2)),
    ]);
    let said = refused(&pull(&hub, cache.path(), "a/b"));
    assert!(
        said.contains("one.gguf") && said.contains("two.gguf"),
        "{said}"
    );
}

#[test]
fn what_was_pulled_is_served_under_the_name_by_which_it_was_pulled() {
    let cache = tempfile::tempdir().unwrap();
    let tiny = tiny_model(Architecture::Llama).build();
    let hub = FakeHub::start(vec![Held::new("some/tiny", "t.gguf", &tiny)]);
    pulled(&pull(&hub, cache.path(), "some/tiny:t.gguf"));
    let worker = serving("some/tiny:t.gguf", CACHE, cache.path());
    assert_eq!(worker.client().health()["model"]["ref"], "some/tiny:t.gguf");
}

#[test]
fn a_quantization_is_enough_where_one_file_has_it() {
    let cache = tempfile::tempdir().unwrap();
    let tiny = tiny_model(Architecture::Llama).build();
    let hub = FakeHub::start(vec![
        Held::new("some/tiny", "T-Q4_K_M.gguf", &tiny),
        Held::new("some/tiny", "T-Q8_0.gguf", &model(1)),
    ]);
    let said = refused(&pull(&hub, cache.path(), "some/tiny:Q6_K"));
    assert!(
        said.contains("T-Q8_0.gguf"),
        "it says what there is: {said}"
    );
    let path = pulled(&pull(&hub, cache.path(), "some/tiny:q4_k_m"));
    assert!(path.ends_with("some/tiny/T-Q4_K_M.gguf"), "{path:?}");
    pulled(&pull(&hub, cache.path(), "some/tiny:Q8_0"));
    let worker = serving("some/tiny:Q4_K_M", CACHE, cache.path());
    assert_eq!(worker.client().health()["model"]["ref"], "some/tiny:Q4_K_M");
}

#[test]
fn what_is_for_some_is_got_with_their_token_which_no_other_host_is_told() {
    let cache = tempfile::tempdir().unwrap();
    let whole = model(1);
    let hub = FakeHub::start(vec![
        Held::new("a/b", "m.gguf", &whole).for_holders_of("hf_right"),
    ]);
    let said = refused(&pull(&hub, cache.path(), "a/b:m.gguf"));
    assert!(said.contains("401") && said.contains("HF_TOKEN"), "{said}");
    refused(&pull_as(&hub, cache.path(), "a/b:m.gguf", "hf_wrong"));
    // The listing needs the token, too.
    let path = pulled(&pull_as(&hub, cache.path(), "a/b", "hf_right"));
    assert_eq!(std::fs::read(&path).unwrap(), whole);
}

/// Layout of `huggingface_hub`: a link to a file that is named after its SHA-256.
#[test]
fn what_lies_in_the_hubs_own_cache_is_served_from_there() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("hub/models--some--tiny");
    let snapshot = folder.join("snapshots/0123456789abcdef0123456789abcdef01234567");
    for made in [&snapshot, &folder.join("blobs"), &folder.join("refs")] {
        std::fs::create_dir_all(made).unwrap();
    }
    let tiny = tiny_model(Architecture::Llama).build();
    std::fs::write(folder.join("blobs/ab"), tiny).unwrap();
    std::os::unix::fs::symlink("../../blobs/ab", snapshot.join("T-Q4_K_M.gguf")).unwrap();
    let commit = snapshot.file_name().unwrap().to_str().unwrap();
    std::fs::write(folder.join("refs/main"), commit).unwrap();
    let worker = serving("some/tiny:Q4_K_M", "HF_HOME", home.path());
    assert_eq!(worker.client().health()["model"]["ref"], "some/tiny:Q4_K_M");
}

fn held_parts(parts: &[Vec<u8>]) -> Vec<Held> {
    let of = parts.len();
    let numbered = (1..).zip(parts);
    let held = numbered.map(|(number, bytes)| {
        let name = format!("F32/T-F32-{number:05}-of-{of:05}.gguf");
        Held::new("some/tiny", &name, bytes)
    });
    held.collect()
}

#[test]
fn a_model_in_several_files_is_got_whole_or_not_and_served_as_one() {
    let cache = tempfile::tempdir().unwrap();
    let tiny = tiny_model(Architecture::Llama);
    let parts: Vec<_> = tiny.parts(3).iter().map(|part| part.build()).collect();
    let mut broken = held_parts(&parts);
    broken[1] = broken[1].clone().cut_after(1000);
    let hub = FakeHub::start(broken);
    refused(&pull(&hub, cache.path(), "some/tiny:F32"));
    // A part of a model is no model.
    let unnamed = Worker::with_model("some/tiny:F32").flag("--offline");
    unnamed
        .env(CACHE, cache.path().to_str().unwrap())
        .ends_with(2, &["--offline forbids"]);
    hub.hold(held_parts(&parts));
    let path = pulled(&pull(&hub, cache.path(), "some/tiny:F32"));
    assert!(path.ends_with("F32/T-F32-00001-of-00003.gguf"), "{path:?}");
    assert_eq!(hub.starts(), [0, 0, 1000, 0], "the first came once");
    assert_eq!(files(cache.path()).len(), 3);
    assert_eq!(pulled(&pull(&hub, cache.path(), "some/tiny")), path);
    std::fs::remove_file(path.with_file_name("T-F32-00002-of-00003.gguf")).unwrap();
    assert_eq!(pulled(&pull(&hub, cache.path(), "some/tiny")), path);
    assert_eq!(hub.starts().len(), 5, "what is there is not got again");

    let in_parts = serving("some/tiny:F32", CACHE, cache.path());
    let whole = cache.path().join("whole.gguf");
    std::fs::write(&whole, tiny.build()).unwrap();
    let in_one = Worker::with_model(whole.to_str().unwrap()).start();
    let text = |worker: &Worker| {
        let body = serde_json::json!({"prompt": "Once", "max_tokens": 20, "temperature": 0, "job_id": "a"});
        worker.client().execute(&body).transcript().text()
    };
    assert_eq!(text(&in_parts), text(&in_one));
    // Successors keep the open files, whatever becomes of their names.
    let before = text(&in_parts);
    in_parts.upgrade();
    for file in files(&cache.path().join("worker-orcd")) {
        std::fs::remove_file(file).unwrap();
    }
    in_parts.replace_child();
    assert_eq!(text(&in_parts), before);
    in_parts.replace_child();
    assert_eq!(text(&in_parts), before);
    assert_eq!(in_parts.crash_reports().len(), 2);
}

/// Worker with access to that hub.
fn of_hub(hub: &FakeHub, model: &str, cache: &Path) -> WorkerBuilder {
    Worker::with_model(model)
        .env(CACHE, cache.to_str().unwrap())
        .env("HF_ENDPOINT", &hub.endpoint())
        .env("no_proxy", "127.0.0.1,localhost")
        .env("HF_TOKEN", "")
        .env("HF_HOME", cache.join("none").to_str().unwrap())
}

#[test]
fn a_model_that_is_not_here_is_got_at_the_start_whatever_breaks_off() {
    let cache = tempfile::tempdir().unwrap();
    let whole = model(1);
    let hub = FakeHub::start(vec![
        Held::new("some/tiny", "T-Q4_K_M.gguf", &whole).cut_after(250_000),
    ]);
    let worker = of_hub(&hub, "some/tiny:Q4_K_M", cache.path()).start();
    assert_eq!(worker.client().health()["model"]["ref"], "some/tiny:Q4_K_M");
    assert_eq!(hub.starts(), [0, 250_000]);
    let got = cache.path().join("worker-orcd/some/tiny/T-Q4_K_M.gguf");
    assert_eq!(std::fs::read(&got).unwrap(), whole);
    let log = worker.log.text();
    for event in [
        "model_fetch_begins",
        "model_fetch_again",
        "model_fetched",
        "model_checked",
    ] {
        assert!(log.contains(event), "{event}: {log}");
    }
    // An upgrade would make streams wait for it.
    std::fs::remove_file(&got).unwrap();
    worker.signal(Signal::SIGUSR2);
    let refused = worker.log.wait_for("upgrade_refused");
    let reason = refused["reason"].as_str().expect("a reason");
    assert!(reason.contains("streams would wait for it"), "{reason}");
    std::fs::write(&got, &whole).unwrap();
    // The next start sends no request.
    drop(worker);
    hub.hold(vec![]);
    let again = of_hub(&hub, "some/tiny:Q4_K_M", cache.path()).flag("--offline");
    again.start().assert_serves();
}

#[test]
fn who_forbids_to_ask_a_hub_is_named_and_none_is_asked() {
    let cache = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(vec![Held::new("a/b", "m.gguf", &model(1))]);
    let worker = || of_hub(&hub, "a/b:m.gguf", cache.path());
    worker()
        .flag("--offline")
        .ends_with(2, &["--offline forbids"]);
    for variable in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
        let forbids = format!("{variable} forbids to get it");
        worker().env(variable, "true").ends_with(2, &[&forbids]);
    }
    assert!(hub.starts().is_empty());
}

#[test]
fn a_model_that_cannot_be_got_ends_the_start_with_a_number_of_its_own() {
    let cache = tempfile::tempdir().unwrap();
    let whole = model(1);
    let hub = FakeHub::start(vec![
        Held::new("a/b", "m.gguf", &whole).but_sends(&model(2)),
        Held::new("a/c", "m.gguf", &whole).for_holders_of("hf_right"),
        Held::new("a/e", "m.gguf", &whole).listed_without_end(),
    ]);
    let worker = |name| of_hub(&hub, name, cache.path());
    worker("a/b:m.gguf").ends_with(91, &["not what the hub promised"]);
    worker("a/c:m.gguf").ends_with(91, &["401", "HF_TOKEN"]);
    worker("a/d:Q8_0").ends_with(91, &["a/d holds no .gguf file"]);
    worker("a/e:Q8_0").ends_with(91, &["more than 8388608 bytes"]);
    let homeless = worker("a/b:m.gguf").env(CACHE, "").env("HOME", "");
    homeless.ends_with(91, &["there is no place for it"]);
    let mistyped = worker("models/nope.gguf");
    mistyped.ends_with(2, &["models/nope.gguf cannot be read"]);
}

#[test]
fn a_worker_that_is_told_to_end_does_not_wait_for_its_model_and_what_has_come_stays() {
    let cache = tempfile::tempdir().unwrap();
    let whole = model(1);
    let silent = Held::new("a/b", "m.gguf", &whole).silent_after(70_000);
    let hub = FakeHub::start(vec![silent]);
    let mut worker = of_hub(&hub, "a/b:m.gguf", cache.path()).spawn();
    // Files that the transfer program still holds are not counted.
    let has_come = || {
        let partial = files(&cache.path().join("worker-orcd"));
        let bytes = std::fs::read(partial.first()?).ok()?;
        (bytes.len() > 60_000).then_some(bytes)
    };
    wait::until("most of 70,000 bytes", has_come);
    worker.signal(Signal::SIGHUP);
    worker.log.wait_for("signal_before_model_ready");
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.wait_exit().code(), Some(0), "{}", worker.log.text());
    let bytes = has_come().expect("it stays");
    assert!(whole.starts_with(&bytes));
}
