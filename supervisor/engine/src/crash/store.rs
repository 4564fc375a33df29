//! Store of crash reports: one JSON file each, in a directory of bounded size.
//!
//! A separate thread writes, so a slow disk does not delay a recovery. A report is written at the death and again as
//! the successor starts, each time completely and under a temporary name first, so no reader sees half of one. The list
//! is in memory. It is read from the directory at the start, so reports survive the supervisor.
//!
//! Without a directory, or if it is not writable, reports are kept in memory. Only this user may read them, and only
//! regular files are opened.

use crate::crash::report::{Report, Summary, is_report_id};
use parking_lot::RwLock;
use rustix::fs::OFlags;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, io};
use tracing::{info, warn};

const DRAFT: &str = "draft";
/// Age at which a draft counts as abandoned. A write takes milliseconds.
const OLD_DRAFT: Duration = Duration::from_secs(60);
/// Maximum size of a report file in bytes, far above that of any report.
const LONGEST_REPORT: u64 = 16 << 20;

/// Directory and number of crash reports.
#[derive(Debug, Clone)]
pub struct CrashSettings {
    /// Directory. `None`: reports are kept in memory.
    pub directory: Option<PathBuf>,
    pub max_reports: usize,
}

/// Shared store. Clients' tasks read it while the driver adds to it.
#[derive(Debug)]
pub struct CrashStore {
    shelf: Arc<Shelf>,
    commands: mpsc::Sender<StoreCommand>,
}

#[derive(Debug)]
struct Shelf {
    settings: CrashSettings,
    /// Reports by id, hence oldest first.
    reports: RwLock<BTreeMap<String, Entry>>,
    /// Reason why the last report is only in memory.
    trouble: RwLock<Option<String>>,
}

#[derive(Debug)]
struct Entry {
    summary: Summary,
    /// JSON text of a report without a file. A tree of values would take many times as much memory.
    body: Option<Box<str>>,
}

#[derive(Debug)]
enum StoreCommand {
    Keep(Box<Report>),
    /// Answer once all earlier commands are done.
    Flush(mpsc::Sender<()>),
}

impl CrashStore {
    /// Reads the existing reports. Other files are ignored.
    #[must_use]
    pub(crate) fn open(settings: CrashSettings) -> Self {
        let reports = settings.directory.as_deref().map(read_directory);
        let shelf = Arc::new(Shelf {
            settings,
            reports: RwLock::new(reports.unwrap_or_default()),
            trouble: RwLock::default(),
        });
        let (commands, inbox) = mpsc::channel();
        let keeper = Arc::clone(&shelf);
        let thread = std::thread::Builder::new().name("crash-reports".to_owned());
        if let Err(error) = thread.spawn(move || keeper.work(&inbox)) {
            warn!(%error, "crash_reports_not_kept");
        }
        Self { shelf, commands }
    }

    /// Stores this version of a report. Does not wait.
    pub(crate) fn keep(&self, report: Report) {
        // The thread outlives this sender. If its start failed, that is logged.
        drop(self.commands.send(StoreCommand::Keep(Box::new(report))));
    }

    /// Summaries, newest first.
    #[must_use]
    pub fn list(&self) -> Vec<Summary> {
        let reports = self.shelf.reports.read();
        reports
            .values()
            .rev()
            .map(|entry| entry.summary.clone())
            .collect()
    }

    /// Report by id. Reads the disk, so the driver must not call it.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Value> {
        let known = self
            .shelf
            .reports
            .read()
            .get(id)
            .map(|entry| entry.body.clone());
        match known? {
            Some(body) => serde_json::from_str(&body).ok(),
            None => read_report(&self.shelf.path(id)?).ok(),
        }
    }

    /// Reason why the last report could not be written, if so.
    #[must_use]
    pub(crate) fn trouble(&self) -> Option<String> {
        self.shelf.trouble.read().clone()
    }

    /// Waits until all reports are written, at most for `patience`.
    pub fn flush(&self, patience: Duration) {
        let (done, wait) = mpsc::channel();
        if self.commands.send(StoreCommand::Flush(done)).is_ok() {
            // On a timeout the process ends without the remaining reports.
            let _ = wait.recv_timeout(patience);
        }
    }
}

impl Shelf {
    fn work(&self, inbox: &mpsc::Receiver<StoreCommand>) {
        for command in inbox {
            match command {
                StoreCommand::Keep(report) => self.keep(&report),
                StoreCommand::Flush(done) => drop(done.send(())),
            }
        }
    }

    fn keep(&self, report: &Report) {
        let summary = report.summary();
        let id = summary.id.clone();
        let written = self.write(report);
        *self.trouble.write() = written.as_ref().err().map(|error| self.explain(error));
        let body = match written {
            Ok(true) => None,
            Ok(false) => as_text(report),
            Err(error) => {
                warn!(%error, id, "crash_report_not_written");
                as_text(report)
            }
        };
        let mut reports = self.reports.write();
        if reports
            .insert(id.clone(), Entry { summary, body })
            .is_none()
        {
            info!(id, "crash_report");
        }
        while reports.len() > self.settings.max_reports {
            let Some((oldest, _)) = reports.pop_first() else {
                break;
            };
            if let Some(path) = self.path(&oldest) {
                // The report may never have had a file.
                drop(fs::remove_file(path));
            }
        }
    }

    /// Writes a report. False: there is no directory.
    fn write(&self, report: &Report) -> io::Result<bool> {
        let Some(path) = self.path(&report.id) else {
            return Ok(false);
        };
        if let Some(directory) = path.parent() {
            let mut private = fs::DirBuilder::new();
            private.recursive(true).mode(0o700).create(directory)?;
        }
        let text = serde_json::to_string_pretty(report)?;
        let draft = path.with_extension(DRAFT);
        let written =
            write_private(&draft, text.as_bytes()).and_then(|()| fs::rename(&draft, &path));
        if written.is_err() {
            // On a full disk an incomplete draft remains.
            drop(fs::remove_file(&draft));
        }
        written.map(|()| true)
    }

    fn explain(&self, error: &io::Error) -> String {
        let directory = self.settings.directory.as_deref().unwrap_or(Path::new(""));
        format!("{}: {error}", directory.display())
    }

    fn path(&self, id: &str) -> Option<PathBuf> {
        let directory = self.settings.directory.as_ref()?;
        Some(directory.join(id).with_extension("json"))
    }
}

fn as_text(report: &Report) -> Option<Box<str>> {
    let text = serde_json::to_string(report).ok()?;
    Some(text.into_boxed_str())
}

/// Default of `--crash-dir`: systemd's state directory, else the user's.
#[must_use]
pub fn default_directory(variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |name| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let systemd = variable("STATE_DIRECTORY")
        // The variable may list several paths, separated by colons. The first is used.
        .and_then(|list| list.split(':').next().map(PathBuf::from))
        .filter(|path| path.is_absolute());
    let user = || {
        let state = absolute("XDG_STATE_HOME");
        let state = state.or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
        state.map(|state| state.join("worker-orcd"))
    };
    systemd.or_else(user).map(|state| state.join("crashes"))
}

fn read_directory(directory: &Path) -> BTreeMap<String, Entry> {
    let Ok(files) = fs::read_dir(directory) else {
        // The directory is created on demand.
        return BTreeMap::new();
    };
    files
        .filter_map(|file| file.ok().map(|file| file.path()))
        .filter_map(|path| {
            let id = path.file_stem()?.to_str().filter(|id| is_report_id(id))?;
            if path.extension().is_some_and(|it| it == DRAFT) {
                forget_draft(&path);
            }
            path.extension().filter(|it| *it == "json")?;
            let summary = Report::summary_of(&read_report(&path).ok()?)?;
            let entry = Entry {
                summary,
                body: None,
            };
            (entry.summary.id == id).then(|| (id.to_owned(), entry))
        })
        .collect()
}

/// Removes a draft that an earlier supervisor did not finish. A recent draft may belong to another running supervisor.
fn forget_draft(path: &Path) {
    let modified = fs::symlink_metadata(path).and_then(|it| it.modified());
    let age = modified.ok().and_then(|at| at.elapsed().ok());
    if age.is_some_and(|age| age >= OLD_DRAFT) {
        drop(fs::remove_file(path));
    }
}

fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    let options = OFlags::NOFOLLOW.bits().cast_signed();
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(options)
        .open(path)?;
    file.write_all(text)
}

/// Reads a report. Without `NONBLOCK` the open of a FIFO would wait for a writer.
fn read_report(path: &Path) -> io::Result<Value> {
    let options = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(options)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > LONGEST_REPORT {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(serde_json::from_reader(io::BufReader::new(file))?)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;
    use crate::crash::report::{
        Cause, ChildFacts, DeviceFacts, InFlight, Memory, Timeline, WorkerFacts,
    };
    use std::os::unix::fs::PermissionsExt as _;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn report(id: &str) -> Report {
        Report {
            id: id.to_owned(),
            at: "2026-11-21T12:00:00.000Z".to_owned(),
            worker: WorkerFacts {
                pid: 1,
                version: "0",
            },
            cause: Cause {
                label: "signalled".to_owned(),
                text: "killed".to_owned(),
                exit_code: None,
                signal: Some(9),
                killed_by_supervisor: false,
            },
            device: DeviceFacts {
                number: 0,
                id: "cpu".to_owned(),
            },
            child: ChildFacts::default(),
            timeline: Timeline::default(),
            requests: InFlight::default(),
            memory: Memory::default(),
            gpu: None,
            flight_recorder: Value::Null,
        }
    }

    fn open(directory: Option<&Path>, max_reports: usize) -> CrashStore {
        CrashStore::open(CrashSettings {
            directory: directory.map(Path::to_owned),
            max_reports,
        })
    }

    fn ids(store: &CrashStore) -> Vec<String> {
        store.list().into_iter().map(|summary| summary.id).collect()
    }

    #[test]
    fn reports_survive_the_store_newest_first_within_their_bound() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made/on/demand");
        let store = open(Some(&path), 2);
        for id in ["1", "2", "3"] {
            store.keep(report(id));
        }
        store.flush(PATIENCE);
        assert_eq!(ids(&store), ["3", "2"]);

        let again = open(Some(&path), 2);
        assert_eq!(again.list(), store.list());
        assert_eq!(again.get("3"), store.get("3"));
        assert_eq!(again.get("3").unwrap()["cause"]["signal"], 9);
        assert_eq!(again.get("1"), None, "its file is gone");
        assert_eq!(
            fs::read_dir(&path).unwrap().count(),
            2,
            "and no draft is left"
        );
        again.keep(report("4"));
        again.flush(PATIENCE);
        assert_eq!(ids(&again), ["4", "3"], "the bound counts old ones too");
    }

    #[test]
    fn a_later_version_replaces_the_earlier() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(Some(directory.path()), 9);
        store.keep(report("1"));
        let mut ready = report("1");
        ready.timeline.ready_ms = Some(80.5);
        store.keep(ready);
        store.flush(PATIENCE);
        assert_eq!(store.list()[0].ready_ms, Some(80.5));
        assert_eq!(store.get("1").unwrap()["timeline"]["ready_ms"], 80.5);
        assert_eq!(store.list().len(), 1);
    }

    #[test]
    fn without_a_directory_that_can_be_written_they_stay_in_memory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for directory in [None, Some(file.path())] {
            let store = open(directory, 2);
            for id in ["1", "2", "3"] {
                store.keep(report(id));
            }
            store.flush(PATIENCE);
            assert_eq!(ids(&store), ["3", "2"]);
            assert_eq!(store.get("2").unwrap()["cause"]["text"], "killed");
            assert_eq!(store.get("1"), None);
        }
    }

    #[test]
    fn nobody_else_may_read_a_report() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made/on/demand");
        let store = open(Some(&path), 9);
        store.keep(report("1"));
        store.flush(PATIENCE);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("1.json")), 0o600);
        assert_eq!(store.trouble(), None);
    }

    #[test]
    fn old_drafts_go_and_young_ones_may_be_anothers() {
        let directory = tempfile::tempdir().unwrap();
        let draft = |id: &str, age: Duration| {
            let path = directory.path().join(id).with_extension(DRAFT);
            fs::write(&path, "").unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(std::time::SystemTime::now() - age)
                .unwrap();
            path
        };
        let (old, young) = (draft("1", OLD_DRAFT), draft("2", Duration::ZERO));
        open(Some(directory.path()), 9);
        assert!(!old.exists() && young.exists());
    }

    #[test]
    fn what_cannot_be_written_leaves_no_draft_and_says_why() {
        let directory = tempfile::tempdir().unwrap();
        // A directory blocks the report's name: its draft is written but cannot be renamed.
        fs::create_dir(directory.path().join("1.json")).unwrap();
        let store = open(Some(directory.path()), 9);
        store.keep(report("1"));
        store.flush(PATIENCE);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let trouble = store.trouble().unwrap();
        assert!(
            trouble.contains(directory.path().to_str().unwrap()),
            "{trouble}"
        );
        assert_eq!(store.get("1").unwrap()["cause"]["text"], "killed");
        store.keep(report("2"));
        store.flush(PATIENCE);
        assert_eq!(store.trouble(), None, "it is over");
    }

    #[test]
    fn a_fifo_with_a_reports_name_holds_nobody_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("1.json");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(open(Some(directory.path()), 9).list(), []);
    }

    #[test]
    fn what_is_no_report_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let other = serde_json::to_string(&report("2")).unwrap();
        let files = [
            ("1.json", "{"),
            ("2.txt", "x"),
            ("3.json", other.as_str()),
            ("..json", "{}"),
        ];
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let store = open(Some(directory.path()), 1);
        assert_eq!(store.list(), []);
        assert_eq!(store.get("1"), None);
        store.keep(report("9"));
        store.flush(PATIENCE);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 5);
    }

    #[test]
    fn the_directory_is_systemd_s_then_the_user_s() {
        let find = |pairs: &'static [(&str, &str)]| {
            default_directory(&|name| {
                let found = pairs.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            find(&[("STATE_DIRECTORY", "/var/lib/a:/var/lib/b"), ("HOME", "/h")]),
            path("/var/lib/a/crashes")
        );
        assert_eq!(
            find(&[("XDG_STATE_HOME", "/x"), ("HOME", "/h")]),
            path("/x/worker-orcd/crashes")
        );
        assert_eq!(
            find(&[("XDG_STATE_HOME", "relative"), ("HOME", "/h")]),
            path("/h/.local/state/worker-orcd/crashes")
        );
        assert_eq!(find(&[]), None);
    }
}
