//! Streams under a schema beside unconstrained streams, by [`bench::structured`](worker_orcd_tests::bench::structured).

use super::{Settings, print};
use anyhow::Result;
use serde_json::json;
use worker_orcd_tests::Client;
use worker_orcd_tests::bench::structured::Structured;

/// Numbers of streams: one, and those of a busy worker.
pub const STREAMS: [usize; 2] = [1, 32];

pub fn run(client: Client, settings: &Settings) -> Result<()> {
    let bench = Structured::new(client, settings.tokens as u32);
    for streams in STREAMS {
        let mut figures = vec![bench.constrained(streams, settings.rounds)?];
        if streams > 1 {
            figures.push(bench.neighbours(streams, settings.rounds)?);
        }
        for mut figure in figures {
            figure["what"] = json!("structured");
            figure["side"] = json!("served");
            print(&figure);
        }
    }
    Ok(())
}
