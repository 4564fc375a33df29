//! Settings that SIGHUP reloads: keys, certificate and log level.

use super::environment::Environment;
use super::keys::{self, Keys};
use super::reader::Reader;
use super::sources::Settings;
use super::{ConfigErrors, read_log_level, tls};
use clap::ArgMatches;
use rustls::ServerConfig;
use std::sync::Arc;

#[derive(Debug)]
pub struct Again {
    pub keys: Keys,
    pub tls: Option<Arc<ServerConfig>>,
    pub log_level: String,
}

impl Again {
    /// # Errors
    /// All mistakes in the settings, the level or the key files.
    pub fn read(flags: &ArgMatches, environment: &Environment) -> Result<Self, ConfigErrors> {
        let mut errors = Vec::new();
        let settings = Settings::gather(flags, environment, &mut errors);
        let mut reader = Reader::new(&settings, &mut errors);
        let again = Self {
            keys: keys::read(&mut reader),
            tls: tls::read(&mut reader),
            log_level: read_log_level(&mut reader),
        };
        match errors.is_empty() {
            true => Ok(again),
            false => Err(ConfigErrors(errors)),
        }
    }
}
