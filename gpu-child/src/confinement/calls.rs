//! seccomp: system calls refused with `EPERM`, with any arguments.
//!
//! A deny list, not an allow list: NVIDIA's driver makes other calls in each release, and a list that stops a driver in
//! the middle of a stream costs more than it protects. `docs/internals/confinement.md` names each refused call with its
//! reason.

use super::Allowed;
use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

/// Numbers of calls; each is refused.
type Group = &'static [libc::c_long];

/// Replacement of this process's program, and creation of processes.
const PROGRAMS: Group = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Memory and descriptors of other processes.
const OTHERS: Group = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
];

/// Ways to make a system call past the filter.
const RINGS: Group = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Modes, owners and attributes of files, which Landlock does not cover.
const FILES: Group = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_open_by_handle_at,
];

/// Mounts and namespaces.
const PLACES: Group = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
];

/// The kernel itself, and the machine.
const KERNEL: Group = &[
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
];

/// Sockets, for a child that has both of the supervisor's and needs no other.
const SOCKETS: Group = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
];

const ALWAYS: [Group; 6] = [PROGRAMS, OTHERS, RINGS, FILES, PLACES, KERNEL];

/// Bit of the calls of x32 programs, which a 64-bit process may make too if the kernel supports them.
#[cfg(target_arch = "x86_64")]
const X32: libc::c_long = 0x4000_0000;

/// Calls with an x32 number of their own: execve, ptrace, kexec_load, process_vm_readv and process_vm_writev, execveat.
#[cfg(target_arch = "x86_64")]
const ONLY_X32: Group = &[520, 521, 528, 539, 540, 545];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Installs the filter.
///
/// # Errors
/// A description of the gap.
pub(super) fn restrict(allowed: &Allowed) -> Result<(), String> {
    let refused = |error: &dyn std::fmt::Display| format!("seccomp: {error}");
    let programs = programs(allowed).map_err(|error| refused(&error))?;
    for program in &programs {
        seccompiler::apply_filter(program).map_err(|error| refused(&error))?;
    }
    Ok(())
}

fn programs(allowed: &Allowed) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let mut rules = Rules::new();
    for call in ALWAYS.into_iter().flatten() {
        refuse(&mut rules, *call, None);
    }
    refuse(&mut rules, libc::SYS_clone, Some(other_process()?));
    if allowed.cuda {
        refuse(&mut rules, libc::SYS_socket, Some(other_family()?));
    } else {
        for call in SOCKETS {
            refuse(&mut rules, *call, None);
        }
    }
    #[cfg(target_arch = "x86_64")]
    for call in ONLY_X32 {
        refuse(&mut rules, X32 | *call, None);
    }
    // Its flags are in memory, which a filter cannot read: without it, the C library uses clone.
    let mut unknown = Rules::new();
    refuse(&mut unknown, libc::SYS_clone3, None);
    Ok([
        program(rules, libc::EPERM)?,
        program(unknown, libc::ENOSYS)?,
    ])
}

fn refuse(rules: &mut Rules, call: libc::c_long, only: Option<SeccompRule>) {
    let only: Vec<_> = only.into_iter().collect();
    #[cfg(target_arch = "x86_64")]
    rules.insert(X32 | call, only.clone());
    rules.insert(call, only);
}

/// Matches any clone that is not a thread of this process.
fn other_process() -> Result<SeccompRule, seccompiler::BackendError> {
    let thread = libc::CLONE_THREAD as u64;
    let flags = SeccompCmpOp::MaskedEq(thread);
    SeccompRule::new(vec![SeccompCondition::new(
        0,
        SeccompCmpArgLen::Qword,
        flags,
        0,
    )?])
}

/// Matches any socket family except local ones, which the driver uses.
fn other_family() -> Result<SeccompRule, seccompiler::BackendError> {
    let local = libc::AF_UNIX as u64;
    SeccompRule::new(vec![SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Ne,
        local,
    )?])
}

fn program(rules: Rules, errno: libc::c_int) -> Result<BpfProgram, seccompiler::BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let refusal = SeccompAction::Errno(errno.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, refusal, architecture)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::io::ErrorKind;
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;
    use std::thread;

    const ON_A_CARD: Allowed = Allowed {
        model: None,
        draft_model: None,
        trace: None,
        cuda: true,
        unconfined: false,
        removable: Vec::new(),
    };

    /// Runs `deed` confined, in a thread of its own: the filter ends with the thread.
    fn confined<T: Send>(allowed: &Allowed, deed: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                restrict(allowed).expect("this kernel has seccomp");
                deed()
            });
            thread.join().expect("the deed is done")
        })
    }

    /// Makes a call with invalid arguments.
    fn call(number: libc::c_long) -> Errno {
        // SAFETY: no call takes -1 for a pointer, a descriptor or a set of flags.
        let result = unsafe { libc::syscall(number, -1, -1, -1, -1, -1, -1) };
        assert_eq!(result, -1, "call {number} was followed");
        Errno::last()
    }

    #[test]
    fn every_call_of_the_list_is_refused_on_both_devices() {
        // Without the filter these would succeed.
        let forks = [libc::SYS_fork, libc::SYS_vfork];
        for allowed in [&Allowed::default(), &ON_A_CARD] {
            confined(allowed, || {
                for number in ALWAYS.into_iter().flatten() {
                    if !forks.contains(number) {
                        assert_eq!(call(*number), Errno::EPERM, "call {number}");
                    }
                }
                assert_eq!(call(libc::SYS_clone3), Errno::ENOSYS);
            });
        }
    }

    #[test]
    fn threads_begin_and_programs_do_not() {
        confined(&ON_A_CARD, || {
            assert_eq!(thread::spawn(|| 7).join().unwrap(), 7);
            let error = Command::new("/bin/true").spawn().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        });
        assert!(Command::new("/bin/true").status().unwrap().success());
    }

    #[test]
    fn a_card_s_driver_may_have_sockets_of_the_machine_and_nobody_any_of_the_network() {
        let made = |allowed: &Allowed| {
            confined(allowed, || {
                [
                    UnixDatagram::unbound().map(drop),
                    TcpListener::bind("127.0.0.1:0").map(drop),
                    UdpSocket::bind("127.0.0.1:0").map(drop),
                ]
                .map(|outcome| outcome.is_ok())
            })
        };
        assert_eq!(made(&Allowed::default()), [false; 3]);
        assert_eq!(made(&ON_A_CARD), [true, false, false]);
    }
}
