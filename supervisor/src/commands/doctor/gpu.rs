//! GPU: NVIDIA's driver, its device nodes, the child's report on the device, and NVML.
//!
//! With the CPU selected, nothing is checked. A missing GPU is bad if the settings name it; with `auto` the CPU serves
//! instead.

use super::Finding;
use crate::config::device::DeviceChoice;
use rustix::fs::{Access, access};
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;
use worker_orcd_engine::nvml::NvmlMonitor;
use worker_orcd_engine::nvml::driver_is_loaded;
use worker_orcd_engine::nvml::library::{Gauges, Identity};
use worker_orcd_lifecycle::RecoveryAction;

/// Time limit of NVML, which normally answers within 0.1 s, and never on a wedged device.
const NVML_PATIENCE: Duration = Duration::from_secs(5);

/// Oldest usable driver: the kernels are compiled with CUDA 13.
const OLDEST_DRIVER: u32 = 580;

const MEANWHILE: &str = "the CPU device serves meanwhile";

/// All findings about GPUs. `cards`: ordinals of the selected cards.
pub(super) fn all(
    choice: &DeviceChoice,
    cards: &[u32],
    outlook: Option<Result<String, String>>,
) -> Vec<Finding> {
    let Some(outlook) = outlook else {
        return vec![Finding::good("device", "cpu, as the settings say")];
    };
    let is_named = choice.needs_cards();
    let is_loaded = driver_is_loaded();
    let mut findings = Vec::new();
    if is_loaded {
        let text = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
        findings.extend(driver(&text));
        let names = fs::read_dir("/dev").into_iter().flatten().flatten();
        let names = names.filter_map(|it| it.file_name().into_string().ok());
        let may_open = |node: &str| {
            let path = Path::new("/dev").join(node);
            Ok(access(path, Access::READ_OK | Access::WRITE_OK)?)
        };
        findings.push(nodes(&names.collect::<Vec<_>>(), may_open));
    }
    findings.push(device(outlook, is_loaded, is_named));
    if is_loaded || is_named {
        findings.extend(cards.iter().map(|ordinal| {
            let which = match cards.len() {
                1 => String::new(),
                _ => format!("cuda:{ordinal}: "),
            };
            nvml(&which, NvmlMonitor::look(*ordinal, NVML_PATIENCE))
        }));
    }
    findings
}

/// Checks the version that the kernel module reports.
fn driver(text: &str) -> Option<Finding> {
    const SUBJECT: &str = "NVIDIA driver";
    let is_version = |word: &&str| {
        word.contains('.') && word.bytes().all(|it| it.is_ascii_digit() || it == b'.')
    };
    let version = text.lines().next()?.split_whitespace().find(is_version)?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    Some(if major < OLDEST_DRIVER {
        Finding::note(
            SUBJECT,
            format!("{version}, and the child's kernels need {OLDEST_DRIVER} or newer"),
            format!("install a driver of branch {OLDEST_DRIVER} or newer; {MEANWHILE}"),
        )
    } else {
        Finding::good(SUBJECT, version)
    })
}

/// Checks the nodes of every context: `/dev/nvidiactl`, `/dev/nvidia-uvm`, and those of the cards.
fn nodes(there: &[String], may_open: impl Fn(&str) -> io::Result<()>) -> Finding {
    const SUBJECT: &str = "device nodes";
    let is_card = |name: &&String| {
        let number = name.strip_prefix("nvidia");
        number.is_some_and(|it| !it.is_empty() && it.bytes().all(|b| b.is_ascii_digit()))
    };
    let cards: Vec<&str> = there.iter().filter(is_card).map(String::as_str).collect();
    let missing: Vec<&str> = ["nvidiactl", "nvidia-uvm"]
        .into_iter()
        .filter(|name| !there.iter().any(|it| it == name))
        .chain(cards.is_empty().then_some("nvidia0"))
        .collect();
    if !missing.is_empty() {
        return Finding::note(
            SUBJECT,
            format!("missing in /dev: {}", missing.join(", ")),
            format!(
                "run nvidia-modprobe -u -c 0, or pass the nodes into the container; {MEANWHILE}"
            ),
        );
    }
    let needed = ["nvidiactl", "nvidia-uvm"]
        .into_iter()
        .chain(cards.iter().copied());
    let refused = needed.filter_map(|name| Some(format!("/dev/{name}: {}", may_open(name).err()?)));
    let refused: Vec<String> = refused.collect();
    if refused.is_empty() {
        return Finding::good(SUBJECT, format!("{} of cards", cards.len()));
    }
    Finding::note(
        SUBJECT,
        refused.join("; "),
        format!(
            "give this user the nodes (a rule of udev, or the group they belong to); {MEANWHILE}"
        ),
    )
}

/// Checks the selected device. Without NVIDIA's driver, that is the only finding.
fn device(outlook: Result<String, String>, driver: bool, is_named: bool) -> Finding {
    const SUBJECT: &str = "device";
    match outlook {
        Ok(device) => Finding::good(SUBJECT, device),
        Err(why) if is_named => Finding::bad(
            SUBJECT,
            why,
            "bring it here, or say --device auto or cpu; worker-orcd-gpu --probe N asks again",
        ),
        Err(_) if !driver => Finding::note(
            SUBJECT,
            "no NVIDIA driver is loaded",
            "the CPU device serves without one; for a GPU, load it",
        ),
        // The error names the missing kernels and the remedy: kernels are part of the build.
        Err(why) => Finding::note(SUBJECT, why, MEANWHILE),
    }
}

/// Checks NVML's data about a device, as a worker would read it. `which`: device in the finding.
fn nvml(which: &str, look: Result<(Identity, Gauges), String>) -> Finding {
    const SUBJECT: &str = "NVML";
    match look {
        Err(reason) => Finding::note(
            SUBJECT,
            format!("{which}{reason}"),
            "bring libnvidia-ml.so.1 of the driver's own version; without it a worker serves, but \
             cannot tell Xids, ECC errors and leaked memory",
        ),
        Ok((identity, gauges)) => match gauges.action {
            Some(RecoveryAction::GpuReset | RecoveryAction::NodeReboot) => Finding::bad(
                SUBJECT,
                format!("{which}the driver asks for a reset of this GPU, or of the node"),
                "nvidia-smi --gpu-reset, or reboot",
            ),
            _ => Finding::good(SUBJECT, format!("{which}{}", in_words(&identity, &gauges))),
        },
    }
}

fn in_words(identity: &Identity, gauges: &Gauges) -> String {
    let word = |it: &Option<String>| it.clone().unwrap_or_else(|| "unknown".to_owned());
    let memory = gauges.memory.as_ref().map_or_else(
        || "memory unknown".to_owned(),
        |it| format!("{} of {} MiB free", it.free >> 20, it.total >> 20),
    );
    let action = gauges.action.map_or("unknown", RecoveryAction::name);
    format!(
        "{} ({}), driver {}, {memory}, recovery action {action}",
        word(&identity.name),
        word(&identity.uuid),
        word(&identity.driver),
    )
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_driver_that_is_older_than_the_kernels_is_noted() {
        let text = |version: &str| {
            format!("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release\n")
        };
        let new = driver(&text("580.159.04")).unwrap();
        assert!(matches!(new.verdict, Verdict::Good(what) if what == "580.159.04"));
        let old = driver(&text("535.86.10")).unwrap();
        assert!(matches!(old.verdict, Verdict::Note(why, _) if why.starts_with("535.86.10,")));
        assert!(driver("").is_none());
    }

    #[test]
    fn nodes_that_are_missing_or_closed_are_named() {
        let names = |names: &[&str]| names.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
        let all = names(&["null", "nvidia-uvm", "nvidia3", "nvidiactl", "nvidia-caps"]);
        let good = nodes(&all, |_| Ok(()));
        assert!(matches!(good.verdict, Verdict::Good(what) if what == "1 of cards"));
        let none = nodes(&names(&["nvidiactl", "nvidia-caps"]), |_| Ok(()));
        let Verdict::Note(why, remedy) = none.verdict else {
            panic!("missing nodes");
        };
        assert_eq!(why, "missing in /dev: nvidia-uvm, nvidia0");
        assert!(remedy.contains("nvidia-modprobe"), "{remedy}");
        let closed = nodes(&all, |node| match node {
            "nvidia3" => Err(io::ErrorKind::PermissionDenied.into()),
            _ => Ok(()),
        });
        let Verdict::Note(why, _) = closed.verdict else {
            panic!("a closed node");
        };
        assert_eq!(why, "/dev/nvidia3: permission denied");
    }

    #[test]
    fn a_device_that_the_child_can_compute_on_is_good_and_none_is_bad_only_where_it_was_named() {
        let good = device(Ok("a card".to_owned()), true, false);
        assert!(matches!(good.verdict, Verdict::Good(what) if what == "a card"));
        let no_kernels = || Err("this build carries no kernels".to_owned());
        let none = device(no_kernels(), false, false);
        assert!(matches!(none.verdict, Verdict::Note(why, _) if why.contains("no NVIDIA driver")));
        let unbuilt = device(no_kernels(), true, false);
        assert!(matches!(unbuilt.verdict, Verdict::Note(why, _) if why.contains("no kernels")));
        assert!(device(no_kernels(), true, true).is_bad());
    }

    #[test]
    fn a_gpu_that_needs_a_reset_is_bad_and_a_missing_library_is_not() {
        let look = |action| {
            let gauges = Gauges {
                action,
                ..Gauges::default()
            };
            (Identity::default(), gauges)
        };
        let good = nvml("cuda:1: ", Ok(look(Some(RecoveryAction::None))));
        assert!(
            matches!(&good.verdict, Verdict::Good(what) if what.starts_with("cuda:1: ") && what.ends_with("recovery action none"))
        );
        assert!(nvml("", Ok(look(Some(RecoveryAction::GpuReset)))).is_bad());
        let missing = nvml("", Err("no such file".to_owned()));
        assert!(matches!(missing.verdict, Verdict::Note(..)));
    }
}
