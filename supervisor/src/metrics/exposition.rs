//! The two texts that Prometheus reads: OpenMetrics for whoever asks for it, else the classic one.
//!
//! They differ in the name under which a counter has its type and help, and in three lines that
//! the classic form does not know.

use crate::accept;

/// The form of an answer, which has its own content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Classic,
}

impl Format {
    /// The form that the request's `Accept` header asks for; the classic one where nothing is said.
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

/// `openmetrics` in the classic form.
pub(super) fn classic(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len());
    // HELP comes first, and the type that follows it says under which name it belongs.
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
