//! `worker-orcd doctor`: can this machine serve? Each finding comes with its remedy.
//!
//! It looks and touches nothing: no context is made on a device, no port taken, no model parsed. What
//! can be computed on, and whether a file is a model, is asked of the child's program, in a process
//! of its own each time.

use super::{child_option, child_program};
use crate::child::probe;
use crate::config::device::AUTO_ORDINAL;
use crate::config::model_name;
use crate::logging::printable;
use crate::nvml::Witness;
use crate::nvml::driver_is_loaded;
use crate::nvml::library::{Gauges, Identity};
use clap::{Arg, ArgMatches, Command};
use nix::sys::resource::{Resource, getrlimit};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
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
        .arg(child_option())
}

/// NVML answers in a tenth of a second, and not at all on a wedged device.
const NVML_PATIENCE: Duration = Duration::from_secs(5);

/// One thing that was looked at, and the result.
struct Finding {
    subject: &'static str,
    verdict: Verdict,
}

enum Verdict {
    Good(String),
    /// The worker will serve, but not as well as it could.
    Note(String, &'static str),
    /// The worker will not serve.
    Bad(String, String),
}

/// Prints all findings; fails when one of them is bad.
#[must_use]
pub fn run(arguments: &ArgMatches) -> ExitCode {
    let child = child_program(arguments);
    let answers = match Answers::ask(&child, arguments.get_one::<String>("model")) {
        Ok(answers) => answers,
        Err(error) => {
            eprintln!("nothing can be asked: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut findings = vec![
        child_binary(&child, answers.version),
        device(answers.device, driver_is_loaded()),
        confinement(answers.confinement),
        open_files(),
        memory(),
    ];
    if driver_is_loaded() {
        findings.push(nvml(Witness::look(0, NVML_PATIENCE)));
    }
    findings.extend(answers.model.map(model));
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

/// Prints one finding, which may be the words of a file or of another program.
fn print(finding: &Finding) {
    let subject = finding.subject;
    let (mark, what, remedy) = match &finding.verdict {
        Verdict::Good(what) => ("ok   ", what, None),
        Verdict::Note(what, remedy) => ("note ", what, Some(*remedy)),
        Verdict::Bad(what, remedy) => ("BAD  ", what, Some(remedy.as_str())),
    };
    println!("{mark} {subject}: {}", printable(what));
    if let Some(remedy) = remedy {
        println!("      → {}", printable(remedy));
    }
}

/// Answers of the child's program.
struct Answers {
    version: Result<String, String>,
    device: Result<String, String>,
    confinement: Result<String, String>,
    model: Option<Result<String, (String, &'static str)>>,
}

impl Answers {
    fn ask(child: &Path, model: Option<&String>) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(runtime.block_on(async {
            Self {
                version: probe::version(child).await,
                device: probe::ask(child, AUTO_ORDINAL).await,
                confinement: probe::check_confinement(child).await,
                model: match model.map(|name| model_name::resolve(name)) {
                    None => None,
                    Some(Err(why)) => Some(Err((why, "worker-orcd pull gets one"))),
                    Some(Ok(path)) => {
                        let remedy = "get it again, or another one that is supported";
                        let checked = probe::check_model(child, &path).await;
                        Some(checked.map_err(|why| (why, remedy)))
                    }
                },
            }
        }))
    }
}

fn child_binary(path: &Path, version: Result<String, String>) -> Finding {
    const OWN: &str = env!("CARGO_PKG_VERSION");
    let verdict = match fs::metadata(path) {
        Err(error) => Verdict::Bad(
            format!("{}: {error}", path.display()),
            "build it (cargo build -p worker-orcd-gpu) or say --child-binary".to_owned(),
        ),
        Ok(file) if file.permissions().mode() & 0o111 == 0 => Verdict::Bad(
            format!("{} is not executable", path.display()),
            format!("chmod +x {}", path.display()),
        ),
        Ok(_) => match version {
            Ok(version) if version == OWN => Verdict::Good(format!("{} {version}", path.display())),
            Ok(version) => Verdict::Bad(
                format!("{} is of version {version}, this is {OWN}", path.display()),
                "build or install both together".to_owned(),
            ),
            Err(why) => Verdict::Bad(why, "say --child-binary with the right one".to_owned()),
        },
    };
    Finding {
        subject: "GPU child",
        verdict,
    }
}

/// The device that `--device auto` would choose. A machine without NVIDIA's driver is told that,
/// and not what else is missing.
fn device(outlook: Result<String, String>, driver: bool) -> Finding {
    let node = Path::new("/dev/nvidiactl");
    let verdict = match outlook {
        Ok(device) => Verdict::Good(device),
        Err(_) if !driver => Verdict::Note(
            "no NVIDIA driver is loaded".to_owned(),
            "the CPU device serves without one; for a GPU, load it",
        ),
        Err(why) if !node.exists() => Verdict::Note(
            why,
            "/dev/nvidiactl is missing: run nvidia-modprobe, or pass the device nodes into the \
             container; the CPU device serves meanwhile",
        ),
        // Kernels are the build's, and why says how they come in.
        Err(why) => Verdict::Note(why, "the CPU device serves meanwhile"),
    };
    Finding {
        subject: "device",
        verdict,
    }
}

/// Children serve without it, and whoever takes one over has what this user has.
fn confinement(checked: Result<String, String>) -> Finding {
    let verdict = match checked {
        Ok(words) => Verdict::Good(words),
        Err(why) => Verdict::Note(
            why,
            "a kernel of 6.12 or later with Landlock (lsm=landlock) and seccomp confines children and \
             interpreters; they serve without",
        ),
    };
    Finding {
        subject: "confinement",
        verdict,
    }
}

/// NVML's answers about the first device, as a worker there would know them.
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
        // A worker raises its own limit as far as it may.
        Ok((_, hard)) if hard < OPEN_FILES => Verdict::Note(
            format!("at most {hard} open files"),
            "raise it (ulimit -Hn 4096, LimitNOFILE=): idle clients have to make room earlier",
        ),
        Ok((_, hard)) => Verdict::Good(format!("{hard} open files")),
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

fn model(checked: Result<String, (String, &'static str)>) -> Finding {
    let verdict = match checked {
        Ok(words) => Verdict::Good(words),
        Err((why, remedy)) => Verdict::Bad(why, remedy.to_owned()),
    };
    Finding {
        subject: "model",
        verdict,
    }
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
        let good = device(Ok("a card".to_owned()), true);
        assert!(matches!(good.verdict, Verdict::Good(what) if what == "a card"));
        let no_kernels = || Err("this build carries no kernels".to_owned());
        let none = device(no_kernels(), false);
        assert!(matches!(none.verdict, Verdict::Note(why, _) if why.contains("no NVIDIA driver")));
        let unbuilt = device(no_kernels(), true);
        assert!(matches!(unbuilt.verdict, Verdict::Note(why, _) if why.contains("no kernels")));
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
    fn a_program_that_is_no_child_or_another_version_is_bad() {
        let file = Path::new("/bin/true");
        let own = child_binary(file, Ok(env!("CARGO_PKG_VERSION").to_owned()));
        assert!(matches!(own.verdict, Verdict::Good(_)));
        let older = child_binary(file, Ok("0.0.1".to_owned()));
        assert!(matches!(older.verdict, Verdict::Bad(..)));
        let other = child_binary(file, Err("it is no child".to_owned()));
        assert!(matches!(other.verdict, Verdict::Bad(why, _) if why == "it is no child"));
    }
}
