//! What a hub promises of a file, and the file that keeps it.
//!
//! What has come lies in a file named after the SHA-256 that the hub promises, so that a transfer
//! is only ever continued with bytes of the same file. Nothing gets its name before its size and
//! its SHA-256 are the promised ones.

use super::ChildProgram;
use super::curl::Curl;
use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// curl's number for a server that cannot send a part.
const CURL_RANGE_ERROR: i32 = 33;

/// Size and SHA-256 that a hub promises for one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Promise {
    pub(super) url: String,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

impl Promise {
    /// The file is there, whole.
    pub(super) fn is_kept(&self, target: &Path, child: &ChildProgram) -> Result<bool> {
        if target.exists() {
            ensure!(
                child.digest(target)? == self.sha256,
                "{} is there already and is not what the hub has now; remove it first",
                target.display()
            );
            eprintln!("{} is already here", target.display());
            return Ok(true);
        }
        Ok(false)
    }

    pub(super) fn partial(&self, target: &Path) -> PathBuf {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.partial", &self.sha256[..16]));
        target.with_file_name(name)
    }

    /// Leaves the whole file at `partial`, or what has come of it so far.
    pub(super) fn transfer(&self, curl: &Curl, partial: &Path, child: &ChildProgram) -> Result<()> {
        eprintln!("downloading {} ({} bytes)", self.url, self.bytes);
        let file = OpenOptions::new().append(true).create(true).open(partial)?;
        // Two that write would mix their bytes.
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, error)| error)
            .with_context(|| format!("{} is being written to", partial.display()))?;
        if file.metadata()?.len() > self.bytes {
            file.set_len(0)?;
        }
        if self.append_rest(curl, &file)? == Some(CURL_RANGE_ERROR) {
            file.set_len(0)?;
            self.append_rest(curl, &file)?;
        }
        file.sync_all()?;
        let have = file.metadata()?.len();
        if have < self.bytes {
            bail!(
                "the transfer ended after {have} of {} bytes; the same command goes on from there",
                self.bytes
            );
        }
        let found = child.digest(partial)?;
        if have > self.bytes || found != self.sha256 {
            fs::remove_file(partial)?;
            bail!(
                "what came is not what the hub promised: SHA-256 is {found}, expected {}; it was \
                 removed",
                self.sha256
            );
        }
        Ok(())
    }

    /// curl's number, where it could not get everything.
    fn append_rest(&self, curl: &Curl, mut file: &File) -> Result<Option<i32>> {
        let have = file.metadata()?.len();
        if have == self.bytes {
            return Ok(None);
        }
        let mut command = curl.command();
        command.args(["--fail", "--location", "--progress-bar", "--output", "-"]);
        if have > 0 {
            command.args(["--continue-at", &have.to_string()]);
        }
        let mut transfer = command
            .arg(&self.url)
            .stdout(Stdio::piped())
            .spawn()
            .context("curl cannot be started; it is needed for this")?;
        // One byte more than there may be tells a file that is too long.
        let room = self.bytes - have + 1;
        let copied = transfer
            .stdout
            .take()
            .map(|bytes| io::copy(&mut bytes.take(room), &mut file));
        // It has ended, or is told by its closed pipe to end.
        let status = transfer.wait()?;
        copied.transpose()?;
        Ok(status.code().filter(|code| *code != 0))
    }
}
