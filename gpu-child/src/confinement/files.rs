//! Landlock: the accessible files, with the permitted operations. Any other access is refused with `EACCES`; files that
//! are open already, and received descriptors, stay usable.
//!
//! It also denies TCP ports, abstract sockets and signals to other processes. Gaps, such as the mode of a file, are
//! closed by the [system call filter](super::calls).

use super::Allowed;
use crate::device::cuda::KERNELS_VARIABLE;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, make_bitflags, path_beneath_rules,
};
use std::path::PathBuf;
use std::{env, fs};
use worker_orcd_ipc::model_parts;

/// Version of the interface; later features are not used.
const ALL: ABI = ABI::V6;

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{WriteFile});
const READ_AND_WRITE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile});
const DEVICE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | IoctlDev});
const REWRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{WriteFile | Truncate});
const REMOVE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{RemoveFile});

/// Files that this process and its libraries read: the process, its memory, its share of the machine.
const OF_THE_MACHINE: [&str; 9] = [
    "/proc/self",
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/stat",
    "/proc/sys/vm",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/dev/urandom",
];

/// Files that NVIDIA's driver reads: kernel interfaces, the bus, its libraries and their settings.
const OF_THE_DRIVER: [&str; 18] = [
    "/proc/driver",
    "/proc/devices",
    "/proc/modules",
    "/proc/version",
    "/proc/filesystems",
    "/proc/sys/kernel",
    "/sys/devices",
    "/sys/bus",
    "/sys/class",
    "/sys/module",
    "/etc/ld.so.cache",
    "/etc/nvidia",
    "/usr/share/nvidia",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local",
];

/// Default directory of NVIDIA's Multi-Process Service.
const MPS_DIRECTORY: &str = "/tmp/nvidia-mps";

/// Rights and their paths. A missing or empty path grants nothing.
type Row = (BitFlags<AccessFs>, Vec<PathBuf>);

/// Installs the rules.
///
/// # Errors
/// A description of the gap.
pub(super) fn restrict(allowed: &Allowed) -> Result<(), String> {
    let status = put_on(&rows(allowed)).map_err(|error| format!("Landlock: {error}"))?;
    judge(status.ruleset, status.landlock)
}

fn judge(ruleset: RulesetStatus, landlock: LandlockStatus) -> Result<(), String> {
    match (ruleset, landlock) {
        (RulesetStatus::FullyEnforced, _) => Ok(()),
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => {
            Err(format!(
                "Landlock: this kernel has version {} of it, and {} is needed for all",
                effective_abi as i32, ALL as i32
            ))
        }
        (_, landlock) => Err(format!("Landlock: this kernel has none ({landlock:?})")),
    }
}

fn put_on(rows: &[Row]) -> Result<landlock::RestrictionStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(ALL))?
        .handle_access(AccessNet::from_all(ALL))?
        .scope(Scope::from_all(ALL))?
        .create()?;
    for (access, paths) in rows {
        rules = rules.add_rules(path_beneath_rules(paths, *access))?;
    }
    rules.restrict_self()
}

fn rows(allowed: &Allowed) -> Vec<Row> {
    let paths = |texts: &[&str]| texts.iter().map(PathBuf::from).collect();
    let mut rows = vec![
        (
            READ,
            allowed
                .model
                .iter()
                .chain(&allowed.draft_model)
                .flat_map(|it| model_parts(it))
                .collect(),
        ),
        (WRITE, allowed.trace.iter().cloned().collect()),
        (READ, paths(&OF_THE_MACHINE)),
        (READ_AND_WRITE, paths(&["/dev/null", "/dev/zero"])),
        (REMOVE, allowed.removable.clone()),
    ];
    if allowed.cuda {
        rows.extend([
            (DEVICE, device_nodes()),
            (READ, paths(&OF_THE_DRIVER)),
            // The driver names its threads, and fails if it cannot.
            (REWRITE, paths(&["/proc/self/task"])),
            (READ, named_in("LD_LIBRARY_PATH")),
            (READ, named_in(KERNELS_VARIABLE)),
        ]);
        rows.extend(multi_process_service());
    }
    rows
}

/// Device nodes of every card: the driver enumerates the cards that it can open, so a missing one would change the
/// ordinals.
fn device_nodes() -> Vec<PathBuf> {
    let nodes = fs::read_dir("/dev").into_iter().flatten().flatten();
    let of_the_driver =
        |node: &fs::DirEntry| node.file_name().as_encoded_bytes().starts_with(b"nvidia");
    nodes
        .filter(of_the_driver)
        .map(|node| node.path())
        .collect()
}

fn named_in(variable: &str) -> Vec<PathBuf> {
    let value = env::var_os(variable).unwrap_or_default();
    env::split_paths(&value).collect()
}

/// Rows for the Multi-Process Service: sockets and files in its directory, and shared memory.
fn multi_process_service() -> Vec<Row> {
    let given = env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    let directory = given.map_or_else(|| MPS_DIRECTORY.into(), PathBuf::from);
    if !directory.join("control").exists() {
        return Vec::new();
    }
    let shared = make_bitflags!(AccessFs::{
        ReadFile | ReadDir | WriteFile | Truncate | MakeReg | RemoveFile
    });
    vec![
        (READ_AND_WRITE, vec![directory]),
        (shared, vec![PathBuf::from("/dev/shm")]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::thread;

    /// Runs code confined, in a thread of its own: the rules end with the thread.
    fn confined<T: Send>(allowed: &Allowed, deed: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                restrict(allowed).expect("this kernel has all of Landlock");
                deed()
            });
            thread.join().expect("the deed is done")
        })
    }

    fn refused<T>(outcome: std::io::Result<T>) -> bool {
        outcome.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    }

    #[test]
    fn the_model_is_read_the_trace_appended_to_and_their_neighbours_are_out_of_reach() {
        let directory = tempfile::tempdir().unwrap();
        let [model, draft, trace, other] =
            ["model", "draft", "trace", "other"].map(|name| directory.path().join(name));
        for file in [&model, &draft, &trace, &other] {
            fs::write(file, "text").unwrap();
        }
        let allowed = Allowed {
            model: Some(model.clone()),
            draft_model: Some(draft.clone()),
            trace: Some(trace.clone()),
            ..Allowed::default()
        };
        let append = |path| File::options().append(true).create(true).open(path);
        confined(&allowed, || {
            for readable in [&model, &draft] {
                assert_eq!(fs::read_to_string(readable).unwrap(), "text");
            }
            append(&trace).unwrap();
            for wrong in [&other, &trace] {
                assert!(refused(File::open(wrong)), "{wrong:?} is read");
            }
            for wrong in [&other, &model, &draft] {
                assert!(refused(append(wrong)), "{wrong:?} is written");
                assert!(refused(fs::remove_file(wrong)), "{wrong:?} is removed");
            }
            assert!(refused(File::create(&trace)), "it is emptied");
            assert!(refused(File::create(directory.path().join("new"))));
            assert!(refused(fs::read_dir(directory.path())));
            assert!(refused(fs::read_link("/proc/1/exe")), "a process outside");
        });
        assert!(append(&model).is_ok(), "it is Landlock that refuses");
    }

    #[test]
    fn what_the_cpu_device_asks_of_the_machine_is_read() {
        confined(&Allowed::default(), || {
            for path in [
                "/proc/meminfo",
                "/proc/cpuinfo",
                "/proc/self/cgroup",
                "/proc/self/mountinfo",
                "/proc/thread-self/status",
            ] {
                fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            }
            for path in ["/proc/1/status", "/proc/version", "/etc/passwd"] {
                assert!(fs::read(path).is_err(), "{path}");
            }
        });
    }

    #[test]
    fn the_driver_s_files_are_open_to_a_child_on_a_card_alone() {
        let on_a_card = Allowed {
            cuda: true,
            ..Allowed::default()
        };
        let reads = |allowed: &Allowed| {
            confined(allowed, || {
                ["/etc/ld.so.cache", "/proc/version", "/etc/passwd"]
                    .map(|path| fs::read(path).is_ok())
            })
        };
        assert_eq!(reads(&Allowed::default()), [false; 3]);
        assert_eq!(reads(&on_a_card), [true, true, false]);
    }

    #[test]
    fn what_a_kernel_lacks_is_told() {
        let fourth = LandlockStatus::Available {
            effective_abi: ABI::V4,
            kernel_abi: None,
        };
        let newest = LandlockStatus::Available {
            effective_abi: ABI::V7,
            kernel_abi: Some(99),
        };
        assert_eq!(judge(RulesetStatus::FullyEnforced, newest), Ok(()));
        let some = judge(RulesetStatus::PartiallyEnforced, fourth).unwrap_err();
        assert!(
            some.contains("version 4") && some.contains("6 is needed"),
            "{some}"
        );
        let none = judge(RulesetStatus::NotEnforced, LandlockStatus::NotEnabled).unwrap_err();
        assert!(none.contains("has none"), "{none}");
    }

    #[test]
    fn ports_and_abstract_sockets_of_others_are_out_of_reach() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let name = format!("worker-orcd-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(name).unwrap();
        let _other = UnixListener::bind_addr(&abstract_name).unwrap();
        confined(&Allowed::default(), || {
            assert!(refused(TcpStream::connect(address)));
            assert!(refused(TcpListener::bind("127.0.0.1:0")));
            assert!(refused(UnixStream::connect_addr(&abstract_name)));
        });
        UnixStream::connect_addr(&abstract_name).unwrap();
    }
}
