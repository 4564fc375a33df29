//! Environment variables. Every variable that begins with `WORKER_ORCD_` must be known.

use super::options::{self, CONFIG_FILE, PREFIX};
use std::collections::BTreeMap;

/// Variables of the build, the tests, and fault-injecting children. They are neither settings nor mistakes.
const OTHERS: [&str; 5] = [
    "WORKER_ORCD_FAMILIES",
    "WORKER_ORCD_FAULTS",
    "WORKER_ORCD_JAVASCRIPT",
    "WORKER_ORCD_KERNELS",
    "WORKER_ORCD_PYTHON",
];

/// Largest edit distance of a suggested name. Two exchanged neighbours count as two edits.
const MAX_SLIPS: usize = 3;

/// Names and values.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Variables of this process. Values that are not UTF-8 are converted lossily, so that they are refused.
    #[must_use]
    pub fn of_this_process() -> Self {
        let text = |it: std::ffi::OsString| it.to_string_lossy().into_owned();
        Self(
            std::env::vars_os()
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
        )
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    /// A mistake for each unknown variable with the prefix.
    pub(super) fn misspelt(&self) -> impl Iterator<Item = String> {
        self.0
            .keys()
            .filter(|name| name.starts_with(PREFIX) && !is_known(name) && !is_a_service(name))
            .map(|name| match nearest(name) {
                Some(meant) => format!("{name}: there is no such setting; {meant} is one"),
                None => format!("{name}: there is no such setting"),
            })
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(pairs: T) -> Self {
        Self(pairs.into_iter().collect())
    }
}

fn is_known(name: &str) -> bool {
    OTHERS.contains(&name) || settings().any(|it| it == name)
}

fn settings() -> impl Iterator<Item = String> {
    let names = options::all().map(|spec| spec.name);
    names.chain([CONFIG_FILE]).map(options::variable)
}

/// Whether it is a service variable of Kubernetes, which every pod gets for a service named `worker-orcd`.
fn is_a_service(name: &str) -> bool {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    let port = rest.strip_prefix("PORT_");
    rest == "SERVICE_HOST"
        || rest == "SERVICE_PORT"
        || rest.starts_with("SERVICE_PORT_")
        || port.is_some_and(|it| it.starts_with(|c: char| c.is_ascii_digit()))
}

fn nearest(name: &str) -> Option<String> {
    settings()
        .map(|setting| (slips(name, &setting), setting))
        .filter(|(slips, _)| *slips <= MAX_SLIPS)
        .min()
        .map(|(_, setting)| setting)
}

/// Levenshtein distance.
fn slips(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.bytes().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misspelt(names: &[&str]) -> Vec<String> {
        let pairs = names.iter().map(|it| ((*it).to_owned(), "1".to_owned()));
        pairs.collect::<Environment>().misspelt().collect()
    }

    #[test]
    fn a_variable_that_is_no_setting_is_named_with_the_one_that_was_meant() {
        assert_eq!(
            misspelt(&["WORKER_ORCD_PORTT", "WORKER_ORCD_MAX_QUEU"]),
            [
                "WORKER_ORCD_MAX_QUEU: there is no such setting; WORKER_ORCD_MAX_QUEUE is one",
                "WORKER_ORCD_PORTT: there is no such setting; WORKER_ORCD_PORT is one",
            ]
        );
        assert_eq!(
            misspelt(&["WORKER_ORCD_SOMETHING_ELSE"]),
            ["WORKER_ORCD_SOMETHING_ELSE: there is no such setting"]
        );
    }

    #[test]
    fn settings_other_programs_and_kubernetes_are_no_mistakes() {
        let fine = [
            "PATH",
            "WORKER_ORCD_CONFIG",
            "WORKER_ORCD_MODEL",
            "WORKER_ORCD_JAVASCRIPT",
            "WORKER_ORCD_PYTHON",
            "WORKER_ORCD_SERVICE_HOST",
            "WORKER_ORCD_SERVICE_PORT_HTTP",
            "WORKER_ORCD_PORT_8080_TCP_ADDR",
        ];
        assert_eq!(misspelt(&fine), [""; 0]);
    }
}
