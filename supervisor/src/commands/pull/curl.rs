//! curl, with what every transfer has in common: no address is a pattern, none is a local file, and who asks says
//! who it is, if it may be known.
//!
//! The token never becomes an argument, which every user of the machine could read, nor a file, which a program that is killed
//! leaves behind: curl reads it from its standard input, which is memory. It gives a header of ours to no other host
//! that it is sent on to.

use super::errand::{Output, Transfer};
use crate::config::model_name::hub_home;
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Without a byte for so many seconds a transfer has broken off.
const SILENCE_SECONDS: &str = "30";

/// So many seconds an answer may take that is no file.
const ANSWER_SECONDS: &str = "60";

pub(super) struct Curl {
    /// The header that says who asks.
    identity: Option<String>,
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
        let identity = (!token.is_empty()).then(|| format!("Authorization: Bearer {token}\n"));
        Ok(Self { identity, transfer })
    }

    /// # Errors
    /// When the kernel has no memory for the token.
    pub(super) fn command(&self) -> Result<Command> {
        let mut command = Command::new("curl");
        command.args(["--globoff", "--proto", "=http,https"]);
        command.args(["--proto-redir", "=http,https"]);
        command.args(["--silent", "--show-error"]);
        command.args(["--connect-timeout", SILENCE_SECONDS]);
        command.args(["--speed-limit", "1", "--speed-time", SILENCE_SECONDS]);
        match &self.identity {
            Some(header) => {
                let memory = memory_with(header).context("the token for the hub")?;
                command.args(["--header", "@-"]).stdin(memory);
            }
            None => drop(command.stdin(Stdio::null())),
        }
        Ok(command)
    }

    /// An answer of the hub that is no file, of so many bytes at most.
    ///
    /// # Errors
    /// When there is none, or a longer one, or it takes too long.
    pub(super) fn ask(&self, url: &str, options: &[&str], most_bytes: u64) -> Result<Vec<u8>> {
        let mut command = self.command()?;
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

/// A file that has no name and ends with those that hold it, to be read from its beginning.
fn memory_with(text: &str) -> io::Result<File> {
    let mut memory = File::from(memfd_create("token", MemfdFlags::CLOEXEC)?);
    memory.write_all(text.as_bytes())?;
    memory.rewind()?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_token_is_in_no_argument_and_in_no_file_that_has_a_name() {
        let curl = Curl::with_token("hf_secret", Transfer::default()).unwrap();
        let command = format!("{:?}", curl.command().unwrap());
        assert!(!command.contains("hf_secret"), "{command}");
        let mut memory = memory_with(curl.identity.as_ref().unwrap()).unwrap();
        let facts = memory.metadata().unwrap();
        assert_eq!(facts.nlink(), 0);
        let mut text = String::new();
        memory.read_to_string(&mut text).unwrap();
        assert_eq!(text, "Authorization: Bearer hf_secret\n");
    }

    #[test]
    fn a_token_that_would_be_two_headers_is_refused() {
        let of = |token| Curl::with_token(token, Transfer::default());
        assert!(of("hf_a\r\nHost: b").is_err());
        assert!(of("").unwrap().identity.is_none());
    }
}
