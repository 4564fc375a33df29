//! `worker-orcd doctor`: every finding is provoked once, with its remedy. Findings that a container cannot provoke
//! (device nodes, an old driver, an old kernel) have unit tests beside the code.

use nix::unistd::geteuid;
use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use worker_orcd_tests::ControlGroup;
use worker_orcd_tests::model::{real_model, repository_root};
use worker_orcd_tests::nvml::PlayedNvml;
use worker_orcd_tests::worker::binary;

/// User without privileges.
const NOBODY: u32 = 65_534;

/// Output, and whether it found no error.
struct Said {
    fine: bool,
    text: String,
}

impl Said {
    /// Runs it without any setting of this process.
    fn by(mut command: Command) -> Self {
        let settings = std::env::vars_os().map(|(name, _)| name);
        for name in settings.filter(|it| it.to_string_lossy().starts_with("WORKER_ORCD_")) {
            command.env_remove(name);
        }
        for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "FDSTORE"] {
            if !command.get_envs().any(|(set, _)| set == name) {
                command.env_remove(name);
            }
        }
        let output = command.output().expect("worker-orcd starts");
        Self {
            fine: output.status.success(),
            text: String::from_utf8(output.stdout).expect("text"),
        }
    }

    fn with(arguments: &[&str]) -> Self {
        Self::by(doctor(arguments))
    }

    fn has(&self, beginning: &str, what: &str) -> &Self {
        let mut lines = self.text.lines();
        let is_it = |line: &&str| line.starts_with(beginning) && line.contains(what);
        assert!(
            lines.any(|line| is_it(&line)),
            "{beginning} {what}: {}",
            self.text
        );
        let remedy = lines.next().unwrap_or_default().starts_with("      → ");
        assert_eq!(remedy, !beginning.starts_with("ok"), "{}", self.text);
        self
    }

    /// Asserts a warning: the worker would serve.
    fn notes(&self, subject: &str, what: &str) -> &Self {
        self.has(&format!("note  {subject}: "), what)
    }

    fn refuses(&self, subject: &str, what: &str) -> &Self {
        assert!(!self.fine, "{}", self.text);
        self.has(&format!("BAD   {subject}: "), what)
    }

    fn likes(&self, subject: &str, what: &str) -> &Self {
        self.has(&format!("ok    {subject}: "), what)
    }
}

fn doctor(arguments: &[&str]) -> Command {
    completed(Command::new(binary("tested-worker-orcd")), arguments)
}

/// Adds the child of this build and a free port, unless the arguments have others.
fn completed(mut command: Command, arguments: &[&str]) -> Command {
    let child = binary("tested-worker-orcd-gpu");
    command.arg("doctor").arg("--child-binary").arg(child);
    command.args(["--port", "0"]).args(arguments);
    command
}

/// Runs it under limits that a shell sets.
fn limited(limits: &str, arguments: &[&str]) -> Said {
    let mut shell = Command::new("/bin/sh");
    shell
        .arg("-c")
        .arg(format!("{limits} && exec \"$0\" \"$@\""));
    shell.arg(binary("tested-worker-orcd"));
    Said::by(completed(shell, arguments))
}

/// Creates a file of that name, text and mode.
fn file(directory: &TempDir, name: &str, text: &str, mode: u32) -> String {
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Sparse file that exceeds any machine's memory.
fn huge_model(directory: &TempDir) -> String {
    let path = directory.path().join("huge.gguf");
    File::create(&path).unwrap().set_len(1 << 42).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn where_all_is_well_everything_is_said_and_nothing_is_bad() {
    let model = real_model();
    let said = Said::with(&["--device", "cpu", "--model", model.to_str().unwrap()]);
    assert!(said.fine, "{}", said.text);
    said.likes("kernel", "Linux ")
        .likes("GPU child", env!("CARGO_PKG_VERSION"))
        .likes("confinement", "Landlock, seccomp")
        .likes("device", "cpu")
        .likes("limits", "room for 1024 connections")
        .likes("memory", "MiB available")
        .likes("child's socket", "can be made")
        .likes("crash reports", "crashes")
        .likes("port", "free")
        .likes("model", "llama");
}

#[test]
fn a_child_is_asked_whether_it_is_one() {
    for other in ["/bin/true", "/bin/echo"] {
        Said::with(&["--child-binary", other]).refuses("GPU child", "");
    }
    Said::with(&["--child-binary", "/no/child"]).refuses("GPU child", "No such file");
    let directory = tempfile::tempdir().unwrap();
    let flat = file(&directory, "child", "", 0o600);
    Said::with(&["--child-binary", &flat]).refuses("GPU child", "not executable");
}

#[test]
fn confinement_that_is_off_is_noted() {
    let said = Said::with(&["--child-confinement", "off"]);
    assert!(said.fine, "{}", said.text);
    said.notes("confinement", "off");
}

#[test]
fn a_model_is_read_as_far_as_its_header_says_by_a_child() {
    let directory = tempfile::tempdir().unwrap();
    let stump = directory.path().join("stump.gguf");
    fs::write(&stump, &fs::read(real_model()).unwrap()[..2 << 20]).unwrap();
    Said::with(&["--model", stump.to_str().unwrap()]).refuses("model", "past");
    Said::with(&["--model", "nope.gguf"]).refuses("model", "worker-orcd pull");
    let draft = |path: &str| Said::with(&["--draft-model", path]);
    draft(stump.to_str().unwrap()).refuses("draft model", "past");
    draft("nope.gguf").refuses("draft model", "worker-orcd pull");
    let model = real_model();
    draft(model.to_str().unwrap()).likes("draft model", "llama");
}

#[test]
fn a_setting_that_is_wrong_is_named_wherever_it_comes_from() {
    let directory = tempfile::tempdir().unwrap();
    let config = file(&directory, "worker.toml", "max-quue = 3\n", 0o600);
    let mut command = doctor(&["--config", &config]);
    command.args(["--max-running", "none", "--trace-logits"]);
    let trace = directory.path().join("trace");
    let said = Said::by({
        command.arg(&trace);
        command
    });
    said.refuses("settings", "`max-quue`")
        .refuses("settings", "--max-running");
    assert!(!trace.exists(), "it was only looked at");
    let said = Said::with(&["--host", "0.0.0.0"]);
    said.refuses("settings", "--api-key-file");
}

#[test]
fn keys_and_certificates_are_read_and_never_shown() {
    let directory = tempfile::tempdir().unwrap();
    let open = file(&directory, "open", "secret-key\n", 0o644);
    let empty = file(&directory, "empty", "# none\n", 0o600);
    let said = Said::with(&["--api-key-file", &open, "--admin-key-file", &empty]);
    said.refuses("keys", "mode 644").refuses("keys", "no key");
    assert!(!said.text.contains("secret-key"), "{}", said.text);
    let good = file(&directory, "good", "secret-key\n", 0o600);
    Said::with(&["--api-key-file", &good]).likes("keys", "");

    let made = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (one, other) = (made(), made());
    let cert = file(&directory, "cert.pem", &one.cert.pem(), 0o644);
    let key = file(
        &directory,
        "key.pem",
        &one.signing_key.serialize_pem(),
        0o600,
    );
    let others = file(
        &directory,
        "others.pem",
        &other.signing_key.serialize_pem(),
        0o600,
    );
    Said::with(&["--tls-cert", &cert]).refuses("TLS", "--tls-key");
    Said::with(&["--tls-cert", &good, "--tls-key", &key]).refuses("TLS", "no certificate");
    Said::with(&["--tls-cert", &cert, "--tls-key", &others]).refuses("TLS", "--tls-cert with");
    Said::with(&["--tls-cert", &cert, "--tls-key", &key]).likes("TLS", "");
}

#[test]
fn a_port_that_is_taken_is_told_with_whoever_has_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let owner = format!("(process {})", std::process::id());
    Said::with(&["--port", &port]).refuses("port", &owner);
    drop(taken);
    // An address for documentation belongs to no machine.
    Said::with(&["--insecure", "--host", "192.0.2.1"]).refuses("port", "192.0.2.1:0");
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = doctor(&[]);
    for name in ["RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR", "TMPDIR"] {
        command.env(name, directory.path().join("nowhere"));
    }
    Said::by(command).refuses("child's socket", "RUNTIME_DIRECTORY");
    let flat = file(&directory, "flat", "", 0o600);
    Said::with(&["--crash-dir", &format!("{flat}/below")]).notes("crash reports", &flat);
    let mut homeless = doctor(&[]);
    for name in ["STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"] {
        homeless.env_remove(name);
    }
    Said::by(homeless).notes("crash reports", "no directory");

    let socket = directory.path().join("admin").to_str().unwrap().to_owned();
    Said::with(&["--admin-socket", &socket]).likes("admin socket", &socket);
    assert!(!Path::new(&socket).exists(), "it was only looked at");
    let listener = UnixListener::bind(&socket).unwrap();
    Said::with(&["--admin-socket", &socket]).refuses("admin socket", "in use by another process");
    drop(listener);
    Said::with(&["--admin-socket", &socket]).likes("admin socket", &socket);
}

/// Copy of the worker that every user may execute, in a directory that none may write.
fn for_nobody() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("worker-orcd");
    fs::copy(binary("tested-worker-orcd"), &copy).unwrap();
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o555)).unwrap();
    (directory, copy)
}

#[test]
fn whoever_may_do_little_hears_what() {
    let (directory, worker) = for_nobody();
    let inside = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let run = |arguments: &[&str]| {
        let mut command = completed(Command::new(&worker), arguments);
        command.current_dir("/");
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        Said::by(command)
    };
    let (admin, crashes) = (inside("admin"), inside("crashes"));
    let said = run(&["--admin-socket", &admin, "--crash-dir", &crashes]);
    said.refuses("admin socket", "Permission denied")
        .notes("crash reports", "Permission denied");
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    if first.trim().parse::<u16>().unwrap() > 1 {
        run(&["--port", "1"]).refuses("port", "127.0.0.1:1: Permission denied");
    }
}

#[test]
fn limits_that_are_too_low_are_told_with_what_they_cost() {
    limited("ulimit -n 120", &[]).refuses("limits", "120 file descriptors are too few");
    limited("ulimit -n 256", &[]).notes("limits", "room for 115 connections");
    limited("ulimit -n 256", &["--max-connections", "100"]).likes("limits", "256 open files");
    let directory = tempfile::tempdir().unwrap();
    let huge = huge_model(&directory);
    for (limit, what) in [
        ("ulimit -f 4096", "files may have 2 MiB at most"),
        ("ulimit -v 33554432", "may map 32768 MiB at most"),
    ] {
        let said = limited(limit, &[]);
        assert!(said.fine, "{}", said.text);
        said.notes("limits", what);
        limited(limit, &["--model", &huge]).refuses("limits", "the model's has");
    }
}

#[test]
fn a_model_that_is_larger_than_memory_is_told_before_it_is_tried() {
    let directory = tempfile::tempdir().unwrap();
    let huge = huge_model(&directory);
    Said::with(&["--device", "cpu", "--model", &huge]).refuses("memory", "the model's file has");
    // A model on a card does not need the host's memory.
    let said = Said::with(&["--device", "cuda:0", "--model", &huge]);
    said.likes("memory", "MiB available");
}

#[test]
fn the_bound_of_a_control_group_counts_against_the_model() {
    let Some(group) = ControlGroup::limited_to(60 << 20) else {
        return;
    };
    let model = real_model();
    let arguments = ["--device", "cpu", "--model", model.to_str().unwrap()];
    let run = || {
        Said::by(completed(
            group.command(&binary("tested-worker-orcd")),
            &arguments,
        ))
    };
    run().refuses("memory", "at most 60 by /sys/fs/cgroup");
    if group.dies_as_a_whole() {
        run().notes("memory", "the worker is killed with a child");
    }
}

#[test]
fn a_gpu_that_was_named_and_is_not_there_is_bad_and_auto_goes_without() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        return;
    }
    let said = Said::with(&["--device", "cuda:0"]);
    said.refuses("device", "cuda:0")
        .notes("NVML", "libnvidia-ml");
    let said = Said::with(&[]);
    assert!(said.fine, "{}", said.text);
    said.notes("device", "no NVIDIA driver");
}

#[test]
fn a_gpu_that_needs_a_reset_or_does_not_answer_is_told() {
    let mut nvml = PlayedNvml::build();
    let run = |nvml: &PlayedNvml| {
        let mut command = doctor(&["--device", "cuda:0"]);
        command.envs(nvml.environment());
        Said::by(command)
    };
    nvml.plays("action 0");
    run(&nvml).likes("NVML", "recovery action none");
    nvml.forgets("action");
    nvml.plays("action 1");
    run(&nvml).refuses("NVML", "asks for a reset");
    nvml.plays("wedged");
    run(&nvml).notes("NVML", "no answer within");
}

#[test]
fn a_service_manager_that_disagrees_is_told_from_inside() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("notify");
    let run = |watchdog: &str, stored: &str| {
        let mut command = doctor(&[]);
        command.env("NOTIFY_SOCKET", &socket);
        command
            .env("WATCHDOG_USEC", watchdog)
            .env("FDSTORE", stored);
        Said::by(command)
    };
    run("30000000", "4").notes("systemd", "NOTIFY_SOCKET");
    let _listener = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    run("30000000", "4").likes("systemd", "it is notified");
    let said = run("3000000", "1");
    said.notes("systemd", "a watchdog of 3000 ms")
        .notes("systemd", "room for 1 stored");
}

/// Unit of this repository, with one line replaced.
fn unit_with(directory: &TempDir, line: &str, other: &str) -> String {
    let unit = fs::read_to_string(repository_root().join("systemd/worker-orcd@.service")).unwrap();
    assert!(unit.contains(line), "{line}");
    file(
        directory,
        "worker.service",
        &unit.replacen(line, other, 1),
        0o644,
    )
}

#[test]
fn a_unit_that_disagrees_with_the_worker_is_told_line_by_line() {
    let directory = tempfile::tempdir().unwrap();
    let same = unit_with(&directory, "Type=notify", "Type=notify");
    Said::with(&["--unit", &same]).likes("systemd", "agrees");
    for (line, other, what) in [
        ("Type=notify", "Type=exec", "Type=exec"),
        (
            "NotifyAccess=main",
            "NotifyAccess=none",
            "NotifyAccess=none",
        ),
        ("\nRestart=on-failure", "", "Restart=no"),
        ("KillMode=mixed", "KillMode=process", "KillMode=process"),
        ("OOMPolicy=continue", "", "OOMPolicy=stop"),
        (
            "WatchdogSec=30s",
            "WatchdogSec=10s",
            "a watchdog of 10000 ms",
        ),
        ("WatchdogSec=30s", "", "no WatchdogSec="),
        ("FileDescriptorStoreMax=4", "", "room for 0 stored"),
        ("LimitNOFILE=8192", "LimitNOFILE=512", "512 open files"),
        ("DeviceAllow=char-nvidia* rw", "", "hides NVIDIA's"),
        (
            "DevicePolicy=closed",
            "PrivateDevices=yes",
            "hides NVIDIA's",
        ),
    ] {
        let unit = unit_with(&directory, line, other);
        let said = Said::with(&["--unit", &unit]);
        said.notes("systemd", what);
        let findings = said.text.matches(" systemd: ").count();
        assert_eq!(findings, 1, "{line} {other}: {}", said.text);
    }
    let hidden = unit_with(&directory, "DeviceAllow=char-nvidia* rw", "");
    Said::with(&["--unit", &hidden, "--device", "cpu"]).likes("systemd", "agrees");
    Said::with(&["--unit", &hidden, "--device", "cuda:0"]).refuses("systemd", "hides NVIDIA's");
    Said::with(&["--unit", "/no/unit"]).refuses("systemd", "No such file");
}

#[test]
fn drop_ins_count_and_a_home_that_is_hidden_hides_the_model() {
    let directory = tempfile::tempdir().unwrap();
    let unit = unit_with(&directory, "Type=notify", "Type=notify");
    let folder = directory.path().join("worker.service.d");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("10.conf"), "[Service]\nKillMode=process\n").unwrap();
    Said::with(&["--unit", &unit]).notes("systemd", "KillMode=process");
    fs::write(folder.join("20.conf"), "[Service]\nKillMode=mixed\n").unwrap();
    Said::with(&["--unit", &unit]).likes("systemd", "agrees");

    // Any path below a home by name: it needs only a file.
    let Some(home) = ["/root", "/home"]
        .into_iter()
        .find_map(|it| TempDir::new_in(it).ok())
    else {
        eprintln!("SKIPPED: no file can be made in a home");
        return;
    };
    let model = file(&home, "m.gguf", "", 0o600);
    Said::with(&["--unit", &unit, "--model", &model]).refuses("systemd", "ProtectHome= hides");
}
