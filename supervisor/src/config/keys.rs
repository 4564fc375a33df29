//! Keys of clients and of the operator, from the [key files](worker_orcd_cli::key_file) of the settings.

use super::reader::Reader;
use std::fmt;
use std::path::Path;
use worker_orcd_cli::key_file::read_keys;

/// Keys of all files.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// Empty without a key file: every caller is then a client.
    pub clients: Vec<String>,
    /// Empty without a key file.
    pub admins: Vec<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (clients, admins) = (self.clients.len(), self.admins.len());
        write!(formatter, "{clients} of clients, {admins} of the operator")
    }
}

/// Reads the key files of the settings.
pub(super) fn read(reader: &mut Reader<'_>) -> Keys {
    let file = |path: &str| read_keys(Path::new(path));
    let clients = reader.optional("api-key-file", file).unwrap_or_default();
    let admins = reader.optional("admin-key-file", file).unwrap_or_default();
    if admins.iter().any(|key| clients.contains(key)) {
        let (one, other) = (
            reader.origin("admin-key-file"),
            reader.origin("api-key-file"),
        );
        let why = "a client could shut the worker down with it";
        reader.error(format!("{one} holds a key of {other}, too: {why}"));
    }
    Keys { clients, admins }
}
