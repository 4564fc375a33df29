//! Report in Markdown, for the terminal and the repository.

use super::deaths::Deaths;
use super::pauses::{Hit, Pauses};
use super::stream::NOTABLE_GAP;
use super::tally::Tally;
use super::worker::{HEARTBEAT_SECONDS, STEP_SECONDS};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// Work that children adopted instead of computing it, since the start of the worker.
#[derive(Debug, Clone, Copy)]
pub struct Adopted {
    pub tokens: u64,
    pub changed_pages: u64,
}

#[derive(Debug)]
pub struct Report {
    pub command: String,
    pub commit: String,
    pub seed: u64,
    pub stormed_for: Duration,
    pub cold_starts: Vec<Duration>,
    pub pauses: Pauses,
    /// Injected faults and signals.
    pub hits: Vec<Hit>,
    pub deaths: u64,
    pub reports: Deaths,
    pub deaths_by_cause: Value,
    pub recoveries: Value,
    pub adopted: Adopted,
    pub memory: String,
    /// Verdict on a GPU's memory.
    pub vram: Option<String>,
    /// Devices that were out of use meanwhile.
    pub worn: Option<String>,
    /// Outcome of the siege.
    pub siege: Option<String>,
    /// Outcome of upgrades and deaths of the supervisor.
    pub handovers: Option<String>,
    pub tally: Tally,
    pub slowness: u32,
    /// Times of children's deaths.
    pub died: Vec<Instant>,
    pub violations: Vec<String>,
}

impl Report {
    pub fn markdown(&self) -> String {
        let mut out = self.head();
        out.push_str(&self.faults());
        out.push_str(&self.reports.markdown());
        out.push_str(&self.streams());
        out.push_str(&self.pause_table());
        let _ = writeln!(out, "Supervisor: {}.\n", self.memory);
        if let Some(vram) = &self.vram {
            let _ = writeln!(out, "Device memory, by nvidia-smi: {vram}.\n");
        }
        if let Some(worn) = &self.worn {
            out.push_str(worn);
            out.push('\n');
        }
        if let Some(siege) = &self.siege {
            out.push_str(siege);
            out.push('\n');
        }
        if let Some(handovers) = &self.handovers {
            out.push_str(handovers);
            out.push('\n');
        }
        out.push_str("## Violations\n\n");
        if self.violations.is_empty() {
            out.push_str("None.\n");
        }
        for violation in &self.violations {
            let _ = writeln!(out, "- {violation}");
        }
        out
    }

    fn head(&self) -> String {
        format!(
            "# {}\n\n\
             - command: `{}`, {} build\n- seed: {}\n- date: {}\n- commit: {}\n\
             - machine: {}, {} threads\n\n\
             {} deaths in {:.1} minutes under continuous streams; the worker was started once.\n\n",
            if self.siege.is_some() {
                "siege"
            } else {
                "chaos"
            },
            self.command,
            // The worker has the same profile as this program.
            if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
            self.seed,
            date(),
            self.commit,
            cpu_model(),
            std::thread::available_parallelism().map_or(0, usize::from),
            self.deaths,
            self.stormed_for.as_secs_f64() / 60.0,
        )
    }

    /// Table of faults. Two faults may share a death, and a signal may hit a child that is dying already.
    fn faults(&self) -> String {
        let mut out = "| fault | times |\n|---|---|\n".to_owned();
        let mut kinds = BTreeMap::<&str, u64>::new();
        for (kind, _) in &self.hits {
            *kinds.entry(kind).or_default() += 1;
        }
        for (kind, times) in kinds {
            let from = if kind.starts_with("SIG") {
                " (from outside)"
            } else {
                ""
            };
            let _ = writeln!(out, "| {kind}{from} | {times} |");
        }
        out.push_str("\n| noticed as | deaths |\n|---|---|\n");
        for (cause, deaths) in self.deaths_by_cause.as_object().into_iter().flatten() {
            let _ = writeln!(out, "| {cause} | {deaths} |");
        }
        out.push('\n');
        out
    }

    fn streams(&self) -> String {
        let tally = &self.tally;
        let mut out = tally.markdown(&self.died);
        let _ = writeln!(
            out,
            "\nA child died under a stream when that was behind its first word, and under an answer in one piece \
             when that had been asked for. Of all of them:\n\n\
             | answers | |\n|---|---|\n\
             | complete, byte for byte the reference | {} |\n\
             | … of which over at least one death, where the worker reports that (`/execute`) | {} |\n\
             | refused, as a hostile grammar should be | {} |\n\
             | cancelled by their client | {} |\n\
             | left by their client | {} |\n\
             | quarantined | {} |\n\
             | failed | {} |\n\
             | different from the reference, or not what they were held to | {} |\n\n\
             {} pieces were delivered, each once and in order; {} recoveries, at most {} in one \
             stream of `/execute`. {} tokens were adopted from dead children, and {} pages had changed.\n",
            tally.complete,
            tally.complete_after_recovery,
            tally.refused,
            tally.cancelled,
            tally.left,
            tally.quarantined,
            tally.failed,
            tally.mismatched,
            tally.pieces,
            self.recoveries,
            tally.most_recoveries,
            self.adopted.tokens,
            self.adopted.changed_pages,
        );
        out
    }

    fn pause_table(&self) -> String {
        let mut out = self.pauses.markdown();
        let starts: Vec<_> = self
            .cold_starts
            .iter()
            .map(|took| took.as_millis().to_string())
            .collect();
        let _ = writeln!(
            out,
            "\nA cold start of the worker took {} ms. A pause of a stream holds noticing, a new \
             child, its load, the wait for a slot and the prompt computed again; where the \
             child fell silent, also the deadline (heartbeat {} s, step {} s). Pauses below {} ms are \
             not in the table.\n",
            starts.join(" and "),
            HEARTBEAT_SECONDS * self.slowness,
            STEP_SECONDS * self.slowness,
            NOTABLE_GAP.as_millis(),
        );
        out
    }
}

fn date() -> String {
    let output = Command::new("date")
        .args(["-u", "+%Y-%m-%d %H:%M UTC"])
        .output();
    output.map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    line.and_then(|line| line.split_once(':')).map_or_else(
        || "unknown CPU".to_owned(),
        |(_, name)| name.trim().to_owned(),
    )
}
