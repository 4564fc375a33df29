//! Expected size and SHA-256 of a file, and its transfer.
//!
//! The partial file's name contains the expected SHA-256, so a transfer continues only with bytes of the same file. A
//! file gets its final name after its size and SHA-256 are verified.

#![expect(clippy::disallowed_methods, reason = "how fast bytes come")]

use super::curl::Curl;
use super::download::Download;
use super::progress::{Extent, Meter, ProgressEvent};
use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_text::printable::printable;

/// curl's exit code for a server without range requests.
const CURL_RANGE_ERROR: i32 = 33;

/// Pause before a retry. It doubles with each retry that transfers no byte.
const PAUSE: Duration = Duration::from_secs(1);

/// First bytes of a model file.
const GGUF_MAGIC: [u8; 4] = *b"GGUF";

/// Bytes of one write.
const CHUNK_BYTES: usize = 1 << 18;

/// Size and SHA-256 of a file, as the hub reports them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExpectedFile {
    pub(super) url: String,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

impl ExpectedFile {
    /// Whether the complete file exists.
    pub(super) fn is_kept(&self, target: &Path, download: &Download) -> Result<bool> {
        if target.exists() {
            ensure!(
                download.digest(target)? == self.sha256,
                "{} is there already and is not what the hub has now; remove it first",
                target.display()
            );
            download.report(ProgressEvent::Kept(target.to_owned()));
            return Ok(true);
        }
        Ok(false)
    }

    pub(super) fn partial(&self, target: &Path) -> PathBuf {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.partial", &self.sha256[..16]));
        target.with_file_name(name)
    }

    /// Downloads to `partial`. On failure, the bytes received so far remain there.
    pub(super) fn transfer(&self, curl: &Curl, partial: &Path, download: &Download) -> Result<()> {
        ensure!(self.bytes > 0, "{} is empty, and no model is", self.url);
        let file = OpenOptions::new().append(true).create(true).open(partial)?;
        // Two writers would mix their bytes.
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, error)| error)
            .with_context(|| format!("{} is being written to", partial.display()))?;
        if file.metadata()?.len() > self.bytes {
            file.set_len(0)?;
        }
        let at = self.extent(&file)?;
        let what = self.url.clone();
        download.report(ProgressEvent::Begins { what, at });
        let mut meter = Meter::new(at, Instant::now());
        let got = self.get_all(curl, &file, &mut meter, download);
        if file.metadata()?.len() == 0 {
            fs::remove_file(partial)?;
        }
        got?;
        file.sync_all()?;
        let have = file.metadata()?.len();
        let found = download.digest(partial)?;
        if have > self.bytes || found != self.sha256 {
            fs::remove_file(partial)?;
            bail!(
                "what came is not what the hub promised: SHA-256 is {found}, expected {}; it was \
                 removed",
                self.sha256
            );
        }
        let (what, progress) = (self.name(), meter.end(Instant::now()));
        download.report(ProgressEvent::Came { what, progress });
        Ok(())
    }

    /// Short name of the file for a log line.
    fn name(&self) -> String {
        let name = self.url.rsplit('/').next();
        name.unwrap_or(&self.url).to_owned()
    }

    fn extent(&self, file: &File) -> io::Result<Extent> {
        let have = file.metadata()?.len();
        let whole = self.bytes;
        Ok(Extent { have, whole })
    }

    /// Appends until the expected size or more is there. Resumes a broken transfer.
    fn get_all(
        &self,
        curl: &Curl,
        file: &File,
        meter: &mut Meter,
        download: &Download,
    ) -> Result<()> {
        let mut in_vain = 0;
        loop {
            let had = file.metadata()?.len();
            let end = self.append_rest(curl, file, meter, download)?;
            let have = file.metadata()?.len();
            if have >= self.bytes {
                return Ok(());
            }
            if end.code == Some(CURL_RANGE_ERROR) && had > 0 {
                file.set_len(0)?;
                *meter = Meter::new(self.extent(file)?, Instant::now());
                continue;
            }
            in_vain = if have > had { 0 } else { in_vain + 1 };
            let why = format!("the transfer ended after {have} of {} bytes", self.bytes);
            let said = match end.said.as_str() {
                "" => String::new(),
                said => format!(" ({said})"),
            };
            if download.transfer.is_over() || download.retries.is_none_or(|most| in_vain > most) {
                bail!("{why}{said}; the same command goes on from there");
            }
            let after = PAUSE * 2_u32.pow(in_vain.min(5));
            let why = format!("{why}{said}");
            download.report(ProgressEvent::Again { why, after });
            thread::sleep(after);
        }
    }

    fn append_rest(
        &self,
        curl: &Curl,
        file: &File,
        meter: &mut Meter,
        download: &Download,
    ) -> Result<End> {
        let have = file.metadata()?.len();
        if have == self.bytes {
            return Ok(End::default());
        }
        let mut command = curl.command()?;
        command.args(["--fail", "--location", "--output", "-"]);
        if have > 0 {
            command.args(["--continue-at", &have.to_string()]);
        }
        command
            .arg(&self.url)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let spawned = download.transfer.spawn(&mut command);
        let mut transfer = spawned.context("curl cannot be started; it is needed for this")?;
        let (bytes, words) = (transfer.stdout.take(), transfer.stderr.take());
        download.transfer.begins(transfer);
        let (Some(bytes), Some(mut words)) = (bytes, words) else {
            bail!("curl was started without pipes");
        };
        // One byte beyond the expected size detects a file that is too long.
        let mut bytes = bytes.take(self.bytes - have + 1);
        let begun = match have {
            0 => beginning(&mut bytes),
            _ => Ok(Vec::new()),
        };
        let copied = begun.and_then(|begun| {
            copy(&mut begun.as_slice().chain(&mut bytes), file, |length| {
                if let Some(progress) = meter.came(length, Instant::now()) {
                    let what = self.name();
                    download.report(ProgressEvent::Goes { what, progress });
                }
            })
        });
        drop(bytes);
        // curl has ended, or the closed pipe ends it.
        let mut said = String::new();
        words.read_to_string(&mut said)?;
        let code = download.transfer.ends()?;
        copied.with_context(|| self.url.clone())?;
        Ok(End {
            code: code.filter(|code| *code != 0),
            said: printable(said.trim()),
        })
    }
}

/// First bytes of a model file. If they are not GGUF's, no byte is written to disk.
fn beginning(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut magic = Vec::new();
    from.take(GGUF_MAGIC.len() as u64).read_to_end(&mut magic)?;
    match GGUF_MAGIC.starts_with(&magic) {
        true => Ok(magic),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it is no GGUF file",
        )),
    }
}

/// Calls `came` with the length of each chunk.
fn copy(from: &mut impl Read, mut to: &File, mut came: impl FnMut(usize)) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let length = from.read(&mut chunk)?;
        if length == 0 {
            return Ok(());
        }
        to.write_all(&chunk[..length])?;
        came(length);
    }
}

/// End of a transfer.
#[derive(Debug, Default)]
struct End {
    /// curl's exit code, if it failed.
    code: Option<i32>,
    /// curl's error output.
    said: String,
}
