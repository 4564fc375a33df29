//! Typed reader of merged settings. It collects every mistake.

use super::sources::{Setting, Settings, default_origin};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use worker_orcd_cli::units;

/// Reads options by name. An invalid value is noted and read as `None`.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    settings: &'a Settings,
    errors: &'a mut Vec<String>,
    /// A needed value was wrong.
    pub(super) lacks_some: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(settings: &'a Settings, errors: &'a mut Vec<String>) -> Self {
        Self {
            settings,
            errors,
            lacks_some: false,
        }
    }

    pub(super) fn optional<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let Setting { text, origin } = self.settings.get(name)?;
        parse(text)
            .map_err(|why| self.errors.push(format!("{origin}: {why}")))
            .ok()
    }

    /// Value of an option that has a default. After a mistake it is any value, and `lacks_some` is set.
    pub(super) fn needed<T: Default>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> T {
        let value = self.optional(name, parse);
        self.lacks_some |= value.is_none();
        value.unwrap_or_default()
    }

    pub(super) fn switch(&mut self, name: &str) -> bool {
        let parse = |text: &str| {
            text.parse()
                .map_err(|_| format!("{text:?} is not true or false"))
        };
        self.optional(name, parse).unwrap_or(false)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.settings.get(name).is_some()
    }

    /// True if it is set and differs from the default.
    pub(super) fn is_given(&self, name: &str) -> bool {
        self.has(name) && self.origin(name) != default_origin(name)
    }

    /// Name of a set option in its source.
    pub(super) fn origin<'n>(&'n self, name: &'n str) -> &'n str {
        self.settings
            .get(name)
            .map_or(name, |setting| setting.origin.as_str())
    }

    pub(super) fn error(&mut self, message: String) {
        self.errors.push(message);
    }
}

/// Parser of a number in a range.
pub(super) fn within(range: RangeInclusive<u32>) -> impl FnOnce(&str) -> Result<u32, String> {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            format!("{text:?} is no number from {least} to {most}")
        })
    }
}

/// Parser of one of a few words.
pub(super) fn one_of<T: Copy>(words: &[(&str, T)]) -> impl FnOnce(&str) -> Result<T, String> {
    move |text| {
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            let (last, others) = words.split_last().expect("a word");
            format!("{text:?} is neither {} nor {last}", others.join(", "))
        })
    }
}

/// Parses a duration above zero.
pub(super) fn positive(text: &str) -> Result<Duration, String> {
    match units::duration(text)? {
        Duration::ZERO => Err("zero time is too little".to_owned()),
        duration => Ok(duration),
    }
}

pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    Ok(PathBuf::from(text))
}
