//! `strftime_now` of chat templates, in UTC.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::tz::TimeZone;

/// Formats the current time by directives of `strftime`. Hugging Face's transformers gives templates this function, by
/// Python's `datetime.strftime`: an unknown directive, and a `%` at the end, stay as they are.
///
/// # Errors
/// If the format cannot be applied.
pub fn strftime_now(format: &str) -> Result<String, String> {
    strftime(format, Timestamp::now())
}

fn strftime(format: &str, time: Timestamp) -> Result<String, String> {
    let config = Config::new().custom(PosixCustom::new()).lenient(true);
    BrokenDownTime::from(&time.to_zoned(TimeZone::UTC))
        .to_string_with_config(&config, format)
        .map_err(|error| format!("strftime_now cannot format {format:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts are those of CPython 3.11 with glibc.
    #[test]
    fn directives_are_those_of_strftime() {
        let time = Timestamp::from_second(951_782_399).expect("a timestamp in range");
        for (format, expected) in [
            (
                "%A %a %d %e %B %b %m %Y %y %H:%M:%S %%",
                "Monday Mon 28 28 February Feb 02 2000 00 23:59:59 %",
            ),
            (
                "%I %p %j %-d %D %T %c",
                "11 PM 059 28 02/28/00 23:59:59 Mon Feb 28 23:59:59 2000",
            ),
            ("50 %", "50 %"),
            ("é%", "é%"),
            ("%E %J", "%E %J"),
        ] {
            assert_eq!(strftime(format, time).as_deref(), Ok(expected), "{format}");
        }
    }
}
