//! Settings of the registration: where, and under which address.

use rustls::pki_types::ServerName;
use std::net::IpAddr;

/// `http://host:port/path` or `https://…`, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallbackUrl {
    /// `host:port`, as a socket address is written.
    pub authority: String,
    pub path: String,
    /// The name that the certificate must have; `None` without TLS.
    pub tls: Option<ServerName<'static>>,
}

impl CallbackUrl {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let secured = text.strip_prefix("https://");
        let rest = secured
            .or_else(|| text.strip_prefix("http://"))
            .ok_or(format!("{text:?} does not begin with http:// or https://"))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("{text:?} is no URL"));
        }
        // `[::1]` ends in a bracket, `host:80` has a colon after the last bracket.
        let after_bracket = &authority[authority.rfind(']').map_or(0, |at| at + 1)..];
        let port = match (after_bracket.contains(':'), secured) {
            (true, _) => "",
            (false, None) => ":80",
            (false, Some(_)) => ":443",
        };
        let path = if path.is_empty() { "/" } else { path };
        let tls = secured.map(|_| server_name(authority)).transpose()?;
        Ok(Self {
            authority: format!("{authority}{port}"),
            path: path.to_owned(),
            tls,
        })
    }
}

/// The host alone, without port and brackets.
fn server_name(authority: &str) -> Result<ServerName<'static>, String> {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => host,
        _ => authority,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned())
        .map_err(|_| format!("{host:?} is no name that a certificate could have"))
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
