//! Streams behind many positions: cost of a long context's keys and values for each token.

use super::served::Served;
use super::{Settings, median, print};
use anyhow::{Result, ensure};
use serde_json::json;
use std::str::FromStr;
use worker_orcd_tests::bench::Burst;
use worker_orcd_tests::worker::request;

/// Number of streams and length of context, written `32x4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crowd {
    pub streams: usize,
    pub positions: usize,
}

impl FromStr for Crowd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('x').and_then(|(streams, positions)| {
            let numbers = (streams.parse().ok()?, positions.parse().ok()?);
            (numbers.0 > 0 && numbers.1 > 0).then_some(numbers)
        });
        let (streams, positions) =
            numbers.ok_or(format!("{text:?} is not STREAMSxPOSITIONS, as 32x4096"))?;
        Ok(Self { streams, positions })
    }
}

impl Served {
    /// Every round has the same prompts: the first computes them, and is not counted; the others find their keys and
    /// values in the cache, so that decoding alone is measured.
    pub fn long(&self, settings: &Settings, crowds: &[Crowd]) -> Result<()> {
        for crowd in crowds {
            let mut bodies: Vec<_> = (0..crowd.streams)
                .map(|_| self.request(crowd.positions, settings.tokens))
                .collect();
            let mut rates = Vec::new();
            for round in settings.rounds(settings.rounds) {
                for body in &mut bodies {
                    body["job_id"] = request("", 1)["job_id"].take();
                }
                let burst = Burst::run(self.address, &bodies)?;
                for stream in &burst.streams {
                    ensure!(
                        (stream.tokens_in, stream.tokens_out)
                            == (crowd.positions as u64, settings.tokens as u64),
                        "{} tokens came for {}, where {} were wanted behind {}",
                        stream.tokens_out,
                        stream.tokens_in,
                        settings.tokens,
                        crowd.positions
                    );
                }
                if round > 0 {
                    rates.extend(burst.decode_rate());
                }
            }
            print(&json!({
                "what": "long", "side": "served", "streams": crowd.streams,
                "positions": crowd.positions, "least": rates.iter().copied().reduce(f64::min),
                "most": rates.iter().copied().reduce(f64::max),
                "tokens_per_second": (!rates.is_empty()).then(|| median(&mut rates)),
            }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_read_or_refused() {
        let crowd = Crowd {
            streams: 32,
            positions: 4096,
        };
        assert_eq!("32x4096".parse(), Ok(crowd));
        for wrong in ["", "32", "x4096", "32x", "0x1", "1x0", "32X4096"] {
            assert!(wrong.parse::<Crowd>().is_err(), "{wrong}");
        }
    }
}
