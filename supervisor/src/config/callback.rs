//! Advertised address of the registration. Its target is an [`outgoing`](worker_orcd_cli::outgoing) URL.

use std::net::IpAddr;

/// Validates the URL at which others reach this worker.
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

/// False for a wildcard address, which is no destination.
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
