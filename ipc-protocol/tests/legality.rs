//! States in which a child accepts each command.

mod support;

use support::{Message, samples};
use worker_orcd_ipc::ConversationState::{AwaitingLoad, Loading, Serving, StandingBy};

#[test]
fn each_command_is_legal_in_the_states_that_the_protocol_gives_it() {
    for (name, message) in samples::all() {
        let Message::Down(command) = message else {
            continue;
        };
        let legal: &[_] = match name.as_str() {
            "command-load-cpu" | "command-load-cuda" => &[AwaitingLoad],
            "command-submit" => &[Serving],
            "command-cancel" => &[Loading, Serving],
            "command-shutdown" => &[AwaitingLoad, Loading, StandingBy, Serving],
            "command-promote" | "command-copy-ahead" => &[StandingBy],
            "command-attach" | "command-release-kv" => &[Serving],
            other => panic!("{other}: add its legal states to this match"),
        };
        for state in [AwaitingLoad, Loading, StandingBy, Serving] {
            let is_legal = command.check(state).is_ok();
            assert_eq!(is_legal, legal.contains(&state), "{name} while {state:?}");
        }
    }
}
