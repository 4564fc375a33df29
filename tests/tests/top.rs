//! `worker-orcd top`, as text and at a terminal, for a worker that runs, dies, is upgraded, or does not exist.

use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, tcgetattr};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use tempfile::NamedTempFile;
use worker_orcd_tests::worker::binary;
use worker_orcd_tests::{Act, Client, Moment, Script, Worker, WorkerBuilder, process, wait};

/// Name with an escape sequence that would clear a terminal.
const MODEL: &str = "the-\u{1b}[2J-model";

/// Escaped form of the name.
const SHOWN: &str = r"the-\u{1b}[2J-model";

fn scripted() -> WorkerBuilder {
    Worker::scripted(Script::behave()).arg("--served-model-name", MODEL)
}

fn top(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("tested-worker-orcd"));
    command.arg("top").args(arguments);
    command.env_remove("OPENAI_API_KEY");
    command
}

fn url(client: &Client) -> String {
    format!("http://{}", client.address)
}

/// Output, and whether it exits as healthy.
fn once(arguments: &[&str]) -> (bool, String) {
    let output = top(arguments).arg("--once").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "");
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "{code:?}");
    (code == Some(0), String::from_utf8(output.stdout).unwrap())
}

/// Rest of the line that begins with this label.
fn row<'a>(text: &'a str, label: &str) -> &'a str {
    let mut rests = text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix(label)?;
        rest.strip_prefix("  ").map(str::trim)
    });
    rests.next().unwrap_or_else(|| panic!("{label}: {text}"))
}

#[test]
fn once_tells_how_a_worker_does_and_what_became_of_its_child() {
    let worker = scripted().start();
    let url = url(&worker.client());
    let (is_healthy, text) = once(&["--url", &url]);
    assert!(
        is_healthy && text.contains("\nhealthy: serving since 2"),
        "{text}"
    );
    assert_eq!(row(&text, "model"), format!("{SHOWN} (F32)"));
    assert!(row(&text, "device").starts_with("cpu"), "{text}");
    assert!(
        row(&text, "child").starts_with("generation 1 for "),
        "{text}"
    );
    assert_eq!(row(&text, "deaths"), "0");
    assert_eq!(row(&text, "first token"), "unknown");
    assert_eq!(row(&text, "standby"), "none asked for");
    let (_, crashes) = text.split_once("crash reports").expect("a list");
    assert!(crashes.ends_with("\n  none\n"), "{text}");

    worker.assert_serves();
    worker.replace_child();
    let (is_healthy, text) = once(&["--url", &url]);
    assert!(is_healthy, "{text}");
    assert!(
        row(&text, "child").starts_with("generation 2 for "),
        "{text}"
    );
    assert_eq!(row(&text, "deaths"), "1 (signalled 1)");
    assert!(
        row(&text, "the last").ends_with("killed by signal 9"),
        "{text}"
    );
    assert_eq!(row(&text, "restarts"), "1");
    assert!(row(&text, "first token").starts_with("p50 ≤ "), "{text}");
    assert!(row(&text, "next token").contains("p99 ≤ "), "{text}");
    let (_, crashes) = text.split_once("crash reports").expect("a list");
    assert!(crashes.contains("generation 1, with 0 requests"), "{text}");

    // `--once` is the default where the output cannot be refreshed.
    let output = top(&["--url", &url]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && said.contains("stdout is not a terminal"),
        "{said}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(row(&text, "deaths"), "1 (signalled 1)");
}

#[test]
fn once_fails_where_nobody_is_healthy_and_says_why() {
    let worker = scripted().start();
    let url = url(&worker.client());
    let (is_healthy, text) = once(&["--url", &format!("{url}/elsewhere")]);
    assert!(!is_healthy && text.contains(": 404: "), "{text}");
    drop(worker);
    let (is_healthy, text) = once(&["--url", &url]);
    assert!(!is_healthy && text.contains("no answer since 2"), "{text}");
    assert!(text.contains("refused"), "{text}");

    let worker = Worker::scripted(Script::always(Moment::Loading, Act::StuckLoad)).listening();
    let health = || worker.client().get("/health");
    wait::until("the load to begin", || {
        (health().json()["state"] == "loading").then_some(())
    });
    assert_eq!(health().status, 503);
    let (is_healthy, text) = once(&["--url", &self::url(&worker.client())]);
    assert!(
        !is_healthy && text.contains("\nunhealthy: loading since"),
        "{text}"
    );
    assert!(
        row(&text, "child").starts_with("generation 1 for "),
        "{text}"
    );

    let wrong = top(&["--interval", "0.01"]).output().unwrap();
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(said.contains("must be from 0.1 to 3600 seconds"), "{said}");
}

fn key_file(key: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "{key}").unwrap();
    file
}

fn path(file: &NamedTempFile) -> &str {
    Path::to_str(file.path()).unwrap()
}

#[test]
fn each_caller_sees_what_the_worker_tells_it_and_why_not_more() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin");
    let socket = socket.to_str().unwrap();
    let (client, admin) = (key_file("of-a-client"), key_file("of-the-operator"));
    let worker = scripted()
        .arg("--api-key-file", path(&client))
        .arg("--admin-key-file", path(&admin))
        .arg("--admin-socket", socket)
        .start();
    let url = url(&worker.client());

    let (is_healthy, text) = once(&["--url", &url]);
    assert!(is_healthy && text.contains("(--api-key-file)"), "{text}");
    assert!(
        !text.contains(SHOWN) && text.contains("not available (401)"),
        "{text}"
    );

    let (_, text) = once(&["--url", &url, "--api-key-file", path(&client)]);
    assert!(text.contains(SHOWN), "{text}");
    assert!(
        text.contains("not available (403): only a key of --admin-key-file"),
        "{text}"
    );

    for operator in [
        &["--url", &url, "--api-key-file", path(&admin)][..],
        &["--admin-socket", socket],
    ] {
        let (is_healthy, text) = once(operator);
        assert!(is_healthy && text.contains(SHOWN), "{text}");
        assert!(!text.contains("not available"), "{text}");
    }
}

/// Command at a terminal of its own.
struct Terminal {
    process: Child,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: std::thread::JoinHandle<()>,
}

impl Terminal {
    fn run(mut command: Command, rows: u16, columns: u16) -> Self {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let ends = openpty(Some(&size), None).unwrap();
        let slave = || OwnedFd::try_clone(&ends.slave).unwrap();
        command.stdin(slave()).stdout(slave()).stderr(slave());
        let process = command.spawn().unwrap();
        let keyboard = File::from(ends.master);
        let mut output = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let drawn = Arc::clone(&screen);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails when the last writer is gone.
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                drawn.lock().unwrap().process(&bytes[..length]);
            }
        });
        Self {
            process,
            keyboard,
            screen,
            reader,
        }
    }

    fn contents(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn wait_for(&self, words: &str) {
        wait::until(words, || {
            let is_there = self.contents().contains(words);
            is_there.then_some(())
        });
    }

    /// Whether the terminal is in raw mode, and whether it shows the alternate screen.
    fn is_taken(&self) -> [bool; 2] {
        let flags = tcgetattr(&self.keyboard).unwrap().local_flags;
        let is_raw = !flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO);
        [
            is_raw,
            self.screen.lock().unwrap().screen().alternate_screen(),
        ]
    }

    /// Exit status; asserts that the terminal is restored.
    fn ends(mut self) -> ExitStatus {
        let status = wait::until("the end", || self.process.try_wait().unwrap());
        wait::until("the shell's screen", || {
            (self.is_taken() == [false; 2]).then_some(())
        });
        drop(self.keyboard);
        self.reader.join().unwrap();
        status
    }
}

#[test]
fn at_a_terminal_it_goes_on_over_deaths_upgrades_and_a_worker_that_is_gone() {
    let worker = scripted().start();
    let address = worker.client().address;
    let url = url(&worker.client());
    let mut terminal = Terminal::run(top(&["--url", &url, "--interval", "0.1"]), 24, 80);
    terminal.wait_for(SHOWN);
    terminal.wait_for("generation 1");
    assert_eq!(terminal.is_taken(), [true; 2]);
    worker.replace_child();
    terminal.wait_for("generation 2");
    terminal.wait_for("1 (signalled 1)");
    worker.upgrade();
    worker.replace_child();
    terminal.wait_for("generation 3");
    drop(worker);
    terminal.wait_for("no answer since 2");
    assert!(terminal.contents().contains(SHOWN), "the last answer stays");
    let next = scripted().port(address.port()).start();
    terminal.wait_for("healthy: serving since 2");
    terminal.wait_for("generation 1");
    drop(next);
    terminal.wait_for("no answer since 2");
    terminal.keyboard.write_all(b"q").unwrap();
    assert_eq!(terminal.ends().code(), Some(0));
}

#[test]
fn keys_and_signals_end_it_and_the_terminal_is_as_it_was() {
    // A port that never accepts.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let begun = || {
        let terminal = Terminal::run(top(&["--url", &url]), 10, 40);
        terminal.wait_for("it is being asked");
        assert_eq!(terminal.is_taken(), [true; 2]);
        terminal
    };
    for key in ["q", "\u{1b}", "\u{3}"] {
        let mut terminal = begun();
        terminal.keyboard.write_all(b"x\r").unwrap();
        terminal.keyboard.write_all(key.as_bytes()).unwrap();
        assert_eq!(terminal.ends().code(), Some(0), "{key:?}");
    }
    let terminal = begun();
    process::signal(terminal.process.id(), Signal::SIGTERM);
    assert_eq!(terminal.ends().code(), Some(0));
}
