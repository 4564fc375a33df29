//! Settings for `doctor`: each readable part, and all mistakes.
//!
//! Deliberately absent: the file of `--trace-logits`, because opening creates it.

use super::device::DeviceChoice;
use super::environment::Environment;
use super::http::{self, HttpConfig};
use super::reader::{Reader, path};
use super::sources::Settings;
use super::{keys, model, read, read_child_binary, read_device, tls};
use clap::ArgMatches;
use std::path::PathBuf;
use worker_orcd_cli::model_name::Whereabouts;
use worker_orcd_engine::crash::store;

#[derive(Debug)]
pub struct Examined {
    /// `None` without the option.
    pub model: Option<Result<Whereabouts, String>>,
    /// `None` without the option.
    pub draft_model: Option<Result<PathBuf, String>>,
    /// `Auto` if the value is wrong.
    pub device: DeviceChoice,
    pub child_binary: Option<PathBuf>,
    pub child_confinement: bool,
    /// `None` after a mistake in one of them.
    pub http: Option<HttpConfig>,
    pub crash_directory: Option<PathBuf>,
    /// `None` without key files; else the mistakes in them.
    pub keys: Option<Vec<String>>,
    /// `None` without TLS files; else the mistakes in them.
    pub tls: Option<Vec<String>>,
    /// Mistakes in the other settings.
    pub mistakes: Vec<String>,
}

impl Examined {
    #[must_use]
    pub fn of(flags: &ArgMatches, environment: &Environment) -> Self {
        let mut mistakes = Vec::new();
        let mut settings = Settings::gather(flags, environment, &mut mistakes);
        settings.forget("trace-logits");
        let settings = &settings;
        let is_named = |name: &&str| settings.get(name).is_some();
        let of_keys = mistakes_of(settings, |reader| drop(keys::read(reader)));
        let of_tls = mistakes_of(settings, |reader| drop(tls::read(reader)));
        let of_model = mistakes_of(settings, |reader| drop(model::read(reader)));
        let of_draft = mistakes_of(settings, |reader| drop(model::read_draft(reader)));
        mistakes.extend(mistakes_of(settings, |reader| drop(read(reader))));
        let elsewhere = [&of_keys, &of_tls, &of_model, &of_draft];
        mistakes.retain(|it| !elsewhere.iter().any(|others| others.contains(it)));
        let mut ignored = Vec::new();
        let mut reader = Reader::new(settings, &mut ignored);
        let directory = reader.optional("crash-dir", path);
        let device = read_device(&mut reader);
        let child_binary = read_child_binary(&mut reader);
        let http = http::read(&mut reader);
        Self {
            model: settings.get("model").map(|_| {
                let mut mistakes = Vec::new();
                let model = model::read(&mut Reader::new(settings, &mut mistakes));
                model.ok_or_else(|| mistakes.join("; "))
            }),
            draft_model: settings.get("draft-model").map(|_| {
                let mut mistakes = Vec::new();
                let model = model::read_draft(&mut Reader::new(settings, &mut mistakes));
                model.ok_or_else(|| mistakes.join("; "))
            }),
            device: device.unwrap_or(DeviceChoice::Auto),
            child_binary,
            child_confinement: settings
                .get("child-confinement")
                .is_none_or(|it| it.text != "off"),
            http: (!reader.lacks_some).then_some(http),
            crash_directory: directory
                .or_else(|| store::default_directory(&|name| environment.get(name))),
            keys: ["api-key-file", "admin-key-file"]
                .iter()
                .any(is_named)
                .then_some(of_keys),
            tls: ["tls-cert", "tls-key"]
                .iter()
                .any(is_named)
                .then_some(of_tls),
            mistakes,
        }
    }
}

impl Examined {
    /// The model's file, if it exists.
    #[must_use]
    pub fn model_file(&self) -> Option<&PathBuf> {
        match &self.model {
            Some(Ok(Whereabouts::Here(path))) => Some(path),
            _ => None,
        }
    }
}

fn mistakes_of(settings: &Settings, read: impl FnOnce(&mut Reader<'_>)) -> Vec<String> {
    let mut mistakes = Vec::new();
    read(&mut Reader::new(settings, &mut mistakes));
    mistakes
}
