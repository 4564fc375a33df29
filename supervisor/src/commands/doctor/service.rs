//! systemd: compares a unit with the worker's requirements.
//!
//! From inside, as in `ExecStartPre=`, it reads the environment. From a unit file, it reads `[Service]` with its
//! drop-ins (`FILE.d/*.conf`). `systemd/README.md` gives the reason for each setting. `%` is not expanded.

use super::{Finding, host};
use crate::commands::serve::LONGEST_END;
use crate::config::examined::Examined;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;
use worker_orcd_cli::units;

const SUBJECT: &str = "systemd";

/// Stored descriptors: one bundle, and a second during its replacement.
const STORED: u64 = 2;

/// The worker notifies twice in each watchdog period, and not after the driver's last turn.
const SHORTEST_WATCHDOG: Duration = LONGEST_END.saturating_mul(2);

/// Findings from the environment. None without a service manager.
pub(super) fn from_inside() -> Vec<Finding> {
    let variable = |name| std::env::var(name).ok();
    let Some(socket) = variable("NOTIFY_SOCKET") else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    if let Err(error) = reach(&socket) {
        findings.push(Finding::note(
            SUBJECT,
            format!("NOTIFY_SOCKET {socket}: {error}"),
            "NotifyAccess=main, and a mount of that socket where the unit has a root of its own: \
             systemd does not learn that the worker is ready",
        ));
    }
    let micros = variable("WATCHDOG_USEC").and_then(|text| text.parse().ok());
    findings.extend(micros.and_then(|micros| watchdog(Duration::from_micros(micros))));
    // Set by systemd 254 and newer.
    let stored = variable("FDSTORE").and_then(|text| text.parse().ok());
    findings.extend(stored.and_then(descriptor_store));
    if findings.is_empty() {
        findings.push(Finding::good(SUBJECT, "it is notified, and agrees"));
    }
    findings
}

fn reach(socket: &str) -> io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.connect_addr(&address)
}

fn watchdog(within: Duration) -> Option<Finding> {
    (within <= SHORTEST_WATCHDOG).then(|| {
        Finding::note(
            SUBJECT,
            format!("a watchdog of {} ms", within.as_millis()),
            format!(
                "WatchdogSec=30s, or at least more than {} s: a worker that ends is silent for half \
                 of that, and would be killed",
                SHORTEST_WATCHDOG.as_secs()
            ),
        )
    })
}

fn descriptor_store(most: u64) -> Option<Finding> {
    (most < STORED).then(|| {
        Finding::note(
            SUBJECT,
            format!("room for {most} stored descriptors"),
            "FileDescriptorStoreMax=4: without it streams end with a supervisor that dies",
        )
    })
}

/// Differences between the unit and the requirements of the worker with these settings.
pub(super) fn unit(path: &Path, settings: &Examined) -> Vec<Finding> {
    match read(path) {
        Err(error) => vec![Finding::bad(
            SUBJECT,
            format!("{}: {error}", path.display()),
            "--unit takes a file, such as /usr/lib/systemd/system/worker-orcd@.service",
        )],
        Ok(text) => {
            let unit = Unit::parse(&text);
            let mut findings = unit.against_worker();
            findings.extend(unit.against_settings(settings));
            if findings.is_empty() {
                findings.push(Finding::good(SUBJECT, format!("{} agrees", path.display())));
            }
            findings
        }
    }
}

/// The unit followed by its drop-ins.
fn read(path: &Path) -> io::Result<String> {
    let mut text = fs::read_to_string(path)?;
    let mut folder = path.as_os_str().to_owned();
    folder.push(".d");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut drop_ins: Vec<PathBuf> = entries
        .map(|it| it.path())
        .filter(|it| it.extension().is_some_and(|it| it == "conf"))
        .collect();
    drop_ins.sort();
    for drop_in in drop_ins {
        text.push('\n');
        text.push_str(&fs::read_to_string(drop_in)?);
    }
    Ok(text)
}

/// Values of `[Service]`, in order. An empty value resets the earlier ones.
struct Unit(BTreeMap<String, Vec<String>>);

/// Requirement on an optional setting.
struct Need {
    key: &'static str,
    /// systemd's default.
    default: &'static str,
    is_met: fn(&str) -> bool,
    remedy: &'static str,
}

const NEEDS: &[Need] = &[
    Need {
        key: "Type",
        default: "simple",
        is_met: |it| it.starts_with("notify"),
        remedy: "Type=notify: systemctl start then returns when the first child serves",
    },
    Need {
        key: "NotifyAccess",
        default: "main",
        is_met: |it| it != "none",
        remedy: "NotifyAccess=main: with none, systemd waits for a word that it does not take",
    },
    Need {
        key: "Restart",
        default: "no",
        is_met: |it| matches!(it, "on-failure" | "on-abnormal" | "always"),
        remedy: "Restart=on-failure: without it, a supervisor that dies is not started again",
    },
    Need {
        key: "KillMode",
        default: "control-group",
        is_met: |it| it == "mixed",
        remedy: "KillMode=mixed: the child is needed to drain, and gets SIGTERM otherwise",
    },
    Need {
        key: "OOMPolicy",
        default: "stop",
        is_met: |it| it == "continue",
        remedy: "OOMPolicy=continue: a child that the kernel kills is replaced, and no stream ends",
    },
];

impl Unit {
    fn parse(text: &str) -> Self {
        let text = text.replace("\\\n", " ");
        let mut values = BTreeMap::<String, Vec<String>>::new();
        let mut is_service = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                is_service = line == "[Service]";
            }
            let is_setting = is_service && !line.starts_with(['#', ';']);
            let Some((key, value)) = line.split_once('=').filter(|_| is_setting) else {
                continue;
            };
            let values = values.entry(key.trim().to_owned()).or_default();
            match value.trim() {
                "" => values.clear(),
                value => values.push(value.to_owned()),
            }
        }
        Self(values)
    }

    /// Last value, which is the effective one.
    fn last(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.last().map(String::as_str)
    }

    fn sets(&self, key: &str, value: &str) -> bool {
        self.last(key) == Some(value)
    }

    fn against_worker(&self) -> Vec<Finding> {
        let unmet = NEEDS.iter().filter_map(|need| {
            let value = self.last(need.key).unwrap_or(need.default);
            let what = format!("{}={value}", need.key);
            (!(need.is_met)(value)).then(|| Finding::note(SUBJECT, what, need.remedy))
        });
        let mut findings: Vec<Finding> = unmet.collect();
        let stored = self.last("FileDescriptorStoreMax").unwrap_or("0");
        findings.extend(stored.parse().ok().and_then(descriptor_store));
        match self.last("WatchdogSec") {
            None | Some("0" | "infinity") => findings.push(Finding::note(
                SUBJECT,
                "no WatchdogSec=",
                "WatchdogSec=30s: a supervisor that stands still is killed then, and started again",
            )),
            Some(text) => findings.extend(units::duration(text).ok().and_then(watchdog)),
        }
        findings
    }

    fn against_settings(&self, settings: &Examined) -> Vec<Finding> {
        let mut findings = Vec::new();
        // The hard limit counts: a worker raises its soft limit to it.
        let files = self
            .last("LimitNOFILE")
            .and_then(|it| it.rsplit(':').next());
        if let (Some(limit), Some(http)) = (files.and_then(|it| it.parse().ok()), &settings.http) {
            let finding = host::open_files_of(limit, http);
            findings.extend((!finding.is_good()).then_some(Finding {
                subject: SUBJECT,
                ..finding
            }));
        }
        let model = settings.model_file();
        let is_home = |it: &PathBuf| {
            let full = it.canonicalize().unwrap_or_else(|_| it.clone());
            ["/home", "/root", "/run/user"]
                .iter()
                .any(|home| full.starts_with(home))
        };
        let hides_home = matches!(
            self.last("ProtectHome"),
            Some("yes" | "true" | "1" | "on" | "tmpfs")
        );
        if let Some(model) = model.filter(|it| hides_home && is_home(it)) {
            findings.push(Finding::bad(
                SUBJECT,
                format!("ProtectHome= hides {}", model.display()),
                "ProtectHome=read-only, or move the model, to /var/lib for example",
            ));
        }
        if !settings.device.is_cpu_alone() && self.hides_cards() {
            let what = "the unit hides NVIDIA's device nodes";
            let remedy =
                "DevicePolicy=closed with DeviceAllow=char-nvidia* rw, and no PrivateDevices=yes";
            findings.push(match settings.device.needs_cards() {
                true => Finding::bad(SUBJECT, what, remedy),
                false => Finding::note(SUBJECT, what, remedy),
            });
        }
        findings
    }

    fn hides_cards(&self) -> bool {
        let is_private = matches!(
            self.last("PrivateDevices"),
            Some("yes" | "true" | "1" | "on")
        );
        let is_closed = self.sets("DevicePolicy", "closed") || self.sets("DevicePolicy", "strict");
        let allowed = self.0.get("DeviceAllow");
        let names_them = allowed.is_some_and(|them| them.iter().any(|it| it.contains("nvidia")));
        // A list of other devices also implies a closed policy.
        let is_listed = is_closed || allowed.is_some_and(|them| !them.is_empty());
        is_private || (is_listed && !names_them)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_counts_and_an_empty_one_takes_back_the_others() {
        let unit = Unit::parse(
            "[Unit]\nType=x\n[Service]\n# Type=y\nType=exec\nType = notify\nDeviceAllow=a \\\nb\n\
             WatchdogSec=1\nWatchdogSec=\n[Install]\nType=z\n",
        );
        assert_eq!(unit.last("Type"), Some("notify"));
        assert_eq!(unit.last("DeviceAllow"), Some("a  b"));
        assert_eq!(unit.last("WatchdogSec"), None);
    }
}
