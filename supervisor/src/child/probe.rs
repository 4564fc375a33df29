//! What the child's program says of a CUDA device, before there is any child.
//!
//! [`worker_orcd_ipc::probe`] is the question. It is asked of a process of its own because a
//! device or a driver that is wedged may keep whoever asks; nobody waits longer than
//! [`PATIENCE`].

use crate::child::reap::Process;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use worker_orcd_ipc::{ExitCode, PROBE_FLAG, PROBE_LINE_BYTES};
use worker_orcd_lifecycle::Exit;

/// The driver's first call on a machine takes a quarter of a second, some seconds where nothing
/// keeps the device initialised.
const PATIENCE: Duration = Duration::from_secs(10);

/// The device in words, if children can compute on it.
///
/// # Errors
/// Why not, or why there was no answer.
pub async fn ask(program: &Path, ordinal: u32) -> Result<String, String> {
    ask_within(PATIENCE, program, ordinal).await
}

async fn ask_within(patience: Duration, program: &Path, ordinal: u32) -> Result<String, String> {
    let answer = answer(program, ordinal);
    match tokio::time::timeout(patience, answer).await {
        Ok(answer) => answer,
        // Dropped with the process in it, which is killed.
        Err(_) => Err(format!(
            "the driver did not answer for cuda:{ordinal} within {} ms",
            patience.as_millis()
        )),
    }
}

async fn answer(program: &Path, ordinal: u32) -> Result<String, String> {
    let failed = |error| {
        format!(
            "{} cannot be asked for cuda:{ordinal}: {error}",
            program.display()
        )
    };
    let mut child = Command::new(program)
        .arg(PROBE_FLAG)
        .arg(ordinal.to_string())
        // Killed as a group.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let stdout = child.stdout.take().map(OwnedFd::from);
    let mut process = Process::new(child).map_err(failed)?;
    let mut text = Vec::new();
    if let Some(stdout) = stdout {
        let pipe = Receiver::from_owned_fd(stdout).map_err(failed)?;
        let mut pipe = pipe.take(PROBE_LINE_BYTES as u64);
        pipe.read_to_end(&mut text).await.map_err(failed)?;
    }
    understand(
        process.exited().await,
        &String::from_utf8_lossy(&text),
        ordinal,
    )
}

fn understand(exit: Exit, text: &str, ordinal: u32) -> Result<String, String> {
    let line = text.lines().next().unwrap_or_default().trim().to_owned();
    let code = match exit {
        Exit::Code(code) => ExitCode::from_code(code),
        Exit::Signal(_) | Exit::OomKilled => None,
    };
    match code {
        Some(ExitCode::Clean) if !line.is_empty() => Ok(line),
        Some(ExitCode::DeviceUnavailable) if !line.is_empty() => Err(line),
        _ => Err(format!(
            "asked for cuda:{ordinal}, the child's program gave no answer ({exit:?}) {line}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Instant;

    /// A program that is asked.
    fn program(script: &str) -> tempfile::TempPath {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        std::io::Write::write_all(&mut file, format!("#!/bin/sh\n{script}\n").as_bytes())
            .expect("written");
        let path = file.into_temp_path();
        std::fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("executable");
        path
    }

    #[tokio::test]
    async fn the_line_is_the_device_or_the_reason_and_the_number_says_which() {
        let yes = program("echo \"$1 $2: a card\"; echo more");
        assert_eq!(ask(&yes, 3).await, Ok("--probe 3: a card".to_owned()));
        let no = program("echo no driver; exit 67");
        assert_eq!(ask(&no, 0).await, Err("no driver".to_owned()));
    }

    #[tokio::test]
    async fn anything_else_is_no_answer() {
        for script in [
            "exit 0",
            "exit 67",
            "echo yes; exit 1",
            "echo yes; kill -9 $$",
        ] {
            let why = ask(&program(script), 0).await.unwrap_err();
            assert!(why.contains("gave no answer"), "{script}: {why}");
        }
        let why = ask(Path::new("/no/such/program"), 0).await.unwrap_err();
        assert!(why.contains("cannot be asked"), "{why}");
    }

    #[tokio::test]
    async fn nobody_waits_for_a_driver_that_is_wedged() {
        let (began, patience) = (Instant::now(), Duration::from_millis(200));
        let wedged = program("exec sleep 600");
        let why = ask_within(patience, &wedged, 0).await.unwrap_err();
        assert!(why.contains("within 200 ms"), "{why}");
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}
