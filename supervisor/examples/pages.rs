//! Writes what is made from the command line's table of options: the man page, completions of three shells, and
//! settings to begin with. `cargo xtask install` runs it.
//!
//! An example and no command, so that the worker does not carry what writes them.

#![forbid(unsafe_code)]

use clap::{Arg, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use worker_orcd::commands::command_line;
use worker_orcd::config::options::{self, CONFIG_FILE, PREFIX, Spec, Syntax, variable};
use worker_orcd::exit::WorkerExit;

/// A worker that finds no file there says so and ends.
const MODEL: &str = "/srv/models/model.gguf";

const ABOUT: &str = "It starts worker-orcd-gpu, a child that owns the device, the model and the KV cache and may die at any \
                     moment, and goes on with another one: clients notice a pause.";

const SIGNALS: [(&str, &str); 4] = [
    (
        "SIGTERM, SIGINT",
        "New work is refused, what runs has --drain-timeout; a second one ends at once.",
    ),
    ("SIGQUIT", "The same without the time."),
    (
        "SIGUSR2",
        "The program that is in this one's place by now goes on in the same process, with its connections and streams.",
    ),
    ("SIGHUP", "--api-key-file and --log-level are read again."),
];

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or_else(|| io::Error::other("which folder?"))?;
    fs::create_dir_all(&folder)?;
    man_page(&mut File::create(folder.join("worker-orcd.1"))?)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut command = without_hidden_commands();
        clap_complete::generate_to(shell, &mut command, "worker-orcd", &folder)?;
    }
    for device in ["cuda:0", "cpu"] {
        settings(&folder, device)?;
    }
    Ok(())
}

/// The interpreter's command is the worker's own, and completions list hidden commands too.
fn without_hidden_commands() -> Command {
    let whole = command_line();
    let arguments = whole.get_arguments().cloned();
    let bare = Command::new("worker-orcd").args(arguments.collect::<Vec<_>>());
    let bare = bare.version(env!("CARGO_PKG_VERSION"));
    bare.subcommands(commands(&whole).cloned().collect::<Vec<_>>())
}

fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|it| !it.is_hide_set())
}

fn man_page(file: &mut File) -> io::Result<()> {
    let whole = command_line();
    let man = Man::new(whole.clone());
    man.render_title(file)?;
    man.render_name_section(file)?;
    let mut page = Roff::new();
    synopsis(&mut page, &whole);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(ABOUT)]);
    page.control("PP", []);
    let precedence =
        "Each setting is a flag, a variable and a key of a TOML file, in that order of precedence.";
    page.text([roman(precedence)]);
    page.to_writer(file)?;
    man.render_options_section(file)?;
    let mut page = Roff::new();
    page.control("SH", ["COMMANDS"]);
    for command in commands(&whole) {
        describe_command(&mut page, command);
    }
    page.control("SH", ["ENVIRONMENT"]);
    let example = options::all().find(|spec| spec.name.contains('-'));
    let example = example.expect("an option of two words").name;
    page.text([
        roman("Each option in capitals behind "),
        bold(PREFIX),
        roman(": "),
        bold(variable(example)),
        roman(format!(
            " for --{example}. One that is misspelt is refused."
        )),
    ]);
    let exits = WorkerExit::all().into_iter();
    let exits = exits.map(|exit| (exit.code().to_string(), exit.meaning()));
    list(&mut page, "EXIT STATUS", exits);
    list(&mut page, "SIGNALS", SIGNALS);
    let files = [
        (
            "/etc/worker-orcd/INSTANCE.toml",
            "Settings of worker-orcd@INSTANCE.service.",
        ),
        (
            "/usr/share/doc/worker-orcd/",
            "What is promised, causes of death, how it is installed.",
        ),
    ];
    list(&mut page, "FILES", files);
    page.control("SH", ["EXAMPLES"]);
    page.control("nf", []);
    let examples = whole.get_before_help().map(ToString::to_string);
    for line in examples.unwrap_or_default().lines().skip(1) {
        page.text([roman(line.trim())]);
    }
    page.control("fi", []);
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("systemctl"),
        roman("(1), "),
        bold("nvidia-smi"),
        roman("(1)"),
    ]);
    page.to_writer(file)
}

/// One line a use: the list of all flags would say nothing.
fn synopsis(page: &mut Roff, whole: &Command) {
    page.control("SH", ["SYNOPSIS"]);
    let name = || bold("worker-orcd ");
    page.text([
        name(),
        bold("--model "),
        italic("FILE"),
        roman(" ["),
        italic("option"),
        roman("...]"),
    ]);
    for command in commands(whole).filter(|it| it.get_name() != "serve") {
        page.control("br", []);
        page.text([
            name(),
            bold(command.get_name()),
            roman(" ["),
            italic("argument"),
            roman("...]"),
        ]);
    }
}

/// Its own arguments; `serve` has those of the whole.
fn describe_command(page: &mut Roff, command: &Command) {
    page.control("TP", []);
    page.text([bold(command.get_name())]);
    let about = command.get_about().map(ToString::to_string);
    page.text([roman(format!("{}.", about.unwrap_or_default()))]);
    let own = command
        .get_arguments()
        .filter(|_| command.get_name() != "serve");
    for argument in own.filter(|it| it.get_id() != "help") {
        page.control("IP", []);
        let help = argument.get_help().map(ToString::to_string);
        page.text([
            bold(written(argument)),
            roman(format!(" {}", help.unwrap_or_default())),
        ]);
    }
}

/// An argument as it is typed.
fn written(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let value = names.first().map(ToString::to_string);
    match (argument.get_long(), argument.get_action().takes_values()) {
        (Some(long), true) => format!("--{long} {}", value.unwrap_or_default()),
        (Some(long), false) => format!("--{long}"),
        (None, _) => value.unwrap_or_else(|| argument.get_id().to_string().to_uppercase()),
    }
}

fn list(
    page: &mut Roff,
    heading: &str,
    items: impl IntoIterator<Item = (impl Into<String>, &'static str)>,
) {
    page.control("SH", [heading]);
    for (item, meaning) in items {
        page.control("TP", []);
        page.text([bold(item.into())]);
        page.text([roman(meaning)]);
    }
}

/// Every option with its help, and all but two commented out.
fn settings(folder: &Path, device: &str) -> io::Result<()> {
    let instance = device.trim_start_matches("cuda:");
    let mut text = format!(
        "# Settings of worker-orcd@{instance}.service: every option of worker-orcd(1) is a key. What is\n\
         # commented out has its default.\n"
    );
    for spec in options::all().filter(|spec| spec.name != CONFIG_FILE) {
        let line = match spec.name {
            "model" => format!("model = \"{MODEL}\""),
            "device" => format!("device = \"{device}\""),
            name => format!("#{name} = {}", shown(spec)),
        };
        text.push_str(&format!("\n# {}\n{line}\n", spec.help));
    }
    fs::write(folder.join(format!("{instance}.toml")), text)
}

/// The default, or the form of a value.
fn shown(spec: &Spec) -> String {
    match (spec.default, spec.syntax) {
        (Some(number), _) if number.parse::<u64>().is_ok() => number.to_owned(),
        (Some(default), _) => format!("\"{default}\""),
        (None, Syntax::Switch) => "true".to_owned(),
        (None, Syntax::List(value)) => format!("[\"{value}\"]"),
        (None, Syntax::Value(value)) => format!("\"{value}\""),
    }
}
