//! Worker and expected output for the snippets of `docs/guide/clients.md`. The model's text is arbitrary, so each kind
//! of output is checked by its form.

use crate::Worker;
use crate::snippets::Snippet;
use crate::tools_model::with_tools;
use serde_json::Value;
use std::process::{Command, Output};
use tempfile::TempDir;

/// Worker's address on the page.
const ADDRESS_OF_PAGE: &str = "localhost:8080";

/// Worker with every feature that snippets use, under the page's model name.
#[must_use]
pub fn worker() -> (TempDir, Worker) {
    let (dir, model) = with_tools();
    let worker = Worker::with_model(&model)
        .arg("--pooling", "mean")
        .arg("--served-model-name", "MODEL")
        .start();
    (dir, worker)
}

/// Code of the snippet, with the worker's address in it.
#[must_use]
pub fn addressed(snippet: &Snippet, worker: &Worker) -> String {
    let address = worker.client().address.to_string();
    snippet.code.replace(ADDRESS_OF_PAGE, &address)
}

/// Sets variables for clients of OpenAI's API. They require a key, although the worker has none.
pub fn point(command: &mut Command, worker: &Worker) {
    let base = format!("http://{}/v1", worker.client().address);
    command
        .env("OPENAI_BASE_URL", base)
        .env("OPENAI_API_KEY", "any")
        .env("NO_PROXY", "*");
}

/// Kind of a snippet's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Printed {
    /// Text of a model.
    Text,
    /// Text, and its number of tokens.
    Counted,
    /// One call of `get_weather` with arguments of its schema, and the model's answer to the result.
    Call,
    /// JSON of the river schema.
    River,
    /// Similarities of texts.
    Nearness,
}

impl Printed {
    /// # Errors
    /// Description of the mismatch.
    pub fn check(self, output: &Output) -> Result<(), String> {
        let text = String::from_utf8_lossy(&output.stdout);
        let is_it = match self {
            Self::Text => is_text(&text),
            Self::Counted => is_counted(&text),
            Self::Call => is_call(&text),
            Self::River => serde_json::from_str(&text).is_ok_and(|it| is_river(&it)),
            Self::Nearness => serde_json::from_str(&text).is_ok_and(|it| is_nearness(&it)),
        };
        if output.status.success() && is_it {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}, no {self:?}:\n{text}\n{said}", output.status))
    }
}

fn is_text(text: &str) -> bool {
    text.split_whitespace().count() > 3
}

fn is_counted(text: &str) -> bool {
    let Some((words, last)) = text.trim_end().rsplit_once('\n') else {
        return false;
    };
    let tokens = last.strip_suffix(" tokens").map(str::parse::<usize>);
    let words = words.split_whitespace().count();
    // A word is at least a token.
    words > 3 && matches!(tokens, Some(Ok(tokens)) if tokens >= words)
}

fn is_call(text: &str) -> bool {
    let mut calls = text
        .lines()
        .filter_map(|line| line.strip_prefix("get_weather "));
    let (Some(arguments), None) = (calls.next(), calls.next()) else {
        return false;
    };
    let city = |arguments: &Value| match arguments.as_object() {
        Some(fields) if fields.len() == 1 => fields.get("city")?.as_str().map(str::to_owned),
        _ => None,
    };
    let arguments = serde_json::from_str(arguments).ok();
    let city = arguments.as_ref().and_then(city);
    city.is_some_and(|city| ["Paris", "Oslo"].contains(&city.as_str()))
}

fn is_river(river: &Value) -> bool {
    let is_short = |name: &str| name.chars().count() <= 20;
    river.as_object().is_some_and(|fields| fields.len() == 3)
        && river["name"].as_str().is_some_and(is_short)
        && ["river", "stream"]
            .map(Value::from)
            .contains(&river["kind"])
        && (river["km"].as_u64()).is_some_and(|km| (1..=9999).contains(&km))
}

/// A text is most similar to itself, and more similar to one of its meaning than to another.
fn is_nearness(cosines: &Value) -> bool {
    let cosine = |name: &str| cosines[name].as_f64().unwrap_or(f64::NAN);
    let (same, near, far) = (cosine("same"), cosine("near"), cosine("far"));
    (same - 1.0).abs() < 1e-4 && same > near && near > far && far > -1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    fn printed(text: &str, status: i32) -> Output {
        Output {
            status: ExitStatus::from_raw(status),
            stdout: text.into(),
            stderr: Vec::new(),
        }
    }

    #[test]
    fn each_kind_of_output_is_known_from_others() {
        let river = "{\"name\":\"Po\",\"kind\":\"river\",\"km\":652}";
        for (kind, right, wrong) in [
            (Printed::Text, "Paris it is, then.", "\n"),
            (Printed::Counted, "It is so far.\n5 tokens", "0 tokens"),
            (Printed::Counted, "a b c d\n4 tokens\n", "a b c d e"),
            (Printed::Counted, "a b c d\n4 tokens\n", "a b c d\n3 tokens"),
            (
                Printed::Call,
                "get_weather {\"city\": \"Oslo\"}\nWell.",
                "Well. get_weather {\"city\": \"Oslo\"}",
            ),
            (
                Printed::Call,
                "get_weather {\"city\":\"Paris\"}\n",
                "get_weather {\"city\":\"Rome\"}\n",
            ),
            (
                Printed::Call,
                "get_weather {\"city\":\"Paris\"}\n",
                "get_weather {\"city\":\"Paris\"}\nget_weather {\"city\":\"Paris\"}\n",
            ),
            (
                Printed::Call,
                "get_weather {\"city\":\"Paris\"}\n",
                "get_weather {\"city\":\"Paris\",\"a\":1}\n",
            ),
            (
                Printed::River,
                river,
                "{\"name\":\"Po\",\"kind\":\"river\"}",
            ),
            (
                Printed::River,
                river,
                "{\"name\":\"Po\",\"kind\":\"sea\",\"km\":652}",
            ),
            (Printed::River, river, "null"),
            (
                Printed::Nearness,
                "{\"same\":1.0000001,\"near\":0.9,\"far\":0.5}",
                "{\"same\":1.0,\"near\":0.5,\"far\":0.9}",
            ),
            (
                Printed::Nearness,
                "{\"same\":1.0,\"near\":0.9,\"far\":0.5}",
                "{\"same\":null,\"near\":null,\"far\":null}",
            ),
        ] {
            kind.check(&printed(right, 0)).unwrap();
            kind.check(&printed(wrong, 0)).unwrap_err();
            kind.check(&printed(right, 256)).unwrap_err();
        }
    }
}
