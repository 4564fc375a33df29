//! Table of options: flag, environment variable, TOML key, help and default.
//!
//! `--max-queue 8`, `WORKER_ORCD_MAX_QUEUE=8` and `max-queue = 8` are the same option.

/// Form of an option on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    Value(&'static str),
    /// Repeatable flag; separated by commas in other sources.
    List(&'static str),
    Switch,
}

/// One option.
#[derive(Debug)]
pub struct Spec {
    pub name: &'static str,
    pub syntax: Syntax,
    pub help: &'static str,
    /// Default in its text form. `None`: absence has its own meaning.
    pub default: Option<&'static str>,
}

/// Declares the groups. A row is a kind, a name, the value's name, a default if there is one, and the help text.
macro_rules! options {
    ($($heading:literal {
        $($kind:ident $name:literal $($value:ident)? $(= $default:literal)?, $help:literal;)+
    })+) => {
        &[$(($heading, &[$(Spec {
            name: $name,
            syntax: options!(@$kind $($value)?),
            help: $help,
            default: options!(@default $($default)?),
        },)+]),)+]
    };
    (@value $value:ident) => { Syntax::Value(stringify!($value)) };
    (@list $value:ident) => { Syntax::List(stringify!($value)) };
    (@switch) => { Syntax::Switch };
    (@default) => { None };
    (@default $default:literal) => { Some($default) };
}

/// Headings of `--help` in its order, each with its options.
pub const GROUPS: &[(&str, &[Spec])] = options! {
    "Model and device" {
        value "model" FILE,
            "A .gguf file, or a name that `pull` accepts, such as smollm2; the model is downloaded if it is not in the cache";
        switch "offline",
            "Never download a model; a missing one is an error. HF_HUB_OFFLINE=1 does the same";
        value "device" DEVICE = "auto",
            "cuda:N, cpu, a list (cuda:0,cuda:1), all (every CUDA device), or auto: the first usable CUDA device, else cpu. Decided once, at start";
        value "gpu-device" N,
            "The same as --device cuda:N";
        list "served-model-name" NAME,
            "Names of the model in requests; responses use the first [default: the file's name]";
        value "max-running" N = "16",
            "Maximum number of requests in one step";
        value "max-context" N,
            "Maximum tokens of prompt and answer together [default: the model's context]";
        value "kv-cache-size" BYTES,
            "Size of the KV cache, such as 512MiB [default: CUDA: by --gpu-memory-utilization; CPU: some sequences, in at most a quarter of the free memory]";
        value "gpu-memory-utilization" SHARE,
            "Share of a CUDA device's memory for weights, KV cache and scratch, without --kv-cache-size [default: 0.9]";
        value "prefill-chunk" N,
            "Maximum prompt tokens in one step [default: 1792 with a CUDA device, 512 without]";
        value "step-budget" TIME,
            "Maximum time of a step that decodes and also computes prompt tokens; a few prompt tokens are always allowed [default: derived from the time of decoding alone and the number of waiting prompts]";
        value "threads" N,
            "Compute threads of the CPU device [default: all cores]";
        switch "no-prefix-cache",
            "Do not reuse the KV cache of equal prompt prefixes; a standby then adopts no KV cache";
        value "speculation" SOURCE,
            "Source of drafts for speculative decoding: text and prediction of the same request (text), also a draft model (auto), or none (off); tokens are the same [default: auto with --draft-model, else off]";
        value "draft-model" FILE,
            "A second, smaller model with the same tokens, such as the smallest of a family: a .gguf file, or a downloaded name that `pull` accepts";
        value "child-binary" FILE,
            "Program of the child [default: worker-orcd-gpu beside this program]";
        value "child-confinement" WHAT = "on",
            "on: a child has no network, starts no program and opens no file except the model and device files; off: it has the rights of this user";
        switch "accept-fault-injection",
            "Accept a child built with fault injection; never in production";
    }
    "Listening and access" {
        list "host" ADDRESS,
            "Addresses to listen at [default: 127.0.0.1 and ::1]";
        value "port" PORT = "8080",
            "TCP port; 0 picks a free one and logs it";
        value "api-key-file" FILE,
            "Bearer keys, one per line, required on every request except probes. Only this user may have access to the file";
        value "admin-key-file" FILE,
            "Keys that /shutdown, /restart and /crashes require then; they are valid everywhere else too";
        value "admin-socket" PATH,
            "Unix socket for the operator, without keys; /shutdown, /restart and /crashes are then served only there and to keys of --admin-key-file";
        value "tls-cert" FILE,
            "Serve HTTPS with this certificate chain in PEM format [default: HTTP]";
        value "tls-key" FILE,
            "Private key of the certificate in PEM format. Only this user may have access to the file";
        switch "insecure",
            "Allow listening on addresses beyond loopback without keys";
        list "allowed-hosts" NAME,
            "Additional names allowed in the Host header, or * [default on loopback: localhost and addresses; else any]";
        list "cors-origins" ORIGIN,
            "Origins allowed by CORS, such as https://app.example, or * [default: none]";
        value "max-body-size" BYTES = "4MiB",
            "Maximum size of a request body";
        value "max-bodies-size" BYTES = "32MiB",
            "Maximum size of all request bodies in memory; more get 429";
        value "max-connections" N = "1024",
            "Maximum number of connections, limited by file descriptors; idle ones are closed to make room";
        value "read-timeout" TIME = "15s",
            "Maximum time to receive a request's head, and again its body";
        value "write-timeout" TIME = "30s",
            "Maximum time without progress of a client that reads a response";
    }
    "Registration" {
        value "worker-id" UUID,
            "Identity of this worker [default: generated]";
        value "callback-url" URL,
            "http:// or https:// URL that gets a registration by POST once the model is ready";
        value "advertise-url" URL,
            "URL of this worker in the registration [default: the first address]";
    }
    "Requests" {
        value "max-tokens-in" N,
            "Longest prompt, in tokens [default: the model's context]";
        value "max-tokens-out" N,
            "Longest answer, in tokens [default: 2048 for /execute, else the model's context]";
        value "max-prompt-chars" N,
            "Longest prompt or message list, in characters [default: 32768 for /execute, else what fits the context]";
        switch "parse-special",
            "Tokenize special tokens in messages as such, as other servers do";
        switch "strict-model-name",
            "Refuse requests whose model is none of the served names";
        switch "no-model-sampling",
            "Ignore the sampling defaults in the model file (general.sampling.*)";
        value "tool-call-parser" SYNTAX,
            "Syntax of the model's tool calls: hermes, llama3, mistral, phi, harmony, qwen3_coder, gemma4 or none [default: detected from the chat template]";
        value "reasoning-parser" SYNTAX,
            "Syntax of the model's reasoning: think (<think>…</think>), harmony (gpt-oss's channels), gemma4 (Gemma 4's channel) or none [default: detected from the chat template]";
        value "reasoning-budget" N,
            "Maximum reasoning tokens of a request that sets no limit [default: unlimited]";
        value "pooling" HOW,
            "Pooling of embeddings: last, mean or cls [default: the model file's]";
        value "template-timeout" TIME = "3s",
            "Maximum processor time to render a chat template; the request is refused after that. On a busy machine the request may wait ten times as long";
        value "inference-timeout" TIME,
            "Maximum time of a request [default: unlimited]";
        value "max-queue" N = "256",
            "Maximum number of queued requests; more get 429. The last eighth is reserved for clients without a queued request";
    }
    "Deaths and endings" {
        value "on-fault" WHAT = "resume",
            "When a child dies, streams continue on the next one (resume) or end with an error (fail)";
        value "drain-timeout" TIME = "5s",
            "Time from SIGTERM until running requests are ended";
        value "heartbeat-timeout" TIME = "2s",
            "Maximum time between heartbeats of a child before it is replaced";
        value "step-timeout" TIME = "60s",
            "Maximum time of a child's step before it is replaced";
        value "load-timeout" TIME = "30s",
            "Maximum time without progress of a model load";
        value "max-restarts" N = "5",
            "Consecutive children that may die without delivering a token; one more ends the worker";
        value "max-restart-delay" TIME = "8s",
            "Maximum delay before a new child; the delay doubles with each death within a minute";
        switch "standby",
            "Keep a second child ready that shares the weights of the first and takes over when it dies; on a CUDA device each gets half of the KV cache";
        value "crash-dir" DIRECTORY,
            "Directory of crash reports [default: systemd's or the user's state directory]";
        value "max-crash-reports" N = "50",
            "Maximum number of crash reports; the oldest are deleted";
        value "quarantine-for" TIME = "10min",
            "Time for which a request that kills a child while it runs alone is refused";
    }
    "Log and trace" {
        value "trace-logits" FILE,
            "Write one JSON line per token to this file; needs a single device";
        value "trace-values" N = "16",
            "Logits written for each row of the trace";
        value "log-format" FORMAT = "auto",
            "json, text, or auto (text on a terminal)";
        value "log-level" LEVEL = "info",
            "error, warn, info, debug, trace or off; or by module, as in info,worker_orcd::http=trace";
    }
};

/// Not in the table: it is read before all other options.
pub const CONFIG_FILE: &str = "config";

pub const PREFIX: &str = "WORKER_ORCD_";

/// Variable of an option: `WORKER_ORCD_MAX_QUEUE` for `max-queue`.
#[must_use]
pub fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase().replace('-', "_"))
}

/// All options, in the order of `--help`.
pub fn all() -> impl Iterator<Item = &'static Spec> {
    GROUPS.iter().flat_map(|(_, options)| *options)
}

#[must_use]
pub fn spec(name: &str) -> Option<&'static Spec> {
    all().find(|spec| spec.name == name)
}
