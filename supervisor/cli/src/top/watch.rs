//! History of a worker: the last answer, rates of the last minutes, and the time since it stopped answering.

use super::asked::{Answers, Outcome};
use super::view::{Silence, View};
use std::collections::VecDeque;
use std::time::SystemTime;
use worker_orcd_text::calendar::rfc3339;

/// Ten minutes at one poll per second.
const RATES_KEPT: usize = 600;

#[derive(Debug)]
pub(super) struct Watch {
    server: String,
    last: Option<Answers>,
    silence: Option<Silence>,
    /// Tokens per second at each poll; `None` without an answer.
    rates: VecDeque<Option<u64>>,
}

impl Watch {
    pub(super) fn new(server: String) -> Self {
        Self {
            server,
            last: None,
            silence: None,
            rates: VecDeque::new(),
        }
    }

    pub(super) fn take(&mut self, answer: Outcome, now: SystemTime) {
        let rate = match answer {
            Ok(answers) => {
                let rate = answers.health["load"]["tokens_per_second"].as_f64();
                self.last = Some(answers);
                self.silence = None;
                rate.map(|rate| rate.round() as u64)
            }
            Err(why) => {
                let began = self.silence.take().map(|silence| silence.since);
                let since = began.unwrap_or_else(|| rfc3339(now));
                self.silence = Some(Silence { since, why });
                None
            }
        };
        if self.rates.len() == RATES_KEPT {
            self.rates.pop_front();
        }
        self.rates.push_back(rate);
    }

    pub(super) fn view(&self) -> View {
        let rates = self.rates.iter().copied().collect();
        View::new(
            &self.server,
            self.last.as_ref(),
            self.silence.as_ref(),
            rates,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn answer(rate: f64) -> Outcome {
        Ok(Answers {
            health: json!({
                "status": "healthy", "state": "serving", "worker_id": "w",
                "load": {"tokens_per_second": rate},
            }),
            metrics: String::new(),
            crashes: Ok(Vec::new()),
        })
    }

    #[test]
    fn silence_has_its_beginning_keeps_the_last_answer_and_ends_with_the_next() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut watch = Watch::new("here".to_owned());
        watch.take(answer(12.4), at(1));
        assert!(watch.view().is_healthy());
        watch.take(Err("refused".to_owned()), at(2));
        watch.take(Err("reset".to_owned()), at(3));
        let view = watch.view();
        assert!(!view.is_healthy());
        let text = view.to_string();
        assert!(text.contains("1970-01-01T00:00:02.000Z: reset"), "{text}");
        assert!(text.contains("12.4"), "the last value stays: {text}");
        assert_eq!(view.rates, [Some(12), None, None]);
        watch.take(answer(0.0), at(4));
        assert!(watch.view().is_healthy());
        for second in 5..5000 {
            watch.take(answer(1.0), at(second));
        }
        assert_eq!(watch.view().rates, [Some(1); RATES_KEPT]);
    }
}
