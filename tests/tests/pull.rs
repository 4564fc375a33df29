//! `worker-orcd pull` against a hub that breaks off, lies and changes its files.

use std::path::{Path, PathBuf};
use std::process::Output;
use worker_orcd_gpu::model::Architecture;
use worker_orcd_gpu::model::tiny_model::tiny_model;
use worker_orcd_tests::hub::{pull, pull_with, pulled};
use worker_orcd_tests::{FakeHub, Held, Worker};

const MODEL_BYTES: usize = 400_000;

/// A model, and behind its last tensor bytes of that value.
fn model(of: u8) -> Vec<u8> {
    let mut bytes = tiny_model(Architecture::Llama).build();
    assert!(bytes.len() < MODEL_BYTES, "{}", bytes.len());
    bytes.resize(MODEL_BYTES, of);
    bytes
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
    // Again: nothing is transferred.
    assert_eq!(pulled(&pull(&hub, cache.path(), "a/b")), path);
    assert_eq!(hub.starts().len(), 2);
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
    for (bytes, why) in [
        (b"<html>".to_vec(), "GGUF"),
        ([b"GGUF".as_slice(), &[0; 100]].concat(), "version"),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let hub = FakeHub::start(vec![Held::new("a/b", "m.gguf", &bytes)]);
        let said = refused(&pull(&hub, cache.path(), "a/b:m.gguf"));
        assert!(said.contains("cannot be served"), "{said}");
        assert!(said.contains(why), "{said}");
        let named = cache.path().join("worker-orcd/a/b/m.gguf");
        assert!(!named.exists());
    }
}

/// Every read of what was pulled is another program's: without it nothing is read.
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
    let missing = Worker::with_model("some/tiny:t.gguf")
        .env("XDG_CACHE_HOME", cache.path().to_str().unwrap())
        .spawn()
        .wait_exit();
    assert_eq!(missing.code(), Some(2));
    pulled(&pull(&hub, cache.path(), "some/tiny:t.gguf"));
    let worker = Worker::with_model("some/tiny:t.gguf")
        .env("XDG_CACHE_HOME", cache.path().to_str().unwrap())
        .start();
    assert_eq!(worker.client().health()["model"]["ref"], "some/tiny:t.gguf");
}
