//! Settings of the registration: where, and under which address.

use std::net::IpAddr;

/// `http://host:port/path`, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallbackUrl {
    /// `host:port`, as a socket address is written.
    pub authority: String,
    pub path: String,
}

impl CallbackUrl {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with("https://") {
            return Err("https is not supported; put a local proxy in front".to_owned());
        }
        let rest = text
            .strip_prefix("http://")
            .ok_or(format!("{text:?} does not begin with http://"))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("{text:?} is no URL"));
        }
        // `[::1]` ends in a bracket, `host:80` has a colon after the last bracket.
        let after_bracket = &authority[authority.rfind(']').map_or(0, |at| at + 1)..];
        let port = if after_bracket.contains(':') {
            ""
        } else {
            ":80"
        };
        let path = if path.is_empty() { "/" } else { path };
        Ok(Self {
            authority: format!("{authority}{port}"),
            path: path.to_owned(),
        })
    }
}

/// The URL at which others reach this worker.
pub(super) fn advertised(text: &str) -> Result<String, String> {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let authority = rest.and_then(|rest| rest.split('/').next());
    let is_word = !text.contains(|c: char| c.is_whitespace() || c.is_control());
    if authority.is_none_or(str::is_empty) || !is_word {
        return Err(format!("{text:?} is no http:// or https:// URL"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// False if an address means all of this machine's: nobody can call a worker at that one.
pub(super) fn is_reachable(hosts: &[IpAddr]) -> bool {
    !hosts.iter().any(IpAddr::is_unspecified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertised_url_has_a_scheme_and_a_host() {
        assert_eq!(
            advertised("https://gpu-1.example/w/"),
            Ok("https://gpu-1.example/w".to_owned())
        );
        for bad in ["gpu-1:8080", "http://", "ftp://x", "http://a b"] {
            assert!(advertised(bad).is_err(), "{bad}");
        }
    }
}
