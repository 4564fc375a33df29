//! `worker-orcd doctor`: checks whether this machine can serve. Each problem has a remedy.
//!
//! It reads a worker's settings, from the same sources, without side effects: no device context, no listening port, no
//! parsing of a model. The child's program reports on devices and on the model file, in a new process for each
//! question.
//!
//! * [`child`]: the child's program, its report on the model, and confinement.
//! * [`gpu`]: driver, device nodes, the device itself, NVML.
//! * [`host`]: kernel, limits, memory.
//! * [`paths`]: keys, certificates, directories and sockets of the settings. [`port`]: owner of a port.
//! * [`service`]: systemd, from inside and from the unit file.
//!
//! Deliberately absent, because neither affects this program: locked memory (NVIDIA's driver does not count its pinned
//! memory) and huge pages.

mod child;
mod gpu;
mod host;
mod paths;
mod port;
mod service;

use crate::config::device::{DecidedDevices, DeviceChoice};
use crate::config::environment::Environment;
use crate::config::examined::Examined;
use crate::config::sources;
use clap::{Arg, ArgMatches, Command, ValueHint};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use worker_orcd_cli::model_name::Whereabouts;
use worker_orcd_process::probe;
use worker_orcd_text::printable::printable;

#[must_use]
pub fn command_line() -> Command {
    let unit = Arg::new("unit")
        .long("unit")
        .value_name("FILE")
        .value_hint(ValueHint::FilePath)
        .help("Also check this systemd unit and its drop-ins");
    sources::arguments(
        Command::new("doctor")
            .about("Check child, devices, limits, directories and model, with a remedy for each finding")
            .args_override_self(true)
            .arg(unit),
    )
}

/// Result of one check.
#[derive(Debug)]
struct Finding {
    subject: &'static str,
    verdict: Verdict,
}

#[derive(Debug)]
enum Verdict {
    Good(String),
    /// The worker will serve, with limitations. Problem and remedy.
    Note(String, String),
    /// The worker will not serve. Problem and remedy.
    Bad(String, String),
}

impl Finding {
    fn good(subject: &'static str, what: impl Into<String>) -> Self {
        let verdict = Verdict::Good(what.into());
        Self { subject, verdict }
    }

    fn note(subject: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        let verdict = Verdict::Note(what.into(), remedy.into());
        Self { subject, verdict }
    }

    fn bad(subject: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        let verdict = Verdict::Bad(what.into(), remedy.into());
        Self { subject, verdict }
    }

    fn is_good(&self) -> bool {
        matches!(self.verdict, Verdict::Good(..))
    }

    fn is_bad(&self) -> bool {
        matches!(self.verdict, Verdict::Bad(..))
    }
}

/// Prints all findings. Fails if one of them is bad.
#[must_use]
pub fn run(arguments: &ArgMatches) -> ExitCode {
    let settings = Examined::of(arguments, &Environment::of_this_process());
    let program = settings.child_binary.clone().unwrap_or_default();
    let answers = match Answers::ask(&program, &settings) {
        Ok(answers) => answers,
        Err(error) => {
            eprintln!("nothing can be asked: {error}");
            return ExitCode::FAILURE;
        }
    };
    let unit = arguments.get_one::<String>("unit").map(PathBuf::from);
    let findings = look(&program, &settings, answers, unit.as_deref());
    for finding in &findings {
        print(finding);
    }
    if findings.iter().any(Finding::is_bad) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn look(
    program: &Path,
    settings: &Examined,
    answers: Answers,
    unit: Option<&Path>,
) -> Vec<Finding> {
    // Only the length: the child's program checks the content.
    let model = settings.model_file();
    let model_bytes = model.and_then(|it| Some(fs::metadata(it).ok()?.len()));
    let computes_here =
        answers.device.as_ref().is_none_or(Result::is_err) && !settings.device.needs_cards();
    let mut findings = vec![host::kernel()];
    findings.push(child::binary(program, answers.version));
    findings.push(child::confinement(answers.confinement));
    findings.extend(gpu::all(&settings.device, &answers.cards, answers.device));
    findings.extend(settings.http.as_ref().map(host::open_files));
    findings.extend(host::limits(model_bytes));
    findings.extend(host::memory(model_bytes.filter(|_| computes_here)));
    findings.extend(paths::all(settings));
    findings.extend(service::from_inside());
    findings.extend(
        unit.map(|it| service::unit(it, settings))
            .unwrap_or_default(),
    );
    findings.extend(answers.model.map(|it| child::model("model", it)));
    findings.extend(
        answers
            .draft_model
            .map(|it| child::model("draft model", it)),
    );
    findings
}

/// Prints one finding. Its text may come from a file or another program.
fn print(finding: &Finding) {
    let subject = finding.subject;
    let (mark, what, remedy) = match &finding.verdict {
        Verdict::Good(what) => ("ok   ", what, None),
        Verdict::Note(what, remedy) => ("note ", what, Some(remedy)),
        Verdict::Bad(what, remedy) => ("BAD  ", what, Some(remedy)),
    };
    println!("{mark} {subject}: {}", printable(what));
    if let Some(remedy) = remedy {
        println!("      → {}", printable(remedy));
    }
}

/// Reports of the child's program.
struct Answers {
    version: Result<String, String>,
    /// Ordinals of the selected cards.
    cards: Vec<u32>,
    /// `None`: the CPU was selected.
    device: Option<Result<String, String>>,
    /// `None`: confinement is off.
    confinement: Option<Result<String, String>>,
    model: Option<Result<String, (String, &'static str)>>,
    /// Whether it is a model; its tokens are compared with those of the served one when both are loaded.
    draft_model: Option<Result<String, (String, &'static str)>>,
}

impl Answers {
    fn ask(child: &Path, settings: &Examined) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(runtime.block_on(async {
            let cards = cards(child, &settings.device).await;
            Self {
                version: probe::version(child).await,
                device: match &cards {
                    Ok(cards) => outlook(child, cards).await,
                    Err(why) => Some(Err(why.clone())),
                },
                cards: cards.unwrap_or_else(|_| settings.device.ordinals()),
                confinement: match settings.child_confinement {
                    true => Some(probe::check_confinement(child).await),
                    false => None,
                },
                model: match &settings.model {
                    None => None,
                    Some(Err(why)) => Some(Err((why.clone(), "worker-orcd pull gets one"))),
                    Some(Ok(Whereabouts::Elsewhere)) => {
                        Some(Ok("it is not here yet: the start gets it".to_owned()))
                    }
                    Some(Ok(Whereabouts::Here(path))) => Some(check_model(child, path).await),
                },
                draft_model: match &settings.draft_model {
                    None => None,
                    Some(Err(why)) => Some(Err((why.clone(), "worker-orcd pull gets one"))),
                    Some(Ok(path)) => Some(check_model(child, path).await),
                },
            }
        }))
    }
}

/// # Errors
/// If the child's program cannot load it, with a remedy.
async fn check_model(child: &Path, path: &Path) -> Result<String, (String, &'static str)> {
    let checked = probe::check_model(child, path).await;
    checked.map_err(|why| (why, "get it again, or another one that is supported"))
}

/// # Errors
/// If the child's program cannot count the devices for `all`.
async fn cards(child: &Path, choice: &DeviceChoice) -> Result<Vec<u32>, String> {
    match choice {
        DeviceChoice::All => {
            let all = DecidedDevices::all(probe::count_devices(child).await)?;
            Ok(all.cards())
        }
        DeviceChoice::Auto | DeviceChoice::Named(_) => Ok(choice.ordinals()),
    }
}

/// Description of all devices, or the error of the first unusable one. `None`: no device to check.
async fn outlook(child: &Path, ordinals: &[u32]) -> Option<Result<String, String>> {
    let mut words = Vec::new();
    for ordinal in ordinals {
        match probe::ask(child, *ordinal).await {
            Ok(device) => words.push(device),
            Err(why) if ordinals.len() > 1 => return Some(Err(format!("cuda:{ordinal}: {why}"))),
            refusal => return Some(refusal),
        }
    }
    (!words.is_empty()).then(|| Ok(words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Fake child's program of a machine with two cards, of which the second does not respond.
    const TWO_CARDS: &str = "#!/bin/sh
case \"$1 $2\" in
    '--count-devices ') echo 2 ;;
    '--probe 0') echo 'a card' ;;
    *) echo 'it has fallen off the bus'; exit 67 ;;
esac
";

    #[tokio::test]
    async fn all_is_as_many_cards_as_there_are_and_the_one_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let child = folder.path().join("child");
        fs::write(&child, TWO_CARDS).expect("written");
        fs::set_permissions(&child, fs::Permissions::from_mode(0o700)).expect("executable");
        let found = cards(&child, &DeviceChoice::All).await;
        assert_eq!(found, Ok(vec![0, 1]));
        let why = outlook(&child, &[0, 1]).await.expect("cards").unwrap_err();
        assert_eq!(why, "cuda:1: it has fallen off the bus");
        let first = outlook(&child, &[0]).await.expect("a card");
        assert_eq!(first, Ok("a card".to_owned()));
        let nowhere = cards(Path::new("/no/such/child"), &DeviceChoice::All).await;
        assert!(nowhere.unwrap_err().starts_with("--device all: "));
        let named = DeviceChoice::parse("cuda:3,cpu").expect("devices");
        assert_eq!(cards(&child, &named).await, Ok(vec![3]));
    }
}
