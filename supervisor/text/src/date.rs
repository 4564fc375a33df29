//! `strftime_now` of chat templates, in UTC.

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

/// Formats the current time by directives of `strftime`. Hugging Face's transformers gives templates this function.
///
/// # Errors
/// If the format has an unknown directive.
pub fn strftime_now(format: &str) -> Result<String, String> {
    strftime(format, Timestamp::now())
}

fn strftime(format: &str, time: Timestamp) -> Result<String, String> {
    strtime::format(format, &time.to_zoned(TimeZone::UTC))
        .map_err(|error| format!("strftime_now cannot format {format:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_those_of_strftime() {
        let time = Timestamp::from_second(951_782_399).expect("a timestamp in range");
        let all = "%A %a %d %e %B %b %m %Y %y %H:%M:%S %%";
        let expected = "Monday Mon 28 28 February Feb 02 2000 00 23:59:59 %";
        assert_eq!(strftime(all, time).as_deref(), Ok(expected));
    }

    #[test]
    fn an_unknown_directive_is_refused_by_name() {
        let error = strftime("%E", Timestamp::UNIX_EPOCH).expect_err("%E is unknown");
        assert!(error.contains("%E"), "{error}");
    }
}
