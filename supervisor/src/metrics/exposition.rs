//! The two formats of Prometheus: OpenMetrics if the client accepts it, else the classic text format.
//!
//! They differ in the name that a counter's TYPE and HELP lines have, and in three lines that the classic format does
//! not have.

use crate::accept;

/// Format of an answer, with its own content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Classic,
}

impl Format {
    /// Format from the request's `Accept` header; the classic one by default.
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        let weight = |media_type| accept::weight(accept.unwrap_or_default(), media_type);
        let openmetrics = weight("application/openmetrics-text");
        if openmetrics > 0.0 && openmetrics >= weight("text/plain") {
            Self::OpenMetrics
        } else {
            Self::Classic
        }
    }

    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Converts `openmetrics` to the classic format.
pub(super) fn classic(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len());
    // HELP precedes TYPE, and TYPE determines the name.
    let mut help = None;
    for line in openmetrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), text) => {
                help = Some((name, text.unwrap_or_default()));
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let suffix = if kind == "counter" { "_total" } else { "" };
                if let Some((_, text)) = help.take().filter(|(helped, _)| *helped == name) {
                    out.push_str(&format!("# HELP {name}{suffix} {text}\n"));
                }
                out.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
            }
            (Some("#"), ..) => {}
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            (None, Format::Classic),
            (Some("*/*"), Format::Classic),
            (Some("text/plain;version=0.0.4"), Format::Classic),
            (Some(prometheus), Format::OpenMetrics),
            (Some("application/openmetrics-text"), Format::OpenMetrics),
            (Some("application/openmetrics-text; q=0"), Format::Classic),
            (
                Some("text/plain, application/openmetrics-text;q=0.1"),
                Format::Classic,
            ),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept:?}");
        }
    }

    #[test]
    fn a_counter_has_its_type_under_the_name_of_its_sample() {
        let openmetrics = "# HELP a Some a.\n# TYPE a counter\na_total{b=\"# HELP\"} 1\n\
                           # HELP s_seconds Some s.\n# TYPE s_seconds gauge\n# UNIT s_seconds \
                           seconds\ns_seconds 2.5\n# EOF\n";
        assert_eq!(
            classic(openmetrics),
            "# HELP a_total Some a.\n# TYPE a_total counter\na_total{b=\"# HELP\"} 1\n\
             # HELP s_seconds Some s.\n# TYPE s_seconds gauge\ns_seconds 2.5\n"
        );
    }
}
