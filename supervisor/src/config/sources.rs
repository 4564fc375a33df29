//! Sources of a value: flag, then environment, then file, then default.
//!
//! Values stay text until all sources are merged. So the mistakes of all sources are reported together, under the name
//! in the source.

use super::environment::Environment;
use super::options::{self, CONFIG_FILE, GROUPS, Spec, Syntax, variable};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use std::collections::HashMap;
use std::path::Path;

/// Text of a value, and its name in the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub text: String,
    pub origin: String,
}

/// One value at most for each option.
#[derive(Debug, Default)]
pub struct Settings(HashMap<&'static str, Setting>);

/// Adds all options of the table to a command.
#[must_use]
pub fn arguments(command: Command) -> Command {
    let config = Arg::new(CONFIG_FILE)
        .long(CONFIG_FILE)
        .value_name("FILE")
        .value_hint(ValueHint::FilePath)
        .help("TOML, with any of these options as keys");
    let with_group = |command: Command, (heading, options): &(&'static str, &[Spec])| {
        let arguments = options.iter().map(argument);
        command.args(arguments.map(|it| it.help_heading(*heading)))
    };
    GROUPS.iter().fold(command.arg(config), with_group)
}

/// Origin of a default value.
pub(super) fn default_origin(name: &str) -> String {
    format!("the default of --{name}")
}

impl Settings {
    /// Reads all sources. Mistakes go to `errors`.
    pub fn gather(flags: &ArgMatches, environment: &Environment, errors: &mut Vec<String>) -> Self {
        errors.extend(environment.misspelt());
        let file = flags
            .get_one::<String>(CONFIG_FILE)
            .cloned()
            .or_else(|| environment.get(&variable(CONFIG_FILE)));
        let mut settings = Self::default();
        for spec in options::all() {
            if let Some(default) = spec.default {
                let origin = default_origin(spec.name);
                settings.set(spec, default.to_owned(), origin);
            }
        }
        if let Some(path) = file {
            settings.read_file(Path::new(&path), errors);
        }
        for spec in options::all() {
            let name = variable(spec.name);
            if let Some(text) = environment.get(&name).filter(|text| !text.is_empty()) {
                settings.set(spec, text, name);
            }
            if let Some(text) = flag_text(flags, spec) {
                settings.set(spec, text, format!("--{}", spec.name));
            }
        }
        settings
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.0.get(name)
    }

    /// Unsets an option.
    pub(super) fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    fn set(&mut self, spec: &Spec, text: String, origin: String) {
        self.0.insert(spec.name, Setting { text, origin });
    }

    fn read_file(&mut self, path: &Path, errors: &mut Vec<String>) {
        let table = std::fs::read_to_string(path)
            .map_err(|error| error.to_string())
            .and_then(|text| {
                text.parse::<toml::Table>()
                    .map_err(|error| error.to_string())
            });
        let table = match table {
            Ok(table) => table,
            Err(why) => return errors.push(format!("{}: {why}", path.display())),
        };
        for (key, value) in table {
            let origin = format!("`{key}` in {}", path.display());
            match (options::spec(&key), file_text(&value)) {
                (None, _) => errors.push(format!("{origin}: there is no such option")),
                (Some(_), None) => errors.push(format!("{origin}: a table or date is no value")),
                (Some(spec), Some(text)) => self.set(spec, text, origin),
            }
        }
    }
}

fn argument(spec: &Spec) -> Arg {
    let mut help = spec.help.to_owned();
    if let Some(default) = spec.default {
        help.push_str(&format!(" [default: {default}]"));
    }
    let arg = Arg::new(spec.name).long(spec.name).help(help);
    match spec.syntax {
        Syntax::Value(name) => arg
            .value_name(name)
            .value_hint(hint(name))
            .allow_hyphen_values(true),
        Syntax::List(name) => arg.value_name(name).action(ArgAction::Append),
        Syntax::Switch => arg.action(ArgAction::SetTrue),
    }
}

/// Completion hint for the shell.
fn hint(metavar: &str) -> ValueHint {
    match metavar {
        "FILE" => ValueHint::FilePath,
        "DIRECTORY" => ValueHint::DirPath,
        "URL" => ValueHint::Url,
        _ => ValueHint::Other,
    }
}

fn flag_text(flags: &ArgMatches, spec: &Spec) -> Option<String> {
    match spec.syntax {
        Syntax::Value(_) => flags.get_one::<String>(spec.name).cloned(),
        Syntax::List(_) => flags
            .get_many::<String>(spec.name)
            .map(|values| values.cloned().collect::<Vec<_>>().join(",")),
        Syntax::Switch => flags.get_flag(spec.name).then(|| "true".to_owned()),
    }
}

/// Text of a TOML value; `None` for types without a text form.
fn file_text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(yes) => Some(yes.to_string()),
        toml::Value::Array(items) => items
            .iter()
            .map(file_text)
            .collect::<Option<Vec<_>>>()
            .map(|texts| texts.join(",")),
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}
