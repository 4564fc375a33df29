//! The seeds of the `gguf_header` fuzz target, and the words of each refusal.

use std::fs;
use worker_orcd_gpu::model::gguf::parse;
use worker_orcd_tests::hostile_gguf::{headers, honest, metadata_of_a_model};
use worker_orcd_tests::model::repository_root;

#[test]
fn every_lying_header_is_refused_in_words() {
    parse(&honest().build()).expect("the file that the lies are made of is honest");
    for lie in headers() {
        let error = parse(&lie.bytes).expect_err(lie.name).to_string();
        assert!(error.contains(lie.says), "{}: {error}", lie.name);
    }
}

#[test]
fn seeds_give_a_header_or_an_error() {
    let dir = repository_root().join("fuzz/corpus/gguf_header");
    if std::env::var_os("REGENERATE").is_some() {
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("honest"), honest().build()).unwrap();
        fs::write(dir.join("metadata-of-a-model"), metadata_of_a_model()).unwrap();
        for lie in headers() {
            fs::write(dir.join(lie.name), lie.bytes).unwrap();
        }
    }
    let mut parsed = 0;
    let mut refused = 0;
    for entry in fs::read_dir(&dir).expect("fuzz/corpus/gguf_header") {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        match parse(&bytes) {
            Ok(header) => {
                parsed += 1;
                for info in header.tensors() {
                    let view = header.tensor(info.name).expect("a tensor of the table");
                    assert_eq!(view.data.len(), info.bytes);
                }
            }
            Err(_) => refused += 1,
        }
    }
    assert!(
        parsed >= 2 && refused >= headers().len(),
        "{parsed} parsed, {refused} refused"
    );
}
