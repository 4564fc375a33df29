//! Paths and addresses of the settings: keys, certificates, directories, sockets, and the port.
//!
//! The kernel reports whether a path is writable; no file remains. The port is bound and closed without listening, so
//! no client can connect.

use super::Finding;
use super::port;
use crate::config::HttpConfig;
use crate::config::examined::Examined;
use rustix::fs::{Access, access};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::path::Path;
use worker_orcd_engine::child::socket::PrivateDir;

pub(super) fn all(settings: &Examined) -> Vec<Finding> {
    let mistakes = settings.mistakes.iter().map(|mistake| {
        let remedy = "worker-orcd --help says what each setting takes";
        Finding::bad("settings", mistake, remedy)
    });
    let mut findings: Vec<Finding> = mistakes.collect();
    findings.extend(files(
        "keys",
        settings.keys.as_deref(),
        "one key a line (openssl rand -hex 32), in a file of the worker's own user and mode 600",
    ));
    findings.extend(files(
        "TLS",
        settings.tls.as_deref(),
        "--tls-cert takes the chain and --tls-key the key that belongs to it, both in PEM form, the \
         key of mode 600",
    ));
    findings.push(socket_directory());
    findings.push(crash_directory(settings.crash_directory.as_deref()));
    if let Some(http) = &settings.http {
        findings.extend(http.admin_socket.as_deref().map(admin_socket));
        findings.push(listening(http));
    }
    findings
}

/// Findings about files of an option. No finding without the option.
fn files(subject: &'static str, mistakes: Option<&[String]>, remedy: &'static str) -> Vec<Finding> {
    match mistakes {
        None => Vec::new(),
        Some([]) => vec![Finding::good(subject, "can be used")],
        Some(mistakes) => mistakes
            .iter()
            .map(|mistake| Finding::bad(subject, mistake, remedy))
            .collect(),
    }
}

/// Creates the directory as for a child, and removes it.
fn socket_directory() -> Finding {
    match PrivateDir::create() {
        Ok(_) => Finding::good("child's socket", "a directory for it can be made"),
        Err(error) => Finding::bad(
            "child's socket",
            error.to_string(),
            "name a short directory that can be written: TMPDIR=, or RuntimeDirectory= of a unit",
        ),
    }
}

/// Checks the nearest existing ancestor: the first report creates the directory.
fn crash_directory(directory: Option<&Path>) -> Finding {
    const SUBJECT: &str = "crash reports";
    const REMEDY: &str = "say --crash-dir with a directory that can be written; until then reports end with the worker";
    let Some(directory) = directory else {
        return Finding::note(SUBJECT, "there is no directory for them", REMEDY);
    };
    let name = directory.display();
    let nearest = directory
        .ancestors()
        .find(|it| it.symlink_metadata().is_ok());
    let nearest = match nearest {
        Some(nearest) => nearest,
        None => Path::new("."),
    };
    let is_open = match nearest.metadata() {
        Ok(facts) if facts.is_dir() => {
            access(nearest, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from)
        }
        Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
        Err(error) => Err(error),
    };
    match is_open {
        Ok(()) => Finding::good(SUBJECT, name.to_string()),
        Err(error) => Finding::note(
            SUBJECT,
            format!("{name}: {}: {error}", nearest.display()),
            REMEDY,
        ),
    }
}

/// A socket without a listener is replaced at start; a socket with one is an error.
fn admin_socket(path: &Path) -> Finding {
    const SUBJECT: &str = "admin socket";
    let name = path.display();
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    if let Err(error) = access(directory, Access::WRITE_OK | Access::EXEC_OK) {
        return Finding::bad(
            SUBJECT,
            format!("{}: {}", directory.display(), io::Error::from(error)),
            "name a path in a directory of the worker's own, such as RuntimeDirectory= of a unit",
        );
    }
    if is_listened_at(path) {
        return Finding::bad(
            SUBJECT,
            format!("{name}: already in use by another process"),
            "each worker needs a socket of its own; fuser names whose it is",
        );
    }
    Finding::good(SUBJECT, name.to_string())
}

fn is_listened_at(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (Ok(socket), Ok(address)) = (socket, SocketAddrUnix::new(path)) else {
        return false;
    };
    // A full queue also means a listener.
    matches!(
        connect(&socket, &address),
        Ok(()) | Err(rustix::io::Errno::AGAIN)
    )
}

fn listening(http: &HttpConfig) -> Finding {
    const SUBJECT: &str = "port";
    let tried = port::addresses(http)
        .into_iter()
        .map(|address| (address, port::try_bind(address)));
    // A missing IPv6 is no problem unless the settings name an IPv6 address.
    let is_optional = |error: &io::Error| {
        http.hosts.is_empty() && error.kind() == io::ErrorKind::AddrNotAvailable
    };
    let mut refused = tried.filter_map(|(address, result)| {
        let error = result.err()?;
        (!is_optional(&error)).then_some((address, error))
    });
    let Some((address, error)) = refused.next() else {
        return match http.port {
            0 => Finding::good(SUBJECT, "any that is free"),
            port => Finding::good(SUBJECT, format!("{port} is free")),
        };
    };
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let owner = port::owner(address.port());
            let owner = owner.unwrap_or_else(|| "a process that is not shown to this user".into());
            Finding::bad(
                SUBJECT,
                format!("{address} is taken by {owner}"),
                "end it, or say another --port; 0 takes a free one and says which",
            )
        }
        io::ErrorKind::AddrNotAvailable => Finding::bad(
            SUBJECT,
            format!("{address}: {error}"),
            "--host takes addresses of this machine (ip address lists them), or 0.0.0.0",
        ),
        _ => Finding::bad(
            SUBJECT,
            format!("{address}: {error}"),
            "say a --port of 1024 or above, or have systemd hand the socket over",
        ),
    }
}
