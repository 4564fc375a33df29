//! `cargo xtask install --root DIR`: installs programs, units, man page, completions and settings below DIR, in a
//! distribution's layout. Needs no root.
//!
//! An example of the supervisor generates files from the table of options. An existing settings file is the operator's,
//! and is kept.
//!
//! Deliberately absent: users, and enabling or starting units. The unit needs no user of its own (`systemd/README.md`),
//! and starting it is the operator's decision.

use crate::{kernels, paths, process, worker};
use anyhow::{Context, Result, ensure};
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// Folder that stands for the root of the file system.
    #[arg(long)]
    root: PathBuf,
    /// Folder of programs and pages below it, which the units name.
    #[arg(long, default_value = "/usr")]
    prefix: PathBuf,
    #[command(flatten)]
    source: Source,
}

/// Where the programs come from.
#[derive(clap::Args)]
pub struct Source {
    /// Folder of worker-orcd, worker-orcd-gpu and pages, taken as they are [default: built, with all kernels].
    #[arg(long)]
    programs: Option<PathBuf>,
}

const PROGRAMS: [&str; 2] = ["worker-orcd", "worker-orcd-gpu"];
/// Example that generates files from the table of options.
const PAGES: &str = "pages";

const UNITS: [&str; 2] = ["worker-orcd@.service", "worker-orcd@.socket"];

/// Prefix in the units of the repository.
pub const PREFIX: &str = "/usr";

/// Generated files, and their paths below the prefix.
const MADE: [(&str, &str); 4] = [
    ("worker-orcd.1", "share/man/man1/worker-orcd.1"),
    (
        "worker-orcd.bash",
        "share/bash-completion/completions/worker-orcd",
    ),
    ("_worker-orcd", "share/zsh/site-functions/_worker-orcd"),
    (
        "worker-orcd.fish",
        "share/fish/vendor_completions.d/worker-orcd.fish",
    ),
];

/// Generated settings files, one a device.
const SETTINGS: [&str; 2] = ["0.toml", "cpu.toml"];

/// Pages, by their path in the repository; links between them stay valid.
const DOCUMENTS: [&str; 17] = [
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "systemd/README.md",
    "docs/README.md",
    "docs/guide/settings.md",
    "docs/internals/arenas.md",
    "docs/internals/promises.md",
    "docs/internals/standby.md",
    "docs/operate/deaths.md",
    "docs/operate/install.md",
    "docs/operate/kubernetes/README.md",
    "docs/operate/kubernetes/gateway.yaml",
    "docs/operate/kubernetes/keys.yaml",
    "docs/operate/kubernetes/worker.yaml",
    "docs/operate/nvml.md",
    "docs/operate/upgrade.md",
];

pub fn run(arguments: &Arguments) -> Result<()> {
    let prefix = plain(&arguments.prefix)?;
    below(&arguments.root, prefix, &arguments.source)?;
    println!("installed below {}", arguments.root.display());
    Ok(())
}

/// Installs everything, with programs and pages below the prefix below the root.
pub fn below(root: &Path, prefix: &str, source: &Source) -> Result<()> {
    let pages = tempfile::tempdir()?;
    let pages = pages.path();
    let below = root.join(prefix.trim_start_matches('/'));
    let bin = |name| below.join("bin").join(name);
    if let Some(folder) = &source.programs {
        process::run(Command::new(folder.join(PAGES)).arg(pages))?;
        for name in PROGRAMS {
            put(&fs::read(folder.join(name))?, &bin(name), 0o755)?;
        }
    } else {
        build()?;
        process::run(Command::new(paths::built("release/examples", PAGES)).arg(pages))?;
        for name in PROGRAMS {
            put(&fs::read(paths::built("release", name))?, &bin(name), 0o755)?;
            process::run(Command::new("strip").arg("--strip-debug").arg(bin(name)))?;
        }
    }
    for name in UNITS {
        let text = fs::read_to_string(paths::root().join("systemd").join(name))?;
        let text = with_prefix(&text, prefix);
        put(
            text.as_bytes(),
            &below.join("lib/systemd/system").join(name),
            0o644,
        )?;
    }
    for (name, place) in MADE {
        put(&fs::read(pages.join(name))?, &below.join(place), 0o644)?;
    }
    for name in DOCUMENTS {
        let to = below.join("share/doc/worker-orcd").join(name);
        put(&fs::read(paths::root().join(name))?, &to, 0o644)?;
    }
    for name in SETTINGS {
        let to = root.join("etc/worker-orcd").join(name);
        match to.exists() {
            true => println!("{} is kept", to.display()),
            false => put(&fs::read(pages.join(name))?, &to, 0o644)?,
        }
    }
    Ok(())
}

/// Builds twice, because an example turns on features of its own dependencies.
fn build() -> Result<()> {
    if let Some(why) = kernels::for_ci(false, true)? {
        println!("the child has no kernels, and serves on the CPU: {why}");
    }
    worker::build()?;
    let example = ["-p", "worker-orcd", "--example", PAGES];
    process::run(process::cargo().args(["build", "--release"]).args(example))
}

/// Prefix as a path that needs no quoting in a unit, without a slash at its end.
fn plain(prefix: &Path) -> Result<&str> {
    let text = prefix.to_str().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.+".contains(c);
    ensure!(
        text.starts_with('/') && text.chars().all(is_plain),
        "--prefix {} is no absolute path of letters, digits and -_.+",
        prefix.display()
    );
    Ok(text.trim_end_matches('/'))
}

fn with_prefix(unit: &str, prefix: &str) -> String {
    let places = ["/bin/worker-orcd", "/share/doc/worker-orcd"];
    places.iter().fold(unit.to_owned(), |unit, place| {
        unit.replace(&format!("{PREFIX}{place}"), &format!("{prefix}{place}"))
    })
}

/// Writes a temporary file and renames it: a running program keeps the old one.
fn put(bytes: &[u8], to: &Path, mode: u32) -> Result<()> {
    let write = || {
        let folder = to.parent().unwrap_or(to);
        make_folders(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.as_file()
            .set_permissions(Permissions::from_mode(mode))?;
        file.persist(to)?;
        std::io::Result::Ok(())
    };
    write().with_context(|| format!("{} cannot be written", to.display()))
}

/// Creates folders like `create_dir_all`, with mode 0755 under any umask.
fn make_folders(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() || folder.as_os_str().is_empty() {
        return Ok(());
    }
    folder.parent().map_or(Ok(()), make_folders)?;
    fs::create_dir(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o755))
}
