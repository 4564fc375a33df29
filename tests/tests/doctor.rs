//! `worker-orcd doctor`, asked about children and models that are none.

use std::fs;
use std::path::Path;
use std::process::Command;
use worker_orcd_tests::model::real_model;
use worker_orcd_tests::worker::binary;

/// Whether it found nothing bad, and what it said.
fn doctor(child: &Path, model: Option<&Path>) -> (bool, String) {
    let mut command = Command::new(binary("tested-worker-orcd"));
    command.arg("doctor").arg("--child-binary").arg(child);
    if let Some(model) = model {
        command.arg("--model").arg(model);
    }
    let output = command.output().expect("worker-orcd starts");
    let said = String::from_utf8(output.stdout).expect("text");
    (output.status.success(), said)
}

#[test]
fn a_child_is_asked_whether_it_is_one() {
    let (fine, said) = doctor(&binary("tested-worker-orcd-gpu"), None);
    assert!(fine, "{said}");
    assert!(said.contains("ok    GPU child"), "{said}");
    assert!(
        said.contains("ok    confinement: Landlock, seccomp"),
        "{said}"
    );
    for other in ["/bin/true", "/bin/echo"] {
        let (fine, said) = doctor(Path::new(other), None);
        assert!(!fine, "{said}");
        assert!(said.contains("BAD   GPU child"), "{said}");
    }
}

#[test]
fn a_model_is_read_as_far_as_its_header_says_by_a_child() {
    let child = binary("tested-worker-orcd-gpu");
    let (fine, said) = doctor(&child, Some(&real_model()));
    assert!(
        fine && said.contains("ok    model") && said.contains("llama"),
        "{said}"
    );

    let directory = tempfile::tempdir().unwrap();
    let stump = directory.path().join("stump.gguf");
    fs::write(&stump, &fs::read(real_model()).unwrap()[..2 << 20]).unwrap();
    let (fine, said) = doctor(&child, Some(&stump));
    assert!(!fine && said.contains("BAD   model"), "{said}");
    assert!(said.contains("past"), "{said}");

    let (fine, said) = doctor(&child, Some(Path::new("nope.gguf")));
    assert!(!fine && said.contains("worker-orcd pull"), "{said}");
}
