//! Python and shell snippets of docs/guide/clients.md, run unchanged. Their output is checked by its form: there is
//! text, a call's arguments match the tool's schema, an object is of its class.
//!
//! The clients are in a virtual environment of their own, which `cargo xtask test` makes, and connect to the worker
//! only.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use worker_orcd_tests::gguf_patch::with_chat_template;
use worker_orcd_tests::model::{real_model, repository_root};
use worker_orcd_tests::snippets::{self, Snippet};
use worker_orcd_tests::{Script, Worker};

/// Whether a snippet printed the output that the page describes.
type Check = fn(&str) -> bool;

/// Snippets with the real model, which writes arbitrary text within its constraints.
const CLIENTS: [(&str, Check); 25] = [
    ("openai-chat", counted),
    ("openai-stream", counted),
    ("openai-tools", |out| {
        answered(out, "GetWeather(city='", "')")
    }),
    ("openai-structured", |out| rivers(out) == Some(1)),
    ("openai-responses", counted),
    (
        "openai-embeddings",
        |out| matches!(numbers(out)[..], [same, near, far] if (same - 1.0).abs() < 1e-5 && same > near && near > far),
    ),
    ("langchain-chat", whole_and_streamed),
    ("langchain-tools", |out| answered(out, "21 °C in ", "")),
    ("langchain-structured", |out| rivers(out) == Some(2)),
    ("langchain-embeddings", nearer_first),
    ("ollama-chat", whole_and_streamed),
    ("langchain-ollama-chat", whole_and_streamed),
    ("langchain-ollama-structured", |out| rivers(out) == Some(1)),
    ("langchain-ollama-embeddings", nearer_first),
    ("litellm-chat", whole_and_streamed),
    ("litellm-tools", |out| {
        out.lines().count() == 1 && called(out, WEATHER, "\"}")
    }),
    ("llm-prompt", |out| {
        let (text, object) = out.split_at(out.rfind('{').unwrap_or(0));
        let object: Option<Value> = serde_json::from_str(object).ok();
        let km = object.and_then(|it| it["km"].as_u64());
        !text.trim().is_empty() && km.is_some_and(|km| KM.contains(&km))
    }),
    ("instructor-structured", |out| rivers(out) == Some(2)),
    ("pydantic-ai-agent", |out| rivers(out) == Some(2)),
    ("pydantic-ai-stream", counted),
    ("llama-index-chat", whole_and_streamed),
    ("llama-index-structured", |out| rivers(out) == Some(1)),
    ("llama-index-embeddings", nearer_first),
    ("anthropic-messages", counted),
    ("anthropic-tools", |out| answered(out, WEATHER, "\"}")),
];

/// Snippets with a model that answers with reasoning, a text and a call of the first tool.
const WIRE_FORMATS: [(&str, Check); 2] = [
    ("codex-turn", |out| {
        let items = objects(out);
        let kinds: Vec<_> = items.iter().map(|it| it["type"].as_str()).collect();
        let expected = [
            Some("reasoning"),
            Some("message"),
            Some("function_call"),
            None,
        ];
        let [thought, message, call, usage] = &items[..] else {
            return false;
        };
        let tokens = |name: &str| usage[name].as_u64().unwrap_or(0);
        kinds == expected
            && thought["content"][0]["text"] == "Hm"
            && message["content"][0]["text"] == format!("{TURN} Exit code: 0\nOutput:\nREADME.md")
            && call["name"] == "shell_command"
            && call["call_id"].is_string()
            && call["arguments"].as_str().is_some_and(is_ls)
            && tokens("input_tokens") > 0
            && tokens("total_tokens") == tokens("input_tokens") + tokens("output_tokens")
    }),
    ("claude-code-turn", |out| {
        let told = objects(out);
        let [stop, thought, text, call] = &told[..] else {
            return false;
        };
        *stop == json!({"stop_reason": "tool_use"})
            && *thought == json!({"type": "thinking", "name": null, "whole": "Hm"})
            && *text
                == json!({"type": "text", "name": null, "whole": format!("{TURN} system README.md")})
            && (&call["type"], &call["name"]) == (&json!("tool_use"), &json!("Bash"))
            && call["whole"].as_str().is_some_and(is_ls)
    }),
];

/// Template with tools and Hermes's markup of calls.
const WITH_TOOLS: &str = "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}\nCall with <tool_call>.\
                          <|im_end|>\n{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n\
                          {{ message.content }}{% for call in message.tool_calls %}<tool_call>\
                          {{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
                          <|im_start|>assistant\n";

/// Text that the scripted model repeats: roles so far, and the result of the last call.
const ANSWERING: &str = "{% if false %}{{ message.tool_calls }}{% endif %}<think>\nHm\n</think>\n\n\
                         {% for message in messages %}{{ message.role }} {% endfor %}{{ messages[3].content }}\n\
                         <tool_call>\n{\"name\": \"{{ tools[0].function.name }}\", \"arguments\": {\"command\": \"ls\"}}\
                         \n</tool_call><|end|>";

/// Roles before the result of a call, and the result.
const TURN: &str = "system user assistant tool";

const WEATHER: &str = "get_weather {\"city\": \"";
const KM: std::ops::RangeInclusive<u64> = 1..=9999;

/// Token limits of the snippets.
const TOKENS: std::ops::RangeInclusive<u32> = 1..=60;

#[test]
fn each_snippet_of_the_page_has_a_check_and_each_check_a_snippet() {
    let on_page = on_page().into_iter().map(|(_, snippet)| snippet.name);
    let on_page: Vec<String> = on_page.collect();
    let checks = CLIENTS.iter().chain(&WIRE_FORMATS);
    let checked = checks.map(|(name, _)| (*name).to_owned());
    let checked: Vec<String> = checked.collect();
    let count = on_page.len();
    assert_eq!(count, checked.len(), "{on_page:?}");
    let (on_page, checked) = (BTreeSet::from_iter(on_page), BTreeSet::from_iter(checked));
    assert_eq!(on_page, checked);
    assert_eq!(on_page.len(), count, "a name is there twice");
}

#[test]
fn python_s_clients_talk_call_tools_hold_forms_and_embed() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let model = folder.path().join("tools.gguf");
    with_chat_template(&real_model(), WITH_TOOLS, &model).expect("the model is there");
    let worker = Worker::with_model(&model)
        .arg("--served-model-name", "MODEL")
        .arg("--pooling", "mean")
        .start();
    Ground::new(worker.client().address).insist(CLIENTS.to_vec());
}

#[test]
fn codex_and_claude_code_are_answered_in_their_own_words() {
    let script = Script::behave().chat_template(ANSWERING.to_owned());
    let worker = Worker::scripted(script)
        .arg("--served-model-name", "MODEL")
        .start();
    Ground::new(worker.client().address).insist(WIRE_FORMATS.to_vec());
}

/// Snippets with their languages.
fn on_page() -> Vec<(&'static str, Snippet)> {
    let of = |language| {
        snippets::of_page(language)
            .into_iter()
            .map(move |it| (language, it))
    };
    ["python", "sh"].into_iter().flat_map(of).collect()
}

/// Environment of the snippets: a worker, a home for clients' files, and a proxy that detects connections to any other
/// host.
struct Ground {
    worker: SocketAddr,
    home: TempDir,
    proxy: TcpListener,
}

impl Ground {
    fn new(worker: SocketAddr) -> Self {
        let proxy = TcpListener::bind("127.0.0.1:0").expect("a free port");
        proxy.set_nonblocking(true).expect("a socket of ours");
        let home = tempfile::tempdir().expect("a temporary directory");
        Self {
            worker,
            home,
            proxy,
        }
    }

    /// Runs the snippets of these names by `run_snippets.py`, and checks what they print.
    fn insist(&self, checks: Vec<(&str, Check)>) {
        let page = on_page();
        let paths = checks.iter().map(|(name, _)| self.write(&page, name));
        let paths: Vec<_> = paths.collect();
        let mut command = Command::new(environment().join("bin/python"));
        command.arg(repository_root().join("tests/clients/run_snippets.py"));
        self.prepare(command.args(&paths));
        let output = command.output().expect("Python starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", output.status);
        let ended = String::from_utf8_lossy(&output.stdout);
        print!("{ended}");
        let mut failures = Vec::new();
        for ((name, check), path) in checks.iter().zip(&paths) {
            let printed = |to: &str| fs::read_to_string(format!("{path}.{to}"));
            let [out, err] = ["out", "err"].map(|to| printed(to).unwrap_or_default());
            let is_well = ended.contains(&format!("{path} 0 "));
            if !is_well || !check(&out) {
                failures.push(format!("{name}: {out}\n{err}"));
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n\n"));
        let caller = self.proxy.accept().map_err(|error| error.kind());
        assert!(
            matches!(caller, Err(ErrorKind::WouldBlock)),
            "a client wanted to speak with somebody else"
        );
    }

    /// Writes the snippet of this name to a file. Returns its path.
    fn write(&self, page: &[(&str, Snippet)], name: &str) -> String {
        let found = page.iter().find(|(_, snippet)| snippet.name == name);
        let (language, snippet) = found.unwrap_or_else(|| panic!("{name} is not on the page"));
        let worker = self.worker.to_string();
        let path = self.home.path().join(format!("{name}.{language}"));
        fs::write(&path, snippet.code.replace("localhost:8080", &worker)).expect("ours");
        path.display().to_string()
    }

    /// Variables of the page, and those that keep a client away from other hosts.
    fn prepare(&self, command: &mut Command) {
        let home = self.home.path();
        let proxy = format!("http://{}", self.proxy.local_addr().expect("it is bound"));
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env_clear()
            .env(
                "PATH",
                format!("{}:{path}", environment().join("bin").display()),
            )
            .env("HOME", home)
            .env("OPENAI_BASE_URL", format!("http://{}/v1", self.worker))
            .env("OPENAI_API_KEY", "any")
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .env("LLM_USER_PATH", home)
            .current_dir(home)
            .env("PYTHONUTF8", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NO_PROXY", "127.0.0.1");
        for scheme in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env(scheme, &proxy);
        }
    }
}

fn environment() -> PathBuf {
    let folder = repository_root().join(".venv-clients");
    let is_there = Path::is_file(&folder.join("bin/python"));
    assert!(
        is_there,
        "no clients at {}: run `cargo xtask test` once",
        folder.display()
    );
    folder
}

/// Text, and then the number of its tokens.
fn counted(out: &str) -> bool {
    let Some((text, count)) = out.trim_end().rsplit_once('\n') else {
        return false;
    };
    let count = count.strip_suffix(" tokens").and_then(|it| it.parse().ok());
    !text.trim().is_empty() && count.is_some_and(|count| TOKENS.contains(&count))
}

fn whole_and_streamed(out: &str) -> bool {
    let parts = out.split_once("\nStreamed:\n");
    parts.is_some_and(|(whole, streamed)| !whole.trim().is_empty() && !streamed.trim().is_empty())
}

/// The first line contains a call with a city of the tool.
fn called(out: &str, before: &str, behind: &str) -> bool {
    let first = out.lines().next().unwrap_or_default();
    let inside = first.strip_prefix(before);
    let city = inside.and_then(|it| it.strip_suffix(behind));
    matches!(city, Some("Paris" | "Oslo"))
}

/// A call, and the model's answer to its result.
fn answered(out: &str, before: &str, behind: &str) -> bool {
    let said = out.split_once('\n').map(|(_, said)| said.trim());
    called(out, before, behind) && said.is_some_and(|said| !said.is_empty())
}

/// Number of printed objects of the class. `None` for any other output, or for an object with an invalid value.
fn rivers(out: &str) -> Option<usize> {
    let is_river = |line: &str| {
        let parts = line.strip_prefix("River(name=")?.strip_suffix(')')?;
        let (rest, km) = parts.rsplit_once(", km=")?;
        let (_, kind) = rest.rsplit_once(", kind=")?;
        let is_right = ["'river'", "'stream'"].contains(&kind) && KM.contains(&km.parse().ok()?);
        is_right.then_some(())
    };
    let found: Option<Vec<()>> = out.lines().map(is_river).collect();
    found.map(|all| all.len())
}

fn numbers(out: &str) -> Vec<f64> {
    let words = out.split_whitespace();
    words.map(|it| it.parse().unwrap_or(f64::NAN)).collect()
}

/// Two cosines: of a text about the same thing, and of another.
fn nearer_first(out: &str) -> bool {
    matches!(numbers(out)[..], [near, far] if near < 1.0 && near > far)
}

fn objects(out: &str) -> Vec<Value> {
    let values = out.lines().map(serde_json::from_str);
    values.collect::<Result<_, _>>().unwrap_or_default()
}

fn is_ls(arguments: &str) -> bool {
    serde_json::from_str::<Value>(arguments).is_ok_and(|it| it == json!({"command": "ls"}))
}
