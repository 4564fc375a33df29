//! Rooms of the supervisor, its APIs, its engine and the child (a folder below `src`, or a file), and their dependencies.

use crate::repository::{code_lines, rust_sources};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Rooms = BTreeMap<String, BTreeSet<String>>;

/// Room of a file: `http` for `supervisor/src/http/sse.rs` and `supervisor/src/http.rs`.
fn room_of(path: &Path, sources: &str) -> Option<String> {
    let inside = path.strip_prefix(sources).ok()?;
    let first = inside.components().next()?.as_os_str().to_str()?;
    Some(first.trim_end_matches(".rs").to_owned())
}

/// Names after each `crate::`, tests included.
fn named(text: &str) -> impl Iterator<Item = String> {
    let behind = |line: &str| {
        let parts = line.split("crate::").skip(1);
        let word = |part: &str| {
            let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            part[..end.unwrap_or(part.len())].to_owned()
        };
        parts.map(word).collect::<Vec<_>>()
    };
    code_lines(text).flat_map(behind)
}

fn rooms(sources: &str) -> Rooms {
    let mut rooms = Rooms::new();
    for (path, text) in rust_sources(sources) {
        let room = room_of(&path, sources).expect("a file below the sources");
        let needed = rooms.entry(room.clone()).or_default();
        needed.extend(named(&text).filter(|other| *other != room));
    }
    let known: BTreeSet<String> = rooms.keys().cloned().collect();
    for needed in rooms.values_mut() {
        needed.retain(|room| known.contains(room));
    }
    rooms
}

/// Removes rooms without remaining dependencies, repeatedly. The rest is in a cycle, or depends on one.
fn left_over(mut rooms: Rooms) -> Rooms {
    loop {
        let free = |needed: &BTreeSet<String>| needed.iter().all(|it| !rooms.contains_key(it));
        let leaves = rooms.iter().filter(|(_, needed)| free(needed));
        let leaves: Vec<String> = leaves.map(|(room, _)| room.clone()).collect();
        if leaves.is_empty() {
            return rooms;
        }
        rooms.retain(|room, _| !leaves.contains(room));
    }
}

#[test]
fn no_rooms_of_the_supervisor_need_each_other_in_a_circle() {
    let rooms = rooms("supervisor/src");
    assert!(rooms["commands"].contains("http"), "{rooms:#?}");
    assert!(rooms["http"].contains("config"), "{rooms:#?}");
    let circle = left_over(rooms);
    assert!(circle.is_empty(), "{circle:#?}");
}

#[test]
fn no_rooms_of_the_api_need_each_other_in_a_circle() {
    let rooms = rooms("supervisor/api/src");
    assert!(rooms["openai"].contains("fields"), "{rooms:#?}");
    assert!(rooms["openai"].contains("answer_format"), "{rooms:#?}");
    let circle = left_over(rooms);
    assert!(circle.is_empty(), "{circle:#?}");
}

#[test]
fn no_rooms_of_the_engine_need_each_other_in_a_circle() {
    let rooms = rooms("supervisor/engine/src");
    assert!(rooms["driver"].contains("engine"), "{rooms:#?}");
    assert!(rooms["driver"].contains("child"), "{rooms:#?}");
    let circle = left_over(rooms);
    assert!(circle.is_empty(), "{circle:#?}");
}

#[test]
fn no_rooms_of_the_child_need_each_other_in_a_circle() {
    let rooms = rooms("gpu-child/src");
    assert!(rooms["scheduler"].contains("kv_pages"), "{rooms:#?}");
    assert!(rooms["fault_injection"].contains("device"), "{rooms:#?}");
    let circle = left_over(rooms);
    assert!(circle.is_empty(), "{circle:#?}");
}
