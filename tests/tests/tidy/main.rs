//! Static checks of the repository: invariants of ARCHITECTURE.md here, claims of pages in [`pages`], their links in
//! [`links`], generated tables in [`tables`], module dependencies in [`rooms`], lengths of files and functions, and
//! files of a type, in [`sizes`].
//!
//! Each test here names a forbidden thing, and its scope. The first one checks the checker: a scan that finds no files
//! would pass everything.

mod links;
mod pages;
mod repository;
mod rooms;
mod sizes;
mod tables;

use repository::{
    code_lines, committed_files, dependencies_of, read, rust_sources, targets_without_tests,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use worker_orcd_tests::model::repository_root;

/// 1 MiB: larger files are data, which is stored elsewhere.
const MAX_COMMITTED_BYTES: u64 = 1 << 20;

#[test]
fn the_scan_sees_the_repository() {
    let files = committed_files();
    for expected in [
        "Cargo.toml",
        "supervisor/src/main.rs",
        "tests/tests/tidy/main.rs",
    ] {
        assert!(
            files.contains(&PathBuf::from(expected)),
            "{expected} is not among {files:?}"
        );
    }
}

#[test]
fn only_the_child_its_kernels_and_a_played_driver_may_use_unsafe() {
    for crate_root in [
        "supervisor/src/lib.rs",
        "supervisor/src/main.rs",
        "supervisor/api/src/lib.rs",
        "supervisor/cli/src/lib.rs",
        "supervisor/engine/src/lib.rs",
        "supervisor/lifecycle/src/lib.rs",
        "supervisor/process/src/lib.rs",
        "supervisor/requests/src/lib.rs",
        "supervisor/text/src/lib.rs",
        "ipc-protocol/src/lib.rs",
        "tests/harness/src/lib.rs",
        "xtask/src/main.rs",
    ] {
        let text = read(Path::new(crate_root));
        assert!(
            text.contains("#![forbid(unsafe_code)]"),
            "{crate_root} may use unsafe"
        );
    }
}

#[test]
fn the_supervisor_links_nothing_that_touches_a_device_or_a_model_file() {
    let packages = dependencies_of("worker-orcd");
    assert!(
        packages.iter().any(|name| name == "tokio"),
        "no dependency tree: {packages:?}"
    );
    for forbidden in [
        "cudarc",
        "memmap2",
        "worker-orcd-gpu",
        "worker-orcd-kernels",
        "candle-core",
    ] {
        assert!(
            !packages.iter().any(|name| name == forbidden),
            "the supervisor depends on {forbidden}"
        );
    }
}

#[test]
fn crates_below_the_supervisor_depend_on_no_runtime() {
    let runtime = ["tokio", "axum", "hyper", "nix"];
    let input_or_output = ["rustix", "tracing"];
    for (package, more) in [
        ("worker-orcd-lifecycle", &input_or_output[..]),
        ("worker-orcd-text", &input_or_output),
        ("worker-orcd-requests", &[]),
        ("worker-orcd-api", &["clap", "worker-orcd-engine"]),
    ] {
        let packages = dependencies_of(package);
        assert!(packages.iter().any(|name| name == "serde"), "{packages:?}");
        for forbidden in runtime.iter().chain(more) {
            assert!(
                !packages.iter().any(|name| name == forbidden),
                "{package} depends on {forbidden}"
            );
        }
    }
}

#[test]
fn commands_for_a_running_worker_do_not_depend_on_its_server() {
    let server = ["axum", "worker-orcd-lifecycle", "worker-orcd-requests"];
    for package in ["worker-orcd-cli", "worker-orcd-process"] {
        let packages = dependencies_of(package);
        assert!(packages.iter().any(|name| name == "tokio"), "{packages:?}");
        for forbidden in server {
            assert!(
                !packages.iter().any(|name| name == forbidden),
                "{package} depends on {forbidden}"
            );
        }
    }
}

/// The server reads command lines and files of settings, and answers clients.
#[test]
fn the_engine_depends_on_no_http_and_no_command_line() {
    let packages = dependencies_of("worker-orcd-engine");
    assert!(packages.iter().any(|name| name == "tokio"), "{packages:?}");
    for forbidden in [
        "axum",
        "clap",
        "http",
        "hyper",
        "prometheus-client",
        "toml",
        "tower",
        "tracing-subscriber",
        "utoipa",
        "worker-orcd",
        "worker-orcd-cli",
    ] {
        assert!(
            !packages.iter().any(|name| name == forbidden),
            "the engine depends on {forbidden}"
        );
    }
}

#[test]
fn ratatui_is_named_where_top_draws() {
    only_in("ratatui", |path| {
        path == Path::new("supervisor/cli/src/top.rs") || path.starts_with("supervisor/cli/src/top")
    });
}

#[test]
fn the_lifecycle_reads_no_clock_and_does_no_input_or_output() {
    let forbidden = [
        "Instant::now",
        "SystemTime",
        "tokio",
        "std::fs",
        "std::net",
        "std::process",
        "std::thread",
    ];
    for (path, text) in rust_sources("supervisor/lifecycle/src") {
        for word in forbidden {
            assert!(
                !code_lines(&text).any(|line| line.contains(word)),
                "{path:?} names {word}"
            );
        }
    }
}

/// `cargo xtask test` runs no documentation tests: they would compile most of the workspace once more.
#[test]
fn comments_hold_text_and_no_code_that_a_check_does_not_run() {
    let mut blocks = 0;
    for (path, text) in rust_sources("") {
        let comments = text.lines().map(str::trim_start).filter_map(|line| {
            line.strip_prefix("//!")
                .or_else(|| line.strip_prefix("///"))
        });
        let fences = comments.filter_map(|line| line.trim_start().strip_prefix("```"));
        for language in fences.step_by(2) {
            blocks += 1;
            assert_eq!(language, "text", "a block of code in a comment of {path:?}");
        }
    }
    assert!(blocks > 20, "{blocks} blocks");
}

#[test]
fn bincode_is_named_in_one_file() {
    // The codec gives the reason; elsewhere in code the word would mean a second wire format.
    only_in("bincode", |path| {
        path == Path::new("ipc-protocol/src/codec.rs")
    });
}

#[test]
fn cudarc_is_named_where_its_driver_is_called_or_played() {
    only_in("cudarc", |path| {
        path.starts_with("gpu-child/src/device/cuda") || path.starts_with("tests/played-cuda")
    });
}

#[test]
fn every_module_opens_with_a_page() {
    // A file of unit tests is part of the module under test.
    let is_module = |path: &Path| {
        path.components().any(|part| part.as_os_str() == "src") && !path.ends_with("tests.rs")
    };
    for (path, text) in rust_sources("")
        .into_iter()
        .filter(|(path, _)| is_module(path))
    {
        assert!(
            text.starts_with("//!"),
            "{path:?} does not say what lives there"
        );
    }
}

/// A file that is no module of the program, or a target that is built without its tests, would be skipped silently.
#[test]
fn every_test_is_in_a_program_that_is_built() {
    let modules = read(Path::new("tests/tests/main.rs"));
    for (path, _) in rust_sources("tests/tests") {
        let name = path.file_stem().and_then(|it| it.to_str()).expect("a name");
        let is_module = path.parent() == Some(Path::new("tests/tests")) && name != "main";
        let declaration = format!("mod {name};");
        assert!(
            !is_module || modules.lines().any(|line| line == declaration),
            "{path:?} is no module of tests/tests/main.rs"
        );
    }
    let mut untested = 0;
    for source in targets_without_tests() {
        untested += 1;
        // Modules of a `main.rs` that has a folder of its own.
        let folder = match source.ends_with("main.rs") && !source.ends_with("src/main.rs") {
            true => source.parent().expect("a folder"),
            false => &source,
        };
        for file in committed_files() {
            let has_tests = file.starts_with(folder) && read(&file).contains("#[test]");
            assert!(!has_tests, "{file:?} has tests that are not built");
        }
    }
    assert!(untested > 10, "{untested} targets without tests");
}

/// `cargo xtask test` runs these alone, by their module.
#[test]
fn a_test_that_measures_is_in_a_module_pace() {
    let mut measured = 0;
    for (path, text) in rust_sources("tests/tests") {
        if path.ends_with("tests/pace.rs") {
            continue;
        }
        let (others, pace) = text.split_once("\nmod pace {").unwrap_or((&text, ""));
        // In two parts, so that this file does not match.
        let call = concat!(".keeps", "_pace_beside(");
        assert!(!others.contains(call), "{path:?} measures beside others");
        measured += pace.matches(call).count();
    }
    assert!(measured > 5, "{measured} tests measure");
}

/// `http.rs` beside `http/`: a tab or a stack trace then has the name of the module.
#[test]
fn no_module_is_called_mod() {
    for (path, _) in rust_sources("") {
        // Beside test programs such a file would be a test program.
        let is_source = path.iter().any(|part| part == "src");
        assert!(!is_source || !path.ends_with("mod.rs"), "{path:?}");
    }
}

#[test]
fn nothing_is_left_to_do_later() {
    // In two parts, so that this file does not match.
    let forbidden = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("TO", "DO:"),
    ];
    for (path, text) in rust_sources("") {
        for word in forbidden {
            assert!(!text.contains(word), "{path:?} contains {word}");
        }
    }
}

/// Operators filter by event names, which are identifiers, not sentences.
#[test]
fn every_event_of_the_log_has_a_name_and_no_sentence() {
    let mut events = 0;
    for (path, text) in rust_sources("supervisor") {
        for name in event_names(&text) {
            events += 1;
            let is_name = name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            assert!(is_name, "{path:?} logs {name:?}");
        }
    }
    assert!(events > 30, "only {events} events were found");
}

/// An event name has one meaning, and one place in the code.
#[test]
fn every_event_of_the_log_has_a_name_of_its_own() {
    // By a signal or over HTTP, and then with a correlation id.
    let told_in_two_places = "shutdown";
    let mut places = BTreeMap::<String, Vec<PathBuf>>::new();
    for (path, text) in rust_sources("supervisor") {
        let product = text.split("#[cfg(test)]\nmod tests {").next();
        for name in event_names(product.unwrap_or_default()) {
            let named = places.entry(name.to_owned()).or_default();
            named.push(path.clone());
        }
    }
    places.retain(|name, named| named.len() > 1 + usize::from(name == told_in_two_places));
    assert!(places.is_empty(), "{places:#?}");
}

/// Last literal of each call of a macro of `tracing`.
fn event_names(text: &str) -> impl Iterator<Item = &str> {
    let calls = ["debug!(", "info!(", "warn!(", "error!("];
    let calls = calls.into_iter().flat_map(|call| text.match_indices(call));
    calls.filter_map(|(at, call)| {
        let arguments = &text[at + call.len()..];
        let mut open = 1;
        let end = arguments.find(|c| {
            open += i32::from(c == '(') - i32::from(c == ')');
            open == 0
        })?;
        let mut literals = arguments[..end].rsplit('"');
        literals.nth(1)
    })
}

#[test]
fn no_large_file_and_no_model_is_committed() {
    for path in committed_files() {
        let extension = path.extension().and_then(|extension| extension.to_str());
        assert!(
            !matches!(extension, Some("gguf" | "safetensors" | "whl" | "so")),
            "{path:?} does not belong into a repository"
        );
        // A deleted file has no size until the deletion is committed.
        if let Ok(found) = fs::metadata(repository_root().join(&path)) {
            assert!(
                found.len() <= MAX_COMMITTED_BYTES,
                "{path:?} has {} bytes",
                found.len()
            );
        }
    }
}

#[test]
fn every_unsafe_block_and_impl_has_its_proof() {
    // In two parts, so that this file does not match.
    let proven = [concat!("unsafe", " {"), concat!("unsafe", " impl")];
    for (path, text) in rust_sources("") {
        let lines: Vec<_> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let is_unsafe = proven.iter().any(|opening| line.contains(opening));
            if !is_unsafe || line.trim_start().starts_with("//") {
                continue;
            }
            // A proof may be a few lines long and precede the statement that contains the block.
            let before = &lines[number.saturating_sub(8)..=number];
            assert!(
                before.iter().any(|line| line.contains("SAFETY:")),
                "{path:?}:{} is unsafe without a proof",
                number + 1
            );
        }
    }
}

/// Asserts that `word` occurs in code only in files that `allowed` accepts.
fn only_in(word: &str, allowed: impl Fn(&Path) -> bool) {
    for (path, text) in rust_sources("") {
        // This file names the forbidden words.
        if allowed(&path) || path == Path::new("tests/tests/tidy/main.rs") {
            continue;
        }
        assert!(
            !code_lines(&text).any(|line| line.contains(word)),
            "{path:?} names {word}"
        );
    }
}
