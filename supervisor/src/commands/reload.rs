//! SIGHUP: reloads keys, certificate and log level. If one of them is invalid, none changes.

use crate::config::ConfigErrors;
use crate::config::again::Again;
use crate::config::environment::Environment;
use crate::http::App;
use crate::logging;
use clap::ArgMatches;
use std::sync::Arc;

pub(super) async fn reload(app: Arc<App>, arguments: Arc<ArgMatches>) {
    // Disk reads may block.
    let read = tokio::task::spawn_blocking(move || {
        Again::read(&arguments, &Environment::of_this_process())
    });
    let Ok(read) = read.await else { return };
    let taken = match read {
        Ok(again) => take_over(&app, again).map_err(|reason| vec![reason]),
        Err(ConfigErrors(mistakes)) => Err(mistakes),
    };
    for reason in taken.err().into_iter().flatten() {
        tracing::error!(reason, "reload_failed");
    }
}

/// Applies the reloaded settings. The fallible one is first, so that an error changes nothing.
fn take_over(app: &App, again: Again) -> Result<(), String> {
    if app.tls.is_some() != again.tls.is_some() {
        return Err(
            "TLS begins and ends with a start alone; everything stays as it was".to_owned(),
        );
    }
    let before = app.keys.replace(&again.keys);
    let before = before.ok_or("a key file is named no more; the old keys stay")?;
    logging::reload(&again.log_level)?;
    if let (Some(tls), Some(server)) = (&app.tls, again.tls) {
        tls.replace(server);
    }
    tracing::info!(
        api_keys = again.keys.clients.len(),
        admin_keys = again.keys.admins.len(),
        before,
        tls = app.tls.is_some(),
        log_level = again.log_level,
        "reload"
    );
    Ok(())
}
