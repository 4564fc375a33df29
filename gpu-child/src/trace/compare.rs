//! Comparison of two traces: the largest difference at each checkpoint, and their agreement within a tolerance.
//!
//! Lines are matched on (checkpoint, token_idx), so a reference engine's trace needs only those two, `values`, and the
//! same text. A file with several requests has several lines for the same key; then the caller selects one request.
//! Traces agree if each has every row of the other, in the same shape, and no value differs by more than the tolerance.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CompareError {
    #[error("line {line}: {message}")]
    Line { line: usize, message: String },
    #[error(
        "line {line}: a second row for checkpoint {checkpoint}, token {token_idx}; \
         name one request of this file: {}",
        list(requests)
    )]
    Ambiguous {
        line: usize,
        checkpoint: String,
        token_idx: u64,
        /// Requests in the file up to this line.
        requests: BTreeSet<u64>,
    },
}

/// Rows by checkpoint and token.
pub type Trace = BTreeMap<(String, u64), TracedValues>;

/// A traced row.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedValues {
    /// Shape of the whole row, if the file has it.
    pub shape: Option<Vec<u64>>,
    /// The first values.
    pub values: Vec<f64>,
}

fn list(requests: &BTreeSet<u64>) -> String {
    let names: Vec<_> = requests.iter().map(u64::to_string).collect();
    names.join(", ")
}

/// Parses the text of a trace; with `request`, only that request's lines.
///
/// # Errors
/// If a line is not a JSON object with a checkpoint, a token and values, or repeats a key.
pub fn read_trace(text: &str, request: Option<u64>) -> Result<Trace, CompareError> {
    let mut trace = Trace::new();
    let mut requests = BTreeSet::new();
    for (line, text) in (1..)
        .zip(text.lines())
        .filter(|(_, text)| !text.trim().is_empty())
    {
        let bad = |message: &str| CompareError::Line {
            line,
            message: message.to_owned(),
        };
        let object: Value = serde_json::from_str(&quote_non_numbers(text))
            .map_err(|error| bad(&error.to_string()))?;
        requests.extend(object["request"].as_u64());
        if request.is_some() && object["request"].as_u64() != request {
            continue;
        }
        let checkpoint = object["checkpoint"]
            .as_str()
            .ok_or_else(|| bad("no checkpoint"))?;
        let token_idx = object["token_idx"]
            .as_u64()
            .ok_or_else(|| bad("no token_idx"))?;
        let values = object["values"]
            .as_array()
            .ok_or_else(|| bad("no values"))?;
        let values = values.iter().map(number).collect::<Option<_>>();
        let values = values.ok_or_else(|| bad("a value is not a number"))?;
        let shape = object["shape"].as_array();
        let shape = shape.and_then(|shape| shape.iter().map(Value::as_u64).collect());
        let checkpoint = checkpoint.to_owned();
        if trace
            .insert(
                (checkpoint.clone(), token_idx),
                TracedValues { shape, values },
            )
            .is_some()
        {
            return Err(CompareError::Ambiguous {
                line,
                checkpoint,
                token_idx,
                requests,
            });
        }
    }
    Ok(trace)
}

/// Quotes Python's `NaN` and `Infinity`, which are not JSON.
fn quote_non_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut is_string, mut is_escaped) = (false, false);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let word = ["NaN", "-Infinity", "Infinity"]
            .into_iter()
            .find(|word| rest.starts_with(word));
        if let Some(word) = word.filter(|_| !is_string) {
            out.push('"');
            out.push_str(word);
            out.push('"');
            rest = &rest[word.len()..];
            continue;
        }
        if character == '"' && !is_escaped {
            is_string = !is_string;
        }
        is_escaped = is_string && character == '\\' && !is_escaped;
        out.push(character);
        rest = &rest[character.len_utf8()..];
    }
    out
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(word) => match word.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// The difference at one checkpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CheckpointDifference {
    /// Rows in both traces.
    pub rows: usize,
    pub only_in_a: usize,
    pub only_in_b: usize,
    /// Rows in both traces, with another shape or number of values.
    pub unlike: usize,
    pub values: usize,
    /// The largest difference, with its place; infinite if only one of the two is a number.
    pub largest: f64,
    pub token_idx: u64,
    pub index: usize,
    pub pair: (f64, f64),
}

/// Compares two traces, by checkpoint.
#[must_use]
pub fn compare(a: &Trace, b: &Trace) -> BTreeMap<String, CheckpointDifference> {
    let mut differences: BTreeMap<String, CheckpointDifference> = BTreeMap::new();
    for ((checkpoint, token_idx), row) in a {
        let difference = differences.entry(checkpoint.clone()).or_default();
        match b.get(&(checkpoint.clone(), *token_idx)) {
            None => difference.only_in_a += 1,
            Some(other) => difference.add_row(*token_idx, row, other),
        }
    }
    for key @ (checkpoint, _) in b.keys() {
        if !a.contains_key(key) {
            differences.entry(checkpoint.clone()).or_default().only_in_b += 1;
        }
    }
    differences
}

impl CheckpointDifference {
    /// True if no row is missing on either side, and no value differs by more than `tolerance`.
    #[must_use]
    pub fn agrees_within(&self, tolerance: f64) -> bool {
        self.values > 0
            && self.only_in_a == 0
            && self.only_in_b == 0
            && self.unlike == 0
            && self.largest <= tolerance
    }

    fn add_row(&mut self, token_idx: u64, a: &TracedValues, b: &TracedValues) {
        self.rows += 1;
        let same_shape = a.shape.is_none() || b.shape.is_none() || a.shape == b.shape;
        self.unlike += usize::from(!same_shape || a.values.len() != b.values.len());
        let pairs = a.values.iter().copied().zip(b.values.iter().copied());
        for (index, (a, b)) in pairs.enumerate() {
            self.values += 1;
            let distance = distance(a, b);
            if distance > self.largest {
                *self = Self {
                    largest: distance,
                    token_idx,
                    index,
                    pair: (a, b),
                    ..self.clone()
                };
            }
        }
    }
}

fn distance(a: f64, b: f64) -> f64 {
    // Equal infinities have no difference, and neither have two NaN.
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    let distance = (a - b).abs();
    if distance.is_nan() {
        f64::INFINITY
    } else {
        distance
    }
}

impl fmt::Display for CheckpointDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rows,
            values,
            only_in_a,
            only_in_b,
            unlike,
            largest,
            ..
        } = self;
        write!(
            f,
            "{rows} rows, {values} values, largest difference {largest:.6}"
        )?;
        if *largest > 0.0 {
            let (a, b) = self.pair;
            write!(
                f,
                " at token {}, index {}: {a} and {b}",
                self.token_idx, self.index
            )?;
        }
        if *only_in_a > 0 || *only_in_b > 0 {
            write!(
                f,
                "; {only_in_a} rows only in the first, {only_in_b} only in the second"
            )?;
        }
        if *unlike > 0 {
            write!(f, "; {unlike} rows of another shape")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(checkpoint: &str, token_idx: u64, values: &str) -> String {
        format!(
            r#"{{"team":"x NaN \" NaN","request":1,"checkpoint":"{checkpoint}","token_idx":{token_idx},"values":[{values}]}}"#
        )
    }

    fn trace(rows: &[String]) -> Trace {
        read_trace(&rows.join("\n"), None).unwrap()
    }

    #[test]
    fn the_largest_difference_is_found_per_checkpoint() {
        let a = trace(&[
            row("logits", 5, "1.0,2.0"),
            row("logits", 6, "1.0,-2.0"),
            row("embedding", 5, "7"),
        ]);
        let b = trace(&[
            row("logits", 6, "1.5,-2.75"),
            row("logits", 5, "1.0,2.0,9.0"),
            row("logits", 7, "0"),
        ]);
        let differences = compare(&a, &b);
        let logits = &differences["logits"];
        assert_eq!(
            (
                logits.rows,
                logits.values,
                logits.only_in_a,
                logits.only_in_b
            ),
            (2, 4, 0, 1)
        );
        assert_eq!(
            (logits.largest, logits.token_idx, logits.index),
            (0.75, 6, 1)
        );
        assert_eq!(differences["embedding"].only_in_a, 1);
        assert!(
            logits
                .to_string()
                .contains("largest difference 0.750000 at token 6, index 1: -2 and -2.75")
        );
    }

    #[test]
    fn what_is_no_number_is_never_equal_to_one() {
        let a = trace(&[row("logits", 1, "NaN,Infinity,-Infinity")]);
        assert_eq!(compare(&a, &a)["logits"].largest, 0.0);
        let b = trace(&[row("logits", 1, "0,Infinity,-Infinity")]);
        assert_eq!(compare(&a, &b)["logits"].largest, f64::INFINITY);
    }

    #[test]
    fn two_rows_for_one_place_need_a_request() {
        let other = row("logits", 1, "2").replace("\"request\":1", "\"request\":2");
        let text = [row("logits", 1, "1"), other].join("\n");
        let error = read_trace(&text, None).unwrap_err();
        assert!(
            matches!(error, CompareError::Ambiguous { line: 2, .. }),
            "{error}"
        );
        assert!(error.to_string().ends_with("of this file: 1, 2"), "{error}");
        let trace = read_trace(&text, Some(2)).unwrap();
        assert_eq!(trace[&("logits".to_owned(), 1)].values, [2.0]);
    }

    #[test]
    fn what_is_missing_or_of_another_shape_is_no_agreement() {
        let whole = trace(&[row("logits", 1, "1,2"), row("logits", 2, "3,4")]);
        let agrees = |other: &Trace| {
            let differences = compare(&whole, other);
            differences.values().all(|it| it.agrees_within(0.5))
        };
        assert!(agrees(&whole));
        assert!(agrees(&trace(&[
            row("logits", 1, "1,2"),
            row("logits", 2, "3,4.5")
        ])));
        for other in [
            vec![row("logits", 1, "1,2")],
            vec![row("logits", 1, "1,2"), row("logits", 2, "3")],
            vec![row("logits", 1, "1,2"), row("logits", 2, "3,NaN")],
            vec![row("logits", 1, "1,2"), row("logits", 2, "3,4.6")],
            [
                row("logits", 1, "1,2"),
                row("logits", 2, "3,4"),
                row("logits", 3, "5,6"),
            ]
            .to_vec(),
            [
                row("logits", 1, "1,2"),
                row("logits", 2, "3,4"),
                row("layer.0", 2, "0"),
            ]
            .to_vec(),
        ] {
            assert!(!agrees(&trace(&other)), "{other:?}");
        }
        let shaped = |shape: &str| {
            let row = row("logits", 1, "1,2").replace("\"values\"", &format!("{shape},\"values\""));
            trace(&[row])
        };
        let (one, other) = (shaped("\"shape\":[4]"), shaped("\"shape\":[5]"));
        assert!(compare(&one, &one)["logits"].agrees_within(0.0));
        assert!(!compare(&one, &other)["logits"].agrees_within(9.0));
    }

    #[test]
    fn bad_lines_are_named() {
        for text in [
            "{",
            "{}",
            r#"{"checkpoint":"x","token_idx":1,"values":["one"]}"#,
        ] {
            let text = format!("{}\n{text}", row("logits", 1, "1"));
            let error = read_trace(&text, None).unwrap_err();
            assert!(error.to_string().starts_with("line 2: "), "{error}");
        }
    }
}
