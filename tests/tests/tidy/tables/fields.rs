//! docs/guide/fields.md: support for each field of other servers.

use super::is_in;
use crate::repository::read;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use worker_orcd_api::fates::{self, Endpoint, Fate};

/// Fields of other servers, with their sources.
const PEERS: &str = "tests/tests/tidy/peers.json";

const PAGE: &str = "docs/guide/fields.md";

const ENDPOINTS: [(&str, Endpoint); 5] = [
    ("chat", Endpoint::Chat),
    ("completions", Endpoint::Completions),
    ("responses", Endpoint::Responses),
    ("embeddings", Endpoint::Embeddings),
    ("messages", Endpoint::Messages),
];

#[test]
fn the_page_on_fields_shows_what_the_readers_do_with_each() {
    let peers: Value = serde_json::from_str(&read(Path::new(PEERS))).expect("JSON");
    let peers = peers.as_object().expect("servers by their names");
    let mut sources = String::from("| server | fields as of |\n|---|---|\n");
    for (server, facts) in peers {
        let source = facts["source"].as_str().expect("a source");
        writeln!(sources, "| {server} | {source} |").expect("a string takes everything");
    }
    is_in(PAGE, "sources", &sources);
    for (name, endpoint) in ENDPOINTS {
        let mut fields: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (server, facts) in peers {
            let list = facts["endpoints"][name].as_array().into_iter().flatten();
            for field in list.map(|field| field.as_str().expect("a name")) {
                fields.entry(field).or_default().push(server);
            }
        }
        is_in(PAGE, name, &table(endpoint, &fields));
    }
}

fn table(endpoint: Endpoint, fields: &BTreeMap<&str, Vec<&str>>) -> String {
    let names: Vec<&str> = fields.keys().copied().collect();
    assert!(names.len() > 3, "{PEERS} has no fields of {endpoint:?}");
    let mut table = String::from("| field | of | what is done |\n|---|---|---|\n");
    for ((name, servers), fate) in fields.iter().zip(fates::of(endpoint, &names)) {
        let done = match fate {
            Fate::Used => "used".to_owned(),
            Fate::NoEffect(values) => format!("changes no answer: {values}"),
            Fate::Refused => "refused".to_owned(),
        };
        let servers = servers.join(", ");
        writeln!(table, "| `{name}` | {servers} | {done} |").expect("a string takes everything");
    }
    table
}
