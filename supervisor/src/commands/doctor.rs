//! `worker-orcd doctor`: can this machine serve? Each finding comes with its remedy.
//!
//! It looks and touches nothing: no context is made on a device, no port taken, no model parsed. What
//! can be computed on is asked of the child's program.

use crate::child::probe;
use crate::commands::pull;
use crate::config::device::{AUTO_ORDINAL, driver_is_loaded};
use crate::nvml::Witness;
use crate::nvml::library::{Gauges, Identity};
use clap::{Arg, ArgMatches, Command};
use nix::sys::resource::{Resource, getrlimit};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use worker_orcd_lifecycle::RecoveryAction;

/// Enough for a thousand clients, two sockets a child, and the libraries.
const OPEN_FILES: u64 = 2048;

#[must_use]
pub fn command_line() -> Command {
    Command::new("doctor")
        .about("Check child, devices, limits and model; each finding with its remedy")
        .arg(
            Arg::new("model")
                .long("model")
                .value_name("FILE")
                .help("Also check this model"),
        )
        .arg(
            Arg::new("child-binary")
                .long("child-binary")
                .value_name("FILE"),
        )
}

/// NVML answers in a tenth of a second, and not at all on a wedged device.
const NVML_PATIENCE: Duration = Duration::from_secs(5);

/// What was looked at and what came of it.
struct Finding {
    subject: &'static str,
    verdict: Verdict,
}

enum Verdict {
    Good(String),
    /// It will serve, but not as well as it could.
    Note(String, &'static str),
    /// It will not serve.
    Bad(String, String),
}

/// Prints all findings; fails when one of them is bad.
#[must_use]
pub fn run(arguments: &ArgMatches) -> ExitCode {
    let child = arguments
        .get_one::<String>("child-binary")
        .map(PathBuf::from);
    let child = child.unwrap_or_else(beside_this_program);
    let mut findings = vec![
        child_binary(&child),
        device(outlook(&child)),
        open_files(),
        memory(),
    ];
    if driver_is_loaded() {
        findings.push(nvml(Witness::look(0, NVML_PATIENCE)));
    }
    if let Some(name) = arguments.get_one::<String>("model") {
        findings.push(model(name));
    }
    for finding in &findings {
        print(finding);
    }
    let bad = findings
        .iter()
        .any(|finding| matches!(finding.verdict, Verdict::Bad(..)));
    if bad {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn print(finding: &Finding) {
    let subject = finding.subject;
    match &finding.verdict {
        Verdict::Good(what) => println!("ok    {subject}: {what}"),
        Verdict::Note(what, remedy) => println!("note  {subject}: {what}\n      → {remedy}"),
        Verdict::Bad(what, remedy) => println!("BAD   {subject}: {what}\n      → {remedy}"),
    }
}

fn beside_this_program() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.with_file_name("worker-orcd-gpu")
}

fn child_binary(path: &Path) -> Finding {
    let verdict = match fs::metadata(path) {
        Err(error) => Verdict::Bad(
            format!("{}: {error}", path.display()),
            "build it (cargo build -p worker-orcd-gpu) or say --child-binary".to_owned(),
        ),
        Ok(file) if file.permissions().mode() & 0o111 == 0 => Verdict::Bad(
            format!("{} is not executable", path.display()),
            format!("chmod +x {}", path.display()),
        ),
        Ok(_) => Verdict::Good(path.display().to_string()),
    };
    Finding {
        subject: "GPU child",
        verdict,
    }
}

/// What `--device auto` goes by.
fn outlook(child: &Path) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(probe::ask(child, AUTO_ORDINAL))
}

fn device(outlook: Result<String, String>) -> Finding {
    let node = Path::new("/dev/nvidiactl");
    let verdict = match (outlook, driver_is_loaded(), node.exists()) {
        (Ok(device), _, _) => Verdict::Good(device),
        (Err(why), false, _) => Verdict::Note(
            why,
            "no NVIDIA driver is loaded: the CPU device serves without one; for a GPU, load it",
        ),
        (Err(why), true, false) => Verdict::Note(
            why,
            "/dev/nvidiactl is missing: run nvidia-modprobe, or pass the device nodes into the \
             container; the CPU device serves meanwhile",
        ),
        (Err(why), true, true) => Verdict::Note(why, "the CPU device serves meanwhile"),
    };
    Finding {
        subject: "device",
        verdict,
    }
}

/// Of the first device: what a worker there would know of it.
fn nvml(look: Result<(Identity, Gauges), String>) -> Finding {
    let verdict = match look {
        Err(reason) => Verdict::Note(
            reason,
            "bring libnvidia-ml.so.1 of the driver's own version; without it a worker serves, but \
             cannot tell Xids, ECC errors and leaked memory",
        ),
        Ok((identity, gauges)) => match gauges.action {
            Some(RecoveryAction::GpuReset | RecoveryAction::NodeReboot) => Verdict::Bad(
                "the driver asks for a reset of the first GPU, or of the node".to_owned(),
                "nvidia-smi --gpu-reset, or reboot".to_owned(),
            ),
            _ => Verdict::Good(first_gpu(&identity, &gauges)),
        },
    };
    Finding {
        subject: "NVML",
        verdict,
    }
}

fn first_gpu(identity: &Identity, gauges: &Gauges) -> String {
    let word = |it: &Option<String>| it.clone().unwrap_or_else(|| "unknown".to_owned());
    let memory = gauges.memory.as_ref().map_or_else(
        || "memory unknown".to_owned(),
        |it| format!("{} of {} MiB free", it.free >> 20, it.total >> 20),
    );
    let action = gauges.action.map_or("unknown", RecoveryAction::name);
    format!(
        "{} ({}), driver {}, {memory}, recovery action {action}",
        word(&identity.name),
        word(&identity.uuid),
        word(&identity.driver),
    )
}

fn open_files() -> Finding {
    let verdict = match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) if soft < OPEN_FILES => Verdict::Note(
            format!("at most {soft} open files"),
            "raise it (ulimit -n 4096, LimitNOFILE=) or lower --max-connections",
        ),
        Ok((soft, _)) => Verdict::Good(format!("{soft} open files")),
        Err(error) => Verdict::Note(error.to_string(), "the limit could not be read"),
    };
    Finding {
        subject: "limits",
        verdict,
    }
}

fn memory() -> Finding {
    let verdict = match fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| available(&text))
    {
        Some(kib) => Verdict::Good(format!("{} MiB available", kib / 1024)),
        None => Verdict::Note("unknown".to_owned(), "/proc/meminfo could not be read"),
    };
    Finding {
        subject: "memory",
        verdict,
    }
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn model(name: &str) -> Finding {
    let verdict = match pull::resolve(name) {
        Err(why) => Verdict::Bad(why, "worker-orcd pull smollm2 gets a small one".to_owned()),
        Ok(path) => match magic(&path) {
            Ok(magic) if magic == *b"GGUF" => Verdict::Good(path.display().to_string()),
            Ok(_) => Verdict::Bad(
                format!("{} does not begin with GGUF", path.display()),
                "only GGUF files can be served; convert it".to_owned(),
            ),
            Err(error) => Verdict::Bad(
                format!("{}: {error}", path.display()),
                "a model file has at least a header; get it again".to_owned(),
            ),
        },
    };
    Finding {
        subject: "model",
        verdict,
    }
}

/// Four bytes are not parsing: everything behind them is the child's business.
fn magic(path: &Path) -> std::io::Result<[u8; 4]> {
    let mut magic = [0; 4];
    fs::File::open(path)?.read_exact(&mut magic)?;
    Ok(magic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_found_by_name() {
        assert_eq!(
            available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"),
            Some(2048)
        );
        assert_eq!(available("MemTotal: 9 kB\n"), None);
    }

    #[test]
    fn a_device_that_the_child_can_compute_on_is_good_and_none_is_no_obstacle() {
        let good = device(Ok("a card".to_owned()));
        assert!(matches!(good.verdict, Verdict::Good(what) if what == "a card"));
        let none = device(Err("no driver".to_owned()));
        assert!(matches!(none.verdict, Verdict::Note(why, _) if why == "no driver"));
    }

    #[test]
    fn a_gpu_that_needs_a_reset_is_bad_and_a_missing_library_is_not() {
        let look = |action| {
            (
                Identity::default(),
                Gauges {
                    action,
                    ..Gauges::default()
                },
            )
        };
        let good = nvml(Ok(look(Some(RecoveryAction::None))));
        assert!(
            matches!(&good.verdict, Verdict::Good(what) if what.ends_with("recovery action none"))
        );
        let reset = nvml(Ok(look(Some(RecoveryAction::GpuReset))));
        assert!(matches!(reset.verdict, Verdict::Bad(..)));
        let missing = nvml(Err("no such file".to_owned()));
        assert!(matches!(missing.verdict, Verdict::Note(..)));
    }

    #[test]
    fn a_file_that_is_no_model_is_bad() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "PK\u{3}\u{4}").unwrap();
        let finding = model(file.path().to_str().unwrap());
        assert!(matches!(finding.verdict, Verdict::Bad(..)));
        fs::write(file.path(), "GGUF").unwrap();
        assert!(matches!(
            model(file.path().to_str().unwrap()).verdict,
            Verdict::Good(_)
        ));
    }
}
