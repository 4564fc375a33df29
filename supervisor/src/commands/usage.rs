//! Messages about invalid settings.
//!
//! The text format has sentences with remedies; the JSON format has events.

use crate::commands::end_with;
use crate::config::environment::Environment;
use crate::config::{Config, ConfigErrors};
use crate::exit::WorkerExit;
use crate::logging::{self, LogFormat};
use clap::ArgMatches;
use worker_orcd_text::printable::printable;

const NEXT_STEPS: &str = "
Usage: worker-orcd --model FILE.gguf [--port 8080] [--device cpu]
       worker-orcd pull            gets a small model (98 MB), then: worker-orcd --model smollm2
       worker-orcd --help          lists every setting";

/// Reports every mistake.
pub(super) fn refuse(
    arguments: &ArgMatches,
    environment: &Environment,
    mistakes: &ConfigErrors,
) -> WorkerExit {
    let ConfigErrors(mistakes) = mistakes;
    let format = Config::log_format(arguments, environment);
    if format == LogFormat::Json && logging::start(format, "info", None).is_ok() {
        for mistake in mistakes {
            end_with(WorkerExit::Usage, mistake);
        }
    } else {
        for mistake in mistakes {
            eprintln!("error: {}", printable(mistake));
        }
        eprintln!("{NEXT_STEPS}");
    }
    WorkerExit::Usage
}
