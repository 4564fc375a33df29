//! Headings of `--help`, and the options under each.

/// Headings in the order of `--help`, each with its options.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Model and device",
        &[
            "model",
            "offline",
            "served-model-name",
            "device",
            "gpu-device",
            "threads",
            "kv-cache-size",
            "gpu-memory-utilization",
            "max-running",
            "max-context",
            "prefill-chunk",
            "step-budget",
            "no-prefix-cache",
            "speculation",
            "child-binary",
            "child-confinement",
            "accept-fault-injection",
        ],
    ),
    (
        "Listening and access",
        &[
            "host",
            "port",
            "api-key-file",
            "admin-key-file",
            "admin-socket",
            "tls-cert",
            "tls-key",
            "insecure",
            "allowed-hosts",
            "cors-origins",
            "max-connections",
            "max-body-size",
            "max-bodies-size",
            "read-timeout",
            "write-timeout",
        ],
    ),
    (
        "Registration",
        &["worker-id", "callback-url", "advertise-url"],
    ),
    (
        "Requests",
        &[
            "max-tokens-in",
            "max-tokens-out",
            "max-prompt-chars",
            "max-queue",
            "inference-timeout",
            "parse-special",
            "strict-model-name",
            "no-model-sampling",
            "tool-call-parser",
            "reasoning-parser",
            "reasoning-budget",
            "pooling",
            "template-timeout",
        ],
    ),
    (
        "Deaths and endings",
        &[
            "on-fault",
            "heartbeat-timeout",
            "step-timeout",
            "load-timeout",
            "max-restarts",
            "max-restart-delay",
            "standby",
            "quarantine-for",
            "crash-dir",
            "max-crash-reports",
            "drain-timeout",
        ],
    ),
    (
        "Log and trace",
        &["log-format", "log-level", "trace-logits", "trace-values"],
    ),
];

/// Heading of all other options.
const REST: &str = "More";

#[must_use]
pub(super) fn heading(option: &str) -> &'static str {
    let group = GROUPS.iter().find(|(_, names)| names.contains(&option));
    group.map_or(REST, |(heading, _)| heading)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn an_option_has_one_heading() {
        let names: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert_eq!(heading("port"), "Listening and access");
        assert_eq!(heading("something-new"), REST);
    }
}
