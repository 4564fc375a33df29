//! Key files: one key a line, comments after `#`, accessible to the owner alone.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Byte order mark, which some editors write at the start of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Read and write permissions of group and others.
const OTHERS: u32 = 0o066;

/// Largest size of a key file, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// Reads a key file. Messages never contain keys. A file without keys is an error: it would lock out all clients.
///
/// # Errors
/// Why the file is unusable.
pub fn read_keys(path: &Path) -> Result<Vec<String>, String> {
    let named = |why: String| format!("{} {why}", path.display());
    let text = read_private(path).map_err(named)?;
    let keys = parse(&text);
    if keys.is_empty() {
        return Err(named("holds no key".to_owned()));
    }
    if let Some(line) = keys.iter().position(|(_, key)| !can_be_sent(key)) {
        let line = keys[line].0;
        return Err(named(format!(
            "holds a key in line {line} that no header can carry: it may have ASCII letters, digits, signs and spaces"
        )));
    }
    Ok(keys.into_iter().map(|(_, key)| key).collect())
}

/// Keys with their line numbers.
fn parse(text: &str) -> Vec<(usize, String)> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let lines = text.lines().map(str::trim).zip(1..);
    lines
        .filter(|(line, _)| !line.is_empty() && !line.starts_with('#'))
        .map(|(line, number)| (number, line.to_owned()))
        .collect()
}

/// Whether a key is a valid header value. Clients could not send any other.
fn can_be_sent(key: &str) -> bool {
    key.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Reads a file that no other user may read or write.
///
/// # Errors
/// Why the file is unusable, without its name.
pub fn read_private(path: &Path) -> Result<String, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    let file = File::options()
        .read(true)
        // A pipe without a writer must not block the start.
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(unreadable)?;
    let facts = file.metadata().map_err(unreadable)?;
    if !facts.is_file() {
        return Err("is no file".to_owned());
    }
    if facts.mode() & OTHERS != 0 && !is_systemds(path, &facts) {
        return Err(format!(
            "may be read or written by others (mode {:03o}): chmod 600 it",
            facts.mode() & 0o777
        ));
    }
    let mut text = String::new();
    file.take(MOST_BYTES)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    Ok(text)
}

/// Whether it is a credential of systemd: its access list, which shows as the group's mode, allows the service alone.
fn is_systemds(path: &Path, facts: &Metadata) -> bool {
    let directory = std::env::var_os("CREDENTIALS_DIRECTORY");
    directory.is_some_and(|directory| path.starts_with(directory)) && facts.mode() & 0o027 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        std::fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn comments_blank_lines_line_ends_and_a_byte_order_mark_are_no_keys() {
        let keys = file(
            "\u{feff}# of the gateway\r\none\r\n\r\n  # two\n  three \n",
            0o600,
        );
        assert_eq!(read_keys(keys.path()).unwrap(), ["one", "three"]);
        for none in ["", "\u{feff}\n# only words\n"] {
            let none = file(none, 0o400);
            assert!(read_keys(none.path()).unwrap_err().contains("no key"));
        }
    }

    #[test]
    fn a_file_that_others_may_read_or_write_is_refused_by_name() {
        for mode in [0o644, 0o640, 0o604, 0o620, 0o602] {
            let keys = file("key\n", mode);
            let why = read_keys(keys.path()).unwrap_err();
            let name = keys.path().to_str().unwrap();
            assert!(why.contains(name) && why.contains("chmod 600"), "{why}");
            assert!(!why.contains("key\n"), "{why}");
        }
        for mode in [0o600, 0o400, 0o700] {
            assert!(read_keys(file("key\n", mode).path()).is_ok(), "{mode:o}");
        }
    }

    #[test]
    fn a_key_that_no_header_can_carry_is_refused_by_its_line() {
        for (text, line) in [
            ("\u{ff}\u{fe}", 1),
            ("# key\none\nschlüssel\n", 3),
            ("a\tb", 1),
        ] {
            let keys = file(text, 0o600);
            let why = read_keys(keys.path()).unwrap_err();
            assert!(why.contains(&format!("in line {line} that")), "{why}");
            assert!(!why.contains("schl"), "{why}");
        }
        assert_eq!(read_keys(file("a b~!\n", 0o600).path()).unwrap(), ["a b~!"]);
    }

    #[test]
    fn what_is_no_file_holds_no_keys() {
        for path in ["/nowhere", "/dev/null", "/tmp"] {
            let why = read_keys(Path::new(path)).unwrap_err();
            assert!(why.starts_with(path), "{why}");
        }
    }
}
