//! curl with the options of every transfer: no URL globbing, no local files, and the token for the hub, if there is
//! one.
//!
//! The token is never an argument, which every user of the machine could read, nor a file, which a killed program
//! leaves behind. curl reads it from standard input, which is in memory. curl sends the header to no other host after a
//! redirect.

use super::download::{Output, Transfer};
use crate::model_name::hub_home;
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A transfer without a byte for this many seconds has failed.
const SILENCE_SECONDS: &str = "30";

/// Time limit for an answer that is not a file, in seconds.
const ANSWER_SECONDS: &str = "60";

pub(super) struct Curl {
    /// Authorization header.
    identity: Option<String>,
    transfer: Transfer,
}

impl Curl {
    /// Reads the token from `HF_TOKEN`, else from the token file of Hugging Face's programs.
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
    /// If the kernel has no memory for the token.
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

    /// Sends a request and returns the answer, which is not a file and has at most `most_bytes`.
    ///
    /// # Errors
    /// If there is no answer, or it is longer or takes too long.
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

/// Anonymous file in memory, positioned at its start.
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
