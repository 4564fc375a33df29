//! Bounds, multiples and constants, within the exact range of 64-bit numbers.
//!
//! The compiler represents bounds as `f64`. Any other bound is moved inwards to the next `f64`, and so are most
//! exclusive bounds, because a decimal fraction close to one may be parsed as the bound itself.

use serde_json::{Map, Number, Value, json};

/// The smallest power of two that an `i64` cannot hold. The compiler writes bounds as `i64`.
const TOO_LARGE: f64 = 9_223_372_036_854_775_808.0;

/// Minimum above an exclusive zero: a number with this many digits is non-zero for every JSON parser.
const ABOVE_ZERO: f64 = 1e-30;

/// Limit of integers that every JSON parser represents exactly. `EXACT_FRACTIONS` is the limit for their fractions of
/// [`LEAST_FRACTION`].
const EXACT: f64 = 9_007_199_254_740_991.0;
const EXACT_FRACTIONS: f64 = 1_099_511_627_776.0;
const LEAST_FRACTION: f64 = 1.0 / 1024.0;

/// Two of them have a common multiple of 32 bits, the compiler's type.
const MAX_MULTIPLE: f64 = 65_535.0;

/// Translates bounds and multiples of a schema.
///
/// # Errors
/// The keyword, with the reason.
pub(super) fn write(
    keywords: &Map<String, Value>,
    out: &mut Map<String, Value>,
) -> Result<(), String> {
    let mut low = lower(keywords, ["minimum", "exclusiveMinimum"], 1.0)?;
    let mut high = lower(keywords, ["maximum", "exclusiveMaximum"], -1.0)?;
    if let Some(multiple) = keywords.get("multipleOf") {
        let bound = exact_multiples(multiple)?;
        out.insert("multipleOf".to_owned(), multiple.clone());
        for side in [&mut low, &mut high] {
            *side = side
                .filter(|it| it.at >= -bound)
                .or(Some(Bound::inclusive(-bound)));
        }
    }
    // Without a bound the compiler allows numbers that no parser holds, as 8E657 and those with 400 digits.
    if low.is_some() || high.is_some() || may_be_number(keywords, out) {
        let bound = Bound::inclusive(-TOO_LARGE.next_down());
        (low, high) = (low.or(Some(bound)), high.or(Some(bound)));
    }
    for (bound, inclusive, exclusive, sign) in [
        (low, "minimum", "exclusiveMinimum", 1.0),
        (high, "maximum", "exclusiveMaximum", -1.0),
    ] {
        let Some(Bound { at, is_exclusive }) = bound else {
            continue;
        };
        let name = if is_exclusive { exclusive } else { inclusive };
        out.insert(name.to_owned(), json!(at * sign));
    }
    Ok(())
}

/// True if the schema has the type number, or has keywords but no type. A schema without keywords leaves numbers to
/// others.
fn may_be_number(keywords: &Map<String, Value>, out: &Map<String, Value>) -> bool {
    let is_it = |name: &Value| name == "number" || name == "integer";
    match keywords.get("type") {
        Some(Value::Array(names)) => names.iter().any(is_it),
        Some(name) => is_it(name),
        None => !out.is_empty(),
    }
}

/// A lower bound; an upper one is negated.
#[derive(Debug, Clone, Copy)]
struct Bound {
    at: f64,
    is_exclusive: bool,
}

impl Bound {
    fn inclusive(at: f64) -> Self {
        Self {
            at,
            is_exclusive: false,
        }
    }

    /// Bound above a number that is held exactly. Towards zero, bounds without a fraction stay: the compiler would
    /// allow no 0.9 below 0.9999999999999999.
    fn above(at: f64) -> Self {
        match at {
            0.0 => Self::inclusive(ABOVE_ZERO),
            at if at < 0.0 && at > -EXACT && at.fract() == 0.0 => Self {
                at,
                is_exclusive: true,
            },
            at => Self::inclusive(at.next_up()),
        }
    }

    fn narrower(self, other: Self) -> Self {
        match self.at == other.at {
            true => Self {
                is_exclusive: self.is_exclusive || other.is_exclusive,
                ..self
            },
            false => {
                if self.at > other.at {
                    self
                } else {
                    other
                }
            }
        }
    }
}

/// The lower bound of two keywords together; with `sign` -1 the upper one, negated.
fn lower(
    keywords: &Map<String, Value>,
    names: [&str; 2],
    sign: f64,
) -> Result<Option<Bound>, String> {
    let [inclusive, exclusive] = names;
    let number = |name: &str, value: &Value| match value {
        Value::Number(number) => Ok(inwards(number, sign)),
        _ => Err(format!("{name} must be a number")),
    };
    let at = keywords
        .get(inclusive)
        .map(|value| number(inclusive, value))
        .transpose()?;
    let above = match keywords.get(exclusive) {
        None | Some(Value::Bool(false)) => None,
        // Draft 4's form.
        Some(Value::Bool(true)) => at,
        Some(value) => Some(number(exclusive, value)?),
    };
    let above = above.map(|(bound, is_exact)| match is_exact {
        true => Bound::above(bound),
        false => Bound::inclusive(bound),
    });
    let at = at.map(|(bound, _)| Bound::inclusive(bound));
    let Some(mut bound) = at.into_iter().chain(above).reduce(Bound::narrower) else {
        return Ok(None);
    };
    if bound.at >= TOO_LARGE {
        return Err(format!("{inclusive} is beyond what 64 bits hold"));
    }
    bound.at = bound.at.max(-TOO_LARGE.next_down());
    Ok(Some(bound))
}

/// The smallest `f64` that is not below a number times `sign`, and whether it is equal.
fn inwards(number: &Number, sign: f64) -> (f64, bool) {
    let Some(integer) = integer(number) else {
        return (number.as_f64().unwrap_or_default() * sign, true);
    };
    let integer = integer * sign as i128;
    let nearest = integer as f64;
    match (nearest as i128).cmp(&integer) {
        std::cmp::Ordering::Less => (nearest.next_up(), false),
        std::cmp::Ordering::Equal => (nearest, true),
        std::cmp::Ordering::Greater => (nearest, false),
    }
}

fn integer(number: &Number) -> Option<i128> {
    number
        .as_i64()
        .map(i128::from)
        .or(number.as_u64().map(i128::from))
}

/// The largest number with distinguishable multiples: every one of them is parsed to the written value.
///
/// Multiples are those of the schema's decimal fraction, as JSON Schema defines them. A validator that divides two
/// binary fractions does not accept all of those: 0.07 / 0.01 is 7.000000000000001.
fn exact_multiples(value: &Value) -> Result<f64, String> {
    let wrong = |why: &str| Err(format!("multipleOf {value}: {why}"));
    let Some(multiple) = value.as_f64().filter(|it| *it > 0.0) else {
        return wrong("it must be a number above 0");
    };
    if multiple.fract() == 0.0 {
        return match multiple <= MAX_MULTIPLE {
            true => Ok(EXACT),
            false => wrong("it is too large"),
        };
    }
    if (multiple / LEAST_FRACTION).fract() == 0.0 && multiple <= 8.0 {
        return Ok(EXACT_FRACTIONS);
    }
    match decimal_scale(multiple) {
        Some(scale) => Ok((EXACT / scale).floor()),
        None => wrong("it has too many digits"),
    }
}

/// The power of ten that turns a decimal fraction into an integer. `None` if a common multiple with another one may
/// exceed 32 bits.
fn decimal_scale(fraction: f64) -> Option<f64> {
    // Rust writes the shortest decimal that identifies a float, without an exponent.
    let text = fraction.to_string();
    let (whole, decimals) = text.split_once('.')?;
    let scale = 10_f64.powi(i32::try_from(decimals.len()).ok()?);
    let digits: f64 = format!("{whole}{decimals}").parse().ok()?;
    (digits * scale <= MAX_MULTIPLE).then_some(scale)
}

/// A count; a fraction of zero is legal.
pub(super) fn count(value: &Value) -> Option<u64> {
    let is_whole = |float: &f64| float.fract() == 0.0 && (0.0..=EXACT).contains(float);
    let whole = value.as_f64().filter(is_whole).map(|float| float as u64);
    value.as_u64().or(whole)
}

/// Checks that a constant is written as an equal value, not merely a close one.
///
/// # Errors
/// The value that cannot be written.
pub(super) fn check_constant(value: &Value) -> Result<(), String> {
    match value {
        Value::Number(number) => match is_written_exactly(number) {
            true => Ok(()),
            false => Err(format!("{number} is not held exactly")),
        },
        Value::String(text) => match text.chars().find(|c| is_escaped_by_number(*c)) {
            Some(c) => Err(format!(
                "a text with the control character U+{:04X}",
                c as u32
            )),
            None => Ok(()),
        },
        Value::Array(values) => values.iter().try_for_each(check_constant),
        Value::Object(members) => members.values().try_for_each(check_constant),
        Value::Null | Value::Bool(_) => Ok(()),
    }
}

/// True for a control character without a short escape. A numeric escape would be a second notation for each name, so
/// such characters are not written at all.
fn is_escaped_by_number(c: char) -> bool {
    c.is_ascii_control() && !"\u{8}\t\n\u{c}\r".contains(c)
}

/// True if the compiler's notation is exact: the shortest decimal of an `f64`, then zeros.
fn is_written_exactly(number: &Number) -> bool {
    let Some(float) = number.as_f64() else {
        return false;
    };
    if float.abs() >= TOO_LARGE {
        return false;
    }
    match integer(number) {
        Some(integer) => float as i128 == integer,
        None => float.fract() != 0.0 || format!("{float}").parse() == Ok(float as i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(schema: &Value) -> Result<Value, String> {
        let mut out = Map::new();
        write(schema.as_object().unwrap(), &mut out).map(|()| Value::Object(out))
    }

    #[test]
    fn a_bound_is_moved_inwards_to_what_is_held_exactly() {
        for (schema, expected) in [
            (
                json!({"minimum": 1}),
                json!({"minimum": 1.0, "maximum": 9_223_372_036_854_774_784.0}),
            ),
            (
                json!({"minimum": 9_007_199_254_740_993_i64, "maximum": 9_007_199_254_740_995_i64}),
                json!({"minimum": 9_007_199_254_740_994.0, "maximum": 9_007_199_254_740_994.0}),
            ),
            (
                json!({"exclusiveMinimum": 0, "exclusiveMaximum": 1}),
                json!({"minimum": 1e-30, "exclusiveMaximum": 1.0}),
            ),
            (
                json!({"minimum": 2, "exclusiveMinimum": true, "maximum": 2, "exclusiveMaximum": false}),
                json!({"minimum": 2.000_000_000_000_000_4, "maximum": 2.0}),
            ),
            (
                json!({"minimum": i64::MIN, "maximum": u64::MAX}),
                json!({"minimum": -9_223_372_036_854_774_784.0, "maximum": 9_223_372_036_854_774_784.0}),
            ),
            (
                json!({"multipleOf": 0.5, "minimum": 0}),
                json!({"multipleOf": 0.5, "minimum": 0.0, "maximum": EXACT_FRACTIONS}),
            ),
            (
                json!({"multipleOf": 0.01, "minimum": 0}),
                json!({"multipleOf": 0.01, "minimum": 0.0, "maximum": 90_071_992_547_409.0}),
            ),
        ] {
            assert_eq!(written(&schema), Ok(expected), "{schema}");
        }
        for wrong in [
            json!({"minimum": u64::MAX}),
            json!({"maximum": "1"}),
            json!({"multipleOf": 0.000_01}),
            json!({"multipleOf": 12.34}),
            json!({"multipleOf": 0}),
            json!({"multipleOf": 70_000}),
        ] {
            assert!(written(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_constant_that_would_be_written_as_another_is_refused() {
        for right in [
            json!([1, -0.5, 1e-7, "\n\"", null, {"a": 1e15}]),
            json!(i64::MIN + 1024),
        ] {
            assert_eq!(check_constant(&right), Ok(()), "{right}");
        }
        for wrong in [
            json!(9_007_199_254_740_993_i64),
            json!(u64::MAX),
            json!(1e300),
            json!("\u{1}"),
            json!(["\u{7f}"]),
        ] {
            assert!(check_constant(&wrong).is_err(), "{wrong}");
        }
    }
}
