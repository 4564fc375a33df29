//! curl, with what every transfer has in common: no address is a pattern, none is a local file, and who asks says
//! who it is, if it may be known.
//!
//! The token never becomes an argument, which every user of the machine could read; and curl gives a header of
//! ours to no other host that it is sent on to.

use super::errand::{Output, Transfer};
use crate::config::model_name::hub_home;
use anyhow::{Context as _, Result, ensure};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use tempfile::NamedTempFile;

/// Without a byte for so many seconds a transfer has broken off.
const SILENCE_SECONDS: &str = "30";

/// So many seconds an answer may take that is no file.
const ANSWER_SECONDS: &str = "60";

pub(super) struct Curl {
    /// The header that says who asks.
    identity: Option<NamedTempFile>,
    transfer: Transfer,
}

impl Curl {
    /// With the token of `HF_TOKEN`, or else of the file where Hugging Face's programs keep it.
    pub(super) fn of_environment(transfer: Transfer) -> Result<Self> {
        let variable = |name| std::env::var(name).ok().filter(|it| !it.is_empty());
        let file = variable("HF_TOKEN_PATH").map(PathBuf::from);
        let file = file.or_else(|| Some(hub_home()?.join("token")));
        let kept = || std::fs::read_to_string(file?).ok();
        let token = variable("HF_TOKEN").or_else(kept).unwrap_or_default();
        Self::with_token(token.trim(), transfer)
    }

    pub(super) fn with_token(token: &str, transfer: Transfer) -> Result<Self> {
        ensure!(
            token.bytes().all(|byte| byte.is_ascii_graphic()),
            "the token for the hub (HF_TOKEN) has characters that no token has"
        );
        let identity = match token {
            "" => None,
            token => {
                let mut file = NamedTempFile::new().context("the token for the hub")?;
                writeln!(file, "Authorization: Bearer {token}")?;
                Some(file)
            }
        };
        Ok(Self { identity, transfer })
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("curl");
        command.args(["--globoff", "--proto", "=http,https"]);
        command.args(["--proto-redir", "=http,https"]);
        command.args(["--silent", "--show-error"]);
        command.args(["--connect-timeout", SILENCE_SECONDS]);
        command.args(["--speed-limit", "1", "--speed-time", SILENCE_SECONDS]);
        if let Some(file) = &self.identity {
            let mut header = std::ffi::OsString::from("@");
            header.push(file.path());
            command.arg("--header").arg(header);
        }
        command
    }

    /// An answer of the hub that is no file, of so many bytes at most.
    ///
    /// # Errors
    /// When there is none, or a longer one, or it takes too long.
    pub(super) fn ask(&self, url: &str, options: &[&str], most_bytes: u64) -> Result<Vec<u8>> {
        let mut command = self.command();
        command.args(["--max-time", ANSWER_SECONDS]);
        command.args(options).arg(url);
        let answer = self.transfer.output(&mut command, most_bytes);
        let Output {
            succeeded,
            bytes,
            said,
        } = answer.with_context(|| url.to_owned())?;
        ensure!(succeeded, "{url}: {said}");
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_in_no_argument_and_in_a_file_that_is_its_owners() {
        use std::os::unix::fs::PermissionsExt as _;
        let curl = Curl::with_token("hf_secret", Transfer::default()).unwrap();
        let command = format!("{:?}", curl.command());
        assert!(!command.contains("hf_secret"), "{command}");
        let file = curl.identity.as_ref().unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text, "Authorization: Bearer hf_secret\n");
        let mode = file.as_file().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_token_that_would_be_two_headers_is_refused() {
        let of = |token| Curl::with_token(token, Transfer::default());
        assert!(of("hf_a\r\nHost: b").is_err());
        assert!(of("").unwrap().identity.is_none());
    }
}
