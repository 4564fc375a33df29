//! Queries to the child's program before there is a child: its version, a CUDA device, a file, and the confinement that
//! this machine supports.
//!
//! [`worker_orcd_ipc::probe`] defines the queries. Each runs in its own process, because a hung device, driver or file
//! system may block it. Each ends after [`PATIENCE`], except the digest of a whole file.

use crate::reap::Process;
use crate::signal_mask::unblocked;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use worker_orcd_ipc::{
    CHECK_CONFINEMENT_FLAG, CHECK_MODEL_FLAG, CHILD_NAME, COUNT_DEVICES_FLAG, DIGEST_FLAG, Exit,
    ExitCode, FaultKind, PROBE_FLAG, PROBE_LINE_BYTES,
};

/// Time limit of a query. The first call of NVIDIA's driver takes a quarter of a second, or some seconds if no process
/// keeps the device initialised. A header on a cold disk takes a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// Description of a CUDA device that children can use.
///
/// # Errors
/// The reason why they cannot, or why there is no answer.
pub async fn ask(program: &Path, ordinal: u32) -> Result<String, String> {
    let ordinal_text = ordinal.to_string();
    let question = Question {
        about: &format!("cuda:{ordinal}"),
        arguments: &[PROBE_FLAG.as_ref(), ordinal_text.as_ref()],
        no: Some(ExitCode::Fault(FaultKind::DeviceUnavailable)),
    };
    question.ask_within(PATIENCE, program).await
}

/// Number of CUDA devices of this machine.
///
/// # Errors
/// The reason why it is unknown, or why there is no answer.
pub async fn count_devices(program: &Path) -> Result<u32, String> {
    let question = Question {
        about: "the number of CUDA devices",
        arguments: &[COUNT_DEVICES_FLAG.as_ref()],
        no: Some(ExitCode::Fault(FaultKind::DeviceUnavailable)),
    };
    let line = question.ask_within(PATIENCE, program).await?;
    let not_a_number = |_| format!("the child's program counts {line:?} CUDA devices");
    line.parse().map_err(not_a_number)
}

/// Description of a model that a child can load, according to its header.
///
/// # Errors
/// The reason why it cannot, or why there is no answer.
pub async fn check_model(program: &Path, model: &Path) -> Result<String, String> {
    let question = Question {
        about: &model.display().to_string(),
        arguments: &[CHECK_MODEL_FLAG.as_ref(), model.as_os_str()],
        no: Some(ExitCode::Fault(FaultKind::ModelLoad)),
    };
    question.ask_within(PATIENCE, program).await
}

/// SHA-256 digest of a file in hexadecimal digits. Reads the whole file.
///
/// # Errors
/// The reason why the file cannot be read, or why there is no answer.
pub async fn digest(program: &Path, file: &Path) -> Result<String, String> {
    let question = Question {
        about: &file.display().to_string(),
        arguments: &[DIGEST_FLAG.as_ref(), file.as_os_str()],
        no: Some(ExitCode::Fault(FaultKind::Io)),
    };
    let answer = question.put_to(program).await;
    let (exit, text) = answer.map_err(|error| question.not_put(program, &error))?;
    question.understand(exit, &text)
}

/// Confinement of children on this machine.
///
/// # Errors
/// The unsupported parts, or the reason why there is no answer.
pub async fn check_confinement(program: &Path) -> Result<String, String> {
    let question = Question {
        about: "its confinement",
        arguments: &[CHECK_CONFINEMENT_FLAG.as_ref()],
        no: Some(ExitCode::Fault(FaultKind::Io)),
    };
    question.ask_within(PATIENCE, program).await
}

/// Version of the child's program.
///
/// # Errors
/// If the program is a different one, or gives no answer.
pub async fn version(program: &Path) -> Result<String, String> {
    let question = Question {
        about: "its version",
        arguments: &["--version".as_ref()],
        no: None,
    };
    let line = question.ask_within(PATIENCE, program).await?;
    let version = line.strip_prefix(CHILD_NAME).map(str::trim);
    version
        .map(str::to_owned)
        .ok_or_else(|| format!("{} is no {CHILD_NAME}: it says {line:?}", program.display()))
}

struct Question<'a> {
    about: &'a str,
    arguments: &'a [&'a OsStr],
    /// Exit code with which the line is a reason for a refusal.
    no: Option<ExitCode>,
}

impl Question<'_> {
    async fn ask_within(&self, patience: Duration, program: &Path) -> Result<String, String> {
        let about = self.about;
        match tokio::time::timeout(patience, self.put_to(program)).await {
            Ok(Ok((exit, text))) => self.understand(exit, &text),
            Ok(Err(error)) => Err(self.not_put(program, &error)),
            // The future is dropped with its process, which is killed.
            Err(_) => Err(format!(
                "the child's program did not answer for {about} within {} ms",
                patience.as_millis()
            )),
        }
    }

    fn not_put(&self, program: &Path, error: &io::Error) -> String {
        let (program, about) = (program.display(), self.about);
        format!("{program} cannot be asked for {about}: {error}")
    }

    async fn put_to(&self, program: &Path) -> io::Result<(Exit, String)> {
        let mut command = Command::new(program);
        command
            .args(self.arguments)
            // The process is killed as a group.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = unblocked(|| command.spawn())?;
        let stdout = child.stdout.take().map(OwnedFd::from);
        let mut process = Process::new(child)?;
        let mut text = Vec::new();
        if let Some(stdout) = stdout {
            let mut pipe = Receiver::from_owned_fd(stdout)?.take(PROBE_LINE_BYTES as u64);
            pipe.read_to_end(&mut text).await?;
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok((process.exited().await, text))
    }

    fn understand(&self, exit: Exit, text: &str) -> Result<String, String> {
        let line = text.lines().next().unwrap_or_default().trim().to_owned();
        let code = match exit {
            Exit::Code(code) => ExitCode::from_code(code),
            Exit::Signal(_) | Exit::OomKilled => None,
        };
        match code {
            Some(ExitCode::Clean) if !line.is_empty() => Ok(line),
            Some(code) if Some(code) == self.no && !line.is_empty() => Err(line),
            _ => Err(format!(
                "asked for {}, the child's program gave no answer ({exit:?}) {line}",
                self.about
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Instant;

    /// A program for queries.
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
        let question = Question {
            about: "cuda:0",
            arguments: &[],
            no: None,
        };
        let why = question.ask_within(patience, &wedged).await.unwrap_err();
        assert!(why.contains("within 200 ms"), "{why}");
        assert!(began.elapsed() < Duration::from_secs(60));
    }

    #[tokio::test]
    async fn devices_are_counted_or_there_is_a_reason() {
        let two = program("test \"$1\" = --count-devices && echo 2");
        assert_eq!(count_devices(&two).await, Ok(2));
        let none = program("echo no driver; exit 67");
        assert_eq!(count_devices(&none).await, Err("no driver".to_owned()));
        let why = count_devices(&program("echo two")).await.unwrap_err();
        assert!(why.contains("two"), "{why}");
    }

    #[tokio::test]
    async fn a_program_of_another_name_is_no_child() {
        let child = program("echo worker-orcd-gpu 1.2.3");
        assert_eq!(version(&child).await, Ok("1.2.3".to_owned()));
        let why = version(&program("echo true 9.4")).await.unwrap_err();
        assert!(why.contains("is no worker-orcd-gpu"), "{why}");
        assert!(version(Path::new("/bin/true")).await.is_err());
    }

    #[tokio::test]
    async fn a_model_is_described_or_refused_in_the_childs_words() {
        let path = Path::new("/m.gguf");
        let yes = program("echo \"$1 $2: llama\"");
        let words = check_model(&yes, path).await;
        assert_eq!(words, Ok("--check-model /m.gguf: llama".to_owned()));
        let no = program("echo it ends early; exit 65");
        let words = check_model(&no, path).await;
        assert_eq!(words, Err("it ends early".to_owned()));
    }
}
