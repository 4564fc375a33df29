//! Files of the worker: a model with a template for tools, in a siege a hostile one, and a small disk.

use super::template::bombs;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use worker_orcd_tests::gguf_patch::with_chat_template;
use worker_orcd_tests::tools_model::WITH_TOOLS;

/// 1 MiB: the logits trace fills it within seconds; later crash reports find no space.
const DISK: &str = "size=1m";

#[derive(Debug)]
pub struct Ground {
    _dir: TempDir,
    pub model: PathBuf,
    /// Mount point, if this user may mount.
    pub small_disk: Option<PathBuf>,
}

impl Ground {
    /// # Errors
    /// The model cannot be copied.
    pub fn prepare(model: &Path, is_besieged: bool) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // The file's name is the model's name in the API.
        let copy = dir.path().join(model.file_name().context("a model file")?);
        let template = match is_besieged {
            true => bombs(),
            false => WITH_TOOLS.to_owned(),
        };
        with_chat_template(model, &template, &copy).context("the model cannot be copied")?;
        if !is_besieged {
            return Ok(Self {
                _dir: dir,
                model: copy,
                small_disk: None,
            });
        }
        let disk = dir.path().join("disk");
        std::fs::create_dir(&disk)?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", DISK, "tmpfs"])
            .arg(&disk)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        Ok(Self {
            _dir: dir,
            model: copy,
            small_disk: mounted.then_some(disk),
        })
    }

    /// Description for the report.
    pub fn description(&self) -> &'static str {
        match self.small_disk {
            Some(_) => "Trace and crash reports went to a disk of 1 MiB.",
            None => "No small disk could be mounted: full disks were LEFT OUT.",
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(disk) = &self.small_disk {
            let _ = Command::new("umount").arg("--lazy").arg(disk).status();
        }
    }
}
