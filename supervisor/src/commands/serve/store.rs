//! systemd's descriptor store (`FileDescriptorStoreMax=`): keeps the handoff state if the supervisor dies.
//!
//! A bundle is stored when the model serves, and again after each change. The bundle contains the memory of the
//! journal's write-ahead log, which grows in place.

use super::handoff::SupervisorHandoff;
use crate::http::App;
use sd_notify::NotifyState;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::{info, warn};
use uuid::Uuid;

/// Number of the stored bundle; 0 if there is none.
#[derive(Debug, Clone)]
pub(super) struct Stored(Arc<AtomicU64>);

impl Stored {
    pub(super) fn behind(number: u64) -> Self {
        Self(Arc::new(AtomicU64::new(number)))
    }

    pub(super) fn number(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Stores the state and keeps the store current. No effect without a service manager; one without a store ignores it.
pub(super) async fn keep(app: Arc<App>, listeners: Arc<[TcpListener]>, stored: Stored) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let mut known = 0;
    while app.engine.handoff_changed(&mut known).await {
        let Some(engine) = app.engine.copy_handoff().await else {
            return;
        };
        let before = stored.number();
        let number = before + 1;
        let (worker_id, listeners) = (app.worker_id, Arc::clone(&listeners));
        let store = move || {
            let bundle = SupervisorHandoff {
                number,
                nonce: Uuid::nil(),
                worker_id,
                admin_socket: None,
                engine,
                listeners,
                connections: Vec::new(),
                listeners_given: false,
            };
            let bundle = bundle.pack()?;
            put(&name(number), &bundle)?;
            remove(&name(before))
        };
        // The service manager may not read.
        match tokio::task::spawn_blocking(store).await {
            Ok(Ok(())) => {
                info!(number, "handoff_stored");
                stored.0.store(number, Ordering::Release);
            }
            Ok(Err(error)) => warn!(%error, "handoff_not_stored"),
            Err(_) => return,
        }
    }
}

fn name(number: u64) -> String {
    format!("handoff-{number}")
}

fn put(name: &str, bundle: &impl AsFd) -> io::Result<()> {
    let words = [
        NotifyState::FdStore,
        NotifyState::FdName(name),
        // A closed peer is no reason to drop it.
        NotifyState::Custom("FDPOLL=0"),
    ];
    sd_notify::notify_with_fds(&words, &[bundle.as_fd()])
}

fn remove(name: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)])
}
