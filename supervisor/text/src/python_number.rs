//! Numbers in Python's spelling, which chat templates expect.
//!
//! Templates print numbers, convert them to strings, and write them as JSON. Numbers concatenated by `~` keep the
//! template engine's spelling.
//!
//! Python's `repr` of a float has the fewest digits that identify the float, and an exponent for large and small
//! values: <https://docs.python.org/3/library/stdtypes.html#float>. Rust finds the same digits but writes them
//! differently.

use super::python_repr;
use minijinja::value::ValueKind;
use minijinja::{Error, Output, State, Value};

/// Exponents that are written without exponent notation.
const PLAIN_POWERS: std::ops::Range<i32> = -4..16;

/// True if a template receives the number of this JSON text as in Python: a 64-bit integer or a finite float. Python's
/// own integers are unbounded.
pub(super) fn is_kept(json: &str) -> bool {
    match json.contains(['.', 'e', 'E']) {
        true => json.parse().is_ok_and(f64::is_finite),
        false => json.parse::<i64>().is_ok() || json.parse::<u64>().is_ok(),
    }
}

/// `repr` of a float. `None` for any other value.
pub(super) fn of_float(value: &Value) -> Option<String> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    let float = f64::try_from(value.clone()).ok().filter(|_| is_float)?;
    let digits = format!("{float:e}");
    let (digits, power) = digits.split_once('e')?;
    let power: i32 = power.parse().ok()?;
    Some(if PLAIN_POWERS.contains(&power) {
        let plain = float.to_string();
        match plain.contains('.') {
            true => plain,
            false => plain + ".0",
        }
    } else {
        let sign = if power < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", power.abs())
    })
}

/// Formatter of printed values.
pub(super) fn print(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match shown(value)? {
        Some(text) => Ok(out.write_str(&text)?),
        None => minijinja::escape_formatter(out, state, value),
    }
}

/// Filter `string`.
pub(super) fn string(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    match shown(value)? {
        Some(text) => Ok(Value::from(text)),
        None => minijinja::filters::string(state, value),
    }
}

/// Python's spelling of floats, lists and mappings. `None` for values that the template engine spells the same.
fn shown(value: &Value) -> Result<Option<String>, Error> {
    match of_float(value) {
        Some(text) => Ok(Some(text)),
        None => python_repr::of_container(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of `repr` in Python 3.
    #[test]
    fn floats_are_python_s() {
        for (float, repr) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (0.000_012_5, "1.25e-05"),
            (123_456_789.125, "123456789.125"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-1.5e22, "-1.5e+22"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
        ] {
            assert_eq!(of_float(&Value::from(float)).as_deref(), Some(repr));
        }
        for other in [Value::from(1), Value::from("1.0"), Value::from(true)] {
            assert_eq!(of_float(&other), None, "{other}");
        }
    }

    #[test]
    fn integers_beyond_64_bits_and_what_is_not_finite_are_not_kept() {
        for kept in [
            "0",
            "-0",
            "18446744073709551615",
            "-9223372036854775808",
            "1e22",
            "-0.5E-9",
            "1e-999",
        ] {
            assert!(is_kept(kept), "{kept}");
        }
        for lost in [
            "18446744073709551616",
            "-9223372036854775809",
            "1e999",
            "-1.0e400",
        ] {
            assert!(!is_kept(lost), "{lost}");
        }
    }
}
