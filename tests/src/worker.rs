//! Start and cleanup of a real worker.

use crate::script::{SCRIPT_VARIABLE, Script};
use crate::{model, process, wait};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;
use std::{env, fs};
use tempfile::TempDir;
use worker_orcd_harness::{Client, Launched, Log};

/// User and group `nobody`, those of a worker without root.
const NOBODY: u32 = 65534;

/// Program of the GPU child.
#[derive(Debug, Clone)]
enum Player {
    Real,
    /// Real child with fault injection.
    Faulty,
    Scripted(Script),
    /// Child that computes nothing, as fast as it can.
    Null,
    /// Any program.
    Program(PathBuf),
}

#[derive(Debug, Clone)]
pub struct WorkerBuilder {
    player: Player,
    model: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    port: u16,
    hosts: &'static [&'static str],
    /// Arguments of `ulimit`.
    open_files: Vec<String>,
    in_a_loop: bool,
    unprivileged: bool,
    program: Option<PathBuf>,
    patience: Duration,
}

/// Running worker. Drop kills it and waits until its children are gone too.
#[derive(Debug)]
pub struct Worker {
    launched: Launched,
    pub log: Log,
    client: Option<Client>,
    /// Deadline of its start and of its end.
    patience: Duration,
    /// Directory of the wrapper script and other files of the worker.
    pub directory: TempDir,
}

impl Worker {
    /// Real child and model on the CPU device.
    #[must_use]
    pub fn real() -> WorkerBuilder {
        WorkerBuilder::new(Player::Real, model::real_model())
    }

    /// Real child and the first layers of the model ([`model::shallow_model`]) on the CPU device, for a test in which
    /// the text needs no meaning.
    #[must_use]
    pub fn shallow() -> WorkerBuilder {
        WorkerBuilder::new(Player::Real, model::shallow_model())
    }

    /// Real child with another model file.
    #[must_use]
    pub fn with_model(path: impl Into<PathBuf>) -> WorkerBuilder {
        WorkerBuilder::new(Player::Real, path.into())
    }

    #[must_use]
    pub fn scripted(script: Script) -> WorkerBuilder {
        WorkerBuilder::new(Player::Scripted(script), PathBuf::from("/dev/null"))
    }

    #[must_use]
    pub fn null() -> WorkerBuilder {
        WorkerBuilder::new(Player::Null, PathBuf::from("/dev/null"))
    }

    #[must_use]
    pub fn with_child_program(path: impl Into<PathBuf>) -> WorkerBuilder {
        WorkerBuilder::new(Player::Program(path.into()), PathBuf::from("/dev/null"))
    }

    #[must_use]
    pub fn client(&self) -> Client {
        self.client
            .clone()
            .expect("the worker was started with start() or listening()")
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.launched.pid()
    }

    /// Child that serves now, from `/health`.
    #[must_use]
    pub fn child_pid(&self) -> Option<u32> {
        self.client().health()["child"]["pid"]
            .as_u64()
            .map(|pid| pid as u32)
    }

    /// Generation of the child that serves now.
    #[must_use]
    pub fn generation(&self) -> Option<u64> {
        self.client().health()["child"]["generation"].as_u64()
    }

    pub fn kill_child(&self) {
        let child = self.child_pid().expect("a child serves");
        process::signal(child, Signal::SIGKILL);
    }

    /// Kills the child that serves, and waits until the next one does.
    pub fn replace_child(&self) {
        let generation = self.generation().expect("a child serves");
        self.kill_child();
        wait::until("the next child to serve", || {
            let health = self.client().health();
            let is_next = health["child"]["generation"].as_u64() > Some(generation);
            (is_next && health["state"] == "serving").then_some(())
        });
    }

    /// Restarts the child, and waits until the next one serves.
    pub fn restart(&self) {
        let client = self.client();
        let serving = || {
            let health = client.health();
            let generation = health["child"]["generation"].as_u64();
            generation.filter(|_| health["state"] == "serving")
        };
        let before = wait::until("a child to serve", serving);
        let answer = client.post("/restart", &serde_json::json!({}));
        assert_eq!(answer.status, 202, "{}", answer.text());
        wait::until("the next child to serve", || {
            serving().filter(|generation| *generation > before)
        });
    }

    pub fn signal(&self, signal: Signal) {
        process::signal(self.pid(), signal);
    }

    /// Waits for the present program's `ready` in the log, which another thread reads.
    pub fn wait_ready_in_log(&self) {
        wait::until("the present program to be ready in the log", || {
            let records = self.log.records();
            let mut names = records.iter().rev().filter_map(|it| it["event"].as_str());
            let last = names.find(|name| ["startup", "ready"].contains(name));
            (last == Some("ready")).then_some(())
        });
    }

    /// Upgrades the worker, and waits until the next program serves.
    pub fn upgrade(&self) {
        let ready = || self.log.events("ready").len();
        self.wait_ready_in_log();
        let before = ready();
        self.signal(Signal::SIGUSR2);
        wait::until("the next supervisor to be ready", || {
            (ready() > before).then_some(())
        });
        wait::until("the last supervisor's children to be waited for", || {
            let is_dead = |pid: &u32| process::state(*pid) == Some('Z');
            (!process::children(self.pid()).iter().any(is_dead)).then_some(())
        });
    }

    pub fn wait_ready(&mut self) {
        let ready = self.launched.ready(&self.client(), self.patience);
        ready.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until it has ended by itself.
    pub fn wait_exit(&mut self) -> ExitStatus {
        self.wait_exit_within(self.patience)
    }

    pub fn wait_exit_within(&mut self, patience: Duration) -> ExitStatus {
        let status = self.launched.exit_within(patience);
        self.log.wait_end();
        status.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Complete log until now: lines are in the order of their events, so it waits for the line of a request of its
    /// own.
    #[must_use]
    pub fn log_until_now(&self) -> String {
        let mark = format!("log-mark-{}", unique());
        let body = serde_json::json!({ "job_id": mark }).to_string();
        let headers = [("X-Correlation-Id", mark.as_str())];
        let asked = self
            .client()
            .try_request("POST", "/cancel", &headers, body.as_bytes());
        // Refused or not, it is logged.
        asked.expect("an answer");
        wait::until("the log to be read so far", || {
            let text = self.log.text();
            text.contains(&mark).then_some(text)
        })
    }

    /// Waits until one serving child and interpreters are its only processes.
    pub fn wait_one_child(&self) {
        // A newly forked process looks like its parent for a moment.
        wait::until("one child", || {
            (process::model_children(self.pid()).len() == 1).then_some(())
        });
    }

    /// Crash reports in the default directory.
    #[must_use]
    pub fn crash_reports(&self) -> Vec<Value> {
        let directory = self.directory.path().join("worker-orcd/crashes");
        let files = fs::read_dir(directory).into_iter().flatten().flatten();
        files
            .map(|file| fs::read(file.path()).expect("a report can be read"))
            .map(|bytes| serde_json::from_slice(&bytes).expect("a report is JSON"))
            .collect()
    }

    /// Asserts that the worker serves: a short request completes.
    pub fn assert_serves(&self) {
        let request = serde_json::json!({
            "job_id": format!("proof-{}", unique()), "prompt": "proof of life", "max_tokens": 3,
            "temperature": 0.0,
        });
        let transcript = self.client().execute(&request).transcript();
        assert_eq!(transcript.end()["tokens_out"], 3, "{:?}", transcript.events);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let children = process::children(self.pid());
        self.launched.kill();
        for child in children {
            let gone = (0..500).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                !process::is_alive(child)
            });
            process::signal(child, Signal::SIGKILL);
            assert!(
                gone || std::thread::panicking(),
                "child {child} outlived the supervisor by five seconds"
            );
        }
        if std::thread::panicking() {
            eprintln!("--- the worker's log ---\n{}", self.log.text());
        }
    }
}

impl WorkerBuilder {
    fn new(player: Player, model: PathBuf) -> Self {
        Self {
            player,
            model,
            arguments: Vec::new(),
            variables: Vec::new(),
            port: 0,
            hosts: &["--host", "127.0.0.1"],
            open_files: Vec::new(),
            in_a_loop: false,
            unprivileged: false,
            program: None,
            patience: wait::PATIENCE,
        }
    }

    #[must_use]
    pub fn arg(mut self, name: &str, value: impl ToString) -> Self {
        self.arguments.extend([name.to_owned(), value.to_string()]);
        self
    }

    /// Sets the child's program.
    #[must_use]
    pub fn with_child(mut self, program: impl Into<PathBuf>) -> Self {
        self.player = Player::Program(program.into());
        self
    }

    /// Real child that fails by `rules`, in the grammar of `worker_orcd_gpu::fault_injection`.
    #[must_use]
    pub fn faults(mut self, rules: &str) -> Self {
        self.player = Player::Faulty;
        self.flag("--accept-fault-injection")
            .env(worker_orcd_gpu::fault_injection::VARIABLE, rules)
    }

    #[must_use]
    pub fn flag(mut self, name: &str) -> Self {
        self.arguments.push(name.to_owned());
        self
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the limit of file descriptors, soft and hard.
    #[must_use]
    pub fn open_files(mut self, limit: u32) -> Self {
        self.open_files.push(format!("-n {limit}"));
        self
    }

    /// Sets the soft limit alone: a worker may raise it to the hard one.
    #[must_use]
    pub fn soft_open_files(mut self, limit: u32) -> Self {
        self.open_files.push(format!("-Sn {limit}"));
        self
    }

    /// Restarts it in a shell loop each time that it ends.
    #[must_use]
    pub fn in_a_loop(mut self) -> Self {
        self.in_a_loop = true;
        self
    }

    /// Runs without root's capabilities: as an unprivileged user where the test runs as root.
    #[must_use]
    pub fn unprivileged(mut self) -> Self {
        self.unprivileged = true;
        self
    }

    /// Sets the supervisor's program.
    #[must_use]
    pub fn program_at(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Sets the model.
    #[must_use]
    pub fn model(mut self, path: impl Into<PathBuf>) -> Self {
        self.model = path.into();
        self
    }

    /// Sets the port; any free one by default.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Listens on the worker's default address.
    #[must_use]
    pub fn any_host(mut self) -> Self {
        self.hosts = &[];
        self
    }

    /// Starts it and waits until it serves.
    #[must_use]
    pub fn start(self) -> Worker {
        let mut worker = self.listening();
        worker.wait_ready();
        worker
    }

    /// Deadline of its start and of its end, for a worker of low priority on a busy machine.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Starts it and waits until it answers HTTP, ready or not.
    #[must_use]
    pub fn listening(self) -> Worker {
        let mut worker = self.spawn();
        let client = worker.launched.listening(worker.patience);
        worker.client = Some(client.unwrap_or_else(|error| panic!("{error}")));
        worker
    }

    /// Starts it without waiting.
    #[must_use]
    pub fn spawn(self) -> Worker {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut command = self.command(directory.path());
        if self.unprivileged && geteuid().is_root() {
            chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
            command.uid(NOBODY).gid(NOBODY);
            command.env("TMPDIR", directory.path());
        }
        let launched = Launched::start(&mut command, Log::default()).expect("worker-orcd starts");
        Worker {
            log: launched.log.clone(),
            launched,
            client: None,
            patience: self.patience,
            directory,
        }
    }

    /// Command that starts it, with this directory for its files.
    #[must_use]
    pub fn command(&self, directory: &Path) -> Command {
        let mut command = self.program();
        command
            .args(self.hosts)
            .args(["--log-format", "json"])
            .args(["--port", &self.port.to_string()])
            .arg("--model")
            .arg(&self.model)
            .arg("--child-binary")
            .arg(self.child_program(directory));
        if !self.arguments.iter().any(|argument| argument == "--device") {
            command.args(["--device", "cpu"]);
        }
        command
            .args(&self.arguments)
            // Tests write crash reports to a directory of their own.
            .env("XDG_STATE_HOME", directory)
            .envs(self.variables.iter().cloned());
        command
    }

    /// Asserts that the worker ends with this code and logs these words. Returns its log.
    pub fn ends_with(self, code: i32, words: &[&str]) -> String {
        let mut worker = self.spawn();
        let status = worker.wait_exit();
        let log = worker.log.text();
        assert_eq!(status.code(), Some(code), "{}: {log}", describe(status));
        for word in words {
            assert!(log.contains(word), "{word:?} is not said: {log}");
        }
        log
    }

    fn program(&self) -> Command {
        let ours = || binary("tested-worker-orcd");
        let program = self.program.clone().unwrap_or_else(ours);
        if self.open_files.is_empty() && !self.in_a_loop {
            return Command::new(program);
        }
        let mut shell = Command::new("/bin/sh");
        let limits = self
            .open_files
            .iter()
            .map(|limit| format!("ulimit {limit} && "));
        let start = match self.in_a_loop {
            true => "while :; do \"$0\" \"$@\"; done",
            false => "exec \"$0\" \"$@\"",
        };
        let script = limits.collect::<String>() + start;
        shell.args(["-c", &script]).arg(program);
        shell
    }

    fn child_program(&self, directory: &Path) -> PathBuf {
        match &self.player {
            Player::Real => binary("tested-worker-orcd-gpu"),
            Player::Faulty => binary("faulty-worker-orcd-gpu"),
            Player::Null => binary("null-child"),
            Player::Program(path) => path.clone(),
            Player::Scripted(script) => scripted_child(script, directory),
        }
    }
}

/// Wrapper that sets the script in the environment, independently of the variables that the supervisor passes on.
fn scripted_child(script: &Script, directory: &Path) -> PathBuf {
    let path = directory.join("child");
    let json = serde_json::to_string(script).expect("a script is JSON");
    let json = json.replace('\'', "\\u0027");
    let program = binary("scripted-child");
    let text = format!(
        "#!/bin/sh\n{SCRIPT_VARIABLE}='{json}' exec '{}' \"$@\"\n",
        program.display()
    );
    fs::write(&path, text).expect("the directory is ours");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    path
}

/// Binary of this package, built beside the running one.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let this = env::current_exe().expect("the kernel knows");
    let found = this
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|it| it.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is not built: run `cargo build -p worker-orcd-tests --bins`")
    })
}

/// `signal N` or `code N`, for messages.
#[must_use]
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, signal) => format!("signal {signal:?}"),
    }
}

/// Number that is unique in this process.
#[must_use]
pub fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Request for scripted and null children.
#[must_use]
pub fn request(prompt: &str, max_tokens: u32) -> Value {
    serde_json::json!({
        "job_id": format!("job-{}", unique()), "prompt": prompt, "max_tokens": max_tokens,
    })
}
