//! Rust snippets of `docs/guide/clients.md`: `rust-snippets NAME` runs one of them, for `tests/tests/clients_rust.rs`.

use std::error::Error;

/// Declares a module for each snippet's file, and runs it by name.
macro_rules! snippets {
    ($($name:literal $module:ident)*) => {
        $(mod $module {
            include!(concat!("../../clients/rust/", $name, ".rs"));

            pub fn run() -> Result<(), Box<dyn Error>> {
                main()
            }
        })*

        fn run(name: &str) -> Result<(), Box<dyn Error>> {
            match name {
                $($name => $module::run(),)*
                _ => Err(format!("the page has no {name:?}").into()),
            }
        }
    };
}

snippets! {
    "async-openai-chat" chat
    "async-openai-stream" stream
    "async-openai-tools" tools
    "async-openai-structured" structured
    "async-openai-responses" responses
    "async-openai-responses-tools" responses_tools
    "async-openai-embeddings" embeddings
}

fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args().nth(1).unwrap_or_default())
}
