//! `--model`, and `--offline`, which forbids the download of a missing model.

use super::options::variable;
use super::reader::Reader;
use std::path::PathBuf;
use worker_orcd_cli::model_name::{Whereabouts, forbids_the_hub, resolve};

/// `None` only after an error was noted.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Whereabouts> {
    let is_forbidden = reader.switch("offline").then_some("--offline");
    if !reader.has("model") {
        let variable = variable("model");
        reader.error(format!(
            "--model (or {variable}) is needed: a .gguf file, or smollm2"
        ));
        return None;
    }
    reader.optional("model", |model| match resolve(model)? {
        Whereabouts::Elsewhere => match is_forbidden.or_else(forbids_the_hub) {
            Some(by) => Err(format!(
                "{model} is not here, and {by} forbids to get it; `worker-orcd pull {model}` does"
            )),
            None => Ok(Whereabouts::Elsewhere),
        },
        here => Ok(here),
    })
}

/// File of `--draft-model`. It is not downloaded.
pub(super) fn read_draft(reader: &mut Reader<'_>) -> Option<PathBuf> {
    reader.optional("draft-model", |model| match resolve(model)? {
        Whereabouts::Here(path) => Ok(path),
        Whereabouts::Elsewhere => Err(format!(
            "{model} is not here; `worker-orcd pull {model}` gets it"
        )),
    })
}
