//! The one table of options: flag, environment variable, TOML key, help and default.
//!
//! `--max-queue 8`, `WORKER_ORCD_MAX_QUEUE=8` and `max-queue = 8` are the same option.

/// The form of an option on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    Value(&'static str),
    /// May be given several times; elsewhere separated by commas.
    List(&'static str),
    Switch,
}

/// One option.
#[derive(Debug)]
pub struct Spec {
    pub name: &'static str,
    pub syntax: Syntax,
    pub help: &'static str,
    /// The default as it would be written; `None` where absence means something of its own.
    pub default: Option<&'static str>,
}

const fn value(
    name: &'static str,
    metavar: &'static str,
    default: Option<&'static str>,
    help: &'static str,
) -> Spec {
    Spec {
        name,
        syntax: Syntax::Value(metavar),
        help,
        default,
    }
}

/// All options, in the order of `--help`.
pub const OPTIONS: &[Spec] = &[
    value(
        "model",
        "FILE",
        None,
        "A .gguf file, or a name that `pull` knows, such as smollm2, which is got where it is not here yet",
    ),
    Spec {
        name: "offline",
        syntax: Syntax::Switch,
        help: "Never get a model: one that is not here is a mistake; so does HF_HUB_OFFLINE=1",
        default: None,
    },
    value(
        "device",
        "DEVICE",
        Some("auto"),
        "cuda:N, cpu, several of them (cuda:0,cuda:1), all (every CUDA device), or auto: the first CUDA device \
         that can be used, else cpu. Decided once, at start",
    ),
    value("gpu-device", "N", None, "The same as --device cuda:N"),
    Spec {
        name: "host",
        syntax: Syntax::List("ADDRESS"),
        help: "Addresses to listen at [default: 127.0.0.1 and ::1]",
        default: None,
    },
    value(
        "port",
        "PORT",
        Some("8080"),
        "0 takes a free one and says which",
    ),
    value(
        "worker-id",
        "UUID",
        None,
        "Identity of this worker [default: generated]",
    ),
    value(
        "callback-url",
        "URL",
        None,
        "http:// or https:// URL that gets a registration by POST once the model is ready",
    ),
    value(
        "advertise-url",
        "URL",
        None,
        "URL at which others reach this worker, for the registration [default: the first address]",
    ),
    value(
        "api-key-file",
        "FILE",
        None,
        "Bearer keys, one a line; asked of every caller but probes. Nobody else may read it",
    ),
    value(
        "admin-key-file",
        "FILE",
        None,
        "Keys that alone open /shutdown, /restart and /crashes, and everything else too",
    ),
    value(
        "admin-socket",
        "PATH",
        None,
        "Unix socket of the operator, who needs no key there; /shutdown, /restart and /crashes are answered \
         nowhere else then, or to keys of --admin-key-file",
    ),
    value(
        "tls-cert",
        "FILE",
        None,
        "Speak HTTPS: the certificate, and those that vouch for it, in PEM form [default: HTTP]",
    ),
    value(
        "tls-key",
        "FILE",
        None,
        "The certificate's private key, in PEM form. Nobody else may read it",
    ),
    Spec {
        name: "insecure",
        syntax: Syntax::Switch,
        help: "Listen beyond loopback without keys",
        default: None,
    },
    Spec {
        name: "allowed-hosts",
        syntax: Syntax::List("NAME"),
        help: "More names that a Host header may have, or * [default on loopback: localhost and \
               addresses; else any]",
        default: None,
    },
    Spec {
        name: "cors-origins",
        syntax: Syntax::List("ORIGIN"),
        help: "Pages that may use this worker, such as https://app.example, or * [default: none]",
        default: None,
    },
    Spec {
        name: "served-model-name",
        syntax: Syntax::List("NAME"),
        help: "Names by which clients may call the model; answers use the first [default: the file's name]",
        default: None,
    },
    value(
        "max-tokens-in",
        "N",
        None,
        "Longest prompt, in tokens [default: the model's context]",
    ),
    value(
        "max-tokens-out",
        "N",
        None,
        "Longest answer, in tokens [default: 2048 for /execute, else the model's context]",
    ),
    value(
        "max-prompt-chars",
        "N",
        None,
        "Longest prompt or message list, in characters [default: 32768 for /execute, else what \
         fits the context]",
    ),
    Spec {
        name: "parse-special",
        syntax: Syntax::Switch,
        help: "Texts of special tokens in messages are those tokens, as other servers have it",
        default: None,
    },
    Spec {
        name: "strict-model-name",
        syntax: Syntax::Switch,
        help: "Requests that name a model by none of its names are refused",
        default: None,
    },
    Spec {
        name: "no-model-sampling",
        syntax: Syntax::Switch,
        help: "Sampling defaults are the documented ones, whatever general.sampling.* of the model \
               file says",
        default: None,
    },
    value(
        "tool-call-parser",
        "SYNTAX",
        None,
        "How the model writes calls of tools: hermes, llama3, mistral, phi, harmony or none [default: as its chat \
         template teaches it]",
    ),
    value(
        "reasoning-parser",
        "SYNTAX",
        None,
        "How the model writes what it thinks: think (<think>…</think>), harmony (gpt-oss's channels) or none [default: \
         as its chat template has it]",
    ),
    value(
        "reasoning-budget",
        "N",
        None,
        "Tokens that a model may think before it answers, where a request does not say [default: no bound]",
    ),
    value(
        "pooling",
        "HOW",
        None,
        "How texts become embeddings: last, mean or cls [default: as the model file says]",
    ),
    value(
        "template-timeout",
        "TIME",
        Some("3s"),
        "A chat template that takes longer is stopped, and its request refused",
    ),
    value(
        "inference-timeout",
        "TIME",
        None,
        "End requests that take longer [default: never]",
    ),
    value(
        "max-queue",
        "N",
        Some("256"),
        "Requests that may wait; more get 429, and the last eighth is for clients that have none yet",
    ),
    value(
        "max-running",
        "N",
        Some("16"),
        "Requests decoded in one step",
    ),
    value(
        "max-context",
        "N",
        None,
        "Tokens of prompt and answer together [default: the model's context]",
    ),
    value(
        "kv-cache-size",
        "BYTES",
        None,
        "Size of the KV cache, such as 512MiB [default: what the device can spare]",
    ),
    value(
        "gpu-memory-utilization",
        "SHARE",
        None,
        "CUDA device, without --kv-cache-size: share of its memory for weights, KV cache and \
         scratch [default: 0.9]",
    ),
    value(
        "prefill-chunk",
        "N",
        None,
        "Prompt tokens computed in one step, at most [default: 1792 with a CUDA device, 512 without]",
    ),
    value(
        "step-budget",
        "TIME",
        None,
        "Time that a step which decodes may take with prompts in it; they get no more of it than fits, but a few \
         tokens always [default: by what decoding alone takes, and by how many wait for a first token]",
    ),
    value(
        "threads",
        "N",
        None,
        "CPU device: compute threads [default: all cores]",
    ),
    Spec {
        name: "no-prefix-cache",
        syntax: Syntax::Switch,
        help: "Compute equal prompt beginnings every time; a standby adopts no keys and values then",
        default: None,
    },
    value(
        "on-fault",
        "WHAT",
        Some("resume"),
        "When a child dies: resume its streams, or fail them",
    ),
    value(
        "drain-timeout",
        "TIME",
        Some("5s"),
        "Time from SIGTERM to the end of what still runs",
    ),
    value(
        "heartbeat-timeout",
        "TIME",
        Some("2s"),
        "A child silent for longer is replaced",
    ),
    value(
        "step-timeout",
        "TIME",
        Some("60s"),
        "A child whose step takes longer is replaced",
    ),
    value(
        "load-timeout",
        "TIME",
        Some("30s"),
        "A load that stands still for longer is given up",
    ),
    value(
        "max-restarts",
        "N",
        Some("5"),
        "Children in a row that may die without a token delivered; after one more the worker gives up",
    ),
    value(
        "max-restart-delay",
        "TIME",
        Some("8s"),
        "Longest wait before a new child; it doubles with each death in a minute",
    ),
    Spec {
        name: "standby",
        syntax: Syntax::Switch,
        help: "Keep a second child ready, with the weights of the first, which takes over at its death; on a CUDA \
               device each gets half of the KV cache",
        default: None,
    },
    value(
        "crash-dir",
        "DIRECTORY",
        None,
        "Directory of crash reports [default: systemd's or the user's state directory]",
    ),
    value(
        "max-crash-reports",
        "N",
        Some("50"),
        "Crash reports that are kept; the oldest make room for more",
    ),
    value(
        "quarantine-for",
        "TIME",
        Some("10min"),
        "A request that kills a child when it runs alone is refused this long",
    ),
    value(
        "max-body-size",
        "BYTES",
        Some("4MiB"),
        "Largest request body",
    ),
    value(
        "max-bodies-size",
        "BYTES",
        Some("32MiB"),
        "All request bodies under way together; those that find no room get 429",
    ),
    value(
        "max-connections",
        "N",
        Some("1024"),
        "Connections at one time, no more than file descriptors allow; idle ones give way",
    ),
    value(
        "read-timeout",
        "TIME",
        Some("15s"),
        "Time for a request's head, and again for its body",
    ),
    value(
        "write-timeout",
        "TIME",
        Some("30s"),
        "A client that reads nothing for longer is dropped",
    ),
    value(
        "trace-logits",
        "FILE",
        None,
        "Write one JSON line per token; needs one device",
    ),
    value(
        "trace-values",
        "N",
        Some("16"),
        "Values of each row in the trace",
    ),
    value(
        "child-binary",
        "FILE",
        None,
        "[default: worker-orcd-gpu beside this program]",
    ),
    value(
        "child-confinement",
        "WHAT",
        Some("on"),
        "on: a child has no network, starts no program and opens no file but the model and what its device \
         needs; off: it may do what this user may",
    ),
    Spec {
        name: "accept-fault-injection",
        syntax: Syntax::Switch,
        help: "Serve with a child that was built to fail on command; never in production",
        default: None,
    },
    value(
        "log-format",
        "FORMAT",
        Some("auto"),
        "json, text, or auto (text on a terminal)",
    ),
    value(
        "log-level",
        "LEVEL",
        Some("info"),
        "error, warn, info, debug, trace or off; or by module, as in info,worker_orcd::http=trace",
    ),
];

/// Reads no other option, so it is not one of the table.
pub const CONFIG_FILE: &str = "config";

pub const PREFIX: &str = "WORKER_ORCD_";

/// `WORKER_ORCD_MAX_QUEUE` for `max-queue`.
#[must_use]
pub fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"))
}

#[must_use]
pub fn spec(name: &str) -> Option<&'static Spec> {
    OPTIONS.iter().find(|spec| spec.name == name)
}
