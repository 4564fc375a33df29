//! Content negotiation by the `Accept` header.

/// Weight of a media type in an `Accept` header, from 0 to 1. A range such as `*/*` does not count.
#[must_use]
pub(crate) fn weight(accept: &str, wanted: &str) -> f64 {
    let ranges = accept.split(',');
    let found = ranges.filter(|range| media_type(range).eq_ignore_ascii_case(wanted));
    found.map(quality).fold(0.0, f64::max)
}

fn media_type(range: &str) -> &str {
    range.split(';').next().unwrap_or_default().trim()
}

fn quality(range: &str) -> f64 {
    let mut parameters = range.split(';').skip(1).map(str::trim);
    let given = parameters.find_map(|it| it.strip_prefix("q="));
    given.map_or(1.0, |text| text.parse().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_media_type_has_the_weight_of_its_own_range() {
        let of = |accept| weight(accept, "text/html");
        assert_eq!(of("text/html,application/xml;q=0.9,*/*;q=0.8"), 1.0);
        assert_eq!(of("text/plain, Text/HTML ; level=1; q=0.5"), 0.5);
        assert_eq!(of("text/html;q=0.2, text/html;q=0.3"), 0.3);
        for not_wanted in ["", "*/*", "text/*", "text/html;q=0", "text/html;q=much"] {
            assert_eq!(of(not_wanted), 0.0, "{not_wanted}");
        }
    }
}
