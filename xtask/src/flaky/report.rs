//! `bench/results/flaky.md`: sittings of `cargo xtask flaky`, and passed and failed runs of each program.
//!
//! The file is read before a sitting and written after each program, so a sitting continues where the previous one
//! stopped.

use anyhow::Result;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const HEAD: &str = "# flaky\n\n\
    Runs of test programs beside busy processes: `cargo xtask flaky --rounds N --load K`, in sittings. A program that failed\n\
    is mended and then run anew (`--again --only NAME`).\n";

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rows of the first table.
    sittings: Vec<String>,
    /// Passed and failed runs by program.
    runs: BTreeMap<String, [u32; 2]>,
}

impl Report {
    /// Report of earlier sittings, empty if there is no file.
    pub fn read(path: &Path) -> Self {
        fs::read_to_string(path).map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        Ok(fs::write(path, self.text())?)
    }

    pub fn begin(&mut self, date: &str, commit: &str, command: &str) {
        self.sittings
            .push(format!("| {date} | {commit} | `{command}` |"));
    }

    /// Drops the runs of each program that `is_chosen` accepts.
    pub fn forget(&mut self, is_chosen: impl Fn(&str) -> bool) {
        self.runs.retain(|name, _| !is_chosen(name));
    }

    pub fn add(&mut self, program: &str, passed: bool) {
        self.runs.entry(program.to_owned()).or_default()[usize::from(!passed)] += 1;
    }

    /// Runs of a program, passed or failed.
    pub fn runs(&self, program: &str) -> u32 {
        self.runs.get(program).map_or(0, |it| it.iter().sum())
    }

    /// Programs that failed at least once: name, runs that passed, runs that failed.
    pub fn failed(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        let failed = self.runs.iter().filter(|(_, [_, failed])| *failed > 0);
        failed.map(|(name, [passed, failed])| (name.as_str(), *passed, *failed))
    }

    fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let [_, name, passed, failed, _] = cells[..] else {
                continue;
            };
            if let (Ok(passed), Ok(failed)) = (passed.parse(), failed.parse()) {
                report.runs.insert(name.to_owned(), [passed, failed]);
            } else if failed.starts_with('`') {
                report.sittings.push(line.to_owned());
            }
        }
        report
    }

    fn text(&self) -> String {
        let sittings = self.sittings.join("\n");
        let runs = self.runs.iter();
        let runs: String = runs
            .map(|(name, [passed, failed])| format!("| {name} | {passed} | {failed} |\n"))
            .collect();
        format!(
            "{HEAD}\n| sitting | commit | command |\n|---|---|---|\n{sittings}\n\n\
             | program | passed | failed |\n|---|---|---|\n{runs}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let mut report = Report::default();
        report.begin("2026-11-28 07:50 UTC", "60eac5ab", "cargo xtask flaky");
        report.add("tests/tests/a.rs", true);
        report.add("tests/tests/a.rs", false);
        report.add("tests/tests/b.rs (pace)", true);
        let mut read = Report::parse(&report.text());
        assert_eq!(read, report);
        assert_eq!(read.runs("tests/tests/a.rs"), 2);
        assert_eq!(
            read.failed().collect::<Vec<_>>(),
            [("tests/tests/a.rs", 1, 1)]
        );
        read.forget(|name| name.contains("a.rs"));
        assert_eq!(read.runs("tests/tests/a.rs"), 0);
        assert_eq!(read.runs("tests/tests/b.rs (pace)"), 1);
    }
}
