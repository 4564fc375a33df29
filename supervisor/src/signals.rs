//! SIGTERM and SIGINT as words: the first drains, the second ends at once.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use tokio::sync::mpsc;

/// One item for each signal that comes from now on.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn watch() -> io::Result<mpsc::UnboundedReceiver<&'static str>> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                let name = if signal == SIGTERM {
                    "SIGTERM"
                } else {
                    "SIGINT"
                };
                if sender.send(name).is_err() {
                    return;
                }
            }
        })?;
    Ok(receiver)
}
