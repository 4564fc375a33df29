//! Files of `cargo xtask install`, and that shells, man and systemd accept them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tempfile::TempDir;
use worker_orcd::config::options;
use worker_orcd_tests::model::repository_root;
use worker_orcd_tests::worker::binary;

fn install(root: &Path, prefix: &str) -> Output {
    let root = [OsStr::new("--root"), root.as_os_str()];
    xtask(
        "install",
        &[&["--prefix", prefix].map(OsStr::new)[..], &root].concat(),
    )
}

/// Command of xtask, with the programs of this package in place of built ones.
fn xtask(command: &str, arguments: &[&OsStr]) -> Output {
    let programs = TempDir::new().expect("a temporary directory");
    for name in ["worker-orcd", "worker-orcd-gpu", "pages"] {
        let built = binary(&format!("tested-{name}"));
        symlink(built, programs.path().join(name)).expect("the directory is ours");
    }
    // The umask would exclude other users.
    let script = "umask 077 && exec \"$@\"";
    Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO")])
        // `cargo xtask test` sets it for the test programs. Build scripts read it, so cargo would build again.
        .env_remove("RUSTC_BOOTSTRAP")
        .args(["run", "--quiet", "--package", "xtask", "--", command])
        .args(arguments)
        .arg("--programs")
        .arg(programs.path())
        .current_dir(repository_root())
        .output()
        .expect("cargo starts")
}

/// Folder that all tests here share.
fn root() -> &'static Path {
    static ROOT: OnceLock<TempDir> = OnceLock::new();
    let root = ROOT.get_or_init(|| {
        let root = TempDir::new().expect("a temporary directory");
        let output = install(root.path(), "/usr");
        assert!(output.status.success(), "{}", text(&output.stderr));
        root
    });
    root.path()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// Runs a program; prints a notice and returns `None` where this machine does not have it.
fn run(program: &str, arguments: &[&OsStr]) -> Option<Output> {
    let output = Command::new(program)
        .args(arguments)
        .env("MANWIDTH", "200")
        .env("LC_ALL", "C.UTF-8")
        .output();
    if output.is_err() {
        println!("SKIPPED: no {program}");
    }
    output.ok()
}

/// Mode of every file and folder below `root`.
fn modes(root: &Path) -> BTreeMap<PathBuf, u32> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("it can be read") {
            let entry = entry.expect("it can be read");
            let mode = entry.metadata().expect("it is there").permissions().mode();
            let path = entry.path();
            let name = path.strip_prefix(root).expect("it is below").to_owned();
            if path.is_dir() {
                folders.push(path);
            }
            found.insert(name, mode & 0o7777);
        }
    }
    found
}

#[test]
fn every_file_has_its_place_and_its_mode() {
    let found = modes(root());
    let is_page = |path: &Path| path.starts_with("usr/share/doc/worker-orcd");
    for (path, mode) in &found {
        let is_program = path.starts_with("usr/bin") && root().join(path).is_file();
        let wanted = if is_program || root().join(path).is_dir() {
            0o755
        } else {
            0o644
        };
        assert_eq!(*mode, wanted, "{path:?}: {mode:o}");
    }
    let files = found
        .keys()
        .filter(|path| root().join(path).is_file() && !is_page(path));
    let files: Vec<_> = files.filter_map(|path| path.to_str()).collect();
    let wanted = [
        "etc/worker-orcd/0.toml",
        "etc/worker-orcd/cpu.toml",
        "usr/bin/worker-orcd",
        "usr/bin/worker-orcd-gpu",
        "usr/lib/systemd/system/worker-orcd@.service",
        "usr/lib/systemd/system/worker-orcd@.socket",
        "usr/share/bash-completion/completions/worker-orcd",
        "usr/share/fish/vendor_completions.d/worker-orcd.fish",
        "usr/share/man/man1/worker-orcd.1",
        "usr/share/zsh/site-functions/_worker-orcd",
    ];
    assert_eq!(files, wanted);
    // The unit's own page exists, and the pages that it and the README link to.
    for page in [
        "README.md",
        "LICENSE",
        "systemd/README.md",
        "docs/operate/deaths.md",
    ] {
        assert!(
            found.contains_key(&Path::new("usr/share/doc/worker-orcd").join(page)),
            "{page}"
        );
    }
}

#[test]
fn the_installed_worker_finds_its_child() {
    let worker = root().join("usr/bin/worker-orcd");
    let output = Command::new(worker)
        .arg("doctor")
        .output()
        .expect("it starts");
    let said = text(&output.stdout);
    let child = root().join("usr/bin/worker-orcd-gpu");
    assert!(
        said.contains(&format!("ok    GPU child: {}", child.display())),
        "{said}"
    );
}

#[test]
fn man_shows_every_option_and_every_exit_code_without_a_warning() {
    let page = root().join("usr/share/man/man1/worker-orcd.1");
    let arguments = ["--warnings", "--encoding=UTF-8", "--local-file"].map(OsStr::new);
    let Some(output) = run("man", &[&arguments[..], &[page.as_os_str()]].concat()) else {
        return;
    };
    assert_eq!(text(&output.stderr), "");
    let shown = text(&output.stdout);
    for spec in options::all() {
        assert!(shown.contains(&format!("--{}", spec.name)), "{}", spec.name);
    }
    for exit in worker_orcd::exit::WorkerExit::all() {
        assert!(shown.contains(exit.meaning()), "{exit:?}");
    }
    for heading in [
        "SYNOPSIS",
        "COMMANDS",
        "ENVIRONMENT",
        "EXIT STATUS",
        "EXAMPLES",
    ] {
        assert!(shown.lines().any(|line| line == heading), "{heading}");
    }
}

#[test]
fn bash_completes_flags_and_commands() {
    let file = root().join("usr/share/bash-completion/completions/worker-orcd");
    let script = r#"source "$0" || exit
        how=$(complete -p worker-orcd); how=${how#*-F }
        ask() {
            COMP_WORDS=(worker-orcd "$1") COMP_CWORD=1
            ${how%% *} worker-orcd "$1" worker-orcd
            echo "${COMPREPLY[@]}"
        }
        ask --drain; ask pu; ask '' "#;
    let arguments = ["--norc", "-c", script].map(OsStr::new);
    let Some(output) = run("bash", &[&arguments[..], &[file.as_os_str()]].concat()) else {
        return;
    };
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}{errors}");
    assert_eq!(lines[..2], ["--drain-timeout", "pull"], "{errors}");
    let all: BTreeSet<_> = lines[2].split(' ').collect();
    for spec in options::all() {
        assert!(
            all.contains(format!("--{}", spec.name).as_str()),
            "{}",
            spec.name
        );
    }
    // Commands that the worker starts itself are hidden.
    let hidden = worker_orcd::commands::interpret::COMMAND;
    assert!(all.contains("doctor") && !said.contains(hidden), "{said}");
}

#[test]
fn the_other_shells_know_every_option() {
    let zsh = root().join("usr/share/zsh/site-functions/_worker-orcd");
    let fish = root().join("usr/share/fish/vendor_completions.d/worker-orcd.fish");
    for spec in options::all() {
        assert!(
            read(&zsh).contains(&format!("--{}", spec.name)),
            "{}",
            spec.name
        );
        assert!(
            read(&fish).contains(&format!("-l {}", spec.name)),
            "{}",
            spec.name
        );
    }
    for (shell, file) in [("zsh", zsh), ("fish", fish)] {
        if let Some(output) = run(shell, &[OsStr::new("--no-execute"), file.as_os_str()]) {
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
    }
}

/// Errors of the worker about a settings file.
fn mistakes(settings: &Path) -> String {
    let output = Command::new(root().join("usr/bin/worker-orcd"))
        .arg("--config")
        .arg(settings)
        // The environment of tests may name a model.
        .env_remove("WORKER_ORCD_MODEL")
        // One of the settings names a file that is created if it is missing.
        .current_dir(settings.parent().expect("a folder"))
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    let mistakes = said.lines().filter(|line| line.starts_with("error: "));
    mistakes.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_settings_lack_a_model_and_nothing_else() {
    for (instance, device) in [("0", "cuda:0"), ("cpu", "cpu")] {
        let file = root().join(format!("etc/worker-orcd/{instance}.toml"));
        let said = mistakes(&file);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("/srv/models/model.gguf"), "{said}");
        assert!(read(&file).contains(&format!("\ndevice = \"{device}\"\n")));

        // With every line in use each key is known, and each value has a valid format.
        let all = read(&file).replace("\n#", "\n").replace("\n ", "\n# ");
        let directory = TempDir::new().expect("a temporary directory");
        let whole = directory.path().join("whole.toml");
        fs::write(&whole, all).expect("the directory is ours");
        let said = mistakes(&whole);
        assert!(said.contains("ADDRESS") && said.contains("UUID"), "{said}");
        assert!(
            !said.contains("no such option") && !said.contains("no value"),
            "{said}"
        );
    }
}

#[test]
fn systemd_reads_the_installed_units() {
    let folder = root().join("usr/lib/systemd/system");
    let output = Command::new("systemd-analyze")
        .args([
            "verify",
            "--man=no",
            "worker-orcd@0.service",
            "worker-orcd@0.socket",
        ])
        // The colon at the end stands for the default search path.
        .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.display()))
        .output();
    let Ok(output) = output else {
        return println!("SKIPPED: no systemd-analyze");
    };
    let said = text(&output.stderr);
    let known = |line: &&str| !line.contains("/usr/bin/worker-orcd is not executable");
    // Other units of this machine may have errors of their own.
    let ours = said
        .lines()
        .filter(|line| line.contains("worker-orcd"))
        .filter(known);
    assert_eq!(ours.count(), 0, "{said}");
}

#[test]
fn another_prefix_is_the_units_too_and_settings_that_are_there_stay() {
    let root = TempDir::new().expect("a temporary directory");
    let settings = root.path().join("etc/worker-orcd/0.toml");
    fs::create_dir_all(settings.parent().expect("a folder")).expect("the directory is ours");
    fs::write(&settings, "mine").expect("the directory is ours");
    let output = install(root.path(), "/opt/worker");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("0.toml is kept"));
    assert_eq!(read(&settings), "mine");
    let unit = read(
        root.path()
            .join("opt/worker/lib/systemd/system/worker-orcd@.service"),
    );
    assert!(
        unit.contains("\nExecStart=/opt/worker/bin/worker-orcd --config /etc/"),
        "{unit}"
    );
    assert!(
        unit.contains("file:///opt/worker/share/doc/worker-orcd/README.md"),
        "{unit}"
    );
    assert!(!unit.contains("/usr/"), "{unit}");

    for refused in ["opt", "/opt/a b", "/opt/%n"] {
        let output = install(root.path(), refused);
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.contains("--prefix"),
            "{refused}: {said}"
        );
    }
}

/// Package, or the missing tool.
fn debian_package(folder: &Path) -> Result<PathBuf, &'static str> {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !has("cargo-deb") {
        return Err("no cargo-deb");
    }
    if !has("dpkg-deb") || !has("dpkg-shlibdeps") {
        return Err("no dpkg");
    }
    let output = xtask("deb", &[OsStr::new("--output"), folder.as_os_str()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let packages = fs::read_dir(folder).expect("it can be read");
    let packages: Vec<_> = packages
        .map(|it| it.expect("it can be read").path())
        .collect();
    assert_eq!(packages.len(), 1, "{packages:?}");
    Ok(packages[0].clone())
}

fn dpkg(root: &Path, arguments: &[&str], package: &Path) {
    let output = Command::new("dpkg")
        .args(["--force-not-root", "--force-depends", "--force-bad-path"])
        .arg(format!("--root={}", root.display()))
        .args(arguments)
        .arg(package)
        .output()
        .expect("dpkg starts");
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
}

#[test]
fn the_debian_package_holds_what_is_installed_and_a_purge_leaves_nothing_but_state() {
    let folder = TempDir::new().expect("a temporary directory");
    let package = match debian_package(folder.path()) {
        Ok(package) => package,
        Err(lack) => return println!("SKIPPED: {lack}"),
    };
    let fields = |names: &[&str]| {
        let mut command = Command::new("dpkg-deb");
        let output = command.arg("--field").arg(&package).args(names).output();
        text(&output.expect("dpkg-deb starts").stdout)
    };
    assert_eq!(fields(&["Package"]).trim(), "worker-orcd");
    assert!(
        fields(&["Depends"]).contains("libc6"),
        "{}",
        fields(&["Depends"])
    );

    let system = TempDir::new().expect("a temporary directory");
    let database = system.path().join("var/lib/dpkg");
    for folder in ["info", "updates"] {
        fs::create_dir_all(database.join(folder)).expect("the directory is ours");
    }
    fs::write(database.join("status"), "").expect("the directory is ours");
    dpkg(system.path(), &["--install"], &package);
    let of_the_system = |path: &Path| !path.starts_with("var/lib/dpkg");
    let found = || {
        let mut found = modes(system.path());
        found.retain(|path, _| of_the_system(path) && system.path().join(path).is_file());
        found
    };
    let mut wanted = modes(root());
    wanted.retain(|path, _| root().join(path).is_file());
    let zsh = wanted.remove(Path::new("usr/share/zsh/site-functions/_worker-orcd"));
    wanted.extend(zsh.map(|mode| ("usr/share/zsh/vendor-completions/_worker-orcd".into(), mode)));
    wanted.insert("usr/share/doc/worker-orcd/copyright".into(), 0o644);
    assert_eq!(found(), wanted);

    let settings = system.path().join("etc/worker-orcd/0.toml");
    fs::write(&settings, "mine").expect("the directory is ours");
    let report = Path::new("var/lib/worker-orcd-0/crashes/report.json");
    let state = system.path().join(report);
    fs::create_dir_all(state.parent().expect("a folder")).expect("the directory is ours");
    fs::write(&state, "{}").expect("the directory is ours");
    dpkg(system.path(), &["--install"], &package);
    dpkg(system.path(), &["--remove"], Path::new("worker-orcd"));
    assert_eq!(
        read(&settings),
        "mine",
        "somebody's settings outlive the package"
    );
    dpkg(system.path(), &["--purge"], Path::new("worker-orcd"));
    assert_eq!(found().into_keys().collect::<Vec<_>>(), [report]);
}
