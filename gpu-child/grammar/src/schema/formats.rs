//! Formats of strings, as regular expressions with texts that every validator of the format accepts.
//!
//! Each is narrower than its standard if validators differ: no leap seconds, capital `T` and `Z`, host names without
//! two adjacent hyphens, no percent in a host, at most six digits of a second.

const MONTH_AND_DAY: &str = "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])\
    |(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
const YEAR: &str = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})";
const LEAP_YEAR: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])\
    |(?:0[48]|[2468][048]|[13579][26])00)";
const TIME: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const NUMBER: &str = "[0-9]{1,9}";

/// Labels of at most 49 characters; five of them and the dots between are below the 253 of a name.
const LABEL: &str = "[a-zA-Z0-9]{1,23}(?:-[a-zA-Z0-9]{1,12}){0,2}";
const LAST_LABEL: &str = "[a-zA-Z][a-zA-Z0-9]{0,22}(?:-[a-zA-Z0-9]{1,12}){0,2}";
const LOCAL_PART: &str =
    r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-](?:\.?[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]){0,31}";

const BYTE: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
const GROUP: &str = "[0-9a-fA-F]{1,4}";

const PATH_CHAR: &str = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})";
const FIRST_CHAR: &str = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=@]|%[0-9a-fA-F]{2})";
const HOST: &str = r"[a-zA-Z0-9][a-zA-Z0-9._~\-]*(?::[0-9]{1,4})?";

/// An encoding that is supported in every draft.
pub(super) const BASE64: &str = "base64";

pub(super) fn base64() -> String {
    let c = "[A-Za-z0-9+/]";
    format!("^(?:{c}{{4}})*(?:{c}[AQgw]==|{c}{{2}}[AEIMQUYcgkosw048]=)?$")
}

/// Expression of a format; `None` for a name that no draft from 4 on defines, which has no effect.
pub(super) fn pattern(format: &str) -> Option<String> {
    let inside = match format {
        "date" => date(),
        "time" => TIME.to_owned(),
        "date-time" => format!("(?:{})T{TIME}", date()),
        "duration" => duration(),
        "email" | "idn-email" => format!("{LOCAL_PART}@{}", hostname()),
        "hostname" | "idn-hostname" => hostname(),
        "ipv4" => format!("(?:{BYTE}\\.){{3}}{BYTE}"),
        "ipv6" => ipv6(),
        "uuid" => {
            let hex = |digits: usize| format!("[0-9a-fA-F]{{{digits}}}");
            [hex(8), hex(4), hex(4), hex(4), hex(12)].join("-")
        }
        "uri" | "iri" => uri(),
        "uri-reference" | "iri-reference" | "uri-template" => uri_reference(),
        "json-pointer" => json_pointer(),
        "relative-json-pointer" => format!("(?:0|[1-9][0-9]{{0,8}})(?:#|{})", json_pointer()),
        "regex" => regex(),
        _ => return None,
    };
    Some(format!("^(?:{inside})$"))
}

fn date() -> String {
    format!("{YEAR}-{MONTH_AND_DAY}|{LEAP_YEAR}-02-29")
}

fn duration() -> String {
    let n = NUMBER;
    let day = format!("(?:{n}Y(?:{n}M(?:{n}D)?)?|{n}M(?:{n}D)?|{n}D)");
    let time = format!("T(?:{n}H(?:{n}M(?:{n}S)?)?|{n}M(?:{n}S)?|{n}S)");
    format!("P(?:{day}(?:{time})?|{time}|{n}W)")
}

fn hostname() -> String {
    format!("(?:{LABEL}\\.){{0,4}}{LAST_LABEL}")
}

/// All groups, or two colons for at least one of them.
fn ipv6() -> String {
    let mut forms = vec![format!("(?:{GROUP}:){{7}}{GROUP}")];
    for before in 0..=6 {
        let head = match before {
            0 => String::new(),
            1 => GROUP.to_owned(),
            _ => format!("{GROUP}(?::{GROUP}){{{}}}", before - 1),
        };
        let tail = format!("(?:{GROUP}(?::{GROUP}){{0,{}}})?", 6 - before);
        forms.push(format!("{head}::{tail}"));
    }
    forms.join("|")
}

fn tail_of_uri() -> String {
    format!("(?:\\?(?:{PATH_CHAR}|[/?])*)?(?:\\#(?:{PATH_CHAR}|[/?])*)?")
}

fn uri() -> String {
    let c = PATH_CHAR;
    format!(
        "[a-zA-Z][a-zA-Z0-9+\\-.]*:(?://{HOST}(?:/{c}*)*|/?{c}+(?:/{c}*)*){}",
        tail_of_uri()
    )
}

fn uri_reference() -> String {
    let c = PATH_CHAR;
    let path = format!("(?://{HOST}(?:/{c}*)*|/(?:{c}+(?:/{c}*)*)?|{FIRST_CHAR}+(?:/{c}*)*)?");
    format!("{}|{path}{}", uri(), tail_of_uri())
}

fn json_pointer() -> String {
    r"(?:/(?:[^~/\x00-\x1F\x7F]|~[01])*)*".to_owned()
}

/// Expressions that every engine supports: characters, classes and quantifiers, without groups.
fn regex() -> String {
    let class = r"\[\^?(?:[a-zA-Z0-9_ ]|a-z|A-Z|0-9|\\[dws])+\]";
    let one = format!(r"(?:[a-zA-Z0-9_ /:,@=-]|\.|\\[.dwsDWS/+*?$^]|{class})[*+?]?");
    format!(r"\^?(?:{one}(?:\|?{one})*)?\$?")
}
