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
}

impl<'a> Reader<'a> {
    pub(super) fn new(settings: &'a Settings, errors: &'a mut Vec<String>) -> Self {
        Self { settings, errors }
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

    pub(super) fn integer(&mut self, name: &str, range: RangeInclusive<u32>) -> Option<u32> {
        self.optional(name, |text| {
            text.parse()
                .ok()
                .filter(|number| range.contains(number))
                .ok_or_else(|| {
                    let (least, most) = (range.start(), range.end());
                    format!("{text:?} is no number from {least} to {most}")
                })
        })
    }

    pub(super) fn bytes(&mut self, name: &str) -> Option<u64> {
        self.optional(name, units::bytes)
    }

    pub(super) fn duration(&mut self, name: &str) -> Option<Duration> {
        self.optional(name, units::duration)
    }

    /// A duration above zero.
    pub(super) fn positive_duration(&mut self, name: &str) -> Option<Duration> {
        self.optional(name, |text| match units::duration(text)? {
            Duration::ZERO => Err("zero time is too little".to_owned()),
            duration => Ok(duration),
        })
    }

    pub(super) fn path(&mut self, name: &str) -> Option<PathBuf> {
        self.optional(name, |text| Ok(PathBuf::from(text)))
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
